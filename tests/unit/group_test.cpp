#include "shmem/group.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/round_up.hpp"
#include "bootstrap/in_process_bootstrap.hpp"
#include "runtime/host/host_runtime.hpp"
#include "support/bootstrap_ranks.hpp"

namespace mori::shmem {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing::InThreads;

constexpr Proposal kBarrier{};
constexpr Proposal Malloc(std::uint64_t bytes) { return {Proposal::Call::kMalloc, bytes, 64, 0}; }

/// PEs of several nodes, each a thread with a board of its own for what it hears of losses.
class GroupTest : public ::testing::Test {
 protected:
  void Make(const std::vector<std::string>& nodes, Budget budget = {30s, "MORI_SHMEM_TIMEOUT"}) {
    topology_ = Topology::Of(nodes);
    const int count = static_cast<int>(nodes.size());
    ends_ = InProcessBootstrap::MakeAll(count);
    HostRuntime runtime;
    const std::uint64_t page = runtime.GranularityBytes();
    const std::uint64_t bytes = RoundUp(Board::BytesFor(1), page);
    for (int pe = 0; pe < count; ++pe) {
      auto memory = runtime.Allocate(bytes, HeapType::kNormal);
      auto reserved = runtime.Reserve(bytes, page);
      ASSERT_TRUE(memory.ok() && reserved.ok() && (*reserved)->Map(0, **memory).ok());
      boards_.push_back(Board::Attach(std::move(*reserved), 0, 1, false));
      PeerWatch::Parts parts;
      parts.board = boards_.back().get();
      parts.my_pe = pe;
      for (int other = 0; other < count; ++other)
        parts.names.push_back(fmt::format("PE {} (host h{})", other, other));
      parts.node_pes = {pe};
      parts.bootstrap = end(pe);
      watches_.push_back(std::make_unique<PeerWatch>(std::move(parts)));
      end(pe)->Observe([this, pe](const Bootstrap::Loss& loss) {
        watches_[static_cast<std::size_t>(pe)]->NoteLoss(loss);
      });
      groups_.emplace_back(Group::Parts{&topology_, boards_.back().get(), end(pe),
                                        watches_.back().get(), pe, budget, 30s});
    }
  }
  ~GroupTest() override {
    for (const auto& end : ends_) {
      if (end) end->Observe(nullptr);
    }
  }
  Bootstrap* end(int pe) { return ends_[static_cast<std::size_t>(pe)].get(); }
  Group& group(int pe) { return groups_[static_cast<std::size_t>(pe)]; }
  int count() const { return topology_.n_pes(); }

  Topology topology_;
  std::vector<std::unique_ptr<Board>> boards_;
  std::vector<std::unique_ptr<Bootstrap>> ends_;
  std::vector<std::unique_ptr<PeerWatch>> watches_;
  std::vector<Group> groups_;
};

TEST_F(GroupTest, AllThatProposeTheSameMeet) {
  Make({"a", "b", "a", "c", "b"});
  InThreads(count(), [&](int pe) {
    for (int round = 0; round < 200; ++round) {
      const Proposal proposal =
          round % 3 == 0 ? Malloc(static_cast<std::uint64_t>(round)) : kBarrier;
      const Status met = group(pe).Meet(proposal, "a call");
      ASSERT_TRUE(met.ok()) << met.message();
    }
  });
}

TEST_F(GroupTest, NobodyLeavesBeforeAllHaveCome) {
  Make({"a", "b", "c", "d"});
  std::atomic<int> came{0};
  InThreads(count(), [&](int pe) {
    for (int round = 1; round <= 100; ++round) {
      came.fetch_add(1, std::memory_order_relaxed);
      ASSERT_TRUE(group(pe).Meet(kBarrier, "a call").ok());
      ASSERT_GE(came.load(std::memory_order_relaxed), 4 * round);
    }
  });
}

TEST_F(GroupTest, ADisagreementIsTheSameSentenceForAll) {
  // Whoever differs, wherever it stands in the tree.
  for (int odd = 0; odd < 12; ++odd) {
    Make(std::vector<std::string>{"a", "b", "c", "a", "b", "c", "d", "e", "f", "g", "h", "i"});
    std::vector<Status> ended(12);
    InThreads(12, [&](int pe) {
      const bool differs = pe == odd || pe == 11;
      ended[static_cast<std::size_t>(pe)] =
          group(pe).Meet(differs ? Malloc(static_cast<std::uint64_t>(100 + pe)) : kBarrier, "call");
    });
    const int lowest_other = odd == 0 ? 1 : odd;
    for (const Status& status : ended) {
      ASSERT_EQ(status.code(), ErrorCode::kMismatch);
      ASSERT_EQ(status.message(), ended[0].message());
      ASSERT_THAT(status.message(), HasSubstr("PE 0 made "));
      ASSERT_THAT(status.message(), HasSubstr(fmt::format(", PE {} made ", lowest_other)));
    }
    ends_.clear();
    watches_.clear();
    groups_.clear();
    boards_.clear();
  }
}

TEST_F(GroupTest, NewsOfOneIsToldToAll) {
  Make({"a", "b", "c"});
  InThreads(count(), [&](int pe) {
    for (int teller = -1; teller < 3; ++teller) {
      bool news = pe == teller;
      ASSERT_TRUE(group(pe).Meet(kBarrier, "a call", &news).ok());
      ASSERT_EQ(news, teller >= 0);
    }
  });
}

TEST_F(GroupTest, WhoDoesNotComeIsNamedAtTheEndOfTheBudget) {
  Make({"a", "b", "c"}, {300ms, "MORI_SHMEM_TIMEOUT"});
  InThreads(2, [&](int pe) {
    const Status ended = group(pe).Meet(kBarrier, "shmem_barrier_all");
    // Who gives up first is lost to the other.
    if (ended.code() == ErrorCode::kTimeout) {
      EXPECT_EQ(ended.message(), "PE 2 (host h2) did not come within 0.3 s (MORI_SHMEM_TIMEOUT)");
    } else {
      EXPECT_EQ(ended.code(), ErrorCode::kPeerLost);
      EXPECT_THAT(ended.message(), HasSubstr("PE 2 (host h2) did not come within 0.3 s"));
    }
  });
}

TEST_F(GroupTest, AWaitEndsWithThePeThatIsLost) {
  Make({"a", "b", "c"});
  InThreads(3, [&](int pe) {
    if (pe == 1) return end(1)->Abort(Error(ErrorCode::kSystem, "no more of this"));
    const Status ended = group(pe).Meet(kBarrier, "shmem_barrier_all");
    EXPECT_EQ(ended.code(), ErrorCode::kPeerLost);
    EXPECT_THAT(ended.message(), HasSubstr("PE 1 (host h1) is lost: it gave up: no more of this"));
  });
}

TEST_F(GroupTest, AnOutcomeIsThatOfWhoFailedByItself) {
  Make({"a", "b", "c", "d"});
  InThreads(count(), [&](int pe) {
    ASSERT_TRUE(group(pe).AgreeOnOutcome(Status()).ok());
    Status mine;
    if (pe == 1) mine = Error(ErrorCode::kMismatch, "another PE failed");
    if (pe == 2) mine = Error(ErrorCode::kOutOfMemory, "no memory");
    const Status agreed = group(pe).AgreeOnOutcome(mine);
    ASSERT_EQ(agreed.code(), ErrorCode::kOutOfMemory);
    ASSERT_EQ(agreed.message(), pe == 2 ? "no memory" : "PE 2 (host h2): no memory");
    ASSERT_TRUE(group(pe).AgreeOnOutcome(Status()).ok());
  });
}

}  // namespace
}  // namespace mori::shmem
