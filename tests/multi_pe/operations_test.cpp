// Put, get, atomics, signals and waits between PEs, as processes and as threads.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "base/fault_point.hpp"
#include "support/forked.hpp"
#include "support/run_pes.hpp"

namespace mori::shmem {
namespace {

using testing::As;
using testing::Failures;
using testing::Pe;
using testing::RunAs;

struct Shape {
  As as;
  int size;
};

class Operations : public ::testing::TestWithParam<Shape> {
 protected:
  void RunAll(const testing::Body& body) const {
    EXPECT_EQ(Failures(RunAs(GetParam().as, GetParam().size, body)), "");
  }
};

INSTANTIATE_TEST_SUITE_P(Pes, Operations,
                         ::testing::Values(Shape{As::kProcesses, 1}, Shape{As::kProcesses, 2},
                                           Shape{As::kProcesses, 5}, Shape{As::kThreads, 2},
                                           Shape{As::kThreads, 5}),
                         [](const auto& parameter) {
                           return std::string(parameter.param.as == As::kProcesses ? "Processes"
                                                                                   : "Threads") +
                                  std::to_string(parameter.param.size);
                         });

int Next(const Pe& pe) { return (pe.rank + 1) % pe.size; }
int Previous(const Pe& pe) { return (pe.rank + pe.size - 1) % pe.size; }

template <typename T>
T* Allocate(std::size_t count) {
  auto* block = static_cast<T*>(ShmemMalloc(count * sizeof(T)));
  PE_CHECK(block != nullptr);
  return block;
}

/// A byte that tells writer, position and round apart.
unsigned char Pattern(int pe, std::size_t index, int round) {
  return static_cast<unsigned char>(31 * static_cast<std::size_t>(pe) + 7 * index +
                                    static_cast<std::size_t>(131 * round) + 1);
}

TEST_P(Operations, PutOfEverySizeAndOffsetWritesExactlyItsBytes) {
  RunAll([](const Pe& pe) {
    pe.Init();
    constexpr std::size_t kBytes = 1024;
    auto* block = Allocate<unsigned char>(kBytes);
    std::vector<unsigned char> source(kBytes);
    int round = 0;
    for (const std::size_t bytes : {0,  1,  2,  3,  4,  7,   8,   9,   15,  16,  17, 31,
                                    32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257}) {
      for (const std::size_t offset : {0, 1, 7, 8, 13, 64}) {
        ++round;
        for (std::size_t i = 0; i < bytes; ++i) source[i] = Pattern(pe.rank, i, round);
        std::memset(block, 0, kBytes);
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
        PE_CHECK_EQ(ShmemPutMem(block + offset, source.data(), bytes, Next(pe)), 0);
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
        for (std::size_t i = 0; i < kBytes; ++i) {
          const bool written = i >= offset && i < offset + bytes;
          PE_CHECK_EQ(static_cast<int>(block[i]),
                      written ? static_cast<int>(Pattern(Previous(pe), i - offset, round)) : 0);
        }
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
      }
    }
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

/// Sizes and distances in the page at which the copy takes another way than memcpy.
TEST_P(Operations, LargePutsAndGetsAtEveryDistanceWriteExactlyTheirBytes) {
  RunAll([](const Pe& pe) {
    pe.Init();
    constexpr std::size_t kBytes = std::size_t{3} << 19;
    auto* block = Allocate<unsigned char>(kBytes);
    auto* page = static_cast<unsigned char*>(std::aligned_alloc(4096, kBytes));
    int round = 0;
    for (const std::size_t bytes : {1023u, 1024u, 1025u, 1279u, 1280u, 1281u, 2047u, 4096u, 4097u,
                                    65535u, (1u << 20) - 1, 1u << 20, (1u << 20) + 1}) {
      for (const std::size_t distance : {0u, 1u, 16u, 31u, 32u, 33u, 2047u, 2048u, 4080u}) {
        ++round;
        for (std::size_t i = 0; i < bytes + distance + 8; ++i) page[i] = Pattern(pe.rank, i, round);
        std::memset(block, 0, bytes + distance + 8);
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
        PE_CHECK_EQ(ShmemPutMem(block + distance, page, bytes, Next(pe)), 0);
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
        bool right = true;
        for (std::size_t i = 0; i < bytes; ++i)
          right = right && block[distance + i] == Pattern(Previous(pe), i, round);
        for (std::size_t i = 0; i < distance; ++i) right = right && block[i] == 0;
        for (std::size_t i = 0; i < 8; ++i) right = right && block[distance + bytes + i] == 0;
        PE_CHECK(right);
        PE_CHECK_EQ(ShmemGetMem(page + distance, block + distance, bytes, pe.rank), 0);
        PE_CHECK_EQ(std::memcmp(page + distance, block + distance, bytes), 0);
        PE_CHECK_EQ(static_cast<int>(page[distance + bytes]),
                    static_cast<int>(Pattern(pe.rank, distance + bytes, round)));
      }
    }
    std::free(page);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

TEST_P(Operations, GetReadsEveryPeer) {
  RunAll([](const Pe& pe) {
    pe.Init();
    auto* block = Allocate<int>(1000);
    for (int i = 0; i < 1000; ++i) block[i] = pe.rank * 1000 + i;
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    for (int peer = 0; peer < pe.size; ++peer) {
      std::array<int, 100> got{};
      PE_CHECK_EQ(ShmemGet(got.data(), block + 37, got.size(), peer), 0);
      for (int i = 0; i < 100; ++i)
        PE_CHECK_EQ(got[static_cast<std::size_t>(i)], peer * 1000 + 37 + i);
      PE_CHECK_EQ(ShmemG(block + 999, peer), peer * 1000 + 999);
    }
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

TEST_P(Operations, PWritesOneElement) {
  RunAll([](const Pe& pe) {
    pe.Init();
    auto* value = Allocate<double>(1);
    PE_CHECK_EQ(ShmemP(value, 0.5 + pe.rank, Next(pe)), 0);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    PE_CHECK_EQ(*value, 0.5 + Previous(pe));
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

template <std::size_t kBytes>
void OneElementOf(const Pe& pe) {
  using Element = std::array<unsigned char, kBytes>;
  auto* block = Allocate<unsigned char>(3 * 256);
  for (const std::size_t offset : {64, 61}) {
    Element element{};
    for (std::size_t i = 0; i < kBytes; ++i) element[i] = Pattern(pe.rank, i, 1);
    std::memset(block, 0, 3 * 256);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    auto* place = reinterpret_cast<Element*>(block + offset);
    PE_CHECK_EQ(ShmemP(place, element, Next(pe)), 0);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    const Element got = ShmemG(place, Next(pe));
    PE_CHECK(got == element);
    for (std::size_t i = 0; i < 3 * 256; ++i) {
      const bool written = i >= offset && i < offset + kBytes;
      PE_CHECK_EQ(static_cast<int>(block[i]),
                  written ? static_cast<int>(Pattern(Previous(pe), i - offset, 1)) : 0);
    }
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
  }
  PE_CHECK_EQ(ShmemFree(block), 0);
}

TEST_P(Operations, ElementsOfEverySizeArriveWhole) {
  RunAll([](const Pe& pe) {
    pe.Init();
    OneElementOf<1>(pe);
    OneElementOf<2>(pe);
    OneElementOf<3>(pe);
    OneElementOf<4>(pe);
    OneElementOf<7>(pe);
    OneElementOf<8>(pe);
    OneElementOf<12>(pe);
    OneElementOf<16>(pe);
    OneElementOf<31>(pe);
    OneElementOf<128>(pe);
    OneElementOf<129>(pe);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

/// Every atomic on type T, by all PEs at once on PE 0's words: the totals are exact, and what each
/// call found fits between this PE's own.
template <typename T>
void AtomicsAddUp(const Pe& pe) {
  constexpr int kRounds = 501;  // odd: what is flipped each time ends flipped
  const auto mine = static_cast<T>(1 << pe.rank);
  const auto mine_above = static_cast<T>(256 << pe.rank);
  auto* words = Allocate<T>(8);
  std::memset(words, 0, 8 * sizeof(T));
  words[5] = static_cast<T>(-1);
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  auto last_sum = static_cast<std::int64_t>(-1);
  for (int i = 0; i < kRounds; ++i) {
    PE_CHECK_EQ(ShmemAtomicAdd(words, T{3}, 0), 0);
    PE_CHECK_EQ(ShmemAtomicInc(words, 0), 0);
    for (const T found :
         {ShmemAtomicFetchAdd(words + 1, T{2}, 0), ShmemAtomicFetchInc(words + 1, 0)}) {
      PE_CHECK(static_cast<std::int64_t>(found) > last_sum);
      last_sum = static_cast<std::int64_t>(found);
    }
    for (T seen = ShmemAtomicFetch(words + 2, 0);;) {  // increment by compare-swap
      const T found = ShmemAtomicCompareSwap(words + 2, seen, static_cast<T>(seen + 1), 0);
      if (found == seen) break;
      seen = found;
    }
    PE_CHECK_EQ(ShmemAtomicXor(words + 3, mine, 0), 0);
    const T flipped = ShmemAtomicFetchXor(words + 6, mine, 0);
    PE_CHECK_EQ(static_cast<T>(flipped & mine), i % 2 == 0 ? T{0} : mine);
  }
  PE_CHECK_EQ(static_cast<T>(ShmemAtomicFetchOr(words + 4, mine, 0) & mine), T{0});
  PE_CHECK_EQ(static_cast<T>(ShmemAtomicFetchOr(words + 4, mine, 0) & mine), mine);
  PE_CHECK_EQ(ShmemAtomicOr(words + 4, mine_above, 0), 0);
  PE_CHECK_EQ(static_cast<T>(ShmemAtomicFetchAnd(words + 5, static_cast<T>(~mine), 0) & mine),
              mine);
  PE_CHECK_EQ(static_cast<T>(ShmemAtomicFetchAnd(words + 5, static_cast<T>(~mine), 0) & mine),
              T{0});
  PE_CHECK_EQ(ShmemAtomicAnd(words + 5, static_cast<T>(~mine_above), 0), 0);
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  const T all = static_cast<T>((1 << pe.size) - 1);
  PE_CHECK_EQ(ShmemAtomicFetch(words, 0), static_cast<T>(4 * kRounds * pe.size));
  PE_CHECK_EQ(ShmemAtomicFetch(words + 1, 0), static_cast<T>(3 * kRounds * pe.size));
  PE_CHECK_EQ(ShmemAtomicFetch(words + 2, 0), static_cast<T>(kRounds * pe.size));
  PE_CHECK_EQ(ShmemAtomicFetch(words + 3, 0), all);
  PE_CHECK_EQ(ShmemAtomicFetch(words + 4, 0), static_cast<T>(all | all << 8));
  PE_CHECK_EQ(ShmemAtomicFetch(words + 5, 0), static_cast<T>(~(all | all << 8)));
  PE_CHECK_EQ(ShmemAtomicFetch(words + 6, 0), all);
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  PE_CHECK_EQ(ShmemAtomicSet(words, static_cast<T>(pe.rank + 10), Next(pe)), 0);
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  PE_CHECK_EQ(ShmemAtomicSwap(words, T{99}, pe.rank), static_cast<T>(Previous(pe) + 10));
  PE_CHECK_EQ(words[0], T{99});
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
}

TEST_P(Operations, AtomicsOfAllTypesAddUpExactly) {
  RunAll([](const Pe& pe) {
    pe.Init();
    AtomicsAddUp<std::int32_t>(pe);
    AtomicsAddUp<std::uint32_t>(pe);
    AtomicsAddUp<std::int64_t>(pe);
    AtomicsAddUp<std::uint64_t>(pe);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

template <typename T>
struct AtomicRow {
  const char* name;
  T (*operation)(T* word);
  T found;  ///< what it returns where the word was `kBefore`
  T left;
};

/// Bits in every byte, the sign among them.
template <typename T>
constexpr T kBefore = static_cast<T>(0xa5c3'96f0'a5c3'96f0);
template <typename T>
constexpr T kValue = static_cast<T>(0x0ff0'33cc'0ff0'33cc);

/// Each atomic as the first call of a thread, which is bound to its PE out of line: it does what it
/// does inline, to its own word alone.
template <typename T>
void FirstCallsOfThreads() {
  constexpr T b = kBefore<T>, v = kValue<T>;
  const AtomicRow<T> rows[] = {
      {"fetch", [](T* word) { return ShmemAtomicFetch(word, 0); }, b, b},
      {"set", [](T* word) { return static_cast<T>(ShmemAtomicSet(word, v, 0)); }, 0, v},
      {"swap", [](T* word) { return ShmemAtomicSwap(word, v, 0); }, b, v},
      {"compare-swap", [](T* word) { return ShmemAtomicCompareSwap(word, b, v, 0); }, b, v},
      {"no swap", [](T* word) { return ShmemAtomicCompareSwap(word, v, v, 0); }, b, b},
      {"fetch-add", [](T* word) { return ShmemAtomicFetchAdd(word, v, 0); }, b,
       static_cast<T>(static_cast<std::uint64_t>(b) + static_cast<std::uint64_t>(v))},
      {"add -1", [](T* word) { return static_cast<T>(ShmemAtomicAdd(word, T(-1), 0)); }, 0,
       static_cast<T>(static_cast<std::uint64_t>(b) - 1)},
      {"fetch-and", [](T* word) { return ShmemAtomicFetchAnd(word, v, 0); }, b, T(b & v)},
      {"and", [](T* word) { return static_cast<T>(ShmemAtomicAnd(word, v, 0)); }, 0, T(b & v)},
      {"fetch-or", [](T* word) { return ShmemAtomicFetchOr(word, v, 0); }, b, T(b | v)},
      {"or", [](T* word) { return static_cast<T>(ShmemAtomicOr(word, v, 0)); }, 0, T(b | v)},
      {"fetch-xor", [](T* word) { return ShmemAtomicFetchXor(word, v, 0); }, b, T(b ^ v)},
      {"xor", [](T* word) { return static_cast<T>(ShmemAtomicXor(word, v, 0)); }, 0, T(b ^ v)},
      {"fetch-inc", [](T* word) { return ShmemAtomicFetchInc(word, 0); }, b, T(b + 1)},
      {"inc", [](T* word) { return static_cast<T>(ShmemAtomicInc(word, 0)); }, 0, T(b + 1)}};
  auto* words = Allocate<T>(4);
  for (const AtomicRow<T>& row : rows) {
    for (int i = 0; i < 4; ++i) words[i] = b;
    T found{};
    std::thread([&] { found = row.operation(words + 1); }).join();
    if (found == row.found && words[0] == b && words[1] == row.left && words[2] == b) continue;
    throw testing::PeFailure(fmt::format("{} of {} bytes: found {:x}, left {:x} {:x} {:x}",
                                         row.name, sizeof(T), found, words[0], words[1], words[2]));
  }
}

TEST(Atomics, TheFirstCallOfAThreadDoesWhatItDoesInline) {
  EXPECT_EQ(Failures(testing::RunProcesses(1,
                                           [](const Pe& pe) {
                                             pe.Init();
                                             FirstCallsOfThreads<std::int32_t>();
                                             FirstCallsOfThreads<std::uint32_t>();
                                             FirstCallsOfThreads<std::int64_t>();
                                             FirstCallsOfThreads<std::uint64_t>();
                                             PE_CHECK_EQ(ShmemFinalize(), 0);
                                           })),
            "");
}

/// The last bytes of the heap are served, the first behind it are not.
TEST_P(Operations, TheHeapEndsWhereItEnds) {
  RunAll([](const Pe& pe) {
    pe.Init();
    HeapStats stats{};
    PE_CHECK_EQ(ShmemHeapStats(&stats), 0);
    auto* block = Allocate<std::byte>(stats.largest_free_bytes);
    std::byte* const end = block + stats.largest_free_bytes;
    const int refused = static_cast<int>(ErrorCode::kInvalidArgument);
    std::uint32_t value = 7;
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    PE_CHECK_EQ(ShmemPutMem(end - 4, &value, 4, Next(pe)), 0);
    PE_CHECK_EQ(ShmemGetMem(&value, end - 4, 4, Next(pe)), 0);
    PE_CHECK_EQ(ShmemPutMem(end, &value, 0, Next(pe)), 0);
    PE_CHECK_EQ(ShmemAtomicSet(reinterpret_cast<std::uint64_t*>(end - 8), std::uint64_t{1}, 0), 0);
    for (const int beyond : {1, 2, 3, 4}) {
      PE_CHECK_EQ(ShmemPutMem(end - 4 + beyond, &value, 4, Next(pe)), refused);
      PE_CHECK_EQ(ShmemGetMem(&value, end - 4 + beyond, 4, Next(pe)), refused);
      PE_CHECK_EQ(ShmemPutMem(block - beyond, &value, 4, Next(pe)), refused);
    }
    PE_CHECK_EQ(ShmemP(reinterpret_cast<std::uint32_t*>(end), value, Next(pe)), refused);
    PE_CHECK_EQ(ShmemAtomicSet(reinterpret_cast<std::uint64_t*>(end), std::uint64_t{1}, 0),
                refused);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

TEST_P(Operations, SignalSeenMeansDataSeen) {
  RunAll([](const Pe& pe) {
    pe.Init();
    constexpr int kRounds = 2000;
    auto* data = Allocate<std::uint64_t>(16);
    auto* signal = Allocate<std::uint64_t>(2);
    std::memset(data, 0, 16 * sizeof *data);
    signal[0] = signal[1] = 0;
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      std::array<std::uint64_t, 16> source;
      source.fill(round);
      const bool add = round % 2 == 0;
      PE_CHECK_EQ(ShmemPutMemSignal(data, source.data(), sizeof source, signal, add ? 1 : round,
                                    add ? SignalOp::kAdd : SignalOp::kSet, Next(pe)),
                  0);
      std::uint64_t seen = 0;
      PE_CHECK_EQ(ShmemSignalWaitUntil(signal, Cmp::kGe, round, &seen), 0);
      PE_CHECK_EQ(seen, round);
      for (int i = 0; i < 16; ++i) PE_CHECK_EQ(data[i], round);
      // The next PE has read before we write again.
      PE_CHECK_EQ(ShmemAtomicSet(signal + 1, round, Previous(pe)), 0);
      PE_CHECK_EQ(ShmemWaitUntil(signal + 1, Cmp::kEq, round), 0);
    }
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

// Where the processor keeps stores in order, this cannot miss the fence: test_ordering.py looks for
// it in the machine code for one that does not.
TEST_P(Operations, PutThenFenceThenFlagArrivesInOrder) {
  RunAll([](const Pe& pe) {
    pe.Init();
    constexpr std::uint32_t kRounds = 2000;
    auto* data = Allocate<std::uint32_t>(1);
    auto* flags = Allocate<std::uint32_t>(2);
    *data = flags[0] = flags[1] = 0;
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    for (std::uint32_t round = 1; round <= kRounds; ++round) {
      PE_CHECK_EQ(ShmemPut(data, &round, 1, Next(pe)), 0);
      PE_CHECK_EQ(ShmemFence(), 0);
      PE_CHECK_EQ(ShmemP(flags, round, Next(pe)), 0);  // a plain store: the fence alone orders it
      PE_CHECK_EQ(ShmemWaitUntil(flags, Cmp::kGe, round), 0);
      PE_CHECK_EQ(*data, round);
      PE_CHECK_EQ(ShmemAtomicSet(flags + 1, round, Previous(pe)), 0);
      PE_CHECK_EQ(ShmemWaitUntil(flags + 1, Cmp::kGe, round), 0);
    }
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

/// Data, then a word that says it is there, between threads of one PE, by every way that is not
/// inline: the first call of a thread, and calls on streams. The thread sanitizer sees a word whose
/// order is missing, since the threads see the heap at one address.
TEST(Ordering, WhoSeesTheWordSeesTheDataOutOfLine) {
  using Word = std::uint64_t;
  using Writer = void (*)(Word * word);
  using Reader = void (*)(Word * word, const std::atomic<bool>& written);
  const Writer writers[] = {
      [](Word* word) { ShmemAtomicSet(word, Word{1}, 0); },
      [](Word* word) { ShmemAtomicAdd(word, Word{1}, 0); },
      [](Word* word) { ShmemAtomicOr(word, Word{1}, 0); },
      [](Word* word) { ShmemAtomicXor(word, Word{1}, 0); },
      [](Word* word) { ShmemAtomicSwap(word, Word{1}, 0); },
      [](Word* word) { ShmemAtomicCompareSwap(word, Word{0}, Word{1}, 0); },
      [](Word* word) { ShmemPutMemSignal(word + 1, word + 2, 8, word, 1, SignalOp::kSet, 0); },
      [](Word* word) { ShmemPutMemSignal(word + 1, word + 2, 8, word, 1, SignalOp::kAdd, 0); },
      [](Word* word) { ShmemSignalOpOnStream(word, 1, SignalOp::kSet, 0, nullptr); },
      [](Word* word) { ShmemSignalOpOnStream(word, 1, SignalOp::kAdd, 0, nullptr); }};
  const Reader readers[] = {
      [](Word* word, const std::atomic<bool>&) { ShmemWaitUntil(word, Cmp::kEq, Word{1}); },
      [](Word* word, const std::atomic<bool>&) {
        ShmemSignalWaitUntilOnStream(word, Cmp::kEq, 1, nullptr);
      },
      [](Word* word, const std::atomic<bool>& written) {
        while (!written.load(std::memory_order_relaxed)) ::usleep(10);
        while (!ShmemTest(word, Cmp::kEq, Word{1})) ::usleep(10);
      },
      [](Word* word, const std::atomic<bool>& written) {
        while (!written.load(std::memory_order_relaxed)) ::usleep(10);
        while (ShmemAtomicFetch(word, 0) != 1) ::usleep(10);
      }};
  EXPECT_EQ(Failures(testing::RunProcesses(1,
                                           [&](const Pe& pe) {
                                             pe.Init();
                                             auto* word = Allocate<Word>(4);
                                             word[2] = 0;
                                             for (const Writer write : writers) {
                                               for (const Reader read : readers) {
                                                 *word = 0;
                                                 int data = 0, seen = 0;
                                                 std::atomic<bool> written{false};
                                                 std::thread reader([&] {
                                                   read(word, written);
                                                   seen = data;
                                                 });
                                                 std::thread([&] {
                                                   data = 7;
                                                   write(word);
                                                   // Relaxed: the word alone is to order the data.
                                                   written.store(true, std::memory_order_relaxed);
                                                 }).join();
                                                 reader.join();
                                                 PE_CHECK_EQ(seen, 7);
                                               }
                                             }
                                             PE_CHECK_EQ(ShmemFinalize(), 0);
                                           })),
            "");
}

/// Store, quiet, load the other's: both PEs reading the old value would show a quiet that does not
/// complete.
TEST(Quiet, StoresOfBothPesAreNeverBothMissed) {
  EXPECT_EQ(Failures(testing::RunProcesses(2,
                                           [](const Pe& pe) {
                                             pe.Init();
                                             auto* flag = Allocate<std::uint64_t>(1);
                                             auto* missed = Allocate<std::uint64_t>(1);
                                             for (int round = 0; round < 5000; ++round) {
                                               *flag = 0;
                                               *missed = 0;
                                               PE_CHECK_EQ(ShmemBarrierAll(), 0);
                                               PE_CHECK_EQ(
                                                   ShmemP(flag, std::uint64_t{1}, 1 - pe.rank), 0);
                                               ShmemQuiet();
                                               if (ShmemAtomicFetch(flag, pe.rank) == 0)
                                                 ShmemAtomicInc(missed, 0);
                                               PE_CHECK_EQ(ShmemBarrierAll(), 0);
                                               PE_CHECK(ShmemAtomicFetch(missed, 0) < 2);
                                               PE_CHECK_EQ(ShmemBarrierAll(), 0);
                                             }
                                             PE_CHECK_EQ(ShmemFinalize(), 0);
                                           })),
            "");
}

template <typename T>
void ComparisonsHold() {
  auto* word = Allocate<T>(1);
  *word = T{5};
  const T low = static_cast<T>(-1) < T{0} ? static_cast<T>(-1)
                                          : T{1};  // below 5 in signed and unsigned alike
  struct Row {
    Cmp cmp;
    T value;
    bool holds;
  };
  for (const Row& row :
       {Row{Cmp::kEq, 5, true}, Row{Cmp::kEq, 6, false}, Row{Cmp::kNe, 6, true},
        Row{Cmp::kNe, 5, false}, Row{Cmp::kGt, low, true}, Row{Cmp::kGt, 5, false},
        Row{Cmp::kGe, 5, true}, Row{Cmp::kGe, 6, false}, Row{Cmp::kLt, 6, true},
        Row{Cmp::kLt, low, false}, Row{Cmp::kLe, 5, true}, Row{Cmp::kLe, low, false}}) {
    PE_CHECK_EQ(ShmemTest(word, row.cmp, row.value), row.holds);
    if (row.holds) PE_CHECK_EQ(ShmemWaitUntil(word, row.cmp, row.value), 0);
  }
}

TEST(WaitUntil, EveryComparisonOnEveryType) {
  EXPECT_EQ(Failures(testing::RunProcesses(1,
                                           [](const Pe& pe) {
                                             pe.Init();
                                             ComparisonsHold<std::int32_t>();
                                             ComparisonsHold<std::uint32_t>();
                                             ComparisonsHold<std::int64_t>();
                                             ComparisonsHold<std::uint64_t>();
                                             PE_CHECK_EQ(ShmemFinalize(), 0);
                                           })),
            "");
}

std::atomic<bool> beyond_spinning{false};

/// Waits for a value above the sign bit, which compares otherwise in the type of the other sign.
template <typename T>
void SleepingWait(const Pe& pe, const testing::Shared<std::atomic<int>>& asleep, int turn) {
  auto* word = Allocate<T>(1);
  *word = 5;
  const auto high = static_cast<T>(T{1} << (8 * sizeof(T) - 1) | 1);
  const bool is_signed = static_cast<T>(-1) < T{0};
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
  if (pe.rank == 0) {
    while (asleep->load() < turn) ::usleep(100);
    PE_CHECK_EQ(ShmemAtomicSet(word, high, 1), 0);
  } else {
    fault_hook = [](const char* point) {
      if (std::strcmp(point, "wait: before the look for a loss") == 0) beyond_spinning = true;
    };
    std::thread teller([&] {
      while (!beyond_spinning) ::usleep(100);
      asleep->store(turn);
    });
    PE_CHECK_EQ(ShmemWaitUntil(word, is_signed ? Cmp::kLt : Cmp::kGt, T{5}), 0);
    teller.join();
    beyond_spinning = false;
    PE_CHECK_EQ(*word, high);
  }
  PE_CHECK_EQ(ShmemBarrierAll(), 0);
}

TEST(WaitUntil, SleepingWaitOfEveryTypeIsEndedByAPeer) {
  static const testing::Shared<std::atomic<int>> asleep(0);
  EXPECT_EQ(Failures(testing::RunProcesses(2,
                                           [](const Pe& pe) {
                                             pe.Init();
                                             SleepingWait<std::int32_t>(pe, asleep, 1);
                                             SleepingWait<std::uint32_t>(pe, asleep, 2);
                                             SleepingWait<std::int64_t>(pe, asleep, 3);
                                             SleepingWait<std::uint64_t>(pe, asleep, 4);
                                             PE_CHECK_EQ(ShmemFinalize(), 0);
                                           })),
            "");
}

/// A word that goes on changing: the value that is returned is the one that was waited for.
TEST(WaitUntil, TheValueReturnedIsTheOneThatHeld) {
  EXPECT_EQ(Failures(testing::RunProcesses(1,
                                           [](const Pe& pe) {
                                             pe.Init();
                                             auto* word = Allocate<std::uint64_t>(1);
                                             *word = 0;
                                             std::atomic<bool> stop{false};
                                             std::thread changer([&] {
                                               while (!stop) {
                                                 for (const std::uint64_t value : {1, 2}) {
                                                   ShmemAtomicSet(word, value, 0);
                                                   for (int i = 0; i < 5; ++i) detail::CpuRelax();
                                                 }
                                               }
                                             });
                                             int others = 0;
                                             for (int i = 0; i < 20'000; ++i) {
                                               std::uint64_t seen = 0;
                                               others += ShmemSignalWaitUntil(word, Cmp::kEq, 1,
                                                                              &seen) != 0 ||
                                                         seen != 1;
                                             }
                                             stop = true;
                                             changer.join();
                                             PE_CHECK_EQ(others, 0);
                                             PE_CHECK_EQ(ShmemFinalize(), 0);
                                           })),
            "");
}

TEST_P(Operations, PeerPointersReachThePeersMemory) {
  RunAll([](const Pe& pe) {
    pe.Init();
    auto* block = Allocate<int>(64);
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    for (int peer = 0; peer < pe.size; ++peer) {
      const auto address = ShmemPtrP2p(reinterpret_cast<std::uintptr_t>(block), pe.rank, peer);
      PE_CHECK(address != 0);
      if (peer == pe.rank) PE_CHECK_EQ(address, reinterpret_cast<std::uintptr_t>(block));
      reinterpret_cast<int*>(address)[pe.rank] = 100 * pe.rank + peer;
    }
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    for (int writer = 0; writer < pe.size; ++writer)
      PE_CHECK_EQ(block[writer], 100 * writer + pe.rank);
    int outside = 0;
    PE_CHECK_EQ(ShmemPtrP2p(reinterpret_cast<std::uintptr_t>(&outside), pe.rank, 0),
                std::uint64_t{0});
    PE_CHECK_EQ(ShmemLastErrorCode(), 0);  // "no symmetric address" is an answer, not an error
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
}

}  // namespace
}  // namespace mori::shmem
