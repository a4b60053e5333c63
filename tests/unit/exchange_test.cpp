// The small messages of the library's kernels, by threads that are PEs of one thread each: the
// protocol is the same, and memory is the host's.
#include "kernels/exchange.cuh"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

namespace mori::shmem::device {
namespace {

/// Elements that tell PE, round and place apart.
std::vector<i64> Elements(u32 pe, u64 round, u64 count) {
  std::vector<i64> elements(count);
  for (u64 i = 0; i < count; ++i)
    elements[i] = static_cast<i64>(1'000'000 * pe + 1000 * round + i + 1);
  return elements;
}
u8* Bytes(std::vector<i64>* elements) { return reinterpret_cast<u8*>(elements->data()); }

/// PEs that have exchanged `number` messages so far.
class World {
 public:
  World(u32 n_pes, u64 number) : n_pes_(n_pes) {
    for (u32 pe = 0; pe < n_pes; ++pe) words_.push_back(std::make_unique<SyncWords>());
    Skip(number);
  }
  /// As if they had exchanged `number`; none is under way.
  void Skip(u64 number) {
    for (const auto& words : words_) words->exchanges = number;
  }
  void Run(const std::function<void(const FewPes& few)>& body) const {
    std::vector<std::thread> threads;
    for (u32 pe = 0; pe < n_pes_; ++pe) threads.emplace_back([&, pe] { body(Of(pe)); });
    for (std::thread& thread : threads) thread.join();
  }

 private:
  FewPes Of(u32 pe) const {
    FewPes few{};
    few.my_pe = pe;
    few.n_pes = n_pes_;
    for (u32 other = 0; other < n_pes_; ++other) few.sync[other] = words_[other].get();
    return few;
  }

  u32 n_pes_;
  std::vector<std::unique_ptr<SyncWords>> words_;
};

/// Whether each brings what it should.
bool Reduces(const FewPes& few, u64 round, u64 count) {
  const auto mine = Elements(few.my_pe, round, count);
  std::vector<i64> found(count), expected(count);
  for (u32 pe = 0; pe < few.n_pes; ++pe) {
    const auto theirs = Elements(pe, round, count);
    for (u64 i = 0; i < count; ++i) expected[i] += theirs[i];
  }
  SmallReduce(few, Sum{}, found.data(), mine.data(), count);
  return found == expected;
}
bool Gathers(const FewPes& few, u64 round, u64 count) {
  auto mine = Elements(few.my_pe, round, count);
  std::vector<i64> found(few.n_pes * count), expected;
  for (u32 pe = 0; pe < few.n_pes; ++pe) {
    const auto theirs = Elements(pe, round, count);
    expected.insert(expected.end(), theirs.begin(), theirs.end());
  }
  SmallGather(few, Bytes(&found), Bytes(&mine), count * sizeof(i64), 0);
  return found == expected;
}
bool Broadcasts(const FewPes& few, u64 round, u64 count) {
  const auto root = static_cast<u32>(round % few.n_pes);
  auto mine = Elements(few.my_pe, round, count);
  std::vector<i64> found(count);
  SmallBroadcast(few, Bytes(&found), Bytes(&mine), count * sizeof(i64), root);
  return found == Elements(root, round, count);
}

/// From which number exchanges count on: among the next ones an inbox is emptied, or the number has
/// 32 bits of zeros.
class Exchanges : public ::testing::TestWithParam<u64> {};
INSTANTIATE_TEST_SUITE_P(From, Exchanges,
                         ::testing::Values(0, kExchangesOfInbox - 5, (u64{1} << 32) - 5));

TEST_P(Exchanges, BringWhatEachPeHasSentInThem) {
  for (const u32 n_pes : {2U, 3U}) {
    std::atomic<int> wrong = 0;
    World(n_pes, GetParam()).Run([&](const FewPes& few) {
      for (u64 round = 0; round < 40; ++round) {
        const u64 count = 1 + round * 7 % 50;
        for (const auto call : {Reduces, Gathers, Broadcasts})
          wrong += call(few, round, count) ? 0 : 1;
      }
    });
    EXPECT_EQ(wrong, 0) << n_pes << " PEs";
  }
}

/// At every start and of every length in a word: what is no whole words is put together of bytes.
TEST_P(Exchanges, BringBytesThatAreNoWholeWords) {
  constexpr u64 kMost = 11;
  std::atomic<int> wrong = 0;
  World(3, GetParam()).Run([&](const FewPes& few) {
    for (u64 start = 0; start < 4; ++start) {
      for (u64 bytes = 1; bytes <= kMost; ++bytes) {
        const auto byte = [&](u32 pe, u64 i) { return static_cast<u8>(77 * pe + 31 * i + bytes); };
        alignas(4) u8 mine[kMost + 8];
        alignas(4) u8 found[3 * kMost + 8];
        std::ranges::fill(found, u8{0xaa});
        for (u64 i = 0; i < bytes; ++i) mine[start + i] = byte(few.my_pe, i);
        SmallGather(few, found + start, mine + start, bytes, 0);
        for (u32 pe = 0; pe < 3; ++pe) {
          for (u64 i = 0; i < bytes; ++i)
            wrong += found[start + pe * bytes + i] == byte(pe, i) ? 0 : 1;
        }
        wrong += found[start + 3 * bytes] == 0xaa ? 0 : 1;
      }
    }
  });
  EXPECT_EQ(wrong, 0);
}

/// Of no bytes, too: who leaves one knows that all have come.
TEST_P(Exchanges, OfNothingAreMeetings) {
  std::atomic<u64> begun = 0;
  std::atomic<int> wrong = 0;
  World(2, GetParam()).Run([&](const FewPes& few) {
    for (u64 round = 1; round <= 3; ++round) {
      // So that the other would leave first.
      if (few.my_pe == round % 2) std::this_thread::sleep_for(std::chrono::milliseconds(10));
      ++begun;
      u8 none = 0;
      SmallGather(few, &none, &none, 0, 0);
      wrong += begun >= 2 * round ? 0 : 1;
    }
  });
  EXPECT_EQ(wrong, 0);
}

/// A tag comes again after `kExchangesOfInbox`; what a long message left under it must be gone.
TEST(ExchangesAgain, FindNothingOfThoseThatHadTheirTag) {
  constexpr u64 kLong = 100;
  World world(2, 5 * kExchangesOfInbox + 2);
  std::atomic<int> wrong = 0;
  world.Run([&](const FewPes& few) { wrong += Reduces(few, 0, kLong) ? 0 : 1; });
  world.Skip(6 * kExchangesOfInbox - 2);
  world.Run([&](const FewPes& few) {
    for (u64 round = 1; round <= 4; ++round) wrong += Reduces(few, round, 1) ? 0 : 1;
    // So that the other looks before this one's words are there.
    if (few.my_pe == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    wrong += Reduces(few, 5, kLong) ? 0 : 1;
  });
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace mori::shmem::device
