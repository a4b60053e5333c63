#include "heap/offset_allocator.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <string_view>
#include <vector>

namespace mori::shmem {
namespace {

constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

// ---- exact cases, granule 64 ----

TEST(OffsetAllocator, TakesTheLowestPlaceAndRoundsUpToTheGranule) {
  OffsetAllocator allocator(1024, 64);
  EXPECT_EQ(allocator.Allocate(1, 1), 0u);
  EXPECT_EQ(allocator.Allocate(64, 64), 64u);
  EXPECT_EQ(allocator.Allocate(65, 8), 128u);
  EXPECT_EQ(allocator.Allocate(64, 64), 256u);
  EXPECT_EQ(allocator.SizeOf(0), 64u);
  EXPECT_EQ(allocator.SizeOf(128), 128u);
  EXPECT_TRUE(allocator.Free(64));
  EXPECT_EQ(allocator.Allocate(32, 1), 64u);
}

TEST(OffsetAllocator, FillsExactlyAndThenRefuses) {
  OffsetAllocator allocator(1000, 64);  // 15 whole granules
  EXPECT_EQ(allocator.Stats().capacity_bytes, 960u);
  EXPECT_EQ(allocator.Allocate(960, 64), 0u);
  EXPECT_EQ(allocator.Allocate(1, 1), std::nullopt);
  EXPECT_EQ(allocator.Stats().free_bytes, 0u);
  EXPECT_EQ(allocator.Stats().free_blocks, 0u);
  EXPECT_TRUE(allocator.Free(0));
  for (std::uint64_t i = 0; i < 15; ++i) EXPECT_EQ(allocator.Allocate(64, 64), 64 * i);
  EXPECT_EQ(allocator.Allocate(1, 1), std::nullopt);
}

TEST(OffsetAllocator, MergesWithEachSideAndBoth) {
  OffsetAllocator allocator(256, 64);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(allocator.Allocate(64, 64));
  EXPECT_TRUE(allocator.Free(0));
  EXPECT_TRUE(allocator.Free(64));  // left
  EXPECT_EQ(allocator.Stats().free_blocks, 1u);
  EXPECT_EQ(allocator.Stats().largest_free_bytes, 128u);
  EXPECT_TRUE(allocator.Free(192));
  EXPECT_EQ(allocator.Stats().free_blocks, 2u);
  EXPECT_TRUE(allocator.Free(128));  // both
  EXPECT_EQ(allocator.Stats().free_blocks, 1u);
  EXPECT_EQ(allocator.Stats().largest_free_bytes, 256u);

  ASSERT_EQ(allocator.Allocate(64, 64), 0u);
  EXPECT_TRUE(allocator.Free(0));  // right
  EXPECT_EQ(allocator.Stats().free_blocks, 1u);
}

TEST(OffsetAllocator, TheGapBeforeAnAlignedBlockIsUsed) {
  OffsetAllocator allocator(1 << 20, 64);
  ASSERT_EQ(allocator.Allocate(64, 64), 0u);
  EXPECT_EQ(allocator.Allocate(100, 4096), 4096u);
  EXPECT_EQ(allocator.Stats().used_bytes, 64u + 128u);
  EXPECT_EQ(allocator.Allocate(4096 - 64, 64), 64u);
  EXPECT_EQ(allocator.Allocate(1, 64), 4096u + 128u);
}

TEST(OffsetAllocator, EveryAlignmentUpToTheCapacityIsHonoured) {
  constexpr std::uint64_t kCapacity = 1 << 20;
  for (std::uint64_t alignment = 1; alignment < kCapacity; alignment *= 2) {
    OffsetAllocator allocator(kCapacity, 64);
    ASSERT_EQ(allocator.Allocate(64, 64), 0u);
    const auto offset = allocator.Allocate(64, alignment);
    EXPECT_EQ(offset, std::max<std::uint64_t>(alignment, 64));
    EXPECT_TRUE(allocator.Free(*offset));
    EXPECT_EQ(allocator.Stats().free_blocks, 1u);
  }
}

TEST(OffsetAllocator, OnlyOffsetZeroIsAlignedBeyondTheCapacity) {
  OffsetAllocator allocator(1 << 20, 64);
  EXPECT_EQ(allocator.Allocate(64, std::uint64_t{1} << 63), 0u);
  EXPECT_EQ(allocator.Allocate(64, std::uint64_t{1} << 63), std::nullopt);
  EXPECT_EQ(allocator.Allocate(64, 1 << 20), std::nullopt);
  EXPECT_EQ(allocator.LargestFree(1 << 20), 0u);
}

TEST(OffsetAllocator, RefusesZeroBytesAndOddAlignments) {
  OffsetAllocator allocator(1024, 64);
  EXPECT_EQ(allocator.Allocate(0, 64), std::nullopt);
  EXPECT_EQ(allocator.Allocate(64, 0), std::nullopt);
  EXPECT_EQ(allocator.Allocate(64, 96), std::nullopt);
  EXPECT_EQ(allocator.Stats().live_blocks, 0u);
}

TEST(OffsetAllocator, RefusesSizesThatOverflow) {
  for (const std::uint64_t granule : {1, 64}) {
    OffsetAllocator allocator(1024, granule);
    for (const std::uint64_t bytes : {kMax, kMax - 63, kMax / 2 + 1, std::uint64_t{1025}}) {
      EXPECT_EQ(allocator.Allocate(bytes, 64), std::nullopt);
      EXPECT_EQ(allocator.Allocate(bytes, std::uint64_t{1} << 63), std::nullopt);
    }
    EXPECT_EQ(allocator.Allocate(1024, 64), 0u);
  }
}

TEST(OffsetAllocator, ServesTheLargestRange) {
  constexpr std::uint64_t kHalf = std::uint64_t{1} << 62;
  OffsetAllocator allocator(kMax / 2, 1);
  EXPECT_FALSE(allocator.Grow(kMax / 2 + 1));
  EXPECT_EQ(allocator.Allocate(1, 1), 0u);
  EXPECT_EQ(allocator.Allocate(kHalf - 1, kHalf), kHalf);
  EXPECT_EQ(allocator.Stats().largest_free_bytes, kHalf - 1);
  EXPECT_TRUE(allocator.Free(kHalf));
  EXPECT_EQ(allocator.Allocate(kMax / 2 - 1, 1), 1u);
}

TEST(OffsetAllocator, FreeTakesOnlyTheStartOfALiveBlock) {
  OffsetAllocator allocator(1024, 64);
  ASSERT_EQ(allocator.Allocate(128, 64), 0u);
  ASSERT_EQ(allocator.Allocate(128, 64), 128u);
  for (const std::uint64_t offset : {1, 64, 129, 192, 256, 1023, 1024, 4096}) {
    EXPECT_FALSE(allocator.Free(offset)) << offset;
    EXPECT_EQ(allocator.SizeOf(offset), std::nullopt) << offset;
  }
  EXPECT_FALSE(allocator.Free(kMax));
  EXPECT_EQ(allocator.Stats().live_blocks, 2u);
  EXPECT_TRUE(allocator.Free(128));
  EXPECT_FALSE(allocator.Free(128));
  EXPECT_EQ(allocator.Stats().used_bytes, 128u);
}

TEST(OffsetAllocator, FindTellsInteriorFromUnknown) {
  OffsetAllocator allocator(1024, 64);
  ASSERT_EQ(allocator.Allocate(64, 64), 0u);
  ASSERT_EQ(allocator.Allocate(100, 64), 64u);
  for (const std::uint64_t offset : {64, 65, 128, 191}) {
    const auto block = allocator.Find(offset);
    ASSERT_TRUE(block) << offset;
    EXPECT_EQ(block->offset, 64u);
    EXPECT_EQ(block->bytes, 128u);
  }
  EXPECT_FALSE(allocator.Find(192));
  EXPECT_FALSE(allocator.Find(1024));
  EXPECT_FALSE(allocator.Find(kMax));
}

TEST(OffsetAllocator, AnEmptyRangeRefusesEverything) {
  for (const std::uint64_t capacity : {0, 63}) {
    OffsetAllocator allocator(capacity, 64);
    EXPECT_EQ(allocator.Allocate(1, 1), std::nullopt);
    EXPECT_FALSE(allocator.Free(0));
    EXPECT_FALSE(allocator.Find(0));
    EXPECT_EQ(allocator.LargestFree(64), 0u);
    EXPECT_EQ(allocator.UsedEnd(), 0u);
    EXPECT_EQ(allocator.Stats().free_blocks, 0u);
    EXPECT_TRUE(allocator.Grow(64));
    EXPECT_EQ(allocator.Allocate(64, 64), 0u);
  }
}

TEST(OffsetAllocator, GrowsAtBothKindsOfEnd) {
  OffsetAllocator allocator(128, 64);
  ASSERT_EQ(allocator.Allocate(128, 64), 0u);
  EXPECT_TRUE(allocator.Grow(256));  // after a live block
  EXPECT_TRUE(allocator.Grow(512));  // after a free one
  EXPECT_EQ(allocator.Stats().free_blocks, 1u);
  EXPECT_EQ(allocator.Stats().largest_free_bytes, 384u);
  EXPECT_EQ(allocator.Allocate(384, 64), 128u);
  EXPECT_TRUE(allocator.Grow(512));
  EXPECT_FALSE(allocator.Grow(511));
  EXPECT_EQ(allocator.Stats().capacity_bytes, 512u);
}

TEST(OffsetAllocator, ShrinksOverFreeSpaceOnly) {
  OffsetAllocator allocator(1024, 64);
  ASSERT_EQ(allocator.Allocate(100, 64), 0u);
  EXPECT_EQ(allocator.UsedEnd(), 128u);
  EXPECT_FALSE(allocator.Shrink(127));
  EXPECT_FALSE(allocator.Shrink(2048));
  EXPECT_TRUE(allocator.Shrink(512));
  EXPECT_EQ(allocator.Stats().free_bytes, 384u);
  EXPECT_TRUE(allocator.Shrink(128));
  EXPECT_EQ(allocator.Stats().free_blocks, 0u);
  EXPECT_EQ(allocator.Allocate(1, 1), std::nullopt);
  EXPECT_TRUE(allocator.Free(0));
  EXPECT_TRUE(allocator.Shrink(0));
  EXPECT_EQ(allocator.Stats().capacity_bytes, 0u);
  EXPECT_TRUE(allocator.Grow(64));
  EXPECT_EQ(allocator.Allocate(64, 64), 0u);
}

TEST(OffsetAllocator, MovingKeepsTheBlocks) {
  OffsetAllocator first(1024, 64);
  ASSERT_EQ(first.Allocate(64, 64), 0u);
  OffsetAllocator second = std::move(first);
  EXPECT_EQ(second.Allocate(64, 64), 64u);
  first = OffsetAllocator(128, 64);
  EXPECT_EQ(first.Allocate(64, 64), 0u);
  EXPECT_TRUE(second.Free(0));
}

TEST(OffsetAllocator, AnAlignedRequestGetsTheLowestPlaceThatHoldsIt) {
  // Holes of a page: one beside a page border, one on it; then space that holds a page anywhere.
  OffsetAllocator allocator(1 << 20, 64);
  ASSERT_EQ(allocator.Allocate(64, 64), 0u);
  ASSERT_EQ(allocator.Allocate(4096, 64), 64u);
  ASSERT_EQ(allocator.Allocate(4096 - 64, 64), 4096u + 64);
  ASSERT_EQ(allocator.Allocate(4096, 64), 8192u);
  ASSERT_EQ(allocator.Allocate(64, 64), 12288u);
  ASSERT_TRUE(allocator.Free(64));
  ASSERT_TRUE(allocator.Free(8192));
  EXPECT_EQ(allocator.Allocate(4096, 4096), 8192u);
  EXPECT_EQ(allocator.Allocate(4096, 4096), 16384u);
  EXPECT_EQ(allocator.Allocate(4096, 64), 64u);
}

TEST(OffsetAllocator, ARequestThatFitsOnlyByLuckOfAlignmentIsServed) {
  // Free blocks of 4096 bytes: 20 that begin 64 bytes beside a page, then one on a page.
  OffsetAllocator allocator(21 * 8192, 64);
  std::vector<std::uint64_t> holes;
  for (std::uint64_t i = 0; i < 21; ++i) {
    const std::uint64_t before = i < 20 ? 64 : 4096;
    ASSERT_TRUE(allocator.Allocate(before, 64));
    holes.push_back(*allocator.Allocate(4096, 64));
    const bool is_filled = before == 4096 || allocator.Allocate(4096 - before, 64);
    ASSERT_TRUE(is_filled);
  }
  for (const std::uint64_t hole : holes) ASSERT_TRUE(allocator.Free(hole));
  EXPECT_EQ(allocator.LargestFree(4096), 4096u);
  EXPECT_EQ(allocator.Allocate(4096, 4096), 20u * 8192 + 4096);
}

// ---- against a model ----

/// The contract of the allocator in the plainest form.
class Model {
 public:
  explicit Model(std::uint64_t capacity) : capacity_(capacity) {}

  /// The lowest multiple of `alignment` with room, or nothing.
  std::optional<std::uint64_t> LowestPlace(std::uint64_t bytes, std::uint64_t alignment) const {
    std::uint64_t begin = 0;
    const auto fit = [&](std::uint64_t end) {
      const std::uint64_t start = (begin + alignment - 1) / alignment * alignment;
      return start + bytes <= end ? std::optional(start) : std::nullopt;
    };
    for (const auto& [offset, size] : live_) {
      if (const auto start = fit(offset)) return start;
      begin = offset + size;
    }
    return fit(capacity_);
  }
  void Add(std::uint64_t offset, std::uint64_t bytes) {
    live_.emplace(offset, bytes);
    used_ += bytes;
  }
  void Remove(std::uint64_t offset) {
    used_ -= live_.at(offset);
    live_.erase(offset);
  }
  bool Overlaps(std::uint64_t offset, std::uint64_t bytes) const {
    const auto next = live_.lower_bound(offset);
    if (next != live_.end() && next->first < offset + bytes) return true;
    if (next == live_.begin()) return false;
    const auto previous = std::prev(next);
    return previous->first + previous->second > offset;
  }

  OffsetAllocator::Statistics Stats() const {
    OffsetAllocator::Statistics stats{capacity_, used_, capacity_ - used_, 0, live_.size(), 0};
    std::uint64_t begin = 0;
    const auto count = [&](std::uint64_t end) {
      stats.largest_free_bytes = std::max(stats.largest_free_bytes, end - begin);
      if (end > begin) ++stats.free_blocks;
    };
    for (const auto& [offset, size] : live_) {
      count(offset);
      begin = offset + size;
    }
    count(capacity_);
    return stats;
  }
  const std::map<std::uint64_t, std::uint64_t>& live() const { return live_; }

 private:
  const std::uint64_t capacity_;
  std::uint64_t used_ = 0;
  std::map<std::uint64_t, std::uint64_t> live_;
};

void ExpectSame(const OffsetAllocator::Statistics& got, const OffsetAllocator::Statistics& wanted) {
  ASSERT_EQ(got.capacity_bytes, wanted.capacity_bytes);
  ASSERT_EQ(got.used_bytes, wanted.used_bytes);
  ASSERT_EQ(got.free_bytes, wanted.free_bytes);
  ASSERT_EQ(got.largest_free_bytes, wanted.largest_free_bytes);
  ASSERT_EQ(got.live_blocks, wanted.live_blocks);
  ASSERT_EQ(got.free_blocks, wanted.free_blocks);
}

constexpr std::uint64_t kGranule = 64;

struct Load {
  std::string_view name;
  std::uint64_t seed;
  int calls;
  std::uint64_t capacity;
  unsigned size_bits;    ///< requests up to 2^size_bits bytes
  bool is_aligned;       ///< alignments of all powers of two, not only the granule
  unsigned checked_one;  ///< statistics and placement compared on every n-th call
};

class RandomLoad : public ::testing::TestWithParam<Load> {
 protected:
  void Allocate() {
    const std::uint64_t bytes = 1 + random_() % (std::uint64_t{1} << (random_() % size_bits_));
    const std::uint64_t alignment =
        GetParam().is_aligned ? std::uint64_t{1} << (random_() % 17) : 1;
    const std::uint64_t rounded = (bytes + kGranule - 1) / kGranule * kGranule;
    const auto offset = allocator_.Allocate(bytes, alignment);
    ASSERT_EQ(replica_.Allocate(bytes, alignment), offset);
    if (IsChecked() || !offset) CheckPlace(rounded, std::max(alignment, kGranule), offset);
    if (!offset) return;
    ASSERT_EQ(*offset % alignment, 0u);
    ASSERT_LE(*offset + rounded, GetParam().capacity);
    ASSERT_FALSE(model_.Overlaps(*offset, rounded));
    ASSERT_EQ(allocator_.SizeOf(*offset), rounded);
    model_.Add(*offset, rounded);
    offsets_.push_back(*offset);
  }

  void CheckPlace(std::uint64_t bytes, std::uint64_t alignment,
                  std::optional<std::uint64_t> offset) {
    const auto lowest = model_.LowestPlace(bytes, alignment);
    if (alignment == kGranule) {
      ASSERT_EQ(offset, lowest);
    } else {
      ASSERT_EQ(offset.has_value(), lowest.has_value());
    }
  }

  void Free() {
    std::swap(offsets_[random_() % offsets_.size()], offsets_.back());
    const std::uint64_t offset = offsets_.back();
    offsets_.pop_back();
    ASSERT_FALSE(allocator_.Free(offset + 1));
    if (!model_.live().contains(offset + kGranule)) {
      ASSERT_FALSE(allocator_.Free(offset + kGranule));
    }
    ASSERT_TRUE(allocator_.Free(offset));
    ASSERT_FALSE(allocator_.Free(offset));
    ASSERT_TRUE(replica_.Free(offset));
    model_.Remove(offset);
  }

  bool IsChecked() const { return call_ % GetParam().checked_one == 0; }

  void CheckBlocks() {
    for (const auto& [offset, bytes] : model_.live()) {
      ASSERT_EQ(allocator_.SizeOf(offset), bytes);
      const auto block = allocator_.Find(offset + bytes - 1);
      ASSERT_TRUE(block && block->offset == offset && block->bytes == bytes);
    }
  }

  unsigned size_bits_ = GetParam().size_bits;
  unsigned call_ = 0;
  std::mt19937_64 random_{GetParam().seed};
  Model model_{GetParam().capacity};
  OffsetAllocator allocator_{GetParam().capacity, kGranule};
  OffsetAllocator replica_{GetParam().capacity, kGranule};
  std::vector<std::uint64_t> offsets_;
};

TEST_P(RandomLoad, AgreesWithTheModelAndAReplica) {
  // Waves, so that the tree grows and shrinks by whole levels.
  for (int i = 0; i < GetParam().calls; ++i, ++call_) {
    const unsigned wave = static_cast<unsigned>(i) / 8192 % 4;
    const bool frees = random_() % 8 < (wave == 3 ? 6u : 3u);
    if (frees && !offsets_.empty()) {
      Free();
    } else {
      Allocate();
    }
    if (HasFatalFailure()) return;
    if (IsChecked()) ExpectSame(allocator_.Stats(), model_.Stats());
    if (HasFatalFailure()) return;
  }
  CheckBlocks();
  while (!offsets_.empty() && !HasFatalFailure()) Free();
  ExpectSame(allocator_.Stats(), Model(GetParam().capacity).Stats());
  EXPECT_EQ(allocator_.Allocate(GetParam().capacity, kGranule), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Loads, RandomLoad,
    ::testing::Values(Load{"Crowded", 1, 60'000, 1 << 16, 13, false, 3},
                      Load{"CrowdedAndAligned", 2, 60'000, 1 << 18, 15, true, 3},
                      Load{"ThousandsOfBlocks", 3, 60'000, 1 << 26, 12, false, 97},
                      Load{"ThousandsOfAlignedBlocks", 4, 60'000, 1 << 26, 12, true, 97},
                      Load{"LargeBlocks", 5, 20'000, std::uint64_t{1} << 42, 34, true, 97}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(OffsetAllocator, PlacementDependsOnTheLiveBlocksAlone) {
  OffsetAllocator steady(1 << 20, 64);
  OffsetAllocator shaken(1 << 20, 64);
  std::mt19937_64 random(11);
  for (int i = 0; i < 2000; ++i) {
    const std::uint64_t bytes = 1 + random() % 2000;
    // A call that one replica made and undid, as after an allocation that not all PEs agreed on.
    if (const auto undone = shaken.Allocate(1 + random() % 3000, 1u << (random() % 13))) {
      ASSERT_TRUE(shaken.Free(*undone));
    }
    const auto offset = steady.Allocate(bytes, 64);
    ASSERT_EQ(shaken.Allocate(bytes, 64), offset);
    if (offset && i % 3 != 0) {
      ASSERT_TRUE(steady.Free(*offset));
      ASSERT_TRUE(shaken.Free(*offset));
    }
  }
}

TEST(OffsetAllocator, LargestFreeIsExactlyWhatSucceeds) {
  std::mt19937_64 random(5);
  OffsetAllocator allocator(1 << 18, 64);
  std::vector<std::uint64_t> offsets;
  for (int i = 0; i < 3000; ++i) {
    const auto offset = allocator.Allocate(1 + random() % 8000, 64);
    if (offset) offsets.push_back(*offset);
    if (!offset || i % 2 == 0) {
      std::swap(offsets[random() % offsets.size()], offsets.back());
      ASSERT_TRUE(allocator.Free(offsets.back()));
      offsets.pop_back();
    }
    for (const std::uint64_t alignment : {64, 4096, 65536}) {
      const std::uint64_t largest = allocator.LargestFree(alignment);
      ASSERT_EQ(allocator.Allocate(largest + 1, alignment), std::nullopt);
      if (largest == 0) continue;
      const auto block = allocator.Allocate(largest, alignment);
      ASSERT_TRUE(block);
      ASSERT_TRUE(allocator.Free(*block));
    }
    ASSERT_EQ(allocator.Stats().largest_free_bytes, allocator.LargestFree(64));
  }
}

TEST(OffsetAllocator, GrowsAndShrinksUnderLoad) {
  OffsetAllocator allocator(0, 64);
  std::mt19937_64 random(3);
  std::vector<std::uint64_t> offsets;
  for (int i = 0; i < 20'000; ++i) {
    const std::uint64_t bytes = 1 + random() % 1000;
    auto offset = allocator.Allocate(bytes, 64);
    if (!offset) {
      ASSERT_TRUE(allocator.Grow(allocator.Stats().capacity_bytes + 4096));
      offset = allocator.Allocate(bytes, 64);
      ASSERT_TRUE(offset);
    }
    offsets.push_back(*offset);
    while (offsets.size() > 1000 - static_cast<std::size_t>(i) / 25) {
      std::swap(offsets[random() % offsets.size()], offsets.back());
      ASSERT_TRUE(allocator.Free(offsets.back()));
      offsets.pop_back();
    }
    if (i % 100 != 0) continue;
    const std::uint64_t end = allocator.UsedEnd();
    ASSERT_TRUE(allocator.Shrink(end));
    ASSERT_TRUE(end == 0 || allocator.Find(end - 1));
  }
  for (const std::uint64_t offset : offsets) ASSERT_TRUE(allocator.Free(offset));
  EXPECT_TRUE(allocator.Shrink(0));
}

// ---- the bound on fragmentation ----

/// Robson's adversary: fills the budget with blocks of 1, 2, 4, … granules, and before each
/// doubling frees all but those that keep a larger block from fitting. @return the highest end of
/// a block, in granules.
std::uint64_t EndAfterRobsonsAdversary(OffsetAllocator& allocator, std::uint64_t budget,
                                       unsigned doublings) {
  std::map<std::uint64_t, std::uint64_t> live;
  std::uint64_t used = 0;
  std::uint64_t end = 0;
  std::uint64_t residue = 0;
  const auto covers = [](std::uint64_t start, std::uint64_t size, std::uint64_t at,
                         std::uint64_t period) {
    return (start + (at + period - start % period) % period) < start + size;
  };
  const auto pinned = [&](std::uint64_t at, std::uint64_t period) {
    std::uint64_t sum = 0;
    for (const auto& [start, size] : live) {
      if (covers(start, size, at, period)) sum += period - size;
    }
    return sum;
  };
  for (unsigned i = 0; i <= doublings; ++i) {
    const std::uint64_t size = std::uint64_t{1} << i;
    if (i > 0) {
      const std::uint64_t other = residue + size / 2;
      if (pinned(other, size) > pinned(residue, size)) residue = other;
      std::erase_if(live, [&](const auto& block) {
        if (covers(block.first, block.second, residue, size)) return false;
        used -= block.second;
        EXPECT_TRUE(allocator.Free(block.first));
        return true;
      });
    }
    while (used + size <= budget) {
      const auto start = allocator.Allocate(size, 1);
      if (!start) return 0;
      live.emplace(*start, size);
      used += size;
      end = std::max(end, *start + size);
    }
  }
  return end;
}

TEST(OffsetAllocator, KeepsItsBoundAgainstRobsonsAdversary) {
  constexpr unsigned kDoublings = 8;  // n = 256 granules
  constexpr std::uint64_t kBudget = 8192;
  constexpr std::uint64_t kBound = kBudget * (1 + 3 * kDoublings);
  OffsetAllocator allocator(kBound, 1);
  const std::uint64_t end = EndAfterRobsonsAdversary(allocator, kBudget, kDoublings);
  ASSERT_NE(end, 0u) << "refused within its bound";
  EXPECT_LE(end, kBound);
  // The theorem's other side: the adversary is a real one, it drives every allocator this far.
  EXPECT_GE(end, kBudget * (2 + kDoublings) / 2 - (1u << kDoublings));
}

TEST(OffsetAllocator, KeepsItsBoundUnderRandomPressure) {
  constexpr std::uint64_t kBudget = 4096;
  for (const unsigned doublings : {1, 4, 7}) {
    OffsetAllocator allocator(kBudget * (1 + 3 * doublings), 1);
    std::mt19937_64 random(doublings);
    std::vector<std::uint64_t> offsets;
    std::uint64_t used = 0;
    for (int i = 0; i < 30'000; ++i) {
      // Phases of growing size are the hard case for first fit.
      const std::uint64_t size = std::uint64_t{1} << (i / 500 % (doublings + 1));
      while (used + size > kBudget) {
        std::swap(offsets[random() % offsets.size()], offsets.back());
        used -= *allocator.SizeOf(offsets.back());
        ASSERT_TRUE(allocator.Free(offsets.back()));
        offsets.pop_back();
      }
      const auto offset = allocator.Allocate(size, 1);
      ASSERT_TRUE(offset) << "refused within its bound";
      offsets.push_back(*offset);
      used += size;
    }
  }
}

TEST(OffsetAllocator, ARefusalMeansThatEveryFreeBlockIsSmaller) {
  OffsetAllocator allocator(1 << 16, 64);
  std::vector<std::uint64_t> offsets;
  while (const auto offset = allocator.Allocate(64, 64)) offsets.push_back(*offset);
  for (std::size_t i = 0; i < offsets.size(); i += 2) ASSERT_TRUE(allocator.Free(offsets[i]));
  const auto stats = allocator.Stats();
  EXPECT_EQ(stats.free_bytes, 1u << 15);
  EXPECT_EQ(stats.free_blocks, stats.live_blocks);
  EXPECT_EQ(allocator.Allocate(65, 64), std::nullopt);
  EXPECT_EQ(allocator.Allocate(64, 64), 0u);
}

}  // namespace
}  // namespace mori::shmem
