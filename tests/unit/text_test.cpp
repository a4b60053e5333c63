#include "base/text.hpp"

#include <gtest/gtest.h>

namespace mori::shmem {
namespace {

TEST(Quote, KeepsPrintableText) {
  EXPECT_EQ(Quote(""), "\"\"");
  EXPECT_EQ(Quote("mlx5_0,mlx5_1"), "\"mlx5_0,mlx5_1\"");
}

TEST(Quote, EscapesWhatATerminalOrAStringDecoderCouldTrip) {
  EXPECT_EQ(Quote(std::string_view("a\0b\t\x7f\xc3\xa9", 7)), "\"a\\x00b\\x09\\x7f\\xc3\\xa9\"");
}

TEST(Quote, CutsLongText) {
  EXPECT_EQ(Quote("12345", 5), "\"12345\"");
  EXPECT_EQ(Quote("123456", 5), "\"12345...\" (6 characters)");
}

TEST(EqualsIgnoreCase, ComparesLetterByLetter) {
  EXPECT_TRUE(EqualsIgnoreCase("", ""));
  EXPECT_TRUE(EqualsIgnoreCase("Info", "iNFO"));
  EXPECT_FALSE(EqualsIgnoreCase("INFO", "INF"));
  EXPECT_FALSE(EqualsIgnoreCase("[", "{"));
}

TEST(EditDistance, CountsChangesOfOneCharacter) {
  struct Row {
    std::string_view a, b;
    std::size_t distance;
  };
  const Row rows[] = {
      {"", "", 0},         {"", "abc", 3},      {"abc", "", 3},
      {"RANK", "RANK", 0}, {"RNK", "RANK", 1},  {"RANKS", "RANK", 1},
      {"RENK", "RANK", 1}, {"abcd", "acbd", 2}, {"kitten", "sitting", 3},
  };
  for (const Row& row : rows) {
    EXPECT_EQ(EditDistance(row.a, row.b), row.distance) << row.a << " " << row.b;
    EXPECT_EQ(EditDistance(row.b, row.a), row.distance) << row.b << " " << row.a;
  }
}

}  // namespace
}  // namespace mori::shmem
