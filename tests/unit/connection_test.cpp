#include "bootstrap/connection.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <thread>

#include "bootstrap/socket.hpp"
#include "support/bootstrap_ranks.hpp"

namespace mori::shmem {
namespace {

using testing::TestLimit;
using namespace std::chrono_literals;

constexpr StreamKeys kHere{{1, 2, 3}, {4, 5, 6}};
constexpr StreamKeys kThere{{4, 5, 6}, {1, 2, 3}};

Frame Example() { return {FrameType::kLetter, 7, 0x01020304, {10, 20, 30}}; }

void ExpectEqual(const Frame& actual, const Frame& expected) {
  EXPECT_EQ(actual.type, expected.type);
  EXPECT_EQ(actual.sender, expected.sender);
  EXPECT_EQ(actual.sequence, expected.sequence);
  EXPECT_TRUE(actual.payload == expected.payload);
}

/// Both ends of one, and its bytes where a test asks for them.
class ConnectionTest : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    here_.emplace(UniqueFd(ends[0]), kHere);
    there_.emplace(UniqueFd(ends[1]), kThere);
  }
  std::optional<Connection> here_, there_;
};

TEST_F(ConnectionTest, FramesArriveInOrderBothWays) {
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(here_->Send(Example(), TestLimit()).ok());
    ASSERT_TRUE(here_->Send({FrameType::kBye, 3, 4, {}}, TestLimit()).ok());
    ASSERT_TRUE(there_->Send({FrameType::kJoin, 5, 6, {1}}, TestLimit()).ok());
    auto frame = there_->Receive(TestLimit());
    ASSERT_TRUE(frame.ok()) << frame.status().message();
    ExpectEqual(*frame, Example());
    frame = there_->Receive(TestLimit());
    ASSERT_TRUE(frame.ok()) << frame.status().message();
    ExpectEqual(*frame, {FrameType::kBye, 3, 4, {}});
    frame = here_->Receive(TestLimit());
    ASSERT_TRUE(frame.ok()) << frame.status().message();
    ExpectEqual(*frame, {FrameType::kJoin, 5, 6, {1}});
  }
}

TEST_F(ConnectionTest, AFrameLargerThanTheSocketsBufferArrives) {
  const Frame large{FrameType::kLetter, 0, 0, Bytes(4 << 20, 0x77)};
  std::thread sender([&] { EXPECT_TRUE(here_->Send(large, TestLimit()).ok()); });
  const auto frame = there_->Receive(TestLimit());
  sender.join();
  ASSERT_TRUE(frame.ok()) << frame.status().message();
  ExpectEqual(*frame, large);
}

TEST_F(ConnectionTest, WhatTheSocketDoesNotTakeIsLeftForLater) {
  const Frame large{FrameType::kLetter, 0, 0, Bytes(4 << 20, 0x77)};
  here_->Queue(large);
  here_->Queue(Example());
  ASSERT_TRUE(here_->Flush().ok());
  EXPECT_TRUE(here_->has_queued());
  EXPECT_FALSE(here_->IsDelivered());
  std::thread rest([&] {
    while (here_->has_queued()) {
      ASSERT_TRUE(WaitFor(here_->fd(), POLLOUT, TestLimit()).ok());
      ASSERT_TRUE(here_->Flush().ok());
    }
  });
  auto frame = there_->Receive(TestLimit());
  ASSERT_TRUE(frame.ok()) << frame.status().message();
  ExpectEqual(*frame, large);
  frame = there_->Receive(TestLimit());
  rest.join();
  ASSERT_TRUE(frame.ok()) << frame.status().message();
  ExpectEqual(*frame, Example());
}

TEST_F(ConnectionTest, WaitsNoLongerThanTheDeadline) {
  EXPECT_EQ(there_->Receive(Deadline::After({})).status().code(), ErrorCode::kTimeout);
  const Frame large{FrameType::kLetter, 0, 0, Bytes(16 << 20)};
  EXPECT_EQ(here_->Send(large, Deadline::After(5ms)).code(), ErrorCode::kTimeout);
}

TEST_F(ConnectionTest, ACloserIsGone) {
  here_.reset();
  const auto frame = there_->Receive(TestLimit());
  EXPECT_EQ(frame.status().code(), ErrorCode::kPeerLost);
  EXPECT_EQ(frame.status().message(), "the connection was closed");
  EXPECT_EQ(there_->Send(Example(), TestLimit()).code(), ErrorCode::kPeerLost);
  EXPECT_FALSE(there_->has_queued()) << "nobody will take it";
  EXPECT_TRUE(there_->IsDelivered());
}

TEST_F(ConnectionTest, AFrameOverTheLimitIsRefused) {
  there_->set_max_payload_bytes(2);
  ASSERT_TRUE(here_->Send(Example(), TestLimit()).ok());
  const auto frame = there_->Receive(TestLimit());
  EXPECT_EQ(frame.status().code(), ErrorCode::kMismatch);
  EXPECT_EQ(frame.status().message(), "a bootstrap message of 3 bytes is over the limit of 2");
}

TEST_F(ConnectionTest, AnotherKeyOpensNothing) {
  Connection other(UniqueFd(::dup(there_->fd())), {{9}, {9}});
  ASSERT_TRUE(here_->Send(Example(), TestLimit()).ok());
  EXPECT_EQ(other.Receive(TestLimit()).status().code(), ErrorCode::kMismatch);
}

// ---- the seal alone

constexpr StreamKey kKey{7, 7, 7};

Bytes Sealed(const std::vector<Bytes>& messages) {
  Sealer sealer(kKey);
  Bytes wire;
  for (const Bytes& message : messages) sealer.Seal(message, &wire);
  return wire;
}

/// What comes out of `wire`, taken in pieces of `piece` bytes; nothing if it is refused.
std::optional<Bytes> Opened(const Bytes& wire, std::size_t piece) {
  Opener opener(kKey);
  Bytes plain;
  for (std::size_t i = 0; i < wire.size(); i += piece) {
    const ByteView next = ByteView(wire).subspan(i, std::min(piece, wire.size() - i));
    opener.buffer()->insert(opener.buffer()->end(), next.begin(), next.end());
    if (!opener.Open(&plain).ok()) return std::nullopt;
  }
  return plain;
}

TEST(Seal, OpensHoweverTheStreamIsCut) {
  const Bytes large(3 * kMaxRecordBytes + 5, 0x5a);
  const Bytes wire = Sealed({{1, 2, 3}, large, {4}});
  Bytes plain{1, 2, 3};
  plain.insert(plain.end(), large.begin(), large.end());
  plain.push_back(4);
  for (const std::size_t piece : {std::size_t{97}, std::size_t{4096}, wire.size()})
    EXPECT_TRUE(Opened(wire, piece) == plain) << piece;
  const Bytes small = Sealed({{1, 2, 3}, {4}});
  EXPECT_EQ(Opened(small, 1), (Bytes{1, 2, 3, 4}));
}

TEST(Seal, EveryBitCounts) {
  const Bytes wire = Sealed({{1, 2, 3}, {4, 5, 6}});
  for (std::size_t i = 0; i < 8 * wire.size(); ++i) {
    Bytes changed = wire;
    changed[i / 8] ^= static_cast<std::uint8_t>(1 << i % 8);
    const auto plain = Opened(changed, changed.size());
    // A length may ask for more than there is: then what is behind it does not come out.
    EXPECT_TRUE(!plain || *plain == Bytes{} || *plain == (Bytes{1, 2, 3})) << "bit " << i;
  }
}

TEST(Seal, RecordsCannotBeLeftOutRepeatedOrExchanged) {
  constexpr std::size_t kHeader = 24, kRecord = 4 + 3 + 17;
  const Bytes wire = Sealed({{1, 2, 3}, {4, 5, 6}});
  ASSERT_EQ(wire.size(), kHeader + 2 * kRecord);
  const auto header = ByteView(wire).first(kHeader);
  const auto first = ByteView(wire).subspan(kHeader, kRecord);
  const auto second = ByteView(wire).subspan(kHeader + kRecord);
  const auto opens = [&](std::initializer_list<ByteView> parts) {
    ByteWriter writer;
    writer.Raw(header);
    for (const ByteView& part : parts) writer.Raw(part);
    return Opened(writer.bytes(), writer.bytes().size()).has_value();
  };
  EXPECT_TRUE(opens({first, second}));
  EXPECT_FALSE(opens({second}));
  EXPECT_FALSE(opens({second, first}));
  EXPECT_FALSE(opens({first, first}));
}

// Else a length that nobody sends would be waited for, and kept, up to 4 GiB.
TEST(Seal, ARecordLongerThanAnyIsRefusedBeforeItComes) {
  const std::size_t too_long = kMaxRecordBytes + crypto_secretstream_xchacha20poly1305_ABYTES + 1;
  const Bytes length = ByteWriter().Int(static_cast<std::uint32_t>(too_long)).Take();
  Bytes wire(crypto_secretstream_xchacha20poly1305_HEADERBYTES);
  wire.insert(wire.end(), length.begin(), length.end());
  Opener opener(kThere.receiving);
  *opener.buffer() = wire;
  Bytes plain;
  EXPECT_EQ(opener.Open(&plain).code(), ErrorCode::kMismatch);
}

TEST(Seal, TheSameMessagesNeverLookAlike) { EXPECT_NE(Sealed({{1, 2, 3}}), Sealed({{1, 2, 3}})); }

}  // namespace
}  // namespace mori::shmem
