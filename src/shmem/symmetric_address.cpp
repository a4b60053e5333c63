#include "shmem/symmetric_address.hpp"

namespace mori::shmem {

Status CheckPe(const World& world, int pe) {
  if (pe >= 0 && pe < world.n_pes()) return Status();
  return Error(ErrorCode::kInvalidArgument, "PE {} is out of range: there are PEs 0 to {}", pe,
               world.n_pes() - 1);
}

Result<std::byte*> FindMapped(const World& world, const void* address, std::uint64_t bytes,
                              int pe) {
  MORI_ASSIGN_OR_RETURN(const Location location, Locate(world, address, bytes, pe));
  if (location.near != nullptr) return location.near;
  return Error(ErrorCode::kUnsupported,
               "PE {} is reached over the network, not by load and store: put to it or get from it",
               pe);
}

Result<Location> Locate(const World& world, const void* address, std::uint64_t bytes, int pe) {
  MORI_RETURN_IF_ERROR(CheckPe(world, pe));
  if (std::byte* pointer = world.heap().Translate(address, bytes, pe)) return Location{pointer};
  if (world.IsRemote(pe) && world.heap().Covers(address, bytes)) return Location{};
  const auto offset = world.heap().OffsetOf(address);
  if (!offset) {
    return Error(ErrorCode::kInvalidArgument, "{} is no symmetric address: the heap is [{}, +{})",
                 address, static_cast<const void*>(world.heap().base()),
                 FormatByteSize(world.heap().bytes()));
  }
  if (bytes <= world.heap().bytes() - *offset) {
    return Error(ErrorCode::kInvalidArgument,
                 "{} bytes at {} are in no live block of the heap, and this heap has memory for "
                 "blocks only (MORI_SHMEM_MODE={})",
                 bytes, address, HeapModeName(world.heap().mode()));
  }
  return Error(ErrorCode::kInvalidArgument, "{} bytes at {} leave the heap, [{}, +{})", bytes,
               address, static_cast<const void*>(world.heap().base()),
               FormatByteSize(world.heap().bytes()));
}

Status CheckWord(const void* address, std::uint64_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(address) % bytes == 0) return Status();
  return Error(ErrorCode::kInvalidArgument, "{} is not aligned to the size of the word", address);
}

Status CheckCmp(Cmp cmp) {
  if (detail::IsCmp(cmp)) return Status();
  return Error(ErrorCode::kInvalidArgument,
               "comparison {} is unknown: 0 ==, 1 !=, 2 >, 3 >=, 4 <, 5 <=", static_cast<int>(cmp));
}

Status CheckSignalOp(SignalOp op) {
  if (detail::IsSignalOp(op)) return Status();
  return Error(ErrorCode::kInvalidArgument, "signal operation {} is unknown: 0 set, 1 add",
               static_cast<int>(op));
}

}  // namespace mori::shmem
