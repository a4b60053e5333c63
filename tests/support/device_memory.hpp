// Memory that the CPU may not touch, as the seam of remote memory sees it: it lies here, and is
// reached through calls that count themselves.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/element_copy.hpp"
#include "base/word_atomic.hpp"
#include "transport/ofi/regions.hpp"
#include "transport/remote.hpp"

namespace mori::shmem::testing {

class DeviceMemoryAccess final : public RegionAccess {
 public:
  std::atomic<std::uint64_t> calls{0};
  std::atomic<bool> is_broken{false};  ///< every call fails

  Status Write(std::byte* to, const void* from, std::uint64_t bytes) override {
    MORI_RETURN_IF_ERROR(Begin());
    ofi::CopyIn(to, from, bytes);
    return Status();
  }
  Status Read(void* to, const std::byte* from, std::uint64_t bytes) override {
    MORI_RETURN_IF_ERROR(Begin());
    CopyElements(to, from, bytes);
    return Status();
  }
  Result<std::uint64_t> Atomic(std::byte* word, detail::AtomicOp op, int width, std::uint64_t value,
                               std::uint64_t expected) override {
    MORI_RETURN_IF_ERROR(Begin());
    return ApplyWordAtomic(op, word, width, value, expected);
  }

 private:
  Status Begin() {
    ++calls;
    return is_broken ? Error(ErrorCode::kSystem, "the device is broken") : Status();
  }
};

}  // namespace mori::shmem::testing
