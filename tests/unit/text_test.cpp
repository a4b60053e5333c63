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

TEST(Quote, EndsAtItsOwnQuoteOnly) {
  EXPECT_EQ(Quote("a\" is right, \"b"), "\"a\\\" is right, \\\"b\"");
  EXPECT_EQ(Quote("a\\"), "\"a\\\\\"");
  EXPECT_NE(Quote("\n"), Quote("\\x0a"));
}

TEST(Quote, CutsLongText) {
  EXPECT_EQ(Quote("12345", 5), "\"12345\"");
  EXPECT_EQ(Quote("123456", 5), "\"12345...\" (6 characters)");
}

TEST(OneLine, KeepsSentences) {
  for (const char* text :
       {"", "rank 0, \"a\\x0a\"", "2 ranks, …", "Zürich, 東京, \xf0\x9f\x98\x80"})
    EXPECT_EQ(OneLine(text), text);
}

TEST(OneLine, EscapesWhatEndsALineOrIsNoText) {
  struct Row {
    std::string_view text, line;
  };
  const Row rows[] = {
      {"a\n[mori] b", "a\\x0a[mori] b"},
      {"\r\t\x1b[2J\x7f", "\\x0d\\x09\\x1b[2J\\x7f"},
      {std::string_view("\0", 1), "\\x00"},
      {"\xff", "\\xff"},
      {"\xc3", "\\xc3"},                             // a first byte alone
      {"\xc3(", "\\xc3("},                           // without its second
      {"\xa4", "\\xa4"},                             // a second byte alone
      {"\xe2\x80", "\\xe2\\x80"},                    // two of three
      {"\xc2\x85", "\\xc2\\x85"},                    // next line
      {"\xe2\x80\xa8", "\\xe2\\x80\\xa8"},           // line separator
      {"\xc0\x8a", "\\xc0\\x8a"},                    // a newline in two bytes,
      {"\xe0\x80\x8a", "\\xe0\\x80\\x8a"},           // in three,
      {"\xf0\x80\x80\x8a", "\\xf0\\x80\\x80\\x8a"},  // in four
      {"\xed\xa0\x80", "\\xed\\xa0\\x80"},           // half a surrogate pair
      {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"},  // beyond the last code point
      {"\xf8\x88\x80\x80\x80", "\\xf8\\x88\\x80\\x80\\x80"},
  };
  for (const Row& row : rows) EXPECT_EQ(OneLine(row.text), row.line);
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
