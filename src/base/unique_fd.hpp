// Owner of a file descriptor.
#pragma once

#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace mori::shmem {

/// Owns one descriptor and closes it. Empty is -1. Move-only.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), era_(std::exchange(other.era_, 0)) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this == &other) return *this;
    Reset();
    fd_ = std::exchange(other.fd_, -1);
    era_ = std::exchange(other.era_, 0);
    return *this;
  }
  ~UniqueFd() { Reset(); }

  /// A descriptor that no forked child has, from its very creation: fork closes it there, and an
  /// owner that the child inherited closes nothing. For connections: a child that kept one would
  /// hide the death of its parent. `open` makes the descriptor, or returns -1 and sets errno; it
  /// must not block, since no fork goes on meanwhile. Thread-safe.
  template <typename Open>
  static UniqueFd KeptFromChildren(Open open) {
    UniqueFd made;
    const std::uint32_t era = LockForks();
    made.fd_ = open();
    made.era_ = UnlockForks({&made.fd_, 1}) ? era : 0;
    return made;
  }
  /// The same for any number: `open` returns how many it has put into the array, `kMost` at most.
  template <std::size_t kMost, typename Open>
  static std::vector<UniqueFd> AllKeptFromChildren(Open open) {
    std::array<int, kMost> fds;
    const std::uint32_t era = LockForks();
    const std::size_t count = open(fds);
    const bool is_noted = UnlockForks({fds.data(), count});
    std::vector<UniqueFd> made(count);
    for (std::size_t i = 0; i < count; ++i) {
      made[i].fd_ = fds[i];
      made[i].era_ = is_noted ? era : 0;
    }
    return made;
  }

  /// Registers what happens at a fork, if that was not done yet. Handlers that take locks under
  /// which descriptors are made or closed are registered behind this.
  static void WatchForks();

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  /// The descriptor is the caller's from now on, and forked children have it.
  int Release() {
    if (era_ != 0) Forget(std::exchange(era_, 0), fd_, /*close=*/false);
    return std::exchange(fd_, -1);
  }
  void Reset(int fd = -1) {
    if (era_ != 0) {
      Forget(std::exchange(era_, 0), fd_, /*close=*/true);
    } else if (fd_ >= 0) {
      ::close(fd_);
    }
    fd_ = fd;
  }

 private:
  /// Keeps forks away. @return the number of this process among those that forked from each other
  static std::uint32_t LockForks();
  /// Notes all but -1. @return whether there was any; errno stays what it was
  static bool UnlockForks(std::span<const int> fds);
  static void Forget(std::uint32_t era, int fd, bool close);

  int fd_ = -1;
  std::uint32_t era_ = 0;  ///< of `KeptFromChildren()`: the process that made it; 0 for others
};

}  // namespace mori::shmem
