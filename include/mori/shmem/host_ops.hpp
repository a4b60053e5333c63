// Host API: put, get, atomics, signals, waits, fence and quiet, inline on the peer's memory.
//
// Addresses named `dest`, `source` on the remote side, `target`, `ivar` and `sig_addr` are
// symmetric addresses of this PE. A call costs an address computation and the access itself. Calls
// are local to the caller: the target PE takes no part. They may run from any thread of the PE. 32-
// and 64-bit integers are the types of atomics, signals and waits; such addresses are aligned to
// their size.
//
// Memory model. Puts and gets are blocking in the sense of OpenSHMEM: on return the source may be
// reused (put) or the data is there (get); a put is visible to its target at the latest after
// `ShmemQuiet()`, `ShmemBarrierAll()`, or a signal that its target waits for. `…Nbi` forms may
// complete as late as the next `ShmemQuiet()`. Both tear no element: one of 1, 2, 4 or 8 bytes that
// is aligned to its size at both ends is loaded whole, stored whole, and stored once, in no order
// with others. Atomics are single copies in the order acquire and release, on one word, for CPUs of
// one node.
//
// On a heap in memory of a GPU its device makes each access: a call takes microseconds, atomics are
// single copies for the GPUs of the node, too, and an atomic or a signal needs room for a kernel of
// one thread beside those that run.
//
// Errors: a PE out of range, an address outside the heap, a range that leaves it, a call before
// init or after finalize. Calls that return `int` give an `ErrorCode`; calls that return a value
// give 0. The sentence is in `ShmemLastError()`, and logged.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "mori/shmem/types.hpp"

namespace mori::shmem {

/// What an inline operation reads: published at init, emptied at finalize, never freed. Versions of
/// it have symbols of their own: a program that was built with headers of another version finds no
/// PE, and what it calls then says so.
struct alignas(64) HostContext {
  static constexpr std::uint64_t kMagic = 0x4d4f5249484f5354;  ///< "MORIHOST"
  static constexpr std::uint32_t kAbi = 2;
  /// All memory of all PEs is reached by loads and stores of this thread's: fences of the CPU order
  /// and complete what it put. Otherwise fence and quiet go out of line.
  static constexpr std::uint32_t kFencesSuffice = 1;

  std::uint64_t magic = kMagic;
  std::uint32_t abi = kAbi;
  std::uint32_t bytes = 128;
  std::uint32_t flags = 0;
  std::uint32_t n_pes = 0;  ///< 0: not initialised
  std::uint32_t my_pe = 0;
  std::uint32_t reserved0 = 0;
  std::uintptr_t heap_base = 0;  ///< symmetric addresses are [heap_base, heap_base + heap_bytes)
  std::uint64_t heap_bytes = 0;  ///< what is mapped now; addresses beyond take the out-of-line path
  /// Of each PE's heap in this address space; null where loads and stores do not reach it.
  std::byte* const* near_bases = nullptr;
  /// The same for atomics and signals; null, too, where another one than the CPUs, as an adapter of
  /// the network, changes a PE's words.
  std::byte* const* word_bases = nullptr;
  std::uint64_t reserved[8] = {};
};
static_assert(std::is_trivially_copyable_v<HostContext> && sizeof(HostContext) == 128,
              "programs compiled earlier read this layout");

namespace detail {

/// The calling thread's context; one without PEs until the thread has one. Initial-exec: a plain
/// load from the thread pointer.
extern MORI_SHMEM_API __thread const HostContext* host_context_v2
    __attribute__((tls_model("initial-exec")));

/// Address here of a PE's copy, be it the host's memory or a device's; null with the error
/// reported.
MORI_SHMEM_API std::byte* MappedPointer(const void* address, std::size_t bytes, int pe,
                                        const char* what);
// Out-of-line parts of the operations, cold so that the common case is laid out in one piece: each
// binds the thread to the process's only PE, looks addresses up, has the device do what is in its
// memory, and turns what remains into an error. `what` names the operation in the message.
MORI_SHMEM_API __attribute__((cold)) int PutOutOfLine(void* dest, const void* source,
                                                      std::size_t bytes, int pe, const char* what);
MORI_SHMEM_API __attribute__((cold)) int GetOutOfLine(void* dest, const void* source,
                                                      std::size_t bytes, int pe, const char* what);
/// Complete at the latest at the next quiet.
MORI_SHMEM_API __attribute__((cold)) int PutNbiOutOfLine(void* dest, const void* source,
                                                         std::size_t bytes, int pe);
MORI_SHMEM_API __attribute__((cold)) int GetNbiOutOfLine(void* dest, const void* source,
                                                         std::size_t bytes, int pe);
/// `value`, `expected` and `*found` hold the bits of an integer of `bytes`, 4 or 8; `found` is 0
/// after an error, and null where nobody asks what was there before.
MORI_SHMEM_API __attribute__((cold)) int AtomicOutOfLine(AtomicOp op, const void* address,
                                                         int bytes, std::uint64_t value,
                                                         std::uint64_t expected, int pe,
                                                         const char* what, std::uint64_t* found);
/// Whether an atomic can be made there: 0, or what it would return.
MORI_SHMEM_API __attribute__((cold)) int CheckWord(const void* address, int bytes, int pe,
                                                   const char* what);
MORI_SHMEM_API __attribute__((cold)) int PutSignalOutOfLine(void* dest, const void* source,
                                                            std::size_t bytes,
                                                            std::uint64_t* sig_addr,
                                                            std::uint64_t signal, SignalOp op,
                                                            int pe);
/// Bits of a word of this PE; 0 with the error reported.
MORI_SHMEM_API __attribute__((cold)) std::uint64_t ReadOutOfLine(const void* ivar, int bytes,
                                                                 const char* what);
/// Whether a word of this PE compares as wanted; false with the error reported. `value` holds the
/// bits of a 32- or 64-bit integer, here and below.
MORI_SHMEM_API __attribute__((cold)) bool TestOutOfLine(const void* ivar, int bytes, bool is_signed,
                                                        Cmp cmp, std::uint64_t value);
/// Waits beyond the inline looks: yields, then sleeps; watches the peers. `*seen` receives the bits
/// that compared as wanted, and after an error those seen last, if any.
MORI_SHMEM_API int WaitOutOfLine(const void* ivar, int bytes, bool is_signed, Cmp cmp,
                                 std::uint64_t value, std::uint64_t* seen);
// Order and completion where fences of the CPU do not suffice, or the thread has no PE yet. Also
// the error of a kernel of the PE that ended early: a heap on a device takes this path always.
MORI_SHMEM_API __attribute__((cold)) int FenceOutOfLine();
MORI_SHMEM_API __attribute__((cold)) int QuietOutOfLine();
/// Of what went to one PE.
MORI_SHMEM_API __attribute__((cold)) int QuietOutOfLine(int pe);

/// Copies bytes that do not overlap; every element of 1, 2, 4 or 8 bytes that is aligned at both
/// ends is loaded whole, stored whole, and stored once.
MORI_SHMEM_API void CopyElements(void* to, const void* from, std::size_t bytes);

inline constexpr bool IsOneAccess(std::size_t bytes) {
  return bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8;
}
/// One load and one store, wherever they are aligned.
template <typename Word>
inline void CopyWord(void* to, const void* from) {
  using Loose __attribute__((aligned(1), may_alias)) = Word;
  *static_cast<volatile Loose*>(to) = *static_cast<const volatile Loose*>(from);
}
/// The same for `bytes` that `IsOneAccess()` is true of.
inline void CopyOneAccess(void* to, const void* from, std::size_t bytes) {
  if (bytes == 8) return CopyWord<std::uint64_t>(to, from);
  if (bytes == 4) return CopyWord<std::uint32_t>(to, from);
  if (bytes == 2) return CopyWord<std::uint16_t>(to, from);
  CopyWord<std::uint8_t>(to, from);
}

/// One store to memory of others of what nobody else changes, and one load the other way. What is
/// this thread's own may stay in a register.
template <typename Word>
inline void StoreWord(void* to, const void* own) {
  using Loose __attribute__((aligned(1), may_alias)) = Word;
  Word value;
  __builtin_memcpy(&value, own, sizeof value);
  *static_cast<volatile Loose*>(to) = value;
}
template <typename Word>
inline void LoadWord(void* own, const void* from) {
  using Loose __attribute__((aligned(1), may_alias)) = Word;
  const Word value = *static_cast<const volatile Loose*>(from);
  __builtin_memcpy(own, &value, sizeof value);
}

/// Values of more bytes are copied out of line.
#if defined(__x86_64__)
// As in Copy(): a word that crosses a cache line is parted there, and so between elements.
inline constexpr std::size_t kValueInPlace = 128;
#else
inline constexpr std::size_t kValueInPlace = 0;
#endif

/// A value between this thread's own copy and memory of others: word by word, the longest first, so
/// that what lies in it at a multiple of its size is in one word.
template <std::size_t kBytes, std::size_t... kIndex>
inline void StoreWords(std::byte* to, const std::byte* own, std::index_sequence<kIndex...>) {
  (StoreWord<std::uint64_t>(to + 8 * kIndex, own + 8 * kIndex), ...);
  constexpr std::size_t kDone = kBytes / 8 * 8;
  if constexpr ((kBytes & 4) != 0) StoreWord<std::uint32_t>(to + kDone, own + kDone);
  constexpr std::size_t kDone4 = kBytes / 4 * 4;
  if constexpr ((kBytes & 2) != 0) StoreWord<std::uint16_t>(to + kDone4, own + kDone4);
  if constexpr ((kBytes & 1) != 0) StoreWord<std::uint8_t>(to + kBytes - 1, own + kBytes - 1);
}
template <std::size_t kBytes, std::size_t... kIndex>
inline void LoadWords(std::byte* own, const std::byte* from, std::index_sequence<kIndex...>) {
  (LoadWord<std::uint64_t>(own + 8 * kIndex, from + 8 * kIndex), ...);
  constexpr std::size_t kDone = kBytes / 8 * 8;
  if constexpr ((kBytes & 4) != 0) LoadWord<std::uint32_t>(own + kDone, from + kDone);
  constexpr std::size_t kDone4 = kBytes / 4 * 4;
  if constexpr ((kBytes & 2) != 0) LoadWord<std::uint16_t>(own + kDone4, from + kDone4);
  if constexpr ((kBytes & 1) != 0) LoadWord<std::uint8_t>(own + kBytes - 1, from + kBytes - 1);
}
template <typename T>
inline void StoreValue(std::byte* to, const T& value) {
  if constexpr (sizeof(T) <= kValueInPlace) {
    StoreWords<sizeof(T)>(to, reinterpret_cast<const std::byte*>(&value),
                          std::make_index_sequence<sizeof(T) / 8>());
  } else {
    CopyElements(to, &value, sizeof(T));
  }
}
template <typename T>
inline void LoadValue(T* value, const std::byte* from) {
  if constexpr (sizeof(T) <= kValueInPlace) {
    LoadWords<sizeof(T)>(reinterpret_cast<std::byte*>(value), from,
                         std::make_index_sequence<sizeof(T) / 8>());
  } else {
    CopyElements(value, from, sizeof(T));
  }
}

/// Bytes of so many elements; where no number says it, more than any heap has.
template <typename T>
inline std::size_t ElementBytes(std::size_t count) {
  std::size_t bytes = 0;
  return __builtin_mul_overflow(count, sizeof(T), &bytes) ? SIZE_MAX : bytes;
}

/// All words of it in place, for `bytes` that the compiler knows, and the end. Both ends are
/// aligned to words.
template <std::size_t kMostWords>
inline __attribute__((always_inline)) void CopyKnown(std::byte* to, const std::byte* from,
                                                     std::size_t bytes) {
  if constexpr (kMostWords > 0) {
    if (bytes >= 8) {
      CopyWord<std::uint64_t>(to, from);
      return CopyKnown<kMostWords - 1>(to + 8, from + 8, bytes - 8);
    }
  }
  if ((bytes & 4) != 0) CopyWord<std::uint32_t>(to, from);
  if ((bytes & 2) != 0) CopyWord<std::uint16_t>(to + (bytes & 4), from + (bytes & 4));
  if ((bytes & 1) != 0) CopyWord<std::uint8_t>(to + (bytes & 6), from + (bytes & 6));
}

inline void Copy(void* to, const void* from, std::size_t bytes) {
#if defined(__x86_64__)
  // What crosses a cache line is parted there, and elements do not cross it.
  if (IsOneAccess(bytes)) return CopyOneAccess(to, from, bytes);
  if (__builtin_constant_p(bytes) && bytes <= kValueInPlace &&
      ((reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) & 7) == 0) {
    return CopyKnown<kValueInPlace / 8>(static_cast<std::byte*>(to),
                                        static_cast<const std::byte*>(from), bytes);
  }
#endif
  CopyElements(to, from, bytes);
}

/// The peer's copy of what is in reach of plain loads and stores of this thread, as most is, by one
/// of the context's tables; null: ask out of line.
inline std::byte* FastPointer(const void* address, std::size_t bytes, int pe,
                              std::byte* const* HostContext::*bases) {
  const HostContext& context = *host_context_v2;
  const std::uint64_t offset = reinterpret_cast<std::uintptr_t>(address) - context.heap_base;
  // Relaxed: it changes with allocation, and an address of new memory comes by an ordered way.
  const std::uint64_t heap_bytes = __atomic_load_n(&context.heap_bytes, __ATOMIC_RELAXED);
  if (static_cast<std::uint32_t>(pe) < context.n_pes && bytes <= heap_bytes &&
      offset <= heap_bytes - bytes) {
    if (std::byte* base = (context.*bases)[pe]; base != nullptr) return base + offset;
  }
  return nullptr;
}
inline std::byte* FastPeerPointer(const void* address, std::size_t bytes, int pe) {
  return FastPointer(address, bytes, pe, &HostContext::near_bases);
}

template <typename T>
inline constexpr bool kIsWord =
    std::is_integral_v<T> && !std::is_same_v<T, bool> && (sizeof(T) == 4 || sizeof(T) == 8);

/// The peer's copy of an aligned word in reach of this thread's own atomics; null: out of line.
template <typename T>
inline T* FastPeerWord(const T* address, int pe) {
  static_assert(kIsWord<T>, "32- and 64-bit integers");
  if (reinterpret_cast<std::uintptr_t>(address) % sizeof(T) != 0) return nullptr;
  return reinterpret_cast<T*>(FastPointer(address, sizeof(T), pe, &HostContext::word_bases));
}

template <typename T>
inline T FetchOutOfLine(AtomicOp op, const T* target, T value, T expected, int pe,
                        const char* what) {
  std::uint64_t found = 0;
  AtomicOutOfLine(op, target, sizeof(T), static_cast<std::uint64_t>(value),
                  static_cast<std::uint64_t>(expected), pe, what, &found);
  return static_cast<T>(found);
}
template <typename T>
inline int DoOutOfLine(AtomicOp op, const T* target, T value, int pe, const char* what) {
  return AtomicOutOfLine(op, target, sizeof(T), static_cast<std::uint64_t>(value), 0, pe, what,
                         nullptr);
}

/// The same for a word of this PE.
template <typename T>
inline const T* FastOwnWord(const T* ivar) {
  static_assert(kIsWord<T>, "32- and 64-bit integers");
  const HostContext& context = *host_context_v2;
  const std::uint64_t offset = reinterpret_cast<std::uintptr_t>(ivar) - context.heap_base;
  // Relaxed: as in FastPeerPointer(). The heap begins and ends on a page: an aligned word that
  // begins in it is in it.
  const bool is_near =
      offset < __atomic_load_n(&context.heap_bytes, __ATOMIC_RELAXED) && offset % sizeof(T) == 0;
  return is_near ? ivar : nullptr;
}

/// Whether nothing is out of reach of this thread's loads and stores.
inline bool FencesSuffice() {
  // Relaxed: it changes at init and finalize only.
  const std::uint32_t flags = __atomic_load_n(&host_context_v2->flags, __ATOMIC_RELAXED);
  return (flags & HostContext::kFencesSuffice) != 0;
}

constexpr bool IsCmp(Cmp cmp) {
  return static_cast<unsigned>(cmp) <= static_cast<unsigned>(Cmp::kLe);
}
constexpr bool IsSignalOp(SignalOp op) { return op == SignalOp::kSet || op == SignalOp::kAdd; }

inline void CpuRelax() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("isb" ::: "memory");
#endif
}

template <typename T>
inline bool Holds(T left, Cmp cmp, T right) {
  switch (cmp) {
    case Cmp::kEq: return left == right;
    case Cmp::kNe: return left != right;
    case Cmp::kGt: return left > right;
    case Cmp::kGe: return left >= right;
    case Cmp::kLt: return left < right;
    case Cmp::kLe: return left <= right;
  }
  return false;
}

/// Returns 0 with the value that compared as wanted in `*seen`. Acquires.
template <typename T>
inline int WaitForWord(const T* ivar, Cmp cmp, T value, T* seen) {
  if (const T* word = FastOwnWord(ivar)) {
    for (int look = 0; look < 64; ++look) {
      *seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
      if (Holds(*seen, cmp, value)) return 0;
      CpuRelax();
    }
  }
  std::uint64_t bits = 0;
  const int code = WaitOutOfLine(ivar, sizeof(T), std::is_signed_v<T>, cmp,
                                 static_cast<std::uint64_t>(value), &bits);
  *seen = static_cast<T>(bits);
  return code;
}

}  // namespace detail

// ---- put and get

/// Copies `bytes` from local `source` to `dest` on `pe`. Any alignment; source and destination do
/// not overlap.
inline int ShmemPutMem(void* dest, const void* source, std::size_t bytes, int pe) {
  std::byte* to = detail::FastPeerPointer(dest, bytes, pe);
  if (to == nullptr) return detail::PutOutOfLine(dest, source, bytes, pe, "shmem_putmem");
  detail::Copy(to, source, bytes);
  return 0;
}

/// Copies `bytes` from `source` on `pe` to local `dest`.
inline int ShmemGetMem(void* dest, const void* source, std::size_t bytes, int pe) {
  const std::byte* from = detail::FastPeerPointer(source, bytes, pe);
  if (from == nullptr) return detail::GetOutOfLine(dest, source, bytes, pe, "shmem_getmem");
  detail::Copy(dest, from, bytes);
  return 0;
}

/// The same, complete at the latest at the next `ShmemQuiet()`.
inline int ShmemPutMemNbi(void* dest, const void* source, std::size_t bytes, int pe) {
  std::byte* to = detail::FastPeerPointer(dest, bytes, pe);
  if (to == nullptr) return detail::PutNbiOutOfLine(dest, source, bytes, pe);
  detail::Copy(to, source, bytes);
  return 0;
}
inline int ShmemGetMemNbi(void* dest, const void* source, std::size_t bytes, int pe) {
  const std::byte* from = detail::FastPeerPointer(source, bytes, pe);
  if (from == nullptr) return detail::GetNbiOutOfLine(dest, source, bytes, pe);
  detail::Copy(dest, from, bytes);
  return 0;
}

/// Typed forms; `count` in elements.
template <typename T>
inline int ShmemPut(T* dest, const T* source, std::size_t count, int pe) {
  static_assert(std::is_trivially_copyable_v<T>);
  return ShmemPutMem(dest, source, detail::ElementBytes<T>(count), pe);
}
template <typename T>
inline int ShmemGet(T* dest, const T* source, std::size_t count, int pe) {
  static_assert(std::is_trivially_copyable_v<T>);
  return ShmemGetMem(dest, source, detail::ElementBytes<T>(count), pe);
}

/// One element. `ShmemG()` returns a zero value on error.
template <typename T>
inline int ShmemP(T* dest, T value, int pe) {
  static_assert(std::is_trivially_copyable_v<T>);
  std::byte* to = detail::FastPeerPointer(dest, sizeof(T), pe);
  if (to == nullptr) {
    const T in_memory = value;  // a copy: the value itself stays in its registers
    return detail::PutOutOfLine(dest, &in_memory, sizeof(T), pe, "shmem_p");
  }
  detail::StoreValue(to, value);
  return 0;
}
template <typename T>
inline T ShmemG(const T* source, int pe) {
  static_assert(std::is_trivially_copyable_v<T>);
  if (const std::byte* from = detail::FastPeerPointer(source, sizeof(T), pe)) {
    T value{};
    detail::LoadValue(&value, from);
    return value;
  }
  T in_memory{};  // another one: the value above stays in its registers
  detail::GetOutOfLine(&in_memory, source, sizeof(T), pe, "shmem_g");
  return in_memory;
}

// ---- atomics
// One list: each operation with and without the old value. Fetching forms return 0 on error.

template <typename T>
inline T ShmemAtomicFetch(const T* target, int pe) {
  const T* word = detail::FastPeerWord(target, pe);
  return word != nullptr ? __atomic_load_n(word, __ATOMIC_ACQUIRE)
                         : detail::FetchOutOfLine(detail::AtomicOp::kFetch, target, T{}, T{}, pe,
                                                  "shmem_atomic_fetch");
}
template <typename T>
inline int ShmemAtomicSet(T* target, T value, int pe) {
  T* word = detail::FastPeerWord(target, pe);
  if (word == nullptr)
    return detail::DoOutOfLine(detail::AtomicOp::kSet, target, value, pe, "shmem_atomic_set");
  __atomic_store_n(word, value, __ATOMIC_RELEASE);
  return 0;
}
template <typename T>
inline T ShmemAtomicSwap(T* target, T value, int pe) {
  T* word = detail::FastPeerWord(target, pe);
  return word != nullptr ? __atomic_exchange_n(word, value, __ATOMIC_ACQ_REL)
                         : detail::FetchOutOfLine(detail::AtomicOp::kSwap, target, value, T{}, pe,
                                                  "shmem_atomic_swap");
}
/// Stores `value` where `expected` was found. @return what was found.
template <typename T>
inline T ShmemAtomicCompareSwap(T* target, T expected, T value, int pe) {
  T* word = detail::FastPeerWord(target, pe);
  if (word == nullptr) {
    return detail::FetchOutOfLine(detail::AtomicOp::kCompareSwap, target, value, expected, pe,
                                  "shmem_atomic_compare_swap");
  }
  __atomic_compare_exchange_n(word, &expected, value, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
  return expected;
}
template <typename T>
inline T ShmemAtomicFetchAdd(T* target, T value, int pe) {
  T* word = detail::FastPeerWord(target, pe);
  return word != nullptr ? __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL)
                         : detail::FetchOutOfLine(detail::AtomicOp::kFetchAdd, target, value, T{},
                                                  pe, "shmem_atomic_fetch_add");
}
template <typename T>
inline int ShmemAtomicAdd(T* target, T value, int pe) {
  T* word = detail::FastPeerWord(target, pe);
  if (word == nullptr)
    return detail::DoOutOfLine(detail::AtomicOp::kFetchAdd, target, value, pe, "shmem_atomic_add");
  __atomic_fetch_add(word, value, __ATOMIC_ACQ_REL);
  return 0;
}
template <typename T>
inline T ShmemAtomicFetchAnd(T* target, T value, int pe) {
  T* word = detail::FastPeerWord(target, pe);
  return word != nullptr ? __atomic_fetch_and(word, value, __ATOMIC_ACQ_REL)
                         : detail::FetchOutOfLine(detail::AtomicOp::kFetchAnd, target, value, T{},
                                                  pe, "shmem_atomic_fetch_and");
}
template <typename T>
inline int ShmemAtomicAnd(T* target, T value, int pe) {
  T* word = detail::FastPeerWord(target, pe);
  if (word == nullptr)
    return detail::DoOutOfLine(detail::AtomicOp::kFetchAnd, target, value, pe, "shmem_atomic_and");
  __atomic_fetch_and(word, value, __ATOMIC_ACQ_REL);
  return 0;
}
template <typename T>
inline T ShmemAtomicFetchOr(T* target, T value, int pe) {
  T* word = detail::FastPeerWord(target, pe);
  return word != nullptr ? __atomic_fetch_or(word, value, __ATOMIC_ACQ_REL)
                         : detail::FetchOutOfLine(detail::AtomicOp::kFetchOr, target, value, T{},
                                                  pe, "shmem_atomic_fetch_or");
}
template <typename T>
inline int ShmemAtomicOr(T* target, T value, int pe) {
  T* word = detail::FastPeerWord(target, pe);
  if (word == nullptr)
    return detail::DoOutOfLine(detail::AtomicOp::kFetchOr, target, value, pe, "shmem_atomic_or");
  __atomic_fetch_or(word, value, __ATOMIC_ACQ_REL);
  return 0;
}
template <typename T>
inline T ShmemAtomicFetchXor(T* target, T value, int pe) {
  T* word = detail::FastPeerWord(target, pe);
  return word != nullptr ? __atomic_fetch_xor(word, value, __ATOMIC_ACQ_REL)
                         : detail::FetchOutOfLine(detail::AtomicOp::kFetchXor, target, value, T{},
                                                  pe, "shmem_atomic_fetch_xor");
}
template <typename T>
inline int ShmemAtomicXor(T* target, T value, int pe) {
  T* word = detail::FastPeerWord(target, pe);
  if (word == nullptr)
    return detail::DoOutOfLine(detail::AtomicOp::kFetchXor, target, value, pe, "shmem_atomic_xor");
  __atomic_fetch_xor(word, value, __ATOMIC_ACQ_REL);
  return 0;
}
template <typename T>
inline T ShmemAtomicFetchInc(T* target, int pe) {
  return ShmemAtomicFetchAdd(target, T{1}, pe);
}
template <typename T>
inline int ShmemAtomicInc(T* target, int pe) {
  return ShmemAtomicAdd(target, T{1}, pe);
}

// ---- ordering

/// Orders: what this thread put to a PE before is visible there before what it puts there
/// afterwards.
inline int ShmemFence() {
  std::atomic_thread_fence(std::memory_order_release);
  return detail::FencesSuffice() ? 0 : detail::FenceOutOfLine();
}

/// Completes: all puts and atomics of this thread are visible to every PE on return.
inline int ShmemQuiet() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  return detail::FencesSuffice() ? 0 : detail::QuietOutOfLine();
}
/// The same of those that went to one PE.
inline int ShmemQuiet(int pe) {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  // Of no PE: the error comes out of line.
  const bool is_pe = static_cast<std::uint32_t>(pe) < detail::host_context_v2->n_pes;
  return detail::FencesSuffice() && is_pe ? 0 : detail::QuietOutOfLine(pe);
}

// ---- signals and waits

/// Puts `bytes`, then sets or adds `signal` at `sig_addr` on the same PE: who sees the signal by a
/// wait, a test or `ShmemSignalFetch()` sees the data.
inline int ShmemPutMemSignal(void* dest, const void* source, std::size_t bytes,
                             std::uint64_t* sig_addr, std::uint64_t signal, SignalOp op, int pe) {
  std::uint64_t* word = detail::FastPeerWord(sig_addr, pe);
  std::byte* to = detail::FastPeerPointer(dest, bytes, pe);
  if (word == nullptr || to == nullptr || !detail::IsSignalOp(op))
    return detail::PutSignalOutOfLine(dest, source, bytes, sig_addr, signal, op, pe);
  detail::Copy(to, source, bytes);
  // Release: pairs with the acquiring load of the waiting PE; the data is written before the signal
  // shows.
  if (op == SignalOp::kSet) {
    __atomic_store_n(word, signal, __ATOMIC_RELEASE);
  } else {
    __atomic_fetch_add(word, signal, __ATOMIC_RELEASE);
  }
  return 0;
}
inline int ShmemPutMemSignalNbi(void* dest, const void* source, std::size_t bytes,
                                std::uint64_t* sig_addr, std::uint64_t signal, SignalOp op,
                                int pe) {
  return ShmemPutMemSignal(dest, source, bytes, sig_addr, signal, op, pe);
}

/// This PE's signal word. Acquire: data put with the signal is visible. 0 on error.
inline std::uint64_t ShmemSignalFetch(const std::uint64_t* sig_addr) {
  const std::uint64_t* word = detail::FastOwnWord(sig_addr);
  return word != nullptr ? __atomic_load_n(word, __ATOMIC_ACQUIRE)
                         : detail::ReadOutOfLine(sig_addr, sizeof *sig_addr, "shmem_signal_fetch");
}

/// Whether `*ivar cmp value` holds now, on this PE's copy. Acquire where it does. False on error.
template <typename T>
inline bool ShmemTest(const T* ivar, Cmp cmp, T value) {
  const T* word = detail::FastOwnWord(ivar);
  if (word != nullptr && detail::IsCmp(cmp))
    return detail::Holds(__atomic_load_n(word, __ATOMIC_ACQUIRE), cmp, value);
  return detail::TestOutOfLine(ivar, sizeof(T), std::is_signed_v<T>, cmp,
                               static_cast<std::uint64_t>(value));
}

/// Returns 0 once `*ivar cmp value` holds on this PE's copy; kPeerLost if a PE dies or leaves while
/// it does not, kTimeout after MORI_SHMEM_TIMEOUT, kNotInitialized if another thread finalizes this
/// PE.
template <typename T>
inline int ShmemWaitUntil(const T* ivar, Cmp cmp, T value) {
  T seen{};
  return detail::WaitForWord(ivar, cmp, value, &seen);
}

/// As `ShmemWaitUntil()` on a signal word. @param fetched  receives the value that compared as
/// wanted, unless null; unchanged on error.
inline int ShmemSignalWaitUntil(const std::uint64_t* sig_addr, Cmp cmp, std::uint64_t value,
                                std::uint64_t* fetched = nullptr) {
  std::uint64_t seen = 0;
  const int code = detail::WaitForWord(sig_addr, cmp, value, &seen);
  if (code == 0 && fetched != nullptr) *fetched = seen;
  return code;
}

}  // namespace mori::shmem
