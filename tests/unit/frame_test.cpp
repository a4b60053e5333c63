#include "bootstrap/frame.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mori::shmem {
namespace {

using ::testing::IsEmpty;

Frame Example() { return {FrameType::kLetter, 7, 0x01020304, {10, 20, 30}}; }

void ExpectEqual(const Frame& actual, const Frame& expected) {
  EXPECT_EQ(actual.type, expected.type);
  EXPECT_EQ(actual.sender, expected.sender);
  EXPECT_EQ(actual.sequence, expected.sequence);
  EXPECT_EQ(actual.payload, expected.payload);
}

void Feed(FrameParser* parser, ByteView bytes) {
  parser->buffer()->insert(parser->buffer()->end(), bytes.begin(), bytes.end());
}

/// What a parser says to `bytes` with one of them replaced.
Status RefusalWith(std::size_t offset, std::uint8_t value) {
  Bytes bytes = EncodeFrame(Example());
  bytes[offset] = value;
  FrameParser parser;
  Feed(&parser, bytes);
  return parser.Next().status();
}

TEST(Frame, HasAHeaderOfTwentyBytes) {
  EXPECT_EQ(EncodeFrame(Example()), (Bytes{'S', 'F', 'M', '1', 5, 0, 0, 0, 7,  0,  0, 0,
                                           4,   3,   2,   1,   3, 0, 0, 0, 10, 20, 30}));
  EXPECT_EQ(EncodeFrame({FrameType::kBye, 0, 0, {}}).size(), kFrameHeaderBytes);
}

TEST(Frame, EveryTypeRoundTrips) {
  for (auto type = FrameType::kHello; type <= FrameType::kMissing;
       type = static_cast<FrameType>(static_cast<int>(type) + 1)) {
    for (const std::size_t size : {0, 1, 1000}) {
      const Frame frame{type, UINT32_MAX, 12, Bytes(size, 0x5a)};
      FrameParser parser;
      Feed(&parser, EncodeFrame(frame));
      const auto parsed = parser.Next();
      ASSERT_TRUE(parsed.ok() && parsed->has_value());
      ExpectEqual(**parsed, frame);
      EXPECT_THAT(*parser.buffer(), IsEmpty());
    }
  }
}

TEST(Frame, DeliveredByteByByteIsWholeWithItsLastByte) {
  const Bytes bytes = EncodeFrame(Example());
  FrameParser parser;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const auto early = parser.Next();
    ASSERT_TRUE(early.ok()) << early.status().message();
    EXPECT_FALSE(early->has_value()) << "after " << i << " bytes";
    Feed(&parser, ByteView(bytes).subspan(i, 1));
  }
  const auto frame = parser.Next();
  ASSERT_TRUE(frame.ok() && frame->has_value());
  ExpectEqual(**frame, Example());
}

TEST(Frame, TwoInOneBufferComeOneByOne) {
  const Frame second{FrameType::kBye, 1, 2, {}};
  Bytes bytes = EncodeFrame(Example());
  const Bytes more = EncodeFrame(second);
  bytes.insert(bytes.end(), more.begin(), more.end());
  FrameParser parser;
  Feed(&parser, ByteView(bytes).first(bytes.size() - 1));
  auto frame = parser.Next();
  ASSERT_TRUE(frame.ok() && frame->has_value());
  ExpectEqual(**frame, Example());
  frame = parser.Next();
  ASSERT_TRUE(frame.ok());
  EXPECT_FALSE(frame->has_value()) << "the last byte of the second is still missing";
  Feed(&parser, ByteView(bytes).last(1));
  frame = parser.Next();
  ASSERT_TRUE(frame.ok() && frame->has_value());
  ExpectEqual(**frame, second);
  frame = parser.Next();
  EXPECT_TRUE(frame.ok() && !frame->has_value());
}

TEST(Frame, AMalformedHeaderIsRefused) {
  struct Row {
    const char* what;
    std::size_t offset;
    std::uint8_t value;
  };
  for (const Row& row :
       {Row{"magic", 0, 'X'}, Row{"magic", 3, '2'}, Row{"type 0", 4, 0}, Row{"type 14", 4, 14},
        Row{"type 0x105", 5, 1}, Row{"reserved", 6, 1}, Row{"reserved", 7, 0x80}}) {
    const Status refusal = RefusalWith(row.offset, row.value);
    EXPECT_EQ(refusal.code(), ErrorCode::kMismatch) << row.what;
    EXPECT_EQ(refusal.message(), "a message on a bootstrap connection is malformed") << row.what;
  }
}

TEST(Frame, AnAnnouncedLengthOverTheLimitIsRefusedBeforeItIsThere) {
  FrameParser parser(2);
  Feed(&parser, ByteView(EncodeFrame(Example())).first(kFrameHeaderBytes));
  const auto frame = parser.Next();
  EXPECT_EQ(frame.status().code(), ErrorCode::kMismatch);
  EXPECT_EQ(frame.status().message(), "a bootstrap message of 3 bytes is over the limit of 2");
  FrameParser exact(3);
  Feed(&exact, EncodeFrame(Example()));
  const auto allowed = exact.Next();
  EXPECT_TRUE(allowed.ok() && allowed->has_value());
  EXPECT_EQ(RefusalWith(19, 0xff).message(),
            "a bootstrap message of 4278190083 bytes is over the limit of 134217728");
}

}  // namespace
}  // namespace mori::shmem
