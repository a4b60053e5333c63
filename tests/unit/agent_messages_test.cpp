#include "mori/agent_messages.hpp"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "mori/host_list.hpp"

namespace mori::launcher {
namespace {

using shmem::Bytes;
using ::testing::ElementsAre;

AgentWork SomeWork() {
  return {.folder = "/work",
          .environment = {"A=1", "B="},
          .command = {"prog", "", "a b"},
          .share = {.first = 2, .count = 2, .world = 4},
          .opens_meeting = true};
}

/// Every part of it that is cut short, and one with a byte more, is refused.
template <typename T>
void ExpectWhole(const Bytes& whole) {
  EXPECT_TRUE(Decode<T>(whole).has_value());
  for (std::size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(Decode<T>(shmem::ByteView(whole).first(size)).has_value()) << size;
  Bytes longer = whole;
  longer.push_back(0);
  EXPECT_FALSE(Decode<T>(longer).has_value());
}

TEST(AgentMessagesTest, WorkComesBackAsItWas) {
  const auto work = Decode<AgentWork>(Encode(SomeWork()));
  ASSERT_TRUE(work.has_value());
  EXPECT_EQ(work->folder, "/work");
  EXPECT_THAT(work->environment, ElementsAre("A=1", "B="));
  EXPECT_THAT(work->command, ElementsAre("prog", "", "a b"));
  EXPECT_EQ(work->share.first, 2);
  EXPECT_EQ(work->share.count, 2);
  EXPECT_EQ(work->share.world, 4);
  EXPECT_FALSE(work->is_alone);
  EXPECT_TRUE(work->opens_meeting);
  EXPECT_FALSE(work->has_input);
  ExpectWhole<AgentWork>(Encode(SomeWork()));
}

TEST(AgentMessagesTest, OtherMessagesComeBackAsTheyWere) {
  Meeting meeting{.id = shmem::UniqueId{}, .master_address = "10.0.0.1", .master_port = "5"};
  meeting.id->bytes[127] = 7;
  const auto met = Decode<Meeting>(Encode(meeting));
  ASSERT_TRUE(met.has_value() && met->id.has_value());
  EXPECT_EQ(met->id->bytes[127], 7);
  EXPECT_EQ(met->master_address + met->master_port, "10.0.0.15");
  EXPECT_FALSE(Decode<Meeting>(Encode(Meeting{}))->id.has_value());
  EXPECT_EQ(Decode<AgentHello>(Encode(AgentHello{3, "1.2"}))->version, "1.2");
  EXPECT_TRUE(Decode<SignalOrder>(Encode(SignalOrder{9, true}))->to_groups);
  EXPECT_EQ(Decode<FlowOrder>(Encode(FlowOrder{StreamKind::kError, Flow::kClosed}))->flow,
            Flow::kClosed);
  EXPECT_EQ(Decode<AgentFailure>(Encode(AgentFailure{"x", 127}))->exit_status, 127);
  EXPECT_EQ(Decode<OutputPiece>(Encode(OutputPiece{5, StreamKind::kOut, "a\n"}))->bytes, "a\n");
  EXPECT_EQ(Decode<EndNotice>(Encode(EndNotice{5, 9}))->wait_status, 9);
}

TEST(AgentMessagesTest, CutMessagesAreRefused) {
  ExpectWhole<AgentHello>(Encode(AgentHello{3, "1.2"}));
  ExpectWhole<Meeting>(Encode(Meeting{shmem::UniqueId{}, "a", "5"}));
  ExpectWhole<SignalOrder>(Encode(SignalOrder{9, true}));
  ExpectWhole<FlowOrder>(Encode(FlowOrder{}));
  ExpectWhole<AgentFailure>(Encode(AgentFailure{"x", 1}));
  ExpectWhole<OutputPiece>(Encode(OutputPiece{0, StreamKind::kOut, "x"}));
  ExpectWhole<EndNotice>(Encode(EndNotice{0, 0}));
}

TEST(AgentMessagesTest, WorkOutOfRangeIsRefused) {
  const auto refused = [](auto change) {
    AgentWork work = SomeWork();
    change(work);
    return !Decode<AgentWork>(Encode(work)).has_value();
  };
  EXPECT_TRUE(refused([](AgentWork& w) { w.command.clear(); }));
  EXPECT_TRUE(refused([](AgentWork& w) { w.folder.clear(); }));
  EXPECT_TRUE(refused([](AgentWork& w) { w.folder.push_back('\0'); }));
  EXPECT_TRUE(refused([](AgentWork& w) { w.command[0].push_back('\0'); }));
  EXPECT_TRUE(refused([](AgentWork& w) { w.environment = {"NAME"}; }));
  EXPECT_TRUE(refused([](AgentWork& w) { w.environment = {"=value"}; }));
  EXPECT_TRUE(refused([](AgentWork& w) { w.share.count = 0; }));
  EXPECT_TRUE(refused([](AgentWork& w) { w.share.count = 3; }));
  EXPECT_TRUE(refused([](AgentWork& w) { w.share.first = -1; }));
  EXPECT_TRUE(refused([](AgentWork& w) { w.share.first = 4; }));
  EXPECT_TRUE(refused([](AgentWork& w) { w.share.world = kMaxPes + 1; }));
}

TEST(AgentMessagesTest, NumbersOutOfRangeAreRefused) {
  for (const int signal : {-1, 0, 65})
    EXPECT_FALSE(Decode<SignalOrder>(Encode(SignalOrder{signal})));
  for (const int status : {-1, 0, 256})
    EXPECT_FALSE(Decode<AgentFailure>(Encode(AgentFailure{"x", status})));
  for (const int pe : {-1, kMaxPes}) {
    EXPECT_FALSE(Decode<OutputPiece>(Encode(OutputPiece{pe, StreamKind::kOut, ""})));
    EXPECT_FALSE(Decode<EndNotice>(Encode(EndNotice{pe, 0})));
  }
  EXPECT_FALSE(Decode<EndNotice>(Encode(EndNotice{0, 0x137f})));  // stopped
  EXPECT_FALSE(Decode<FlowOrder>(Bytes{2, 0}));
  EXPECT_FALSE(Decode<FlowOrder>(Bytes{0, 3}));
}

TEST(AgentMessagesTest, MessagesAreCutFromWhatComesInAnyPieces) {
  const std::string two =
      EncodeMessage(MessageType::kInput, Bytes{1, 2, 3}) + EncodeMessage(MessageType::kOver);
  for (std::size_t cut = 0; cut <= two.size(); ++cut) {
    MessageReader reader(3);
    std::vector<MessageType> types;
    for (const std::string_view piece :
         {std::string_view(two).substr(0, cut), std::string_view(two).substr(cut)}) {
      reader.Add(piece);
      for (;;) {
        const auto message = reader.Next();
        ASSERT_TRUE(message.ok());
        if (!message->has_value()) break;
        types.push_back((*message)->type);
      }
    }
    EXPECT_THAT(types, ElementsAre(MessageType::kInput, MessageType::kOver)) << cut;
  }
}

TEST(AgentMessagesTest, ALengthBeyondTheMostIsRefusedBeforeItComes) {
  MessageReader reader(2);
  reader.Add(EncodeMessage(MessageType::kInput, Bytes{1, 2, 3}).substr(0, 5));
  EXPECT_FALSE(reader.Next().ok());
  reader.Add(EncodeMessage(MessageType::kOver));
  EXPECT_FALSE(reader.Next().ok());
}

}  // namespace
}  // namespace mori::launcher
