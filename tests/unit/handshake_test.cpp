#include "bootstrap/handshake.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <future>
#include <set>

#include "bootstrap/socket.hpp"
#include "support/bootstrap_ranks.hpp"

namespace mori::shmem {
namespace {

using testing::TestLimit;

/// A caller on one end of a connection, and a listener to be played by the test on the other.
class Handshake : public ::testing::Test {
 protected:
  void SetUp() override {
    int ends[2];
    ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    listener_.Reset(ends[0]);
    caller_.Reset(ends[1]);
  }

  std::future<Status> Call(const RendezvousName& name, const Secret& secret) {
    return std::async(std::launch::async, [this, name, secret] {
      return ProveToListener(caller_.get(), name, secret, TestLimit()).status();
    });
  }
  std::future<Status> Call() { return Call(known_.name, known_.secret); }

  void Say(ByteView bytes) { ASSERT_TRUE(SendAll(listener_.get(), bytes, TestLimit()).ok()); }
  Bytes HearAnswer() {
    Bytes answer(kAnswerBytes);
    EXPECT_TRUE(ReceiveAll(listener_.get(), answer, TestLimit()).ok());
    return answer;
  }

  const Rendezvous known_ = NewRendezvous();
  const Rendezvous other_ = NewRendezvous();
  UniqueFd listener_, caller_;
};

void ExpectStranger(const Result<Bytes>& checked) {
  ASSERT_FALSE(checked.ok());
  EXPECT_EQ(checked.status().code(), ErrorCode::kMismatch);
  EXPECT_EQ(checked.status().message(), "a caller does not know the secret of this rendezvous");
}

TEST_F(Handshake, BothSidesProveThatTheyKnowTheSecret) {
  const ListenerHandshake listener(known_.name, known_.secret);
  auto caller = Call();
  Say(listener.Challenge());
  const Bytes answer = HearAnswer();
  const auto proof = listener.Check(answer);
  ASSERT_TRUE(proof.ok()) << proof.status().message();
  EXPECT_EQ(proof->size(), sizeof(Proof));
  Say(*proof);
  const Status done = caller.get();
  EXPECT_TRUE(done.ok()) << done.message();
}

TEST_F(Handshake, BothSidesHaveTheSameKeysAndAFreshOneEachWay) {
  std::set<StreamKey> keys;
  for (int i = 0; i < 2; ++i) {
    const ListenerHandshake listener(known_.name, known_.secret);
    auto caller = std::async(std::launch::async, [&] {
      return ProveToListener(caller_.get(), known_.name, known_.secret, TestLimit());
    });
    Say(listener.Challenge());
    const Bytes answer = HearAnswer();
    Say(*listener.Check(answer));
    const auto theirs = caller.get();
    ASSERT_TRUE(theirs.ok()) << theirs.status().message();
    const StreamKeys mine = listener.Keys(answer);
    EXPECT_EQ(mine.sending, theirs->receiving);
    EXPECT_EQ(mine.receiving, theirs->sending);
    keys.insert({mine.sending, mine.receiving});
  }
  EXPECT_EQ(keys.size(), 4u);
}

TEST_F(Handshake, AnotherVersionIsNamed) {
  auto caller = Call();
  Bytes challenge = ListenerHandshake(known_.name, known_.secret).Challenge();
  challenge[3] = '7';
  Say(challenge);
  const Status refused = caller.get();
  EXPECT_EQ(refused.code(), ErrorCode::kMismatch);
  EXPECT_EQ(refused.message(),
            "another version of MORI Shmem answers there: its handshake is 0x37, ours 0x32; all "
            "PEs need the same version of the library");
}

TEST_F(Handshake, TheSecretIsOnNeitherSidesWire) {
  const ListenerHandshake listener(known_.name, known_.secret);
  auto caller = Call();
  Say(listener.Challenge());
  const Bytes answer = HearAnswer();
  Bytes wire = listener.Challenge();
  wire.insert(wire.end(), answer.begin(), answer.end());
  const auto proof = listener.Check(answer);
  wire.insert(wire.end(), proof->begin(), proof->end());
  Say(*proof);
  EXPECT_TRUE(caller.get().ok());
  EXPECT_EQ(::memmem(wire.data(), wire.size(), known_.secret.data(), 8), nullptr);
  EXPECT_NE(::memmem(wire.data(), wire.size(), known_.name.data(), known_.name.size()), nullptr)
      << "the name is public";
}

TEST_F(Handshake, ACallerWithAnotherSecretIsAStranger) {
  const ListenerHandshake listener(known_.name, known_.secret);
  auto caller = Call(known_.name, other_.secret);
  Say(listener.Challenge());
  ExpectStranger(listener.Check(HearAnswer()));
  listener_.Reset();
  EXPECT_EQ(caller.get().code(), ErrorCode::kPeerLost);
}

TEST_F(Handshake, ACallerOfAnotherRendezvousIsAStranger) {
  const ListenerHandshake listener(known_.name, known_.secret);
  auto caller = Call(other_.name, known_.secret);
  Say(listener.Challenge());
  ExpectStranger(listener.Check(HearAnswer()));
  listener_.Reset();
  EXPECT_EQ(caller.get().code(), ErrorCode::kPeerLost);
}

TEST_F(Handshake, AnAnswerHeardBeforeDoesNotPassAgain) {
  const ListenerHandshake first(known_.name, known_.secret), second(known_.name, known_.secret);
  EXPECT_NE(first.Challenge(), second.Challenge());
  auto caller = Call();
  Say(first.Challenge());
  const Bytes answer = HearAnswer();
  EXPECT_TRUE(first.Check(answer).ok());
  ExpectStranger(second.Check(answer));
  listener_.Reset();
  EXPECT_FALSE(caller.get().ok());
}

TEST_F(Handshake, EveryBitOfAnAnswerCounts) {
  const ListenerHandshake listener(known_.name, known_.secret);
  auto caller = Call();
  Say(listener.Challenge());
  const Bytes answer = HearAnswer();
  for (std::size_t i = 0; i < answer.size(); ++i) {
    Bytes damaged = answer;
    damaged[i] ^= 1;
    ExpectStranger(listener.Check(damaged));
  }
  for (std::size_t size = 0; size < answer.size(); ++size)
    ExpectStranger(listener.Check(ByteView(answer).first(size)));
  Bytes longer = answer;
  longer.push_back(0);
  ExpectStranger(listener.Check(longer));
  EXPECT_TRUE(listener.Check(answer).ok());
  listener_.Reset();
  EXPECT_FALSE(caller.get().ok());
}

TEST_F(Handshake, ACallersOwnProofSentBackIsNoProof) {
  const ListenerHandshake listener(known_.name, known_.secret);
  auto caller = Call();
  Say(listener.Challenge());
  const Bytes answer = HearAnswer();
  Say(ByteView(answer).last(sizeof(Proof)));
  EXPECT_EQ(caller.get().code(), ErrorCode::kMismatch);
}

TEST_F(Handshake, AListenerThatDoesNotKnowTheSecretIsFoundOut) {
  auto caller = Call();
  Say(ListenerHandshake(known_.name, other_.secret).Challenge());
  HearAnswer();
  Say(Bytes(sizeof(Proof), 0x42));
  const Status refused = caller.get();
  EXPECT_EQ(refused.code(), ErrorCode::kMismatch);
  EXPECT_EQ(refused.message(), "who answers there does not know the secret of this rendezvous");
}

TEST_F(Handshake, SomethingElseThatAnswersIsNamedSo) {
  auto caller = Call();
  const std::string text = "HTTP/1.1 400 Bad Request\r\nConnection: close\r\n\r\n";
  Say({reinterpret_cast<const std::uint8_t*>(text.data()), text.size()});
  const Status refused = caller.get();
  EXPECT_EQ(refused.code(), ErrorCode::kMismatch);
  EXPECT_EQ(refused.message(), "something else than MORI Shmem answers there");
}

TEST_F(Handshake, AListenerThatSaysNothingOrLeavesEndsTheWait) {
  const Status late = ProveToListener(caller_.get(), known_.name, known_.secret,
                                      Deadline::After(std::chrono::milliseconds(5)))
                          .status();
  EXPECT_EQ(late.code(), ErrorCode::kTimeout);
  listener_.Reset();
  EXPECT_EQ(Call().get().code(), ErrorCode::kPeerLost);
}

}  // namespace
}  // namespace mori::shmem
