#include "heap/given_space.hpp"

#include <array>

#include "base/fault_point.hpp"

namespace mori::shmem {

Status GivenSpace::Add(const std::vector<Piece>& pieces, HeapType type, const Deadline& deadline) {
  if (pieces.empty()) return Status();
  if (pieces != std::vector<Piece>{{0, bytes_}} || base() != nullptr) {
    return Error(ErrorCode::kUnsupported, "memory at given addresses cannot come in pieces");
  }
  auto made = parts_.runtime->Allocate(bytes_, type);
  FaultPoint("heap: memory made");
  MORI_RETURN_IF_ERROR(parts_.agree(made.status()));
  std::array<std::unique_ptr<DeviceMemory>, 1> mine{std::move(*made)};
  auto theirs = parts_.transport->Share(mine, deadline);
  if (!theirs.ok() && IsFatal(theirs.status())) return theirs.status();
  Status kept = theirs.ok() ? Keep(std::move(mine[0]), std::move(*theirs)) : theirs.status();
  FaultPoint("heap: memory mapped");
  if (remote_ != nullptr) {
    const Status all_kept = parts_.agree(kept);
    if (all_kept.ok()) kept = remote_->Add(base(), pieces);
    if (IsFatal(kept)) return kept;
  }
  Status agreed = parts_.agree(kept);
  if (!agreed.ok()) {
    if (remote_ != nullptr) remote_->Remove(pieces);
    for (std::size_t pe = 0; pe < bases_.size(); ++pe) Drop(pe);
  }
  return agreed;
}

Status GivenSpace::Keep(std::unique_ptr<DeviceMemory> mine,
                        std::vector<Transport::Memories> theirs) {
  for (std::size_t pe = 0; pe < bases_.size(); ++pe) {
    if (pe == pe_) {
      memories_[pe] = std::move(mine);
    } else if (!theirs[pe].empty()) {
      memories_[pe] = std::move(theirs[pe].front());
    } else {
      continue;
    }
    bases_[pe] = memories_[pe]->address();
    if (reinterpret_cast<std::uintptr_t>(bases_[pe]) % alignment() != 0) {
      return Error(ErrorCode::kSystem,
                   "the device gave the memory of PE {} the address {}, which "
                   "is no multiple of {}",
                   pe, static_cast<const void*>(bases_[pe]), FormatByteSize(alignment()));
    }
  }
  return Status();
}

void GivenSpace::Drop(std::size_t pe) {
  bases_[pe] = nullptr;
  memories_[pe].reset();
}

Status GivenSpace::Remove(const std::vector<Piece>&) {
  return Error(ErrorCode::kUnsupported, "memory at given addresses goes with its heap");
}

void GivenSpace::ReleasePeers() {
  for (std::size_t pe = 0; pe < bases_.size(); ++pe) {
    if (pe != pe_) Drop(pe);
  }
}

std::shared_ptr<const void> GivenSpace::Retain(const void* address) const {
  for (std::size_t pe = 0; pe < bases_.size(); ++pe) {
    const auto offset =
        reinterpret_cast<std::uintptr_t>(address) - reinterpret_cast<std::uintptr_t>(bases_[pe]);
    if (bases_[pe] != nullptr && offset < bytes_) return memories_[pe];
  }
  return nullptr;
}

}  // namespace mori::shmem
