#include "transport/ofi/regions.hpp"

#include <atomic>
#include <cstring>

#include "base/element_copy.hpp"
#include "base/word_atomic.hpp"

namespace mori::shmem::ofi {

using detail::AtomicOp;

void Regions::Add(std::uint64_t key, std::uint64_t address, void* start, std::uint64_t bytes,
                  RegionAccess* access) {
  const std::unique_lock lock(mutex_);
  by_key_[key] = {address, static_cast<std::byte*>(start), bytes, access};
}

void Regions::Remove(std::uint64_t key) {
  const std::unique_lock lock(mutex_);
  by_key_.erase(key);
}

Regions::Found Regions::Use::Find(std::uint64_t key, std::uint64_t address,
                                  std::uint64_t bytes) const {
  const auto found = regions_->by_key_.find(key);
  if (found == regions_->by_key_.end()) return {};
  const Region& region = found->second;
  const std::uint64_t offset = address - region.address;  // beyond the end also where it is before
  if (offset > region.bytes || bytes > region.bytes - offset) return {};
  return {region.start + offset, region.access};
}

Status Regions::Found::Write(const void* from, std::uint64_t bytes) const {
  if (access != nullptr) return access->Write(memory, from, bytes);
  CopyIn(memory, from, bytes);
  return Status();
}

Status Regions::Found::WriteWords(const void* words, std::uint64_t bytes) const {
  const std::uint64_t before = bytes - sizeof(std::uint64_t);
  if (before != 0) MORI_RETURN_IF_ERROR(Write(words, before));
  const Found last{memory + before, access};
  return last.Write(static_cast<const std::byte*>(words) + before, sizeof(std::uint64_t));
}

Status Regions::Found::Read(void* to, std::uint64_t bytes) const {
  if (access != nullptr) return access->Read(to, memory, bytes);
  CopyElements(to, memory, bytes);
  return Status();
}

Result<std::uint64_t> Regions::Found::Atomic(AtomicOp op, int width, std::uint64_t value,
                                             std::uint64_t expected) const {
  if (access != nullptr) return access->Atomic(memory, op, width, value, expected);
  return ApplyWordAtomic(op, memory, width, value, expected);
}

void CopyIn(std::byte* to, const void* from, std::uint64_t bytes) {
  const auto store = [&]<typename T>(T word) {
    std::memcpy(&word, from, sizeof word);
    std::atomic_ref<T>(*reinterpret_cast<T*>(to)).store(word, std::memory_order_release);
  };
  const bool is_aligned = bytes != 0 && reinterpret_cast<std::uintptr_t>(to) % bytes == 0;
  if (is_aligned && bytes == 8) return store(std::uint64_t{});
  if (is_aligned && bytes == 4) return store(std::uint32_t{});
  CopyElements(to, from, bytes);
}

}  // namespace mori::shmem::ofi
