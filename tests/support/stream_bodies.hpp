// What calls on streams owe on every backend: bodies that a backend's tests run, over its PEs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "support/run_pes.hpp"

namespace mori::shmem::testing {

/// A PE that makes calls on streams.
class StreamPe {
 public:
  explicit StreamPe(const Pe& of) : pe(of) {}
  StreamPe(const StreamPe&) = delete;
  StreamPe& operator=(const StreamPe&) = delete;
  virtual ~StreamPe() = default;

  /// Of every kind that there is; the bodies use the first but where they say so.
  virtual std::vector<void*> Streams() const = 0;
  virtual void Sync(void* stream) = 0;
  void* stream() const { return Streams().front(); }

  /// Memory outside the heap, of every kind that the calls take.
  virtual std::vector<void*> LocalsOfEachKind(std::size_t bytes) = 0;
  /// The kind that kernels write to.
  virtual void* LocalBytes(std::size_t bytes) = 0;
  /// From and to memory of the host, local and symmetric memory of this PE; returns when it is
  /// done.
  virtual void Copy(void* to, const void* from, std::size_t bytes) = 0;

  /// On the stream, words[i] = value + i.
  virtual void Fill(std::uint64_t* words, std::uint64_t count, std::uint64_t value) = 0;
  /// On the stream, fails the PE, in time for `End`, if words[i] is not value + i.
  virtual void Check(const std::uint64_t* words, std::uint64_t count, std::uint64_t value) = 0;
  /// All PEs leave.
  virtual void End() = 0;

  /// `round` from 1 to `count`. Few are on the stream before the host waits for it: a full stream
  /// makes launches wait, and those of PEs that are threads then wait for each other.
  void Rounds(std::uint64_t count, const std::function<void(std::uint64_t)>& round);

  template <typename T>
  T* Local(std::size_t count) {
    return static_cast<T*>(LocalBytes(count * sizeof(T)));
  }
  /// Symmetric memory of zeros, on all PEs.
  template <typename T>
  T* Zeroed(std::size_t count) {
    auto* block = static_cast<T*>(ShmemMalloc(count * sizeof(T)));
    PE_CHECK(block != nullptr);
    Write(block, std::vector<T>(count));
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    return block;
  }
  template <typename T>
  void Write(T* block, const std::vector<T>& values) {
    if (!values.empty()) Copy(block, values.data(), values.size() * sizeof(T));
  }
  template <typename T>
  std::vector<T> Read(const T* block, std::size_t count) {
    std::vector<T> values(count);
    if (count > 0) Copy(values.data(), block, count * sizeof(T));
    return values;
  }

  std::uint64_t me() const { return static_cast<std::uint64_t>(pe.rank); }
  std::uint64_t n_pes() const { return static_cast<std::uint64_t>(pe.size); }

  const Pe& pe;
};
using StreamBody = std::function<void(StreamPe&)>;

// ---- puts and meetings

/// Up to `most` bytes, of every kind of memory, on every kind of stream.
void CheckPutsAndGets(StreamPe& p, std::size_t most);
/// Were a signal not ordered behind its data, who waits for it would find words of an earlier
/// round.
void CheckSignalledPuts(StreamPe& p, std::uint64_t words, std::uint64_t rounds);
/// After `meet(round)`, twice in each round, what all have put to all is there.
void CheckPutsToAll(StreamPe& p, std::uint64_t words, std::uint64_t rounds,
                    const std::function<int(std::uint64_t)>& meet);

/// A wait for `cmp` `value` that a word of `initial` does not end, and `last` does.
struct WaitCase {
  Cmp cmp;
  std::uint64_t initial, value, last;
};
inline constexpr std::uint64_t kLargestWord = ~std::uint64_t{0};
inline constexpr WaitCase kWaitCases[] = {{Cmp::kEq, 1, 7, 7},
                                          {Cmp::kNe, 7, 7, 1},
                                          {Cmp::kGt, 7, 7, kLargestWord},
                                          {Cmp::kGe, 6, 7, 7},
                                          {Cmp::kLt, kLargestWord, kLargestWord, 1},
                                          {Cmp::kLe, kLargestWord, 7, 7}};

// ---- collectives

/// Broadcast, all-gather and all-to-all of up to `most` bytes bring every byte, and none beside.
void CheckByteCollectives(StreamPe& p, std::size_t most);
void CheckBroadcastInPlace(StreamPe& p);
/// Every operation on up to `most_bytes` of every type: the same bits on all PEs, which are those
/// of combining in the order of PEs.
void CheckReductions(StreamPe& p, std::size_t most_bytes);
/// One behind the other; in every second round their source is written to in between. Only before a
/// destination is used again, all PEs meet.
void CheckCollectivesInARow(StreamPe& p, std::uint64_t words, std::uint64_t rounds);

// ---- errors

/// The last error says `part`.
void ExpectError(int code, ErrorCode expected, const std::string& part);
void ExpectInvalid(int code, const std::string& part);
/// Every wrong argument of every call; `word` are 8 symmetric words, `local` 8 others.
void CheckWrongCalls(const Pe& pe, std::uint64_t* word, std::uint64_t* local, void* stream);

}  // namespace mori::shmem::testing
