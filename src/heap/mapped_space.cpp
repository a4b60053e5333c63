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

Status NoAddresses(std::size_t heaps, std::uint64_t bytes, std::string_view reason) {
  return Error(ErrorCode::kOutOfMemory,
               "no addresses for {} heaps that grow to {} each, which take up a power of two: {}; "
               "MORI_SHMEM_HEAP_SIZE sets what a heap grows to, and ulimit -v may limit addresses",
               heaps, FormatByteSize(bytes), reason);
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
  // Half of all addresses is more than any machine has, and what follows does not overflow.
  const std::uint64_t stride = bytes <= UINT64_MAX / 4 ? std::bit_ceil(bytes) : 0;
  if (stride == 0 || stride > UINT64_MAX / 4 / reached.size())
    return NoAddresses(reached.size(), bytes, "an address has 64 bits");
  auto reserved = parts.runtime->Reserve(reached.size() * stride, stride);
  if (!reserved.ok()) return NoAddresses(reached.size(), bytes, reserved.status().message());
  std::shared_ptr<AddressRange> range = std::move(*reserved);
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

Status MappedSpace::Make(std::span<const Piece> pieces, HeapType type,
                         std::vector<std::unique_ptr<DeviceMemory>>* made) const {
  for (const Piece& piece : pieces) {
    MORI_ASSIGN_OR_RETURN(auto memory, parts_.runtime->Allocate(piece.bytes, type));
    made->push_back(std::move(memory));
  }
  return Status();
}

/// Memory is a descriptor of its PE until it is mapped, and one of every other PE while it is
/// exchanged: a few pieces at a time come all the way, so that no number of them meets the limit of
/// descriptors. PEs agree before each exchange that nobody has failed, and once more at the end;
/// whoever fails in an exchange stays in step with the others.
Status MappedSpace::Add(const std::vector<Piece>& pieces, HeapType type, const Deadline& deadline) {
  if (pieces.empty()) return Status();
  const Status added = AddInBatches(pieces, type, deadline);
  if (!added.ok()) static_cast<void>(Remove(pieces));
  return added;
}

Status MappedSpace::AddInBatches(std::span<const Piece> pieces, HeapType type,
                                 const Deadline& deadline) {
  const std::size_t batch = std::max<std::size_t>(1, kDescriptorsAtATime / bases_.size());
  Status outcome;
  for (std::size_t done = 0; done < pieces.size(); done += batch) {
    const auto these = pieces.subspan(done, std::min(batch, pieces.size() - done));
    std::vector<std::unique_ptr<DeviceMemory>> mine;
    if (outcome.ok()) outcome = Make(these, type, &mine);
    FaultPoint("heap: memory made");
    MORI_RETURN_IF_ERROR(parts_.agree(outcome));
    const auto theirs = parts_.transport->Share(mine, deadline);
    if (!theirs.ok() && IsFatal(theirs.status())) return theirs.status();
    outcome = theirs.ok() ? Map(these, mine, *theirs) : theirs.status();
  }  // the mapping keeps the memory
  FaultPoint("heap: memory mapped");
  if (remote_ != nullptr) {
    MORI_RETURN_IF_ERROR(parts_.agree(outcome));
    outcome = remote_->Add(base(), pieces);
    if (IsFatal(outcome)) return outcome;
  }
  return parts_.agree(outcome);
}

Status MappedSpace::Remove(const std::vector<Piece>& pieces) {
  Status outcome;
  if (remote_ != nullptr) remote_->Remove(pieces);
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
