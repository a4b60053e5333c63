#include "heap/backing.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>

namespace mori::shmem {
namespace {

using ::testing::IsEmpty;

using Pieces = std::vector<Piece>;

TEST(WholeBacking, IsThereFromTheStart) {
  const auto backing = MakeWholeBacking(1000);
  EXPECT_EQ(backing->AtInit(), (Pieces{{0, 1000}}));
  EXPECT_THAT(backing->Take({0, 100}), IsEmpty());
  EXPECT_THAT(backing->Drop({0, 100}), IsEmpty());
  EXPECT_EQ(backing->End(), 1000u);
  EXPECT_TRUE(backing->Covers({0, 1000}));
  EXPECT_FALSE(backing->Covers({1, 1000}));
  EXPECT_FALSE(backing->Covers({UINT64_MAX, 2}));
}

TEST(ChunkBacking, ABlockTakesTheChunksItLiesIn) {
  const auto backing = MakeChunkBacking(1000, 100);
  EXPECT_THAT(backing->AtInit(), IsEmpty());
  EXPECT_EQ(backing->End(), 0u);
  EXPECT_EQ(backing->Take({0, 100}), (Pieces{{0, 100}}));
  EXPECT_EQ(backing->Take({199, 2}), (Pieces{{100, 100}, {200, 100}}));
  EXPECT_THAT(backing->Take({150, 10}), IsEmpty());
  EXPECT_EQ(backing->End(), 300u);
  EXPECT_TRUE(backing->Covers({0, 300}));
  EXPECT_FALSE(backing->Covers({299, 2}));
}

TEST(ChunkBacking, TheLastChunkEndsWithTheHeap) {
  const auto backing = MakeChunkBacking(250, 100);
  EXPECT_EQ(backing->Take({180, 70}), (Pieces{{100, 100}, {200, 50}}));
  EXPECT_EQ(backing->End(), 250u);
  EXPECT_FALSE(backing->Covers({249, 2}));
}

TEST(ChunkBacking, AnEmptyChunkIsGivenBackButForTheLowest) {
  const auto backing = MakeChunkBacking(1000, 100);
  backing->Take({0, 100});
  backing->Take({100, 300});
  EXPECT_EQ(backing->Drop({100, 300}), (Pieces{{200, 100}, {300, 100}}));  // 100 is kept
  EXPECT_EQ(backing->End(), 200u);
  EXPECT_THAT(backing->Take({120, 10}), IsEmpty());  // and serves again
  EXPECT_THAT(backing->Drop({120, 10}), IsEmpty());
  EXPECT_EQ(backing->Drop({0, 100}), (Pieces{{100, 100}}));  // a lower one is kept now
  EXPECT_EQ(backing->End(), 100u);
}

TEST(ChunkBacking, AnUndoneTakeKeepsTheChunkThatWasKeptBefore) {
  const auto backing = MakeChunkBacking(1000, 100);
  backing->Take({100, 100});
  EXPECT_THAT(backing->Drop({100, 100}), IsEmpty());  // 100 is kept
  const auto wanted = backing->Take({0, 300});
  EXPECT_EQ(wanted, (Pieces{{0, 100}, {200, 100}}));
  backing->Undo({0, 300}, wanted);
  EXPECT_EQ(backing->End(), 200u);
  EXPECT_THAT(backing->Take({100, 100}), IsEmpty());
}

/// In time that grows with them: were each looked for among all, this would take minutes.
TEST(ChunkBacking, ManyChunksAreUndone) {
  constexpr std::uint64_t kBlock = std::uint64_t{100} * 500'000;
  const auto backing = MakeChunkBacking(2 * kBlock, 100);
  const auto wanted = backing->Take({0, kBlock});
  EXPECT_EQ(wanted.size(), 500'000u);
  backing->Undo({0, kBlock}, wanted);
  EXPECT_EQ(backing->End(), 0u);
}

TEST(ChunkBacking, AChunkThatSeveralBlocksShareGoesWithTheLast) {
  const auto backing = MakeChunkBacking(1000, 100);
  backing->Take({0, 10});  // keeps chunk 0
  backing->Take({100, 10});
  backing->Take({150, 60});
  EXPECT_THAT(backing->Drop({100, 10}), IsEmpty());
  EXPECT_EQ(backing->Drop({150, 60}), (Pieces{{200, 100}}));
}

TEST(ChunkBacking, UndoLeavesWhatWasBefore) {
  const auto backing = MakeChunkBacking(1000, 100);
  backing->Take({0, 10});
  backing->Take({100, 10});
  backing->Drop({100, 10});  // chunk 1 is kept, without a block
  const Pieces wanted = backing->Take({50, 300});
  EXPECT_EQ(wanted, (Pieces{{200, 100}, {300, 100}}));
  backing->Undo({50, 300}, wanted);
  EXPECT_EQ(backing->End(), 200u);
  EXPECT_TRUE(backing->Covers({0, 200}));
  EXPECT_EQ(backing->Take({50, 300}), wanted);
}

TEST(BlockBacking, EachBlockIsAPiece) {
  const auto backing = MakeBlockBacking();
  EXPECT_EQ(backing->Take({4096, 4096}), (Pieces{{4096, 4096}}));
  EXPECT_EQ(backing->Take({16384, 8192}), (Pieces{{16384, 8192}}));
  EXPECT_EQ(backing->End(), 24576u);
  EXPECT_TRUE(backing->Covers({20000, 4576}));
  EXPECT_FALSE(backing->Covers({20000, 4577}));
  EXPECT_FALSE(backing->Covers({8192, 1}));
  EXPECT_FALSE(backing->Covers({0, 1}));
  backing->Undo({4096, 4096}, {{4096, 4096}});
  EXPECT_FALSE(backing->Covers({4096, 1}));
  EXPECT_EQ(backing->Drop({16384, 8192}), (Pieces{{16384, 8192}}));
  EXPECT_EQ(backing->End(), 0u);
}

/// What every backing promises, against a plain model: a byte of a live block has memory, memory is
/// never given twice or taken twice, and little of it stays when the blocks are gone.
class AnyBacking : public ::testing::TestWithParam<HeapMode> {};
INSTANTIATE_TEST_SUITE_P(Modes, AnyBacking,
                         ::testing::Values(HeapMode::kStatic, HeapMode::kVmm, HeapMode::kIsolation),
                         [](const auto& parameter) {
                           return std::string(HeapModeName(parameter.param));
                         });

TEST_P(AnyBacking, MemoryIsWhereBlocksAre) {
  constexpr std::uint64_t kBytes = 10'000, kUnit = 10;
  const auto backing = GetParam() == HeapMode::kStatic ? MakeWholeBacking(kBytes)
                       : GetParam() == HeapMode::kVmm  ? MakeChunkBacking(kBytes, 70)
                                                       : MakeBlockBacking();
  std::map<std::uint64_t, std::uint64_t> blocks;
  std::set<std::uint64_t> mapped;  // in units
  const auto map = [&](const Pieces& pieces) {
    for (const Piece& piece : pieces)
      for (std::uint64_t at = piece.offset; at < piece.end(); at += kUnit)
        ASSERT_TRUE(mapped.insert(at).second) << "twice: " << at;
  };
  const auto unmap = [&](const Pieces& pieces) {
    for (const Piece& piece : pieces)
      for (std::uint64_t at = piece.offset; at < piece.end(); at += kUnit)
        ASSERT_EQ(mapped.erase(at), 1u) << "not there: " << at;
  };
  std::mt19937 random(7);
  map(backing->AtInit());
  for (int step = 0; step < 20'000; ++step) {
    const std::uint64_t offset = random() % (kBytes / kUnit) * kUnit;
    const auto after = blocks.lower_bound(offset);
    const bool is_inside =
        after != blocks.begin() && std::prev(after)->first + std::prev(after)->second > offset;
    const std::uint64_t limit = (after == blocks.end() ? kBytes : after->first) - offset;
    if (is_inside || limit == 0) {
      const auto victim = after == blocks.begin() ? after : std::prev(after);
      const Piece block{victim->first, victim->second};
      blocks.erase(victim);
      unmap(backing->Drop(block));
    } else {
      const Piece block{offset, std::min(limit, (random() % 40 + 1) * kUnit)};
      const Pieces wanted = backing->Take(block);
      if (random() % 4 == 0) {
        backing->Undo(block, wanted);
      } else {
        map(wanted);
        blocks.emplace(block.offset, block.bytes);
      }
    }
    if (HasFatalFailure()) return;
    if (step % 100 != 0) continue;
    for (const auto& [start, bytes] : blocks) {
      ASSERT_TRUE(backing->Covers({start, bytes}));
      for (std::uint64_t at = start; at < start + bytes; at += kUnit)
        ASSERT_TRUE(mapped.contains(at));
    }
    ASSERT_EQ(backing->End(), mapped.empty() ? 0 : *mapped.rbegin() + kUnit);
  }
  for (const auto& [start, bytes] : blocks) unmap(backing->Drop({start, bytes}));
  const std::size_t left = GetParam() == HeapMode::kStatic ? kBytes / kUnit
                           : GetParam() == HeapMode::kVmm  ? 7
                                                           : 0;
  EXPECT_EQ(mapped.size(), left);
}

}  // namespace
}  // namespace mori::shmem
