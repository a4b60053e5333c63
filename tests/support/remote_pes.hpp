// PEs of one process that reach each other over a remote transport, with memory of their own.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "support/bootstrap_ranks.hpp"
#include "transport/remote.hpp"

namespace mori::shmem::testing {

/// A network of one process, as the conformance suite uses it.
class RemoteNetwork {
 public:
  virtual ~RemoteNetwork() = default;
  virtual std::unique_ptr<RemoteTransport> Join(RemoteParts parts) = 0;
  /// The PE dies as a process would: its end of the network closes. Its transport is then destroyed
  /// by whoever owns it.
  virtual void Lose(int pe) = 0;
  /// What the PEs' memory is reached by; null where it is the CPU's.
  virtual RegionAccess* access() { return nullptr; }
};
using MakeRemoteNetwork = std::function<std::unique_ptr<RemoteNetwork>(int n_pes)>;

class RemotePe {
 public:
  static constexpr std::size_t kBytes = std::size_t{8} << 20;

  explicit RemotePe(int self, int n_pes) : self_(self), n_pes_(n_pes) {
    void* memory =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    EXPECT_NE(memory, MAP_FAILED);
    memory_ = static_cast<std::uint8_t*>(memory);
  }
  RemotePe(const RemotePe&) = delete;
  ~RemotePe() {
    Leave();
    ::munmap(memory_, kBytes);
  }

  void Join(RemoteNetwork* network) {
    RemoteParts parts;
    parts.self = self_;
    parts.n_pes = n_pes_;
    parts.on_loss = [this](int pe, const std::string& why) {
      const std::lock_guard lock(mutex_);
      losses_.emplace_back(pe, why);
    };
    parts.keeps_waiting = [this](std::chrono::milliseconds) {
      ++asked;
      const std::lock_guard lock(mutex_);
      return verdict_;
    };
    transport_ = network->Join(std::move(parts));
    ASSERT_NE(transport_, nullptr);
    RegionAccess* const access = network->access();
    auto registered = access == nullptr ? transport_->Register(memory_, kBytes)
                                        : transport_->RegisterThrough(access, memory_, kBytes);
    ASSERT_TRUE(registered.ok()) << registered.status().message();
    registration_ = std::move(*registered);
  }
  void Leave() {
    registration_.reset();
    transport_.reset();
  }

  RemoteTransport* transport() const { return transport_.get(); }
  Channel& channel() const { return transport_->channel(); }
  std::uint8_t* memory(std::size_t offset = 0) const { return memory_ + offset; }
  template <typename T>
  std::atomic_ref<T> word(std::size_t offset) const {
    return std::atomic_ref<T>(*reinterpret_cast<T*>(memory_ + offset));
  }
  RemotePlace place(std::size_t offset = 0) const {
    const RemotePlace start = registration_->place();
    return {start.address + offset, start.key};
  }

  std::vector<std::pair<int, std::string>> losses() const {
    const std::lock_guard lock(mutex_);
    return losses_;
  }
  /// What `keeps_waiting` answers from now on.
  void SetVerdict(const Status& verdict) {
    const std::lock_guard lock(mutex_);
    verdict_ = verdict;
  }

  std::atomic<int> asked{0};  ///< how often a wait asked whether it may go on

 private:
  int self_;
  int n_pes_;
  std::uint8_t* memory_ = nullptr;
  std::unique_ptr<RemoteTransport> transport_;
  std::unique_ptr<Registration> registration_;
  mutable std::mutex mutex_;
  std::vector<std::pair<int, std::string>> losses_;
  Status verdict_;
};

/// `n_pes` of them, connected to each other.
class RemotePes {
 public:
  RemotePes(std::unique_ptr<RemoteNetwork> network, int n_pes) : network_(std::move(network)) {
    for (int pe = 0; pe < n_pes; ++pe) {
      pes_.push_back(std::make_unique<RemotePe>(pe, n_pes));
      pes_.back()->Join(network_.get());
    }
    std::vector<Bytes> addresses;
    for (const auto& pe : pes_) addresses.push_back(pe->transport()->Address());
    for (const auto& pe : pes_) {
      const Status connected = pe->transport()->Connect(addresses, TestLimit());
      EXPECT_TRUE(connected.ok()) << connected.message();
    }
  }

  RemotePe& operator[](int pe) { return *pes_[static_cast<std::size_t>(pe)]; }
  int size() const { return static_cast<int>(pes_.size()); }
  RemoteNetwork& network() { return *network_; }
  void Lose(int pe) {
    network_->Lose(pe);
    (*this)[pe].Leave();
  }

 private:
  std::unique_ptr<RemoteNetwork> network_;
  std::vector<std::unique_ptr<RemotePe>> pes_;
};

}  // namespace mori::shmem::testing
