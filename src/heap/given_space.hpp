// One piece of memory a PE, at addresses that the device chose.
#pragma once

#include <memory>
#include <vector>

#include "heap/symmetric_space.hpp"

namespace mori::shmem {

/// Memory is added once, all of it; it goes with the space.
class GivenSpace final : public SymmetricSpace {
 public:
  GivenSpace(const SpaceParts& parts, std::uint64_t bytes)
      : SymmetricSpace(parts), bytes_(bytes), memories_(bases_.size()) {}
  ~GivenSpace() override { remote_.reset(); }  // before the memory

  /// @return also kUnsupported for anything but one piece of all bytes; kSystem if the device gave
  ///   an address that is not aligned to its granularity
  Status Add(const std::vector<Piece>& pieces, HeapType type, const Deadline& deadline) override;
  Status Remove(const std::vector<Piece>& pieces) override;
  void ReleasePeers() override;
  std::uint64_t alignment() const override { return parts_.runtime->GranularityBytes(); }
  std::shared_ptr<const void> Retain(const void* address) const override;

 private:
  Status Keep(std::unique_ptr<DeviceMemory> mine, std::vector<Transport::Memories> theirs);
  void Drop(std::size_t pe);

  std::uint64_t bytes_;
  std::vector<std::shared_ptr<DeviceMemory>> memories_;  ///< by PE, null where not reached
};

}  // namespace mori::shmem
