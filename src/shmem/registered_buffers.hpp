// Memory of the program, outside the heap, that it has registered.
#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <utility>

#include "base/status.hpp"

namespace mori::shmem {

/// Ranges, with counts. Thread-safe.
class RegisteredBuffers {
 public:
  /// @return kInvalidArgument for no range, or one beyond the end of addresses
  Status Add(const void* ptr, std::uint64_t bytes);
  /// @return kInvalidArgument for a range that is not registered as such
  Status Remove(const void* ptr, std::uint64_t bytes);

 private:
  std::mutex mutex_;
  std::map<std::pair<std::uintptr_t, std::uint64_t>, int> counts_;
};

}  // namespace mori::shmem
