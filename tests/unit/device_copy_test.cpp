// Copies of the device API, by threads of the host: which words they are made of. An element that
// is stored in parts can be seen half-done by who waits for it.
#include "mori/shmem/device/memory.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <vector>

namespace mori::shmem::device {
namespace {

/// What has been stored: where, and in how many bytes at a time.
struct Store {
  const void* address;
  u64 bytes;
};
std::vector<Store> stores;

template <typename Word>
void Note(Word* p, const Word& value) {
  stores.push_back({p, sizeof value});
  std::memcpy(p, &value, sizeof value);
}

}  // namespace

// Before the copies are read, which store by these then instead of by the templates.
static void StoreBulk(u8* p, const u8& value) { Note(p, value); }
static void StoreBulk(u16* p, const u16& value) { Note(p, value); }
static void StoreBulk(u32* p, const u32& value) { Note(p, value); }
static void StoreBulk(u64* p, const u64& value) { Note(p, value); }
static void StoreBulk(Vector16* p, const Vector16& value) { Note(p, value); }

}  // namespace mori::shmem::device

#include "mori/shmem/device/copy.hpp"

namespace mori::shmem::device {
namespace {

/// Scopes of this test's own: no other file has these copies.
struct One {
  static constexpr bool kIsOneThread = true;
  static constexpr int kBatch = 8;
  static u32 Rank() { return 0; }
  static u32 Size() { return 1; }
};
/// Threads take their turns one after the other.
struct Several {
  static constexpr bool kIsOneThread = false;
  static constexpr int kBatch = 8;
  static inline u32 rank = 0;
  static inline u32 size = 1;
  static u32 Rank() { return rank; }
  static u32 Size() { return size; }
};

struct alignas(16) Room {
  u8 bytes[256];
};

/// Whether all of a copy of `bytes` by elements of `unit` bytes is right, and none of them in
/// parts.
template <typename Scope, Source kSource, u32 kUnit>
void Check(u32 to_at, u32 from_at, u32 bytes, u32 unit, u32 threads) {
  Room to{}, from{};
  for (u32 i = 0; i < sizeof from.bytes; ++i) from.bytes[i] = static_cast<u8>(i * 7 + 1);
  stores.clear();
  for (u32 rank = 0; rank < threads; ++rank) {
    Several::rank = rank;
    Several::size = threads;
    Copy<Scope, kSource, kUnit>(to.bytes + to_at, from.bytes + from_at, bytes);
  }
  Room expected{};
  std::copy_n(from.bytes + from_at, bytes, expected.bytes + to_at);
  ASSERT_TRUE(std::equal(std::begin(to.bytes), std::end(to.bytes), expected.bytes))
      << bytes << " bytes from " << from_at << " to " << to_at << " by " << threads << " threads";
  u64 stored = 0;
  for (const Store& store : stores) {
    stored += store.bytes;
    ASSERT_EQ(reinterpret_cast<u64>(store.address) % store.bytes, 0u) << store.bytes;
    ASSERT_GE(store.bytes, unit) << bytes << " bytes from " << from_at << " to " << to_at;
  }
  ASSERT_EQ(stored, bytes) << "each byte is stored once";
}

/// Copies of whole elements, wherever these are aligned on both sides.
template <u32 kUnit>
void CheckElements(u32 unit) {
  for (u32 to = 0; to < 16; to += unit) {
    for (u32 from = 0; from < 16; from += unit) {
      for (u32 bytes = 0; bytes <= 100; bytes += unit) {
        Check<One, Source::kLocal, kUnit>(to, from, bytes, unit, 1);
        Check<One, Source::kRemote, kUnit>(to, from, bytes, unit, 1);
        for (const u32 threads : {1U, 3U, 32U})
          Check<Several, Source::kLocal, kUnit>(to, from, bytes, unit, threads);
        if (::testing::Test::HasFatalFailure()) return;
      }
    }
  }
}

TEST(DeviceCopy, StoresNoElementInParts) {
  for (const u32 unit : {1U, 2U, 4U, 8U, 16U}) CheckElements<1>(unit);
}
TEST(DeviceCopy, OfElementsWhoseTypeIsKnownStoresNoneInParts) {
  CheckElements<2>(2);
  CheckElements<4>(4);
  CheckElements<8>(8);
}
TEST(DeviceCopy, OfElementsThatAreLessAlignedThanTheirTypeMissesNothing) {
  for (u32 at = 0; at < 256; ++at) {  // all pairs of places
    for (u32 bytes = 0; bytes <= 64; bytes += 8) {
      Check<One, Source::kLocal, 2>(at / 16, at % 16, bytes, 1, 1);
      Check<One, Source::kRemote, 4>(at / 16, at % 16, bytes, 1, 1);
      Check<Several, Source::kLocal, 8>(at / 16, at % 16, bytes, 1, 32);
      if (::testing::Test::HasFatalFailure()) return;
    }
  }
}
TEST(DeviceCopy, IsMadeOfTheWidestWords) {
  Room to{}, from{};
  const auto sizes_of = [&](u32 to_at, u32 from_at, u32 bytes) {
    stores.clear();
    Copy<One, Source::kLocal>(to.bytes + to_at, from.bytes + from_at, bytes);
    std::vector<u64> sizes;
    for (const Store& store : stores) sizes.push_back(store.bytes);
    std::sort(sizes.begin(), sizes.end());
    return sizes;
  };
  using Sizes = std::vector<u64>;
  EXPECT_EQ(sizes_of(0, 0, 24), (Sizes{8, 16}));
  EXPECT_EQ(sizes_of(4, 4, 20), (Sizes{4, 8, 8}));
  EXPECT_EQ(sizes_of(1, 1, 46), (Sizes{1, 1, 2, 2, 4, 4, 8, 8, 16}));
  EXPECT_EQ(sizes_of(0, 8, 32), (Sizes{8, 8, 8, 8}));
  EXPECT_EQ(sizes_of(0, 4, 12), (Sizes{4, 4, 4}));
  EXPECT_EQ(sizes_of(0, 1, 15), (Sizes{1, 2, 4, 4, 4}));
  EXPECT_EQ(sizes_of(7, 7, 2), (Sizes{1, 1}));
  EXPECT_EQ(sizes_of(3, 3, 0), Sizes{});
}

}  // namespace
}  // namespace mori::shmem::device
