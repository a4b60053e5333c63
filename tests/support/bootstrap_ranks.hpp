// Ranks of a bootstrap as threads of the test, on the loopback only.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/rendezvous.hpp"
#include "bootstrap/socket_bootstrap.hpp"
#include "bootstrap/unique_id.hpp"

namespace mori::shmem::testing {

/// Far more than anything here takes: ends a test that would hang.
inline Deadline TestLimit() { return Deadline::After(std::chrono::seconds(30)); }

inline IpAddress Address(const std::string& text) {
  IpAddress address;
  address.family = text.find(':') == std::string::npos ? AF_INET : AF_INET6;
  EXPECT_EQ(::inet_pton(address.family, text.c_str(), address.bytes.data()), 1) << text;
  return address;
}
inline IpAddress Loopback() { return Address("127.0.0.1"); }

/// Calls `condition` until it holds. @return false if it does not within the test's limit.
inline bool Eventually(const std::function<bool()>& condition) {
  for (const Deadline limit = TestLimit(); !limit.Expired();) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

/// Runs `body` with 0 to `count` - 1, each in a thread of its own, and waits for all.
inline void InThreads(int count, const std::function<void(int)>& body) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(body, i);
  for (auto& thread : threads) thread.join();
}

inline Result<std::unique_ptr<RendezvousServer>> StartRendezvous() {
  return RendezvousServer::Start({Loopback()});
}

inline SocketBootstrap::Options RankOptions(int rank, int size) {
  SocketBootstrap::Options options;
  options.rank = rank;
  options.size = size;
  options.version = "1.2.3";
  options.host = "host" + std::to_string(rank);
  options.node = "node";
  options.listen_addresses = {Loopback()};
  options.budget = std::chrono::seconds(30);
  return options;
}

using Joined = Result<std::unique_ptr<SocketBootstrap>>;

inline Joined Join(const UniqueId& id, const SocketBootstrap::Options& options) {
  MORI_ASSIGN_OR_RETURN(const Rendezvous rendezvous, DecodeUniqueId(id));
  return SocketBootstrap::Connect(rendezvous, options);
}

/// What became of each of `ranks`, which all come at once.
inline std::vector<Joined> JoinAll(const UniqueId& id,
                                   const std::vector<SocketBootstrap::Options>& ranks) {
  std::vector<Joined> joined;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    joined.emplace_back(Status(ErrorCode::kInternal, "did not return"));
  InThreads(static_cast<int>(ranks.size()), [&](int i) {
    const auto index = static_cast<std::size_t>(i);
    joined[index] = Join(id, ranks[index]);
  });
  return joined;
}

}  // namespace mori::shmem::testing
