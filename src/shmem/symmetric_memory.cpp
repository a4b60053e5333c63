#include "shmem/symmetric_memory.hpp"

namespace mori::shmem {

Status SymmetricMemory::CheckPe(int pe) const {
  if (pe >= 0 && pe < n_pes()) return Status();
  return Error(ErrorCode::kInvalidArgument, "PE {} is out of range: there are PEs 0 to {}", pe,
               n_pes() - 1);
}

Result<std::byte*> SymmetricMemory::FindMapped(const void* address, std::uint64_t bytes,
                                               int pe) const {
  MORI_ASSIGN_OR_RETURN(const Location location, Locate(address, bytes, pe));
  if (location.near != nullptr) return location.near;
  return Error(ErrorCode::kUnsupported,
               "PE {} is reached over the network, not by load and store: put to it or get from it",
               pe);
}

Result<Location> SymmetricMemory::Locate(const void* address, std::uint64_t bytes, int pe) const {
  MORI_RETURN_IF_ERROR(CheckPe(pe));
  if (std::byte* pointer = heap_->Translate(address, bytes, pe)) return Location{pointer};
  const bool is_remote = (*routes_)[static_cast<std::size_t>(pe)].reach == Reach::kRemote;
  if (is_remote && (heap_->Covers(address, bytes) || (bytes == 0 && IsEnd(address))))
    return Location{};
  const auto offset = heap_->OffsetOf(address);
  if (!offset) {
    return Error(ErrorCode::kInvalidArgument, "{} is no symmetric address: the heap is [{}, +{})",
                 address, static_cast<const void*>(heap_->base()), FormatByteSize(heap_->bytes()));
  }
  if (bytes <= heap_->bytes() - *offset) {
    return Error(ErrorCode::kInvalidArgument,
                 "{} bytes at {} are in no live block of the heap, and this heap has memory for "
                 "blocks only (MORI_SHMEM_MODE={})",
                 bytes, address, HeapModeName(heap_->mode()));
  }
  return Error(ErrorCode::kInvalidArgument, "{} bytes at {} leave the heap, [{}, +{})", bytes,
               address, static_cast<const void*>(heap_->base()), FormatByteSize(heap_->bytes()));
}

bool SymmetricMemory::IsEnd(const void* address) const {
  return address == heap_->base() + heap_->span_bytes();
}

Result<RemotePlace> SymmetricMemory::RemoteWord(const void* word, int pe) const {
  if (const auto stretch = heap_->Remote(word, pe)) return stretch->place;
  return Unknown(word, pe);
}

Result<RemotePieces::Stretch> SymmetricMemory::RemoteStretch(std::uint64_t offset,
                                                             std::uint64_t bytes, int pe) const {
  // Of a kernel, which may be anything.
  const auto* const address =
      reinterpret_cast<const void*>(reinterpret_cast<std::uintptr_t>(heap_->base()) + offset);
  MORI_ASSIGN_OR_RETURN(const Location at, Locate(address, bytes, pe));
  if (at.near != nullptr)
    return Error(ErrorCode::kInternal, "PE {} is reached by load and store, not by the ring", pe);
  if (bytes == 0) return RemotePieces::Stretch{};
  if (const auto stretch = heap_->Remote(address, pe)) return *stretch;
  return Unknown(address, pe);
}

bool SymmetricMemory::IsOnePiece(const void* address, std::uint64_t bytes, int pe) const {
  const auto stretch = heap_->Remote(address, pe);
  return stretch && bytes <= stretch->bytes;
}

Status SymmetricMemory::Unknown(const void* address, int pe) {
  return Error(ErrorCode::kInternal, "the network does not know {} of PE {}", address, pe);
}

}  // namespace mori::shmem
