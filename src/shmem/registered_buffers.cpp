#include "shmem/registered_buffers.hpp"

namespace mori::shmem {

Status RegisteredBuffers::Add(const void* ptr, std::uint64_t bytes) {
  const auto start = reinterpret_cast<std::uintptr_t>(ptr);
  if (ptr == nullptr || bytes == 0 || start + bytes < start) {
    return Error(ErrorCode::kInvalidArgument, "no range to register: {} bytes at {}", bytes, ptr);
  }
  const std::lock_guard lock(mutex_);
  ++counts_[{start, bytes}];
  return Status();
}

Status RegisteredBuffers::Remove(const void* ptr, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = counts_.find({reinterpret_cast<std::uintptr_t>(ptr), bytes});
  if (found == counts_.end()) {
    return Error(ErrorCode::kInvalidArgument, "{} bytes at {} are not registered", bytes, ptr);
  }
  if (--found->second == 0) counts_.erase(found);
  return Status();
}

}  // namespace mori::shmem
