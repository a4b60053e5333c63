// A range of addresses for all heaps, where memory is mapped as it comes.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "heap/symmetric_space.hpp"

namespace mori::shmem {

/// Every heap starts at a multiple of a power of two no less than its size.
class MappedSpace final : public SymmetricSpace {
 public:
  static Result<std::unique_ptr<SymmetricSpace>> Reserve(const SpaceParts& parts,
                                                         std::uint64_t bytes);
  ~MappedSpace() override { remote_.reset(); }  // before the memory

  Status Add(const std::vector<Piece>& pieces, HeapType type, const Deadline& deadline) override;
  Status Remove(const std::vector<Piece>& pieces) override;
  std::uint64_t alignment() const override { return stride_; }
  std::shared_ptr<const void> Retain(const void* address) const override;

 private:
  MappedSpace(const SpaceParts& parts, std::shared_ptr<AddressRange> range, std::uint64_t stride)
      : SymmetricSpace(parts), range_(std::move(range)), stride_(stride) {}

  Status AddInBatches(std::span<const Piece> pieces, HeapType type, const Deadline& deadline);
  Status Make(std::span<const Piece> pieces, HeapType type,
              std::vector<std::unique_ptr<DeviceMemory>>* made) const;
  Status Map(std::span<const Piece> pieces, std::span<const std::unique_ptr<DeviceMemory>> mine,
             const std::vector<Transport::Memories>& theirs);
  std::uint64_t OffsetInRange(std::size_t pe, const Piece& piece) const;

  std::shared_ptr<AddressRange> range_;
  std::uint64_t stride_;  ///< from heap to heap
};

}  // namespace mori::shmem
