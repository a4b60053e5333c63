#include "base/element_copy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "mori/shmem/host_ops.hpp"

namespace mori::shmem {
namespace {

/// What one copy stored: each store's place from the start of the destination, and its length.
struct Store {
  std::ptrdiff_t offset;
  std::size_t bytes;
  bool is_vector;
};

/// Moves as the real ones do, and writes down what it was asked for. Its long ways begin early.
struct Recorder {
  static constexpr std::size_t kDirectedFrom = element_copy::Accesses::kDirectedFrom;
  static constexpr std::size_t kStringFrom = 4097;
  static constexpr std::size_t kStreamFrom = 20000;
  static inline std::byte* base = nullptr;
  static inline std::vector<Store> stores;
  static inline bool has_vectors = true;
  static inline int ended_streams = 0;

  static void Note(std::byte* to, const std::byte* from, std::size_t bytes, bool is_vector) {
    stores.push_back({to - base, bytes, is_vector});
    std::memcpy(to, from, bytes);
  }
  template <typename Word>
  static void Move(std::byte* to, const std::byte* from) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(to) % sizeof(Word), 0U);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(from) % sizeof(Word), 0U);
    Note(to, from, sizeof(Word), false);
  }
  static void MoveBytes(std::byte* to, const std::byte* from, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i) Note(to + i, from + i, 1, false);
  }
  static void Move16(std::byte* to, const std::byte* from) { Note(to, from, 16, true); }
  static void MoveVector(std::byte* to, const std::byte* from) { Note(to, from, 32, true); }
  static void MovePair(std::byte* to, const std::byte* from) {
    MoveVector(to, from);
    MoveVector(to + 32, from + 32);
  }
  static void MoveBlock(std::byte* to, const std::byte* from) {
    for (int i = 0; i < 256; i += 32) MoveVector(to + i, from + i);
  }
  static void StreamHalfBlock(std::byte* to, const std::byte* from) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(to) % 32, 0U);
    for (int i = 0; i < 128; i += 32) MoveVector(to + i, from + i);
  }
  static void EndStream() { ++ended_streams; }
  template <typename Word>
  static void MoveString(std::byte* to, const std::byte* from, std::size_t words) {
    for (std::size_t i = 0; i < words * sizeof(Word); i += sizeof(Word))
      Note(to + i, from + i, sizeof(Word), false);
  }
  static bool HasVectors() { return has_vectors; }
};

struct Buffer {
  explicit Buffer(std::size_t size) : bytes(size + 64) {}
  /// `offset` from a cache line.
  std::byte* At(std::size_t offset) {
    const auto start = reinterpret_cast<std::uintptr_t>(bytes.data());
    return bytes.data() + (64 - start % 64) % 64 + offset;
  }
  std::vector<std::byte> bytes;
};

/// The first thing wrong with a copy of `bytes` between ends that stand `to_offset` and
/// `from_offset` behind a cache line; empty if nothing is.
std::string Wrong(std::size_t to_offset, std::size_t from_offset, std::size_t bytes) {
  constexpr std::size_t kRoom = 64;
  Buffer to(bytes + 2 * kRoom), from(bytes + 2 * kRoom);
  for (std::size_t i = 0; i < from.bytes.size(); ++i)
    from.bytes[i] = static_cast<std::byte>(i * 131 + i / 251);
  Recorder::base = to.At(to_offset);
  Recorder::stores.clear();
  element_copy::Copy<Recorder>(to.At(to_offset), from.At(from_offset), bytes);

  const std::string what = "to +" + std::to_string(to_offset) + ", from +" +
                           std::to_string(from_offset) + ", " + std::to_string(bytes) + " bytes";
  if (!std::equal(to.At(to_offset), to.At(to_offset) + bytes, from.At(from_offset)))
    return what + ": wrong data";
  std::vector<int> owner(bytes, -1);
  for (std::size_t i = 0; i < Recorder::stores.size(); ++i) {
    const Store& store = Recorder::stores[i];
    if (store.offset < 0 || static_cast<std::size_t>(store.offset) + store.bytes > bytes)
      return what + ": a store beyond the end";
    if (store.is_vector && bytes < 16) return what + ": a vector in a short copy";
    for (std::size_t k = 0; k < store.bytes; ++k) {
      int& byte = owner[static_cast<std::size_t>(store.offset) + k];
      if (byte >= 0) return what + ": stored twice at " + std::to_string(store.offset);
      byte = static_cast<int>(i);
    }
  }
  if (std::ranges::count(owner, -1) != 0) return what + ": a byte not stored";
  for (const std::size_t element : {2U, 4U, 8U}) {
    if ((to_offset + 64 - from_offset % 64) % element != 0) continue;
    std::size_t i = (element - to_offset % element) % element;
    for (; i + element <= bytes; i += element) {
      const auto& store = Recorder::stores[static_cast<std::size_t>(owner[i])];
      const bool is_whole = owner[i] == owner[i + element - 1] &&
                            (i - static_cast<std::size_t>(store.offset)) % element == 0;
      if (!is_whole)
        return what + ": element of " + std::to_string(element) + " torn at " + std::to_string(i);
    }
  }
  return "";
}

class ElementCopy : public testing::TestWithParam<bool> {
 protected:
  void SetUp() override { Recorder::has_vectors = GetParam(); }
};

TEST_P(ElementCopy, ShortOnesTearNoElementAndStoreEachOnce) {
  for (std::size_t to = 0; to < 16; ++to) {
    for (std::size_t from = 0; from < 16; ++from) {
      for (std::size_t bytes = 0; bytes <= 80; ++bytes) ASSERT_EQ(Wrong(to, from, bytes), "");
    }
  }
}

TEST_P(ElementCopy, LongOnesTearNoElementAndStoreEachOnce) {
  for (const std::size_t around : {std::size_t{300}, Recorder::kDirectedFrom, std::size_t{1100}}) {
    for (const std::size_t to : {0, 1, 2, 3, 4, 6, 8, 16, 37}) {
      for (const std::size_t from : {0, 1, 2, 4, 5, 8, 12, 34}) {
        for (std::size_t bytes = around - 1; bytes < around + 17; ++bytes)
          ASSERT_EQ(Wrong(to, from, bytes), "");
      }
    }
  }
}

TEST_P(ElementCopy, TheLongestTearNoElementAndStoreEachOnce) {
  for (const std::size_t around : {Recorder::kStringFrom, Recorder::kStreamFrom}) {
    for (const std::size_t to : {0, 1, 2, 4, 40}) {
      for (const std::size_t from : {0, 1, 2, 12, 32}) {
        for (std::size_t bytes = around - 1; bytes < around + 8; bytes += 3)
          ASSERT_EQ(Wrong(to, from, bytes), "");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Vectors, ElementCopy, testing::Bool(), [](const auto& has_vectors) {
  return std::string(has_vectors.param ? "With" : "Without");
});

/// Stores of a copy, as their lengths.
std::vector<std::size_t> Lengths(std::size_t to_offset, std::size_t from_offset,
                                 std::size_t bytes) {
  EXPECT_EQ(Wrong(to_offset, from_offset, bytes), "");
  std::vector<std::size_t> lengths;
  for (const Store& store : Recorder::stores) lengths.push_back(store.bytes);
  return lengths;
}

TEST(ElementCopyPieces, FollowTheNaturalAlignment) {
  using Sizes = std::vector<std::size_t>;
  EXPECT_EQ(Lengths(0, 0, 8), (Sizes{8}));
  EXPECT_EQ(Lengths(0, 0, 12), (Sizes{8, 4}));
  EXPECT_EQ(Lengths(4, 4, 12), (Sizes{4, 8}));
  EXPECT_EQ(Lengths(4, 0, 12), (Sizes{4, 4, 4}));
  EXPECT_EQ(Lengths(8, 0, 24), (Sizes{16, 8}));
  EXPECT_EQ(Lengths(1, 9, 15), (Sizes{1, 2, 4, 8}));
  EXPECT_EQ(Lengths(0, 8, 15), (Sizes{8, 4, 2, 1}));
  EXPECT_EQ(Lengths(2, 4, 7), (Sizes{2, 2, 2, 1}));
}

TEST(ElementCopyPieces, AStreamEndsWithItsFence) {
  for (const auto& [bytes, fences] :
       {std::pair(Recorder::kStreamFrom - 1, 0), std::pair(Recorder::kStreamFrom, 1)}) {
    Recorder::has_vectors = true;
    Recorder::ended_streams = 0;
    EXPECT_EQ(Wrong(0, 0, bytes), "");
    EXPECT_EQ(Recorder::ended_streams, fences);
  }
}

TEST(ElementCopyPieces, RealOnesCopyEveryByteAndNoOther) {
  using element_copy::Accesses;
  for (const std::size_t around : {std::size_t{0}, std::size_t{20}, Accesses::kDirectedFrom,
                                   Accesses::kStringFrom, Accesses::kStreamFrom}) {
    Buffer to(around + 256), from(around + 256);
    for (std::size_t i = 0; i < from.bytes.size(); ++i)
      from.bytes[i] = static_cast<std::byte>(i * 131 + i / 251 + 1);
    for (const std::size_t to_offset : {0, 3, 4, 8, 40}) {
      for (const std::size_t from_offset : {0, 1, 4, 6, 48}) {
        if (around == Accesses::kStreamFrom && to_offset + from_offset != 8)
          continue;  // it is long
        const std::size_t bytes = around + 13;
        std::ranges::fill(to.bytes, std::byte{0});
        CopyElements(to.At(to_offset), from.At(from_offset), bytes);
        ASSERT_TRUE(std::equal(to.At(to_offset), to.At(to_offset) + bytes, from.At(from_offset)));
        ASSERT_TRUE(std::all_of(to.bytes.data(), to.At(to_offset),
                                [](std::byte byte) { return byte == std::byte{0}; }));
        ASSERT_TRUE(std::all_of(to.At(to_offset) + bytes, to.bytes.data() + to.bytes.size(),
                                [](std::byte byte) { return byte == std::byte{0}; }));
      }
    }
  }
}

TEST(ElementCopyPieces, WordsInPlaceCopyEveryByteAndNoOther) {
  alignas(8) std::byte from[144], to[160];
  for (std::size_t i = 0; i < sizeof from; ++i) from[i] = static_cast<std::byte>(i + 1);
  for (std::size_t bytes = 0; bytes <= 128; ++bytes) {
    std::ranges::fill(to, std::byte{0});
    detail::CopyKnown<16>(to + 8, from + 8, bytes);
    EXPECT_TRUE(std::equal(to + 8, to + 8 + bytes, from + 8)) << bytes;
    EXPECT_EQ(std::ranges::count(to, std::byte{0}), static_cast<std::ptrdiff_t>(160 - bytes));
  }
}

TEST(ElementCopyPieces, WhatTheCompilerKnowsTheSizeOfIsOneAccess) {
  alignas(8) std::byte from[16], to[16] = {};
  for (std::size_t i = 0; i < 16; ++i) from[i] = static_cast<std::byte>(i + 1);
  for (const std::size_t bytes : {1, 2, 4, 8}) {
    for (std::size_t offset = 0; offset < 8; ++offset) {  // any alignment
      std::ranges::fill(to, std::byte{0});
      detail::CopyOneAccess(to + offset, from + 1, bytes);
      EXPECT_TRUE(std::equal(to + offset, to + offset + bytes, from + 1));
      EXPECT_EQ(std::ranges::count(to, std::byte{0}), static_cast<std::ptrdiff_t>(16 - bytes));
    }
  }
}

}  // namespace
}  // namespace mori::shmem
