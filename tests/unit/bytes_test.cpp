#include "base/bytes.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <limits>

namespace mori::shmem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

enum class Colour : std::uint16_t { kRed = 0x1234 };

TEST(Bytes, IntegersAreLittleEndian) {
  EXPECT_THAT(ByteWriter().Int<std::uint8_t>(0xab).bytes(), ElementsAre(0xab));
  EXPECT_THAT(ByteWriter().Int<std::uint16_t>(0x0102).bytes(), ElementsAre(2, 1));
  EXPECT_THAT(ByteWriter().Int<std::uint32_t>(0x01020304).bytes(), ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(ByteWriter().Int<std::uint64_t>(0x0102030405060708).bytes(),
              ElementsAre(8, 7, 6, 5, 4, 3, 2, 1));
  EXPECT_THAT(ByteWriter().Int(Colour::kRed).bytes(), ElementsAre(0x34, 0x12));
  EXPECT_THAT(ByteWriter().Int<std::int32_t>(-2).bytes(), ElementsAre(0xfe, 0xff, 0xff, 0xff));
}

template <typename T>
class BytesOf : public ::testing::Test {};
using Integers = ::testing::Types<std::int8_t, std::uint8_t, std::int16_t, std::uint16_t,
                                  std::int32_t, std::uint32_t, std::int64_t, std::uint64_t>;
TYPED_TEST_SUITE(BytesOf, Integers);

TYPED_TEST(BytesOf, ExtremesRoundTrip) {
  using Limits = std::numeric_limits<TypeParam>;
  for (const TypeParam value : {Limits::min(), TypeParam{0}, TypeParam{1}, Limits::max()}) {
    const Bytes bytes = ByteWriter().Int(value).Take();
    ASSERT_EQ(bytes.size(), sizeof(TypeParam));
    ByteReader reader(bytes);
    EXPECT_EQ(reader.Int<TypeParam>(), value);
    EXPECT_TRUE(reader.AtEnd());
  }
}

TEST(Bytes, FieldsComeBackInOrder) {
  const Bytes raw{1, 2, 3};
  const Bytes bytes = ByteWriter()
                          .Text("hello")
                          .Int(Colour::kRed)
                          .Block(raw)
                          .Raw(raw)
                          .Text("")
                          .Int(std::uint8_t{9})
                          .Take();
  ByteReader reader(bytes);
  EXPECT_EQ(reader.Text(5), "hello");
  EXPECT_EQ(reader.Int<Colour>(), Colour::kRed);
  EXPECT_THAT(reader.Block(), ElementsAre(1, 2, 3));
  EXPECT_THAT(reader.Raw(3), ElementsAre(1, 2, 3));
  EXPECT_EQ(reader.Text(0), "");
  EXPECT_EQ(reader.remaining(), 1u);
  EXPECT_FALSE(reader.AtEnd());
  EXPECT_EQ(reader.Int<std::uint8_t>(), 9);
  EXPECT_TRUE(reader.AtEnd());
}

TEST(Bytes, ABlockIsItsLengthAndItsBytes) {
  EXPECT_THAT(ByteWriter().Text("ab").bytes(), ElementsAre(2, 0, 0, 0, 'a', 'b'));
  EXPECT_THAT(ByteWriter().Block({}).bytes(), ElementsAre(0, 0, 0, 0));
}

TEST(Bytes, AMissingFieldReadsAsNothingAndSpoilsTheRest) {
  const Bytes bytes{1, 2, 3};
  ByteReader reader(bytes);
  EXPECT_EQ(reader.Int<std::uint32_t>(), 0u) << "only three of four bytes are there";
  EXPECT_FALSE(reader.ok());
  EXPECT_EQ(reader.remaining(), 0u);
  EXPECT_EQ(reader.Int<std::uint8_t>(), 0) << "a reader does not recover";
  EXPECT_FALSE(reader.AtEnd());
}

TEST(Bytes, ALengthBeyondTheMessageIsNoBlock) {
  const Bytes bytes = ByteWriter().Int<std::uint32_t>(4).Raw(Bytes{1, 2, 3}).Take();
  ByteReader reader(bytes);
  EXPECT_THAT(reader.Block(), IsEmpty());
  EXPECT_FALSE(reader.ok());
}

TEST(Bytes, ALengthBeyondTheLimitIsNoText) {
  const Bytes bytes = ByteWriter().Text("abcd").Take();
  ByteReader allowed(bytes), refused(bytes);
  EXPECT_EQ(allowed.Text(4), "abcd");
  EXPECT_TRUE(allowed.AtEnd());
  EXPECT_EQ(refused.Text(3), "");
  EXPECT_FALSE(refused.ok());
}

TEST(Bytes, TheLargestLengthDoesNotWrap) {
  const Bytes bytes = ByteWriter().Int<std::uint32_t>(UINT32_MAX).Take();
  ByteReader reader(bytes);
  EXPECT_THAT(reader.Block(), IsEmpty());
  EXPECT_FALSE(reader.ok());
}

TEST(Bytes, NothingIsAtItsEnd) {
  ByteReader reader({});
  EXPECT_TRUE(reader.AtEnd());
  EXPECT_THAT(reader.Raw(0), IsEmpty());
  EXPECT_TRUE(reader.AtEnd());
}

}  // namespace
}  // namespace mori::shmem
