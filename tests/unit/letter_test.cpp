#include "bootstrap/letter.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mori::shmem {
namespace {

using Use = Bootstrap::Channel::Use;

Letter Example() { return {3, 700, {Use::kGroup, 0x0123456789abcdef}, {1, 2, 3}}; }

TEST(Letter, RoundTrips) {
  for (const Use use : {Use::kAll, Use::kGroup, Use::kPair}) {
    for (const std::size_t size : {0, 1, 5000}) {
      Letter letter = Example();
      letter.channel.use = use;
      letter.message.assign(size, 0x5a);
      const auto decoded = DecodeLetter(EncodeLetter(letter), 701);
      ASSERT_TRUE(decoded.ok()) << decoded.status().message();
      EXPECT_EQ(decoded->from, 3);
      EXPECT_EQ(decoded->to, 700);
      EXPECT_EQ(decoded->channel, letter.channel);
      EXPECT_EQ(decoded->message, letter.message);
    }
  }
}

TEST(Letter, CutOffOrForARankThatIsNotThereItIsMalformed) {
  const Bytes bytes = EncodeLetter(Example());
  for (std::size_t size = 0; size < bytes.size() - 3; ++size) {
    const Status status = DecodeLetter(ByteView(bytes).first(size), 701).status();
    EXPECT_EQ(status.code(), ErrorCode::kMismatch) << size;
    EXPECT_EQ(status.message(), "a message between two ranks is malformed");
  }
  EXPECT_FALSE(DecodeLetter(bytes, 700).ok());
  for (const int rank : {-1, INT32_MIN, INT32_MAX}) {
    Letter from = Example(), to = Example();
    from.from = rank;
    to.to = rank;
    EXPECT_FALSE(DecodeLetter(EncodeLetter(from), 701).ok());
    EXPECT_FALSE(DecodeLetter(EncodeLetter(to), 701).ok());
  }
}

TEST(Letter, OfAnUnknownUseIsMalformed) {
  for (const int use : {0, 4, 255}) {
    Letter letter = Example();
    letter.channel.use = static_cast<Use>(use);
    EXPECT_FALSE(DecodeLetter(EncodeLetter(letter), 701).ok());
  }
}

}  // namespace
}  // namespace mori::shmem
