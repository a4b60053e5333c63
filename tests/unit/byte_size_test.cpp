#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "base/config.hpp"

namespace mori::shmem {
namespace {

using ::testing::HasSubstr;
using ::testing::Lt;

constexpr std::uint64_t kKi = 1024;
constexpr std::uint64_t kMi = kKi * 1024;
constexpr std::uint64_t kGi = kMi * 1024;
constexpr std::uint64_t kTi = kGi * 1024;
constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();

struct GoodSize {
  std::string_view text;
  std::uint64_t bytes;
};

TEST(ParseByteSize, ReadsBytesAndPowersOf1024) {
  const GoodSize rows[] = {
      {"0", 0},
      {"1", 1},
      {"4096", 4096},
      {"007", 7},
      {"6G", 6 * kGi},
      {"6g", 6 * kGi},
      {"6GB", 6 * kGi},
      {"6GiB", 6 * kGi},
      {"6gib", 6 * kGi},
      {"512M", 512 * kMi},
      {"512MB", 512 * kMi},
      {"512MiB", 512 * kMi},
      {"64K", 64 * kKi},
      {"64k", 64 * kKi},
      {"1T", kTi},
      {"1TiB", kTi},
      {"0G", 0},
      {"18446744073709551615", kMax},
      {"16777215T", 16777215 * kTi},
      {"17179869183G", 17179869183 * kGi},
  };
  for (const GoodSize& row : rows) {
    const Result<std::uint64_t> size = ParseByteSize(row.text);
    ASSERT_TRUE(size.ok()) << row.text << ": " << size.status().message();
    EXPECT_EQ(*size, row.bytes) << row.text;
  }
}

struct BadSize {
  std::string_view text;
  std::string_view complaint;
};

TEST(ParseByteSize, SaysWhatIsWrong) {
  const BadSize rows[] = {
      {"", "is empty"},
      {"-6G", "is negative"},
      {"-1", "is negative"},
      {"-1.5G", "is negative"},
      {"+6G", "has a sign"},
      {"1.5G", "is a fraction"},
      {"6.0", "is a fraction"},
      {".5G", "is a fraction"},
      {"5.G", "is a fraction"},
      {".", "is not a size"},
      {"-", "is not a size"},
      {"G", "is not a size"},
      {"GiB", "is not a size"},
      {"6X", "is not a size"},
      {"6Gi", "is not a size"},
      {"6GG", "is not a size"},
      {"6 G", "is not a size"},
      {" 6G", "is not a size"},
      {"6G ", "is not a size"},
      {"6,5G", "is not a size"},
      {"1.2.3G", "is not a size"},
      {"1e9", "is not a size"},
      {"0x10", "is not a size"},
      {"abc", "is not a size"},
      {"nan", "is not a size"},
      {"18446744073709551616", "is larger than 64 bits can hold"},
      {"99999999999999999999999999", "is larger than 64 bits can hold"},
      {"16777216T", "is larger than 64 bits can hold"},
      {"17179869184G", "is larger than 64 bits can hold"},
  };
  for (const BadSize& row : rows) {
    const Result<std::uint64_t> size = ParseByteSize(row.text);
    ASSERT_FALSE(size.ok()) << row.text;
    EXPECT_EQ(size.status().code(), ErrorCode::kInvalidArgument);
    const std::string start = fmt::format("\"{}\" {}", row.text, row.complaint);
    EXPECT_THAT(size.status().message(), HasSubstr(start));
    EXPECT_THAT(size.status().message(), HasSubstr("a size looks like 6G, 512M or 4096 (bytes)"));
  }
}

TEST(ParseByteSize, QuotesForeignTextBoundedAndPrintable) {
  const Status long_text = ParseByteSize(std::string(100'000, '9')).status();
  EXPECT_THAT(long_text.message(), HasSubstr("999...\" (100000 characters)"));
  EXPECT_THAT(long_text.message().size(), Lt(250u));

  const Status escape = ParseByteSize("\x1b[31m6G\n\xff").status();
  EXPECT_THAT(escape.message(), HasSubstr("\"\\x1b[31m6G\\x0a\\xff\" is not a size"));
}

struct ShownSize {
  std::uint64_t bytes;
  std::string_view text;
};

TEST(FormatByteSize, TakesTheLargestUnitAndTwoDecimals) {
  const ShownSize rows[] = {
      {0, "0 bytes"},           {1, "1 byte"},
      {100, "100 bytes"},       {1023, "1023 bytes"},
      {1024, "1 KiB"},          {1536, "1.5 KiB"},
      {1034, "1.01 KiB"},       {100 * kKi, "100 KiB"},
      {kMi - 1, "1 MiB"},       {kMi - 11, "1023.99 KiB"},
      {512 * kMi, "512 MiB"},   {6 * kGi, "6 GiB"},
      {3 * kTi / 2, "1.5 TiB"}, {kTi * kKi, "1 PiB"},
      {kMax, "16 EiB"},
  };
  for (const ShownSize& row : rows) EXPECT_EQ(FormatByteSize(row.bytes), row.text) << row.bytes;
}

TEST(FormatExactByteSize, TakesTheLargestUnitThatDivides) {
  const ShownSize rows[] = {
      {0, "0 bytes"},
      {1, "1 byte"},
      {1030, "1030 bytes"},
      {1024, "1 KiB"},
      {64 * kGi, "64 GiB"},
      {64 * kGi + 2 * kMi, "65538 MiB"},
      {kGi + kGi / 2, "1536 MiB"},
      {kMax, "18446744073709551615 bytes"},
  };
  for (const ShownSize& row : rows)
    EXPECT_EQ(FormatExactByteSize(row.bytes), row.text) << row.bytes;
}

TEST(FormatByteSize, WholeUnitsReadBackAsTheSameSize) {
  for (const std::uint64_t unit : {kKi, kMi, kGi, kTi}) {
    for (const std::uint64_t count : {1, 3, 999}) {
      std::string text = FormatByteSize(count * unit);
      text.erase(text.find(' '), 1);
      const Result<std::uint64_t> size = ParseByteSize(text);
      ASSERT_TRUE(size.ok()) << text;
      EXPECT_EQ(*size, count * unit);
    }
  }
}

}  // namespace
}  // namespace mori::shmem
