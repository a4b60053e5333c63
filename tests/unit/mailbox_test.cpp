#include "bootstrap/mailbox.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "support/bootstrap_ranks.hpp"

namespace mori::shmem {
namespace {

using ::testing::ElementsAre;
using testing::TestLimit;
using namespace std::chrono_literals;
using Use = Bootstrap::Channel::Use;

constexpr Bootstrap::Channel kOne{Use::kPair, 1};
constexpr Bootstrap::Channel kOther{Use::kGroup, 1};

/// What is there now.
std::optional<Bytes> Now(Mailbox* mailbox, int from, const Bootstrap::Channel& channel) {
  auto taken = mailbox->Take(from, channel, Deadline::After(0ms));
  EXPECT_TRUE(taken.ok()) << taken.status().message();
  return taken.ok() ? *taken : std::nullopt;
}

TEST(Mailbox, MessagesAreApartBySenderAndChannelAndInOrder) {
  Mailbox mailbox;
  EXPECT_TRUE(mailbox.Put(1, kOne, {1}));
  EXPECT_TRUE(mailbox.Put(1, kOther, {2}));
  EXPECT_TRUE(mailbox.Put(2, kOne, {3}));
  EXPECT_TRUE(mailbox.Put(1, kOne, {}));
  EXPECT_EQ(Now(&mailbox, 2, kOne), Bytes{3});
  EXPECT_EQ(Now(&mailbox, 2, kOther), std::nullopt);
  EXPECT_EQ(Now(&mailbox, 1, kOne), Bytes{1});
  EXPECT_EQ(Now(&mailbox, 1, kOne), Bytes{});
  EXPECT_EQ(Now(&mailbox, 1, kOne), std::nullopt);
  EXPECT_EQ(Now(&mailbox, 1, kOther), Bytes{2});
}

TEST(Mailbox, WhatIsTakenMakesRoom) {
  Mailbox mailbox(10);
  EXPECT_TRUE(mailbox.Put(1, kOne, Bytes(6)));
  EXPECT_FALSE(mailbox.Put(2, kOne, Bytes(5)));
  EXPECT_TRUE(mailbox.Put(2, kOne, Bytes(4)));
  EXPECT_FALSE(mailbox.Put(2, kOne, Bytes(1)));
  EXPECT_EQ(Now(&mailbox, 1, kOne), Bytes(6));
  EXPECT_TRUE(mailbox.Put(2, kOne, Bytes(6)));
}

TEST(Mailbox, WhatCameBeforeALossOrADepartureIsStillThere) {
  Mailbox mailbox;
  EXPECT_TRUE(mailbox.Put(1, kOne, {1}));
  EXPECT_TRUE(mailbox.Put(1, kOne, {2}));
  mailbox.NoteDeparture(1);
  EXPECT_EQ(Now(&mailbox, 1, kOne), Bytes{1});
  mailbox.NoteLoss({3, "enough"});
  EXPECT_EQ(Now(&mailbox, 1, kOne), Bytes{2});
  const auto gone = mailbox.Take(1, kOne, TestLimit());
  EXPECT_EQ(gone.status().message(), "rank 3 is lost: enough");
  EXPECT_EQ(mailbox.Health().code(), ErrorCode::kPeerLost);
  EXPECT_EQ(mailbox.FirstLost(), 3);
}

TEST(Mailbox, WhoHasLeftIsNotWaitedFor) {
  Mailbox mailbox;
  mailbox.NoteDeparture(1);
  const auto gone = mailbox.Take(1, kOne, TestLimit());
  EXPECT_EQ(gone.status().code(), ErrorCode::kPeerLost);
  EXPECT_EQ(gone.status().message(), "rank 1 has left");
  EXPECT_TRUE(mailbox.Health().ok());
  EXPECT_EQ(mailbox.FirstLost(), -1);
}

TEST(Mailbox, AWaitEndsWithWhatComes) {
  Mailbox mailbox;
  std::thread sender([&] {
    std::this_thread::sleep_for(5ms);
    mailbox.Put(2, kOne, {2});
    mailbox.Put(1, kOne, {1});
  });
  const auto taken = mailbox.Take(1, kOne, Deadline::Never());
  sender.join();
  ASSERT_TRUE(taken.ok());
  EXPECT_EQ(*taken, Bytes{1});
}

TEST(Mailbox, KnowsTheCallsThatItsRankHasComeTo) {
  Mailbox mailbox;
  EXPECT_FALSE(mailbox.HasEntered(kOne, 0));
  EXPECT_EQ(mailbox.Enter(kOne), 0u);
  EXPECT_TRUE(mailbox.HasEntered(kOne, 0));
  EXPECT_FALSE(mailbox.HasEntered(kOne, 1));
  EXPECT_FALSE(mailbox.HasEntered(kOther, 0));
  EXPECT_EQ(mailbox.Enter(kOne), 1u);
  EXPECT_TRUE(mailbox.HasEntered(kOne, 1));
  EXPECT_TRUE(mailbox.HasEntered(kOne, UINT32_MAX)) << "the count has wrapped around";
}

}  // namespace
}  // namespace mori::shmem
