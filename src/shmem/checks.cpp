#include "shmem/checks.hpp"

#include "mori/shmem/host_ops.hpp"

namespace mori::shmem {

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
