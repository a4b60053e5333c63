#include "heap/mapped_space.hpp"

#include <algorithm>
#include <bit>

#include "base/fault_point.hpp"

namespace mori::shmem {
namespace {

constexpr std::size_t kDescriptorsAtATime = 128;

void KeepFirst(Status* first, Status status) {
  if (first->ok()) *first = std::move(status);
}

}  // namespace

Result<std::unique_ptr<SymmetricSpace>> MappedSpace::Reserve(const SpaceParts& parts,
                                                             std::uint64_t bytes) {
  std::vector<std::size_t> reached;
  for (int pe = 0; pe < parts.world_size; ++pe) {
    if (pe == parts.pe || parts.transport->Reaches(pe)) {
      reached.push_back(static_cast<std::size_t>(pe));
    }
  }
  const std::uint64_t stride = std::bit_ceil(bytes);
  if (stride == 0 || stride > UINT64_MAX / 2 / reached.size()) {
    return Error(ErrorCode::kOutOfMemory, "{} heaps of {} do not fit into an address space",
                 reached.size(), FormatByteSize(bytes));
  }
  MORI_ASSIGN_OR_RETURN(std::shared_ptr<AddressRange> range,
                        parts.runtime->Reserve(reached.size() * stride, stride));
  std::unique_ptr<MappedSpace> space(new MappedSpace(parts, std::move(range), stride));
  for (std::size_t i = 0; i < reached.size(); ++i) {
    space->bases_[reached[i]] = space->range_->base() + i * stride;
  }
  return std::unique_ptr<SymmetricSpace>(std::move(space));
}

std::uint64_t MappedSpace::OffsetInRange(std::size_t pe, const Piece& piece) const {
  return static_cast<std::uint64_t>(bases_[pe] - range_->base()) + piece.offset;
}

Status MappedSpace::Map(std::span<const Piece> pieces,
                        std::span<const std::unique_ptr<DeviceMemory>> mine,
                        const std::vector<Transport::Memories>& theirs) {
  for (std::size_t pe = 0; pe < bases_.size(); ++pe) {
    if (bases_[pe] == nullptr) continue;
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      const DeviceMemory& memory = pe == pe_ ? *mine[i] : *theirs[pe][i];
      MORI_RETURN_IF_ERROR(range_->Map(OffsetInRange(pe, pieces[i]), memory));
    }
  }
  return Status();
}

Status MappedSpace::Add(const std::vector<Piece>& pieces, HeapType type, const Deadline& deadline) {
  if (pieces.empty()) return Status();
  Status outcome;
  std::vector<std::unique_ptr<DeviceMemory>> mine;
  for (const Piece& piece : pieces) {
    auto made = parts_.runtime->Allocate(piece.bytes, type);
    if (!made.ok()) {
      outcome = made.status();
      break;
    }
    mine.push_back(std::move(*made));
  }
  FaultPoint("heap: memory made");
  MORI_RETURN_IF_ERROR(parts_.agree(outcome));

  // Whoever fails goes on exchanging with the others, so that all are in step at the end. A PE
  // holds a descriptor for each piece of every PE for a moment: not too many at a time.
  const std::size_t batch = std::max<std::size_t>(1, kDescriptorsAtATime / bases_.size());
  for (std::size_t done = 0; done < pieces.size(); done += batch) {
    const std::size_t count = std::min(batch, pieces.size() - done);
    const std::span these(mine.begin() + static_cast<std::ptrdiff_t>(done), count);
    auto theirs = parts_.transport->Share(these, deadline);
    if (!theirs.ok() && IsFatal(theirs.status())) {
      static_cast<void>(Remove(pieces));
      return theirs.status();
    }
    if (outcome.ok()) {
      outcome = theirs.ok() ? Map(std::span(pieces).subspan(done, count), these, *theirs)
                            : theirs.status();
    }
    for (auto& memory : these) memory.reset();  // the mapping keeps the memory
  }
  FaultPoint("heap: memory mapped");
  Status agreed = parts_.agree(outcome);
  if (!agreed.ok()) static_cast<void>(Remove(pieces));
  return agreed;
}

Status MappedSpace::Remove(const std::vector<Piece>& pieces) {
  Status outcome;
  const bool has_views = range_.use_count() > 1;
  for (const Piece& piece : pieces) {
    for (std::size_t pe = 0; pe < bases_.size(); ++pe) {
      if (bases_[pe] == nullptr) continue;
      KeepFirst(&outcome, range_->Unmap(OffsetInRange(pe, piece), piece.bytes, has_views));
    }
  }
  return outcome;
}

std::shared_ptr<const void> MappedSpace::Retain(const void* address) const {
  const std::uint64_t offset =
      reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(range_->base());
  if (offset >= range_->bytes()) return nullptr;
  return range_;
}

}  // namespace mori::shmem
