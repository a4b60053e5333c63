#include "transport/transport.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "bootstrap/in_process_bootstrap.hpp"
#include "runtime/host/host_runtime.hpp"
#include "support/bootstrap_ranks.hpp"

namespace mori::shmem {
namespace {

using testing::InThreads;
using testing::TestLimit;

TEST(P2pTransport, SharesMemoryByPeOfTheWorld) {
  // Three PEs of a node whose numbers in the world are 1, 4 and 5.
  const std::vector<int> node_pes{1, 4, 5};
  HostRuntime runtime;
  const std::uint64_t bytes = runtime.GranularityBytes();
  const auto ends = InProcessBootstrap::MakeAll(3);
  auto listener = FdListener::Open();
  ASSERT_TRUE(listener.ok());
  const FdListener::Token token = listener->token();
  InThreads(3, [&](int index) {
    auto exchange =
        FdExchange::Connect(ends[static_cast<std::size_t>(index)].get(), index, 3,
                            index == 0 ? std::move(*listener) : FdListener(), token, TestLimit());
    ASSERT_TRUE(exchange.ok()) << exchange.status().message();
    const int self = node_pes[static_cast<std::size_t>(index)];
    const auto transport = MakeP2pTransport(&runtime, exchange->get(), node_pes, self, 6);
    EXPECT_EQ(transport->name(), "p2p");
    auto mine = runtime.Allocate(bytes, HeapType::kNormal);
    ASSERT_TRUE(mine.ok());
    auto range = runtime.Reserve(bytes, bytes);
    ASSERT_TRUE(range.ok() && (*range)->Map(0, **mine).ok());
    (*range)->base()[0] = static_cast<std::byte>(self);
    auto peers = transport->Share(std::span(&*mine, 1), TestLimit());
    ASSERT_TRUE(peers.ok()) << peers.status().message();
    ASSERT_EQ(peers->size(), 6u);
    for (int pe = 0; pe < 6; ++pe) {
      const auto& memories = (*peers)[static_cast<std::size_t>(pe)];
      const bool is_peer = pe != self && std::ranges::count(node_pes, pe) == 1;
      ASSERT_EQ(memories.size(), is_peer ? 1u : 0u) << "PE " << pe << " on PE " << self;
      if (!is_peer) continue;
      const auto& memory = memories[0];
      auto view = runtime.Reserve(bytes, bytes);
      ASSERT_TRUE(view.ok() && (*view)->Map(0, *memory).ok());
      EXPECT_EQ((*view)->base()[0], static_cast<std::byte>(pe));
    }
  });
}

TEST(P2pTransport, MemoryOfAnotherSizeIsRefused) {
  HostRuntime runtime;
  const std::uint64_t page = runtime.GranularityBytes();
  const auto ends = InProcessBootstrap::MakeAll(2);
  auto listener = FdListener::Open();
  ASSERT_TRUE(listener.ok());
  const FdListener::Token token = listener->token();
  InThreads(2, [&](int index) {
    auto exchange =
        FdExchange::Connect(ends[static_cast<std::size_t>(index)].get(), index, 2,
                            index == 0 ? std::move(*listener) : FdListener(), token, TestLimit());
    ASSERT_TRUE(exchange.ok()) << exchange.status().message();
    const auto transport = MakeP2pTransport(&runtime, exchange->get(), {0, 1}, index, 2);
    const std::uint64_t mine = index == 0 ? page : 2 * page, theirs = 3 * page - mine;
    const auto memory = runtime.Allocate(mine, HeapType::kNormal);
    ASSERT_TRUE(memory.ok());
    const auto peers = transport->Share(std::span(&*memory, 1), TestLimit());
    EXPECT_EQ(peers.status().code(), ErrorCode::kMismatch);
    EXPECT_EQ(
        peers.status().message(),
        fmt::format("a peer sent heap memory of {} bytes where {} were agreed", theirs, mine));
  });
}

TEST(P2pTransport, AloneSharesWithNobody) {
  HostRuntime runtime;
  const auto ends = InProcessBootstrap::MakeAll(1);
  auto exchange = FdExchange::Connect(ends[0].get(), 0, 1, FdListener(), {}, TestLimit());
  ASSERT_TRUE(exchange.ok());
  const auto memory = runtime.Allocate(runtime.GranularityBytes(), HeapType::kNormal);
  ASSERT_TRUE(memory.ok());
  const auto peers = MakeP2pTransport(&runtime, exchange->get(), {0}, 0, 1)
                         ->Share(std::span(&*memory, 1), TestLimit());
  ASSERT_TRUE(peers.ok());
  ASSERT_EQ(peers->size(), 1u);
  EXPECT_TRUE(peers->front().empty());
}

}  // namespace
}  // namespace mori::shmem
