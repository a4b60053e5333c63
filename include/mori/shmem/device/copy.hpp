// Copies that the threads of a scope share.
#pragma once

#include "mori/shmem/device/memory.hpp"
#include "mori/shmem/device/scope.hpp"

namespace mori::shmem::device {

/// `count` words of both sides, which are aligned for them: each thread takes every
/// `Scope::Size()`th, four at a time, so that as many loads are under way.
template <typename Scope, typename Word, typename Load, typename Store>
MORI_DEVICE_FN void CopyWords(Word* to, const Word* from, u64 count, Load load, Store store) {
  constexpr int kUnroll = 8;
  const u64 size = Scope::Size();
  u64 i = Scope::Rank();
  for (; i + (kUnroll - 1) * size < count; i += kUnroll * size) {
    Word words[kUnroll];
    MORI_UNROLL
    for (int k = 0; k < kUnroll; ++k) words[k] = load(from + i + k * size);
    MORI_UNROLL
    for (int k = 0; k < kUnroll; ++k) store(to + i + k * size, words[k]);
  }
  for (; i < count; i += size) store(to + i, load(from + i));
}

template <typename Scope>
MORI_DEVICE_FN void CopyBytes(u8* to, const u8* from, u64 bytes) {
  for (u64 i = Scope::Rank(); i < bytes; i += Scope::Size()) {
    static_cast<volatile u8*>(to)[i] = static_cast<const volatile u8*>(from)[i];
  }
}

/// Copies with the widest words that both sides are aligned for alike; the rest byte by byte.
template <typename Scope>
MORI_DEVICE_FN void Copy(void* to_address, const void* from_address, u64 bytes) {
  u8* to = static_cast<u8*>(to_address);
  const u8* from = static_cast<const u8*>(from_address);
  const u64 apart = (reinterpret_cast<u64>(to) ^ reinterpret_cast<u64>(from)) & 15;
  const u64 width = apart == 0 ? 16 : (apart & 7) == 0 ? 8 : (apart & 3) == 0 ? 4 : 1;
  u64 head = (width - (reinterpret_cast<u64>(to) & (width - 1))) & (width - 1);
  if (head > bytes) head = bytes;
  CopyBytes<Scope>(to, from, head);
  to += head;
  from += head;
  bytes -= head;
  if (width == 16) {
    CopyWords<Scope>(
        reinterpret_cast<Vector16*>(to), reinterpret_cast<const Vector16*>(from), bytes / 16,
        [](const Vector16* p) { return LoadVector(p); },
        [](Vector16* p, const Vector16& v) { StoreVector(p, v); });
  } else if (width == 8) {
    CopyWords<Scope>(
        reinterpret_cast<u64*>(to), reinterpret_cast<const u64*>(from), bytes / 8,
        [](const u64* p) { return LoadRelaxed(p); }, [](u64* p, u64 v) { StoreRelaxed(p, v); });
  } else if (width == 4) {
    CopyWords<Scope>(
        reinterpret_cast<u32*>(to), reinterpret_cast<const u32*>(from), bytes / 4,
        [](const u32* p) { return LoadRelaxed(p); }, [](u32* p, u32 v) { StoreRelaxed(p, v); });
  } else {
    CopyBytes<Scope>(to, from, bytes);
    return;
  }
  const u64 done = bytes / width * width;
  CopyBytes<Scope>(to + done, from + done, bytes - done);
}

}  // namespace mori::shmem::device
