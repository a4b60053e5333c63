#include "node/board.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <memory>
#include <thread>

#include "base/fault_point.hpp"
#include "bootstrap/in_process_bootstrap.hpp"
#include "runtime/host/host_runtime.hpp"
#include "support/bootstrap_ranks.hpp"
#include "support/forked.hpp"
#include "support/shared_listener.hpp"

namespace mori::shmem {
namespace {

using testing::InThreads;
using testing::RunForked;
using testing::TestLimit;
using namespace std::chrono_literals;

using Call = Proposal::Call;
using Dispute = std::optional<Board::Dispute>;

/// The boards of a node whose PEs are threads of this test, by index. They do not spin.
std::vector<std::unique_ptr<Board>> MakeBoards(int count) {
  HostRuntime runtime;
  const auto ends = InProcessBootstrap::MakeAll(count);
  auto listener = FdListener::Open();
  EXPECT_TRUE(listener.ok()) << listener.status().message();
  const FdListener::Token token = listener->token();
  std::vector<std::unique_ptr<Board>> boards(static_cast<std::size_t>(count));
  InThreads(count, [&](int index) {
    auto exchange =
        FdExchange::Connect(ends[static_cast<std::size_t>(index)].get(), index, count,
                            index == 0 ? std::move(*listener) : FdListener(), token, TestLimit());
    ASSERT_TRUE(exchange.ok()) << exchange.status().message();
    auto board = Board::Create(&runtime, exchange->get(), index, count, false, TestLimit());
    ASSERT_TRUE(board.ok()) << board.status().message();
    boards[static_cast<std::size_t>(index)] = std::move(*board);
  });
  return boards;
}

/// The same over one mapping, so that a thread sanitizer knows the words of one PE for those of
/// another.
std::vector<std::unique_ptr<Board>> MakeBoardsOfOneMapping(int count) {
  HostRuntime runtime;
  const std::uint64_t page = runtime.GranularityBytes();
  const std::uint64_t bytes = (Board::BytesFor(count) + page - 1) / page * page;
  auto memory = runtime.Allocate(bytes, HeapType::kNormal);
  auto reserved = runtime.Reserve(bytes, page);
  EXPECT_TRUE(memory.ok() && reserved.ok() && (*reserved)->Map(0, **memory).ok());
  const std::shared_ptr<AddressRange> range = std::move(*reserved);
  std::vector<std::unique_ptr<Board>> boards;
  for (int index = 0; index < count; ++index)
    boards.push_back(Board::Attach(range, index, count, true));
  return boards;
}

/// Every PE proposes what `proposal_of` says for it. All are to succeed; the outcomes by index.
std::vector<Dispute> AgreeOn(const std::vector<std::unique_ptr<Board>>& boards,
                             const std::function<Proposal(int)>& proposal_of) {
  std::vector<Dispute> disputes(boards.size());
  InThreads(static_cast<int>(boards.size()), [&](int index) {
    const auto i = static_cast<std::size_t>(index);
    disputes[i] = Board::Dispute{-1, {}, {}};  // to be reset
    const Status status = boards[i]->Agree(proposal_of(index), &disputes[i]);
    EXPECT_TRUE(status.ok()) << status.message();
  });
  return disputes;
}

TEST(Board, AlikeProposalsAreAgreedOn) {
  for (const int count : {1, 2, 3, 8}) {
    const auto boards = MakeBoards(count);
    for (const Proposal& proposal :
         {Proposal{}, Proposal{Call::kMalloc, 4096, 256, 1}, Proposal{Call::kFree, 64, 1, 0},
          Proposal{Call::kMalloc, UINT64_MAX, UINT64_MAX, UINT64_MAX}}) {
      for (const Dispute& dispute : AgreeOn(boards, [&](int) { return proposal; }))
        EXPECT_FALSE(dispute.has_value());
    }
  }
}

TEST(Board, EveryDifferenceIsADisputeThatAllSeeAlike) {
  constexpr int kCount = 4;
  const auto boards = MakeBoards(kCount);
  const Proposal first{Call::kMalloc, 4096, 256, 1};
  for (const Proposal& other :
       {Proposal{Call::kMalloc, 4097, 256, 1}, Proposal{Call::kMalloc, 4096, 512, 1},
        Proposal{Call::kMalloc, 4096, 256, 3}, Proposal{Call::kFree, 4096, 256, 1}, Proposal{}}) {
    for (const int differing : {1, 2, 3}) {
      const auto disputes =
          AgreeOn(boards, [&](int index) { return index == differing ? other : first; });
      for (const Dispute& dispute : disputes) {
        ASSERT_TRUE(dispute.has_value());
        EXPECT_EQ(dispute->index, differing);
        EXPECT_EQ(dispute->first, first);
        EXPECT_EQ(dispute->differing, other);
      }
    }
  }
}

TEST(Board, IfTheFirstDiffersTheNextOneIsNamed) {
  const auto boards = MakeBoards(3);
  const Proposal common{Call::kFree, 64, 1, 0};
  for (const Dispute& dispute :
       AgreeOn(boards, [&](int index) { return index == 0 ? Proposal{} : common; })) {
    ASSERT_TRUE(dispute.has_value());
    EXPECT_EQ(dispute->index, 1);
    EXPECT_EQ(dispute->first, Proposal{});
    EXPECT_EQ(dispute->differing, common);
  }
}

TEST(Board, ADisputeIsOverWithItsCall) {
  const auto boards = MakeBoards(2);
  AgreeOn(boards, [](int index) { return Proposal{Call::kMalloc, index == 0 ? 1u : 2u, 1, 0}; });
  for (const Dispute& dispute : AgreeOn(boards, [](int) { return Proposal{}; }))
    EXPECT_FALSE(dispute.has_value());
}

TEST(Board, NobodyReturnsBeforeAllHaveCome) {
  constexpr int kCount = 3;
  const auto boards = MakeBoards(kCount);
  std::atomic<int> came{0};
  InThreads(kCount, [&](int index) {
    std::this_thread::sleep_for(index * 10ms);
    ++came;
    Dispute dispute;
    EXPECT_TRUE(boards[static_cast<std::size_t>(index)]->Barrier(&dispute).ok());
    EXPECT_EQ(came, kCount);
  });
}

TEST(Board, WhatWasWrittenBeforeIsSeenAfter) {
  constexpr int kCount = 4, kRounds = 5000;  // 20 000 agreements
  const auto boards = MakeBoardsOfOneMapping(kCount);
  std::vector<std::uint64_t> values(kCount);  // plain memory: only the board orders it
  InThreads(kCount, [&](int index) {
    Board* board = boards[static_cast<std::size_t>(index)].get();
    Dispute dispute;
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      values[static_cast<std::size_t>(index)] = round;
      ASSERT_TRUE(board->Agree({Call::kMalloc, round, 1, 0}, &dispute).ok());
      ASSERT_FALSE(dispute.has_value());
      for (const std::uint64_t value : values) ASSERT_EQ(value, round);
      ASSERT_TRUE(board->Barrier(&dispute).ok());
    }
  });
}

TEST(Board, IndexZeroSpeaksForItsNode) {
  constexpr int kCount = 4;
  const auto boards = MakeBoardsOfOneMapping(kCount);
  std::vector<int> came(kCount);  // plain memory: only the board orders it
  int announced = 0;
  InThreads(kCount, [&](int index) {
    Board* board = boards[static_cast<std::size_t>(index)].get();
    for (int round = 1; round <= 2000; ++round) {
      came[static_cast<std::size_t>(index)] = round;
      const bool differs = round % 3 == 0, has_news = round % 4 == 0;
      // What the others of the node say, and what comes back from other nodes.
      Joint joint{true, has_news && index == round % kCount};
      const Proposal mine{Call::kMalloc, differs && index == 2 ? 2u : 1u, 1, 0};
      ASSERT_TRUE(board->Join(mine, &joint).ok());
      if (index == 0) {
        for (const int each : came) ASSERT_EQ(each, round);
        ASSERT_EQ(joint.is_same, !differs);
        ASSERT_EQ(joint.has_news, has_news);
        announced = round;
        joint = {round % 5 != 0, round % 7 == 0};
        board->Announce(joint);
      }
      ASSERT_EQ(announced, round);
      ASSERT_EQ(joint.is_same, round % 5 != 0);
      ASSERT_EQ(joint.has_news, round % 7 == 0);
      // Read by all before index 0 writes the next one: it waits for all.
    }
  });
}

TEST(Board, ALostPeEndsTheWaitOfAll) {
  const auto boards = MakeBoards(3);
  std::thread loss([&] {
    std::this_thread::sleep_for(20ms);
    boards[2]->MarkLost(7);
  });
  InThreads(2, [&](int index) {
    Dispute dispute;
    const Status status = boards[static_cast<std::size_t>(index)]->Barrier(&dispute);
    EXPECT_EQ(status.code(), ErrorCode::kPeerLost);
    EXPECT_EQ(status.message(), "PE 7 is lost");
  });
  loss.join();
}

TEST(Board, TheFirstLossStays) {
  const auto boards = MakeBoards(2);
  EXPECT_EQ(boards[0]->FirstLost(), -1);
  boards[1]->MarkLost(0);
  EXPECT_EQ(boards[0]->FirstLost(), 0);
  boards[0]->MarkLost(5);
  for (const auto& board : boards) {
    EXPECT_EQ(board->FirstLost(), 0);
    Dispute dispute;
    const Status status = board->Agree({Call::kMalloc, 1, 1, 0}, &dispute);
    EXPECT_EQ(status.code(), ErrorCode::kPeerLost);
    EXPECT_EQ(status.message(), "PE 0 is lost");
  }
}

TEST(Board, AReasonIsReadOnAllPes) {
  const auto boards = MakeBoards(3);
  EXPECT_EQ(boards[0]->ReasonOf(7), std::nullopt);
  boards[2]->MarkLost(7, "its connection closed");
  for (const auto& board : boards) {
    EXPECT_EQ(board->ReasonOf(7), "its connection closed");
    EXPECT_EQ(board->ReasonOf(0), std::nullopt);
    EXPECT_EQ(board->ReasonOf(2), std::nullopt);
  }
  boards[2]->MarkLost(0, "it gave up");  // is nobody's first loss
  boards[2]->MarkLost(7, "it gave up");
  EXPECT_EQ(boards[1]->ReasonOf(7), "its connection closed");
  EXPECT_EQ(boards[1]->FirstLost(), 7);
}

TEST(Board, AReasonMayComeBehindAMarkWithoutOne) {
  const auto boards = MakeBoards(2);
  boards[0]->MarkLost(4);
  boards[1]->MarkLost(3, "of no interest: PE 4 was lost before");
  EXPECT_EQ(boards[0]->ReasonOf(3), std::nullopt);
  boards[1]->MarkLost(4, "it gave up");
  EXPECT_EQ(boards[0]->ReasonOf(4), "it gave up");
}

TEST(Board, ALongReasonIsCut) {
  constexpr int kCount = 5;
  const auto boards = MakeBoardsOfOneMapping(kCount);
  const std::string longest(Board::kMostReasonBytes, 'x');
  boards[kCount - 1]->MarkLost(1, longest + "y");
  EXPECT_EQ(boards[0]->ReasonOf(1), longest);
}

/// What the fault hook below does at its point, once.
const char* board_point = nullptr;
std::function<void()> at_board_point;

void CallOnce(const char* point) {
  if (board_point == nullptr || std::string_view(point) != board_point) return;
  board_point = nullptr;
  at_board_point();
}

class BoardAtAPoint : public ::testing::Test {
 protected:
  static void CallAt(const char* point, std::function<void()> call) {
    at_board_point = std::move(call);
    board_point = point;
    fault_hook = CallOnce;
  }
  ~BoardAtAPoint() override { fault_hook = nullptr; }
};

TEST_F(BoardAtAPoint, AnAgreementThatIsCompleteCountsDespiteALaterLoss) {
  const auto boards = MakeBoards(2);
  Dispute dispute, others;
  // The other one comes, and is lost, while the first is on its way to look for losses.
  CallAt("board: before the look for a loss", [&] {
    EXPECT_TRUE(boards[1]->Barrier(&others).ok());
    boards[1]->MarkLost(1);
  });
  const Status status = boards[0]->Barrier(&dispute);
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_EQ(boards[0]->Barrier(&dispute).code(), ErrorCode::kPeerLost);
}

TEST_F(BoardAtAPoint, WhoSeesAMarkFindsItsReason) {
  const auto boards = MakeBoards(2);
  CallAt("board: before the mark of a loss", [&] {
    EXPECT_EQ(boards[0]->ReasonOf(3), "it gave up");
    EXPECT_EQ(boards[0]->FirstLost(), -1);
  });
  boards[1]->MarkLost(3, "it gave up");
  EXPECT_EQ(board_point, nullptr);
  EXPECT_EQ(boards[0]->FirstLost(), 3);
}

TEST_F(BoardAtAPoint, AReasonThatIsBeingWrittenIsNone) {
  const auto boards = MakeBoards(2);
  // As if the writer died there, and another PE saw the loss.
  CallAt("board: a reason is written", [&] {
    EXPECT_EQ(boards[0]->FirstLost(), -1);
    boards[0]->MarkLost(3);
    EXPECT_EQ(boards[0]->FirstLost(), 3);
    EXPECT_EQ(boards[0]->ReasonOf(3), std::nullopt);
  });
  boards[1]->MarkLost(3, "it gave up");
  EXPECT_EQ(board_point, nullptr);
  EXPECT_EQ(boards[0]->ReasonOf(3), "it gave up");
}

/// The state of a thread, as the kernel has it: 'S' while it sleeps.
char StateOf(pid_t thread) {
  std::ifstream file(fmt::format("/proc/self/task/{}/stat", thread));
  std::string text;
  std::getline(file, text);
  const auto name_end = text.rfind(')');
  return name_end == std::string::npos ? '?' : text[name_end + 2];
}

/// A PE that sleeps until it is woken, in a thread of its own: nobody wakes it by the clock.
class Sleeper {
 public:
  explicit Sleeper(Board* board, bool joins = false) {
    board->set_longest_sleep(std::chrono::minutes(1));
    thread_ = std::thread([=, this] {
      thread_id_ = ::gettid();
      Dispute dispute;
      Joint joint;
      status_ = joins ? board->Join(Proposal{}, &joint) : board->Agree(Proposal{}, &dispute);
      is_done_ = true;
    });
  }
  ~Sleeper() { thread_.join(); }
  bool Sleeps() const {
    return testing::Eventually([this] { return thread_id_ != 0 && StateOf(thread_id_) == 'S'; });
  }
  bool Returns() const {
    return testing::Eventually([this] { return is_done_.load(); });
  }
  const Status& status() const { return status_; }

 private:
  std::atomic<pid_t> thread_id_{0};
  std::atomic<bool> is_done_{false};
  Status status_;
  std::thread thread_;
};

std::atomic<bool> falls_asleep{false};
void NoteSleep(const char* point) {
  if (std::string_view(point) == "board: asleep") falls_asleep = true;
}

class BoardWakes : public ::testing::Test {
 protected:
  BoardWakes() : boards_(MakeBoards(2)) {
    falls_asleep = false;
    fault_hook = NoteSleep;
  }
  ~BoardWakes() override { fault_hook = nullptr; }
  void AwaitSleepOf(const Sleeper& sleeper) {
    ASSERT_TRUE(testing::Eventually([] { return falls_asleep.load(); }));
    ASSERT_TRUE(sleeper.Sleeps());
  }
  std::vector<std::unique_ptr<Board>> boards_;
};

TEST_F(BoardWakes, TheLastToArriveWakesTheOthers) {
  const Sleeper sleeper(boards_[0].get());
  AwaitSleepOf(sleeper);
  Dispute dispute;
  EXPECT_TRUE(boards_[1]->Barrier(&dispute).ok());
  ASSERT_TRUE(sleeper.Returns());
  EXPECT_TRUE(sleeper.status().ok());
}

TEST_F(BoardWakes, ALossWakesThem) {
  const Sleeper sleeper(boards_[0].get());
  AwaitSleepOf(sleeper);
  boards_[1]->MarkLost(1);
  ASSERT_TRUE(sleeper.Returns());
  EXPECT_EQ(sleeper.status().code(), ErrorCode::kPeerLost);
}

TEST_F(BoardWakes, TheLastToComeWakesWhoSpeaksForAll) {
  const Sleeper speaker(boards_[0].get(), /*joins=*/true);
  AwaitSleepOf(speaker);
  falls_asleep = false;
  const Sleeper other(boards_[1].get(), /*joins=*/true);
  ASSERT_TRUE(speaker.Returns());
  AwaitSleepOf(other);
  boards_[0]->Announce({});
  ASSERT_TRUE(other.Returns());
  EXPECT_TRUE(speaker.status().ok() && other.status().ok());
}

TEST_F(BoardWakes, ALossWakesWhoSpeaksForAll) {
  const Sleeper speaker(boards_[0].get(), /*joins=*/true);
  AwaitSleepOf(speaker);
  boards_[1]->MarkLost(1);
  ASSERT_TRUE(speaker.Returns());
  EXPECT_EQ(speaker.status().code(), ErrorCode::kPeerLost);
}

TEST(Board, AWaitThatSpinsCallsWhatIsBesideIt) {
  const auto boards = MakeBoardsOfOneMapping(2);
  std::atomic<int> calls{0};
  boards[0]->set_beside([&] { ++calls; });
  InThreads(2, [&](int index) {
    if (index == 1) {
      EXPECT_TRUE(testing::Eventually([&] { return calls > 0; }));
    }
    Dispute dispute;
    EXPECT_TRUE(boards[static_cast<std::size_t>(index)]->Barrier(&dispute).ok());
  });
}

TEST_F(BoardWakes, WhoHasNotComeIsMissingToWhoSleeps) {
  const auto boards = MakeBoards(4);
  EXPECT_THAT(boards[0]->Missing(), ::testing::IsEmpty());
  {
    const Sleeper first(boards[0].get()), second(boards[2].get());
    EXPECT_TRUE(testing::Eventually([&] {
      return boards[0]->Missing() == std::vector<int>{1, 3};
    }));
    EXPECT_TRUE(testing::Eventually([&] {
      return boards[2]->Missing() == std::vector<int>{1, 3};
    }));
    EXPECT_THAT(boards[1]->Missing(), ::testing::IsEmpty());
    InThreads(2, [&](int i) {
      Dispute dispute;
      EXPECT_TRUE(boards[static_cast<std::size_t>(2 * i + 1)]->Barrier(&dispute).ok());
    });
  }
  EXPECT_THAT(boards[0]->Missing(), ::testing::IsEmpty());
}

/// Ends a wait at once.
class Impatient final : public WaitWatch {
 public:
  Status Look() override { return Error(ErrorCode::kTimeout, "it takes too long"); }
};

TEST(Board, AWatchEndsAWait) {
  const auto boards = MakeBoards(2);
  Dispute dispute;
  Impatient watch;
  const Status status = boards[0]->Agree(Proposal{}, &dispute, nullptr, &watch);
  EXPECT_EQ(status.code(), ErrorCode::kTimeout);
  EXPECT_EQ(status.message(), "it takes too long");
}

TEST(Board, ProcessesAgree) {
  constexpr int kCount = 3;
  const testing::SharedListener listener;
  const testing::Shared<std::atomic<int>> came(0);
  const auto failures = RunForked(kCount, [&](int index) -> std::string {
    HostRuntime runtime;
    const auto alone = InProcessBootstrap::MakeAll(1);  // says that all are well
    auto mine = listener.Open(index);
    if (!mine.ok()) return mine.status().message();
    auto exchange = FdExchange::Connect(alone[0].get(), index, kCount, std::move(*mine),
                                        listener.token(), TestLimit());
    if (!exchange.ok()) return exchange.status().message();
    auto board = Board::Create(&runtime, exchange->get(), index, kCount, false, TestLimit());
    if (!board.ok()) return board.status().message();
    Dispute dispute;
    for (int round = 1; round <= 500; ++round) {
      ++*came;
      if (!(*board)->Barrier(&dispute).ok() || dispute) return "the barrier failed";
      if (came->load() < round * kCount) return "the barrier let go early";
    }
    if (!(*board)->Agree({Call::kMalloc, index == 2 ? 2u : 1u, 1, 0}, &dispute).ok()) return "lost";
    if (!dispute || dispute->index != 2) return "the dispute was not seen";
    if (index == 1) {
      (*board)->MarkLost(1);  // as its watcher would, once it is gone
      return "";
    }
    const Status lost = (*board)->Barrier(&dispute);
    return lost.message() == "PE 1 is lost" ? "" : "no loss: " + lost.message();
  });
  EXPECT_EQ(failures, "");
}

}  // namespace
}  // namespace mori::shmem
