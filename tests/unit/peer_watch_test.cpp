#include "shmem/peer_watch.hpp"

#include <gtest/gtest.h>

#include <thread>

#include "base/round_up.hpp"
#include "runtime/host/host_runtime.hpp"
#include "support/bootstrap_ranks.hpp"

namespace mori::shmem {
namespace {

using namespace std::chrono_literals;
using testing::Eventually;

/// Boards of one mapping, and a watch over the first one's PEs.
class PeerWatchTest : public ::testing::Test {
 protected:
  PeerWatchTest() {
    HostRuntime runtime;
    const std::uint64_t page = runtime.GranularityBytes();
    const std::uint64_t bytes = RoundUp(Board::BytesFor(kCount), page);
    auto memory = runtime.Allocate(bytes, HeapType::kNormal);
    auto reserved = runtime.Reserve(bytes, page);
    EXPECT_TRUE(memory.ok() && reserved.ok() && (*reserved)->Map(0, **memory).ok());
    const std::shared_ptr<AddressRange> range = std::move(*reserved);
    for (int index = 0; index < kCount; ++index) {
      boards_.push_back(Board::Attach(range, index, kCount, false));
    }
    watch_ = WatchOf(0);
  }

  /// That of a PE, which nobody has told anything by another way than the board.
  std::unique_ptr<PeerWatch> WatchOf(int pe) {
    PeerWatch::Parts parts;
    for (int index = 0; index < kCount; ++index) {
      parts.names.push_back(fmt::format("PE {} (host h, process {})", index, 100 + index));
      parts.node_pes.push_back(index);
    }
    parts.board = boards_[static_cast<std::size_t>(pe)].get();
    parts.my_pe = pe;
    return std::make_unique<PeerWatch>(std::move(parts));
  }

  static constexpr int kCount = 12;
  std::vector<std::unique_ptr<Board>> boards_;
  std::unique_ptr<PeerWatch> watch_;
};

TEST_F(PeerWatchTest, AllAreWellAtFirst) {
  EXPECT_TRUE(watch_->Health().ok());
  EXPECT_TRUE(watch_->LateOrLost().empty());
}

TEST_F(PeerWatchTest, ALossIsToldToAllWithItsReason) {
  watch_->NoteLoss({3, "its connection closed"});
  EXPECT_EQ(watch_->Health().code(), ErrorCode::kPeerLost);
  EXPECT_EQ(watch_->Health().message(),
            "PE 3 (host h, process 103) is lost: its connection closed");
  EXPECT_EQ(boards_[5]->FirstLost(), 3);
  watch_->NoteLoss({1, "it gave up"});
  EXPECT_EQ(watch_->LateOrLost(), (std::vector<int>{1, 3}));
}

TEST_F(PeerWatchTest, TheReasonMayComeAfterTheMark) {
  boards_[7]->MarkLost(4);  // another PE heard of it first
  std::thread news([&] { watch_->NoteLoss({4, "it gave up: no memory"}); });
  EXPECT_EQ(watch_->Health().message(),
            "PE 4 (host h, process 104) is lost: it gave up: no memory");
  news.join();
}

TEST_F(PeerWatchTest, TheReasonComesWithTheMarkOfAnotherPe) {
  WatchOf(7)->NoteLoss({7, "it gave up: no memory"});
  EXPECT_EQ(watch_->Health().message(),
            "PE 7 (host h, process 107) is lost: it gave up: no memory");
  EXPECT_EQ(watch_->LateOrLost(), std::vector<int>{7});
}

TEST_F(PeerWatchTest, ALossOfAPeWithoutASlotOnThisBoardHasItsReasonToo) {
  // The boards are those of a node; PE 11 may be on another one.
  PeerWatch::Parts parts{boards_[1].get(), 4, std::vector<std::string>(12, "PE x"), {2, 4}, {}};
  PeerWatch(std::move(parts)).NoteLoss({11, "its connection closed"});
  EXPECT_EQ(watch_->Health().message(),
            "PE 11 (host h, process 111) is lost: its connection closed");
}

TEST_F(PeerWatchTest, AReasonMayStandOnTheBoardAfterTheMark) {
  boards_[7]->MarkLost(4);
  std::thread other([&] { WatchOf(5)->NoteLoss({4, "it gave up: no memory"}); });
  EXPECT_EQ(watch_->Health().message(),
            "PE 4 (host h, process 104) is lost: it gave up: no memory");
  other.join();
}

TEST_F(PeerWatchTest, ALossWhoseNewsNeverComesIsOneToo) {
  boards_[7]->MarkLost(4);
  EXPECT_EQ(watch_->Health().message(),
            "PE 4 (host h, process 104) is lost: another PE saw its connection close");
}

TEST_F(PeerWatchTest, WhoGaveUpItselfIsToldSo) {
  watch_->NoteLoss({0, "it gave up: too late"});
  EXPECT_EQ(watch_->Health().message(), "this PE is lost to the others: it gave up: too late");
}

TEST_F(PeerWatchTest, ManyNamesAreCut) {
  EXPECT_EQ(watch_->Names({1, 2}), "PE 1 (host h, process 101), PE 2 (host h, process 102)");
  const std::string many = watch_->Names({0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  EXPECT_NE(many.find("PE 7 (host h, process 107) and 2 more"), std::string::npos) << many;
}

TEST_F(PeerWatchTest, ACallThatLastsEndsWithTheNamesOfWhoIsLate) {
  std::vector<std::thread> others;
  for (int index = 2; index < kCount; ++index) {
    others.emplace_back([this, index] {
      std::optional<Board::Dispute> dispute;
      EXPECT_EQ(boards_[static_cast<std::size_t>(index)]->Barrier(&dispute).code(),
                ErrorCode::kPeerLost);
    });
  }
  std::optional<Board::Dispute> dispute;
  EXPECT_TRUE(Eventually([&] { return boards_[2]->Missing() == std::vector<int>{0, 1}; }));
  CallWatch call(*watch_, "shmem_barrier_all", 0ms, "MORI_SHMEM_TIMEOUT");
  const Status ended = boards_[0]->Agree(Proposal{}, &dispute, nullptr, &call);
  EXPECT_EQ(ended.code(), ErrorCode::kTimeout);
  EXPECT_EQ(ended.message(),
            "PE 1 (host h, process 101) did not come within 0 s (MORI_SHMEM_TIMEOUT)");
  EXPECT_EQ(watch_->LateOrLost(), std::vector<int>{1});
  watch_->NoteLoss({0, "it gave up"});
  for (auto& other : others) other.join();
}

}  // namespace
}  // namespace mori::shmem
