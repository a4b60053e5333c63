// What every bootstrap owes, over all implementations.
#include "bootstrap/bootstrap.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <climits>
#include <mutex>
#include <string>
#include <tuple>

#include "bootstrap/in_process_bootstrap.hpp"
#include "support/bootstrap_ranks.hpp"

namespace mori::shmem {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using testing::Eventually;
using testing::InThreads;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;
using ::testing::StartsWith;
using testing::TestLimit;
using namespace std::chrono_literals;

using Ends = std::vector<std::unique_ptr<Bootstrap>>;

/// @param node_of  of a rank
Ends MakeSocketEnds(int size, const std::function<int(int rank)>& node_of) {
  auto server = testing::StartRendezvous();
  EXPECT_TRUE(server.ok()) << server.status().message();
  std::vector<SocketBootstrap::Options> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(testing::RankOptions(rank, size));
    ranks.back().node = fmt::format("node {}", node_of(rank));
  }
  Ends ends;
  for (auto& joined : testing::JoinAll((*server)->id(), ranks)) {
    if (!joined.ok()) throw std::runtime_error(joined.status().message());
    ends.push_back(std::move(*joined));
  }
  return ends;
}

struct Implementation {
  std::string name;
  Ends (*make)(int size);
};
void PrintTo(const Implementation& implementation, std::ostream* out) {
  *out << implementation.name;
}
const Implementation kSocket = {
    "Socket", [](int size) { return MakeSocketEnds(size, [](int) { return 0; }); }};
/// Four nodes of unequal size, whose ranks are not neighbours.
const Implementation kSocketOverNodes = {
    "SocketOverNodes", [](int size) {
      return MakeSocketEnds(size, [](int rank) { return rank % 5 == 4 ? 0 : rank % 5; });
    }};
const Implementation kInProcess = {"InProcess", InProcessBootstrap::MakeAll};

/// Bytes that tell rank, round and place.
Bytes Pattern(int rank, int round, std::size_t size) {
  Bytes bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::uint8_t>(static_cast<std::size_t>(31 * rank + 7 * round) + i);
  }
  return bytes;
}

/// Every call that all ranks make together, with the least to say.
struct CallOfAll {
  const char* name;
  Status (*make)(Bootstrap* end, const WaitLimit& limit);
};
const CallOfAll kCallsOfAll[] = {
    {"AllGather", [](auto* end, const auto& wait) { return end->AllGather({}, wait).status(); }},
    {"Combine",
     [](auto* end, const auto& wait) {
       const auto first = [](ByteView a, ByteView) { return Bytes(a.begin(), a.end()); };
       return end->Combine({}, first, wait).status();
     }},
    {"Barrier", [](auto* end, const auto& wait) { return end->Barrier(wait); }},
    {"AllToAll",
     [](auto* end, const auto& wait) {
       const std::vector<Bytes> nothing(static_cast<std::size_t>(end->size()));
       return end->AllToAll(nothing, wait).status();
     }},
};

/// Every call of a group.
struct CallOfGroup {
  const char* name;
  Status (*make)(Bootstrap* end, const RankGroup& group, const WaitLimit& limit);
};
const CallOfGroup kCallsOfGroup[] = {
    {"AllGather", [](auto* end, const auto& group,
                     const auto& wait) { return end->AllGather(group, {}, wait).status(); }},
    {"Combine",
     [](auto* end, const auto& group, const auto& wait) {
       const auto first = [](ByteView a, ByteView) { return Bytes(a.begin(), a.end()); };
       return end->Combine(group, {}, first, wait).status();
     }},
    {"Barrier",
     [](auto* end, const auto& group, const auto& wait) { return end->Barrier(group, wait); }},
    {"AllToAll",
     [](auto* end, const auto& group, const auto& wait) {
       const std::vector<Bytes> nothing(group.ranks.size());
       return end->AllToAll(group, nothing, wait).status();
     }},
};

/// A message with one number, and the sum of two such.
Bytes Number(std::uint64_t value) { return ByteWriter().Int(value).Take(); }
std::uint64_t ValueOf(ByteView message) { return ByteReader(message).Int<std::uint64_t>(); }
Bytes Sum(ByteView a, ByteView b) { return Number(ValueOf(a) + ValueOf(b)); }

/// Asks who is missing, each time that it is asked to look.
class Onlooker final : public WaitWatch {
 public:
  using Judge = std::function<Status(const std::vector<int>& missing)>;
  Onlooker(Bootstrap* end, Judge judge) : end_(end), judge_(std::move(judge)) {}
  Status Look() override { return judge_(end_->Missing()); }

 private:
  Bootstrap* end_;
  Judge judge_;
};

/// What an observer heard.
class Heard {
 public:
  Bootstrap::Observer Listener() {
    return [this](const Bootstrap::Loss& loss) {
      const std::lock_guard lock(mutex_);
      losses_.push_back(loss);
    };
  }
  std::vector<int> ranks() const {
    const std::lock_guard lock(mutex_);
    std::vector<int> ranks;
    for (const auto& loss : losses_) ranks.push_back(loss.rank);
    return ranks;
  }
  std::string reason(std::size_t index) const {
    const std::lock_guard lock(mutex_);
    return losses_.at(index).reason;
  }

 private:
  mutable std::mutex mutex_;
  std::vector<Bootstrap::Loss> losses_;
};

using Parameters = std::tuple<Implementation, int>;

std::string NameOf(const ::testing::TestParamInfo<Parameters>& info) {
  return fmt::format("{}Of{}", std::get<0>(info.param).name, std::get<1>(info.param));
}

class BootstrapSuite : public ::testing::TestWithParam<Parameters> {
 protected:
  void SetUp() override {
    size_ = std::get<1>(GetParam());
    ends_ = std::get<0>(GetParam()).make(size_);
    ASSERT_EQ(static_cast<int>(ends_.size()), size_);
  }
  void TearDown() override {
    for (auto& end : ends_) {
      if (end) end->Leave();
    }
  }

  std::unique_ptr<Bootstrap>& end(int rank) { return ends_[static_cast<std::size_t>(rank)]; }
  int last() const { return size_ - 1; }
  /// First, last and between, each once.
  std::vector<int> SomeRanks() const {
    std::vector<int> ranks{0};
    if (size_ > 2) ranks.push_back(1);
    if (size_ > 1) ranks.push_back(last());
    return ranks;
  }

  /// One exchange of messages of `size_of(rank)` bytes, checked on every rank.
  void Exchange(const std::function<std::size_t(int rank)>& size_of) {
    std::vector<Bytes> messages;
    for (int rank = 0; rank < size_; ++rank) messages.push_back(Pattern(rank, 0, size_of(rank)));
    InThreads(size_, [&](int rank) {
      const auto all = end(rank)->AllGather(messages[static_cast<std::size_t>(rank)], TestLimit());
      ASSERT_TRUE(all.ok()) << all.status().message();
      EXPECT_TRUE(*all == messages) << "on rank " << rank;  // EXPECT_EQ would print megabytes
    });
  }

  int size_ = 0;
  Ends ends_;
};

/// Each with these sizes; sockets over nodes only where there are several ranks of each.
std::vector<Parameters> AllOf(const std::vector<int>& sizes) {
  std::vector<Parameters> all;
  for (const int size : sizes) {
    for (const auto& implementation : {kSocket, kInProcess}) all.emplace_back(implementation, size);
    if (size >= 20) all.emplace_back(kSocketOverNodes, size);
  }
  return all;
}

INSTANTIATE_TEST_SUITE_P(Bootstrap, BootstrapSuite, ::testing::ValuesIn(AllOf({1, 2, 3, 10, 20})),
                         NameOf);

class SeveralRanks : public BootstrapSuite {};
INSTANTIATE_TEST_SUITE_P(Bootstrap, SeveralRanks, ::testing::ValuesIn(AllOf({2, 3, 10, 20})),
                         NameOf);

class ThreeRanksAndMore : public BootstrapSuite {};
INSTANTIATE_TEST_SUITE_P(Bootstrap, ThreeRanksAndMore, ::testing::ValuesIn(AllOf({3, 10, 20})),
                         NameOf);

TEST_P(BootstrapSuite, RanksKnowTheirPlaceAndAreWell) {
  for (int rank = 0; rank < size_; ++rank) {
    EXPECT_EQ(end(rank)->rank(), rank);
    EXPECT_EQ(end(rank)->size(), size_);
    EXPECT_TRUE(end(rank)->Health().ok()) << end(rank)->Health().message();
  }
}

TEST_P(BootstrapSuite, EqualMessagesReachEveryRank) {
  Exchange([](int) { return 100; });
}

TEST_P(BootstrapSuite, EmptyMessagesReachEveryRank) {
  Exchange([](int) { return 0; });
}

TEST_P(BootstrapSuite, UnequalMessagesReachEveryRank) {
  Exchange([](int rank) { return static_cast<std::size_t>(997 * rank); });
}

TEST_P(BootstrapSuite, LargeMessagesReachEveryRank) {
  const std::size_t kibibytes = size_ > 3 ? 256 : 3072;
  Exchange([&](int rank) { return (kibibytes << 10) + static_cast<std::size_t>(rank); });
}

TEST_P(BootstrapSuite, RoundsInSequenceStayApart) {
  constexpr int kRounds = 100;
  InThreads(size_, [&](int rank) {
    for (int round = 0; round < kRounds; ++round) {
      if ((round + rank) % 37 == 0) std::this_thread::sleep_for(1ms);
      const auto all = end(rank)->AllGather(Pattern(rank, round, 8), TestLimit());
      ASSERT_TRUE(all.ok()) << all.status().message();
      for (int from = 0; from < size_; ++from)
        EXPECT_EQ((*all)[static_cast<std::size_t>(from)], Pattern(from, round, 8));
    }
  });
  for (auto& end : ends_) EXPECT_TRUE(end->Health().ok());
}

TEST_P(BootstrapSuite, CombinedMessagesReachEveryRank) {
  const auto size = static_cast<std::uint64_t>(size_);
  InThreads(size_, [&](int rank) {
    for (std::uint64_t round = 0; round < 100; ++round) {
      const auto sum =
          end(rank)->Combine(Number(static_cast<std::uint64_t>(rank) + round), Sum, TestLimit());
      ASSERT_TRUE(sum.ok()) << sum.status().message();
      ASSERT_EQ(ValueOf(*sum), size * (size - 1) / 2 + size * round) << "in round " << round;
    }
  });
}

TEST_P(BootstrapSuite, WhatIsCombinedMayGrowAndBeLarge) {
  const auto append = [](ByteView a, ByteView b) { return ByteWriter().Raw(a).Raw(b).Take(); };
  const std::size_t each = 20'000;
  InThreads(size_, [&](int rank) {
    const auto all =
        end(rank)->Combine(Bytes(each, static_cast<std::uint8_t>(rank)), append, TestLimit());
    ASSERT_TRUE(all.ok()) << all.status().message();
    ASSERT_EQ(all->size(), each * static_cast<std::size_t>(size_));
    std::vector<std::size_t> counts(static_cast<std::size_t>(size_));
    for (const std::uint8_t from : *all) ++counts.at(from);
    EXPECT_THAT(counts, ::testing::Each(each));
  });
}

TEST_P(BootstrapSuite, ABarrierEndsOnNoRankBeforeAllHaveCome) {
  constexpr int kRounds = 50;
  std::atomic<int> came{0};
  InThreads(size_, [&](int rank) {
    for (int round = 1; round <= kRounds; ++round) {
      if ((round + rank) % 17 == 0) std::this_thread::sleep_for(1ms);
      ++came;
      ASSERT_TRUE(end(rank)->Barrier(TestLimit()).ok());
      ASSERT_GE(came, round * size_);
    }
  });
}

TEST_P(BootstrapSuite, DifferentCallsInTurnStayApart) {
  InThreads(size_, [&](int rank) {
    for (int round = 0; round < 30; ++round) {
      const CallOfAll& call = kCallsOfAll[round % std::size(kCallsOfAll)];
      const Status made = call.make(end(rank).get(), TestLimit());
      ASSERT_TRUE(made.ok()) << call.name << ": " << made.message();
    }
  });
}

TEST_P(SeveralRanks, DifferentCallsAtOnceAreAMismatch) {
  std::mutex mutex;
  std::vector<Status> failures;
  InThreads(size_, [&](int rank) {
    const Status made = rank == last() ? end(rank)->Barrier(TestLimit())
                                       : end(rank)->AllGather({}, TestLimit()).status();
    if (made.code() == ErrorCode::kMismatch) end(rank)->Abort(made);
    const std::lock_guard lock(mutex);
    failures.push_back(made);
  });
  EXPECT_THAT(failures,
              Contains(::testing::Property(
                  &Status::message, MatchesRegex("rank [0-9]+ makes an? [a-z-]+ where rank [0-9]+ "
                                                 "makes an? [a-z-]+"))));
  for (const Status& failure : failures) EXPECT_FALSE(failure.ok());
}

TEST_P(SeveralRanks, AWatchSeesWhoIsMissingAndEndsTheWait) {
  for (const CallOfAll& call : kCallsOfAll) {
    Ends ends = std::get<0>(GetParam()).make(size_);
    const int absent = size_ / 2;
    InThreads(size_, [&](int rank) {
      Bootstrap* const mine = ends[static_cast<std::size_t>(rank)].get();
      EXPECT_THAT(mine->Missing(), IsEmpty()) << "it waits for nobody";
      if (rank == absent) return;
      Onlooker onlooker(mine, [&](const std::vector<int>& missing) {
        const bool is_known = missing == std::vector{absent};  // once the others have come
        return is_known ? Error(ErrorCode::kUnsupported, "enough") : Status();
      });
      const Status ended = call.make(mine, &onlooker);
      EXPECT_EQ(ended.code(), ErrorCode::kUnsupported) << call.name << ": " << ended.message();
      EXPECT_EQ(ended.message(), "enough");
      EXPECT_THAT(mine->Missing(), IsEmpty()) << "the wait is over";
    });
    for (auto& end : ends) end->Leave();
  }
}

TEST_P(SeveralRanks, WhoIsMissingInACallThatGoesAnotherWayIsKnown) {
  const int absent = size_ / 2;
  std::atomic<int> know{0};
  InThreads(size_, [&](int rank) {
    Bootstrap* const mine = ends_[static_cast<std::size_t>(rank)].get();
    { const Bootstrap::Elsewhere first(mine); }
    if (rank == absent) {
      EXPECT_TRUE(Eventually([&] { return know == size_ - 1; }));
      return;
    }
    {
      const Bootstrap::Elsewhere second(mine);
      EXPECT_TRUE(Eventually([&] { return mine->Missing() == std::vector{absent}; }));
      ++know;
    }
    EXPECT_THAT(mine->Missing(), IsEmpty()) << "the wait is over";
  });
}

TEST_P(SeveralRanks, AWatchThatGoesOnLetsTheCallEndWell) {
  std::atomic<bool> is_seen{false};
  InThreads(size_, [&](int rank) {
    if (rank == last()) {
      EXPECT_TRUE(Eventually([&] { return is_seen.load(); }));
    }
    Onlooker onlooker(end(rank).get(), [&](const std::vector<int>& missing) {
      if (rank == 0 && missing == std::vector{last()}) is_seen = true;
      return Status();
    });
    const auto sum = end(rank)->Combine(Number(1), Sum, &onlooker);
    ASSERT_TRUE(sum.ok()) << sum.status().message();
    EXPECT_EQ(ValueOf(*sum), static_cast<std::uint64_t>(size_));
  });
}

TEST_P(SeveralRanks, ARankThatDoesNotComeMakesTheOthersTimeOut) {
  for (const CallOfAll& call : kCallsOfAll) {
    Ends ends = std::get<0>(GetParam()).make(size_);
    InThreads(last(), [&](int rank) {
      Bootstrap* const mine = ends[static_cast<std::size_t>(rank)].get();
      const Status late = call.make(mine, Deadline::After(100ms));
      EXPECT_EQ(late.code(), ErrorCode::kTimeout) << call.name << ": " << late.message();
      EXPECT_FALSE(call.make(mine, Deadline::After(10ms)).ok())
          << "an exchange goes on after a failure";
      EXPECT_TRUE(mine->Health().ok()) << "late is not lost";
    });
    for (auto& end : ends) end->Leave();
  }
}

TEST_P(SeveralRanks, ExactlyThoseWhoDoNotComeAreNamed) {
  int next = 0;
  for (const int absent : SomeRanks()) {
    const CallOfAll& call = kCallsOfAll[next++ % std::size(kCallsOfAll)];
    Ends ends = std::get<0>(GetParam()).make(size_);
    const int asker = absent == last() ? 0 : last();
    std::atomic<int> entered{0};
    InThreads(size_, [&](int rank) {
      const auto mine = ends[static_cast<std::size_t>(rank)].get();
      if (rank == absent) return;
      if (rank != asker) {
        ++entered;
        EXPECT_FALSE(call.make(mine, TestLimit()).ok());
        return;
      }
      EXPECT_TRUE(Eventually([&] { return entered == size_ - 2; }));
      const Status late = call.make(mine, Deadline::After(2s));  // the others are in by then
      EXPECT_THAT(late.message(),
                  MatchesRegex(fmt::format("1 of {} ranks did not come within [0-9.]+ s: rank "
                                           "{}",
                                           size_, absent)));
      mine->Abort(late);  // ends the wait of the others
    });
  }
}

TEST_P(SeveralRanks, AnExpiredDeadlineReturnsAtOnce) {
  const auto late = end(0)->AllGather({}, Deadline::After(0ms));
  EXPECT_EQ(late.status().code(), ErrorCode::kTimeout) << late.status().message();
}

TEST_P(BootstrapSuite, AbortReachesEveryRankWithItsText) {
  int next = 0;
  for (const int quitter : SomeRanks()) {
    const CallOfAll& call = kCallsOfAll[next++ % std::size(kCallsOfAll)];
    Ends ends = std::get<0>(GetParam()).make(size_);
    const std::string text =
        fmt::format("rank {} is lost: it gave up: no room for 5 bytes", quitter);
    InThreads(size_, [&](int rank) {
      const auto mine =
          std::move(ends[static_cast<std::size_t>(rank)]);  // gone as soon as it fails
      if (rank == quitter) mine->Abort(Error(ErrorCode::kOutOfMemory, "no room for {} bytes", 5));
      const Status made = call.make(mine.get(), TestLimit());
      EXPECT_EQ(made.code(), ErrorCode::kPeerLost) << "on rank " << rank;
      EXPECT_EQ(made.message(), text) << "on rank " << rank;
      EXPECT_EQ(mine->Health().code(), ErrorCode::kPeerLost) << "on rank " << rank;
      EXPECT_EQ(mine->Health().message(), text) << "on rank " << rank;
    });
  }
}

TEST_P(SeveralRanks, ARankThatAnotherAccusesIsLostToAllAndToItself) {
  for (const int accused : SomeRanks()) {
    Ends ends = std::get<0>(GetParam()).make(size_);
    const int accuser = accused == last() ? 0 : last();
    const auto end = [&](int rank) { return ends[static_cast<std::size_t>(rank)].get(); };
    std::vector<Heard> heard(static_cast<std::size_t>(size_));
    for (int rank = 0; rank < size_; ++rank)
      end(rank)->Observe(heard[static_cast<std::size_t>(rank)].Listener());
    end(accuser)->Accuse(-1, "nobody");
    end(accuser)->Accuse(size_, "nobody");
    end(accuser)->Accuse(accused, "its network card is on fire");
    end(accuser)->Accuse(accused, "once more");
    InThreads(size_, [&](int rank) {
      const Status made = end(rank)->Barrier(TestLimit());
      EXPECT_EQ(made.code(), ErrorCode::kPeerLost) << "on rank " << rank;
      EXPECT_EQ(made.message(),
                fmt::format("rank {} is lost: its network card is on fire", accused))
          << "on rank " << rank;
    });
    for (int rank = 0; rank < size_; ++rank) {
      end(rank)->Observe(nullptr);
      EXPECT_THAT(heard[static_cast<std::size_t>(rank)].ranks(), ElementsAre(accused));
    }
    for (auto& one : ends) one->Leave();
  }
}

TEST_P(SeveralRanks, ALongTextOfAnAbortIsCutButReachesAll) {
  end(last())->Abort(Status(ErrorCode::kSystem, std::string(100'000, 'x')));
  for (int rank = 0; rank < size_; ++rank) {
    EXPECT_TRUE(Eventually([&] { return !end(rank)->Health().ok(); })) << "on rank " << rank;
    EXPECT_THAT(end(rank)->Health().message(),
                StartsWith(fmt::format("rank {} is lost: it gave up: xxxxxxxxxx", last())))
        << "on rank " << rank;
  }
}

TEST_P(SeveralRanks, AbortIsKnownBeforeTheNextExchange) {
  end(last())->Abort(Error(ErrorCode::kInvalidConfig, "a bad value"));
  for (int rank = 0; rank < size_; ++rank) {
    EXPECT_TRUE(Eventually([&] { return !end(rank)->Health().ok(); })) << "on rank " << rank;
    const auto all = end(rank)->AllGather({}, TestLimit());
    EXPECT_EQ(all.status().code(), ErrorCode::kPeerLost) << "on rank " << rank;
    EXPECT_EQ(all.status().message(),
              fmt::format("rank {} is lost: it gave up: a bad value", last()))
        << "on rank " << rank;
  }
}

TEST_P(SeveralRanks, ARankThatVanishesIsNamedOnEveryOther) {
  int next = 0;
  for (const int victim : SomeRanks()) {
    const CallOfAll& call = kCallsOfAll[next++ % std::size(kCallsOfAll)];
    Ends ends = std::get<0>(GetParam()).make(size_);
    InThreads(size_, [&](int rank) {
      const auto mine =
          std::move(ends[static_cast<std::size_t>(rank)]);  // gone as soon as it fails
      if (rank == victim) return;
      Heard heard;
      mine->Observe(heard.Listener());
      const Status made = call.make(mine.get(), TestLimit());
      EXPECT_EQ(made.code(), ErrorCode::kPeerLost) << call.name << " on rank " << rank;
      EXPECT_THAT(made.message(), StartsWith(fmt::format("rank {} is lost: it", victim)))
          << call.name << " on rank " << rank;
      const std::vector<int> known = heard.ranks();
      EXPECT_TRUE(!known.empty() && known.front() == victim)
          << "the call failed before the observer heard of it, on rank " << rank;
      mine->Observe(nullptr);
    });
  }
}

TEST_P(ThreeRanksAndMore, ObserversHearPastAndFutureLossesOnce) {
  const int first = last(), second = last() - 1;
  end(first).reset();
  for (int rank = 0; rank < second; ++rank) {
    ASSERT_TRUE(Eventually([&] { return !end(rank)->Health().ok(); })) << "on rank " << rank;
  }
  std::vector<Heard> replaced(static_cast<std::size_t>(second));
  std::vector<Heard> heard(static_cast<std::size_t>(second));
  for (int rank = 0; rank < second; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    end(rank)->Observe(replaced[index].Listener());
    EXPECT_THAT(replaced[index].ranks(), ElementsAre(first)) << "a past loss, on rank " << rank;
    end(rank)->Observe(heard[index].Listener());
  }
  end(second)->Abort(Error(ErrorCode::kSystem, "enough"));
  end(second).reset();
  for (int rank = 0; rank < second; ++rank) {
    const Heard& here = heard[static_cast<std::size_t>(rank)];
    EXPECT_TRUE(Eventually([&] { return here.ranks().size() >= 2; })) << "on rank " << rank;
    end(rank)->Observe(nullptr);
    EXPECT_THAT(here.ranks(), ElementsAre(first, second)) << "on rank " << rank;
    EXPECT_EQ(here.reason(1), "it gave up: enough") << "on rank " << rank;
    EXPECT_THAT(replaced[static_cast<std::size_t>(rank)].ranks(), ElementsAre(first))
        << "a replaced observer was called, on rank " << rank;
    EXPECT_THAT(end(rank)->Health().message(), StartsWith(fmt::format("rank {} is lost", first)));
  }
}

TEST_P(BootstrapSuite, ARankHearsOfItsOwnAbort) {
  Heard heard;
  end(0)->Observe(heard.Listener());
  end(0)->Abort(Error(ErrorCode::kSystem, "enough"));
  end(0)->Abort(Error(ErrorCode::kSystem, "more than enough"));
  EXPECT_THAT(heard.ranks(), ElementsAre(0));
  EXPECT_EQ(heard.reason(0), "it gave up: enough");
}

TEST_P(SeveralRanks, LeavingIsNoLoss) {
  std::vector<Heard> heard(static_cast<std::size_t>(last()));
  for (int rank = 0; rank < last(); ++rank)
    end(rank)->Observe(heard[static_cast<std::size_t>(rank)].Listener());
  end(last())->Leave();
  end(last()).reset();
  InThreads(last(), [&](int rank) {
    const auto all = end(rank)->AllGather({}, Deadline::After(100ms));
    EXPECT_FALSE(all.ok()) << "an exchange went on without rank " << last();
    EXPECT_TRUE(end(rank)->Health().ok()) << end(rank)->Health().message();
  });
  for (const Heard& here : heard) EXPECT_THAT(here.ranks(), IsEmpty());
}

TEST_P(BootstrapSuite, RanksThatLeaveAtOnceLoseNobody) {
  std::vector<Heard> heard(static_cast<std::size_t>(size_));
  InThreads(size_, [&](int rank) {
    auto mine = std::move(end(rank));
    mine->Observe(heard[static_cast<std::size_t>(rank)].Listener());
    const auto all = mine->AllGather({}, TestLimit());
    EXPECT_TRUE(all.ok()) << all.status().message();
    if (rank % 3 == 1) std::this_thread::sleep_for(2ms);
    mine->Leave();
    mine->Leave();
  });
  for (const Heard& here : heard) EXPECT_THAT(here.ranks(), IsEmpty());
}

TEST_P(BootstrapSuite, AllToAllBringsEachMessageToItsRank) {
  const auto size_of = [](int from, int to) {
    return static_cast<std::size_t>((from * 31 + to * 17) % 5 * 700);
  };
  InThreads(size_, [&](int rank) {
    for (int round = 0; round < 5; ++round) {
      std::vector<Bytes> messages;
      for (int to = 0; to < size_; ++to)
        messages.push_back(Pattern(100 * rank + to, round, size_of(rank, to)));
      const auto received = end(rank)->AllToAll(messages, TestLimit());
      ASSERT_TRUE(received.ok()) << received.status().message();
      ASSERT_EQ(static_cast<int>(received->size()), size_);
      for (int from = 0; from < size_; ++from) {
        EXPECT_TRUE((*received)[static_cast<std::size_t>(from)] ==
                    Pattern(100 * from + rank, round, size_of(from, rank)))
            << "from " << from << " to " << rank;
      }
    }
  });
}

TEST_P(BootstrapSuite, AMessageForEveryRankIsNeeded) {
  const std::vector<Bytes> one_more(static_cast<std::size_t>(size_) + 1);
  const Status wrong = end(0)->AllToAll(one_more, TestLimit()).status();
  EXPECT_EQ(wrong.code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(wrong.message(), fmt::format("{} messages for {} ranks", size_ + 1, size_));
}

/// What all ranks of a group say in each of its calls, checked.
void TalkInGroup(Bootstrap* end, const RankGroup& group, int rounds) {
  const auto self =
      static_cast<int>(std::ranges::find(group.ranks, end->rank()) - group.ranks.begin());
  const auto count = static_cast<int>(group.ranks.size());
  for (int round = 0; round < rounds; ++round) {
    const auto size = static_cast<std::size_t>(7 * self);
    const auto all = end->AllGather(group, Pattern(self, round, size), TestLimit());
    ASSERT_TRUE(all.ok()) << all.status().message();
    ASSERT_EQ(static_cast<int>(all->size()), count);
    for (int from = 0; from < count; ++from) {
      const auto index = static_cast<std::size_t>(from);
      EXPECT_EQ((*all)[index], Pattern(from, round, 7 * index));
    }
    const auto sum = end->Combine(group, Number(1), Sum, TestLimit());
    ASSERT_TRUE(sum.ok()) << sum.status().message();
    EXPECT_EQ(ValueOf(*sum), group.ranks.size());
    std::vector<Bytes> messages;
    for (int to = 0; to < count; ++to) messages.push_back(Pattern(self, to, 9));
    const auto received = end->AllToAll(group, messages, TestLimit());
    ASSERT_TRUE(received.ok()) << received.status().message();
    for (int from = 0; from < count; ++from)
      EXPECT_EQ((*received)[static_cast<std::size_t>(from)], Pattern(from, self, 9));
    ASSERT_TRUE(end->Barrier(group, TestLimit()).ok());
  }
}

TEST_P(BootstrapSuite, GroupsExchangeAmongThemselvesAtTheSameTime) {
  for (const int groups : {1, 2, 3}) {
    InThreads(size_, [&](int rank) {
      RankGroup group;
      for (int other = size_ - 1; other >= 0; --other) {
        if (other % groups == rank % groups) group.ranks.push_back(other);
      }
      TalkInGroup(end(rank).get(), group, 5);
    });
  }
}

TEST_P(SeveralRanks, GroupsWithRanksInCommonAreApartByTheirTag) {
  // A thread of each rank for each group: all, all but the first, the first and the last, and calls
  // of all ranks and of pairs beside them.
  std::vector<RankGroup> groups(3);
  for (int rank = 0; rank < size_; ++rank) groups[0].ranks.push_back(rank);
  for (int rank = 1; rank < size_; ++rank) groups[1].ranks.push_back(rank);
  groups[2].ranks = {last(), 0};
  for (std::size_t i = 0; i < groups.size(); ++i) groups[i].tag = 1000 + i;
  InThreads(size_, [&](int rank) {
    Bootstrap* const mine = end(rank).get();
    std::vector<std::thread> threads;
    for (const RankGroup& group : groups) {
      if (std::ranges::find(group.ranks, rank) != group.ranks.end())
        threads.emplace_back([&, mine] { TalkInGroup(mine, group, 10); });
    }
    threads.emplace_back([&, mine] {
      for (int round = 0; round < 20; ++round) {
        const auto sum = mine->Combine(Number(2), Sum, TestLimit());
        ASSERT_TRUE(sum.ok()) << sum.status().message();
        EXPECT_EQ(ValueOf(*sum), 2 * static_cast<std::uint64_t>(size_));
      }
    });
    threads.emplace_back([&, mine] {
      for (int round = 0; round < 20; ++round) {
        ASSERT_TRUE(mine->Send((rank + 1) % size_, 1000, Pattern(rank, round, 50)).ok());
        const int from = (rank + size_ - 1) % size_;
        const auto message = mine->Receive(from, 1000, TestLimit());
        ASSERT_TRUE(message.ok()) << message.status().message();
        EXPECT_EQ(*message, Pattern(from, round, 50));
      }
    });
    for (auto& thread : threads) thread.join();
  });
}

TEST_P(BootstrapSuite, AGroupThatIsNoneIsRefused) {
  const auto refusal = [&](const std::vector<int>& ranks) {
    const Status refused = end(0)->Barrier(RankGroup{ranks, 0}, TestLimit());
    EXPECT_EQ(refused.code(), ErrorCode::kInvalidArgument);
    return refused.message();
  };
  EXPECT_EQ(refusal({}), "rank 0 is not among the ranks  of a group");
  EXPECT_EQ(refusal({1, 5}), "rank 0 is not among the ranks 1, 5 of a group");
  const std::string range = fmt::format("each is in it once, from 0 to {}", size_ - 1);
  EXPECT_EQ(refusal({0, 0}),
            fmt::format("the ranks 0, 0 are no group of a world of {}: {}", size_, range));
  EXPECT_EQ(refusal({0, size_}),
            fmt::format("the ranks 0, {} are no group of a world of {}: {}", size_, size_, range));
  EXPECT_EQ(refusal({-1, 0}),
            fmt::format("the ranks -1, 0 are no group of a world of {}: {}", size_, range));
  EXPECT_TRUE(end(0)->Health().ok());
}

TEST_P(ThreeRanksAndMore, ExactlyThoseOfAGroupWhoDoNotComeAreNamed) {
  for (const CallOfGroup& call : kCallsOfGroup) {
    Ends ends = std::get<0>(GetParam()).make(size_);
    RankGroup group;  // without rank 1, which has not come either
    for (int rank = 0; rank < size_; ++rank) {
      if (rank != 1) group.ranks.push_back(rank);
    }
    group.tag = 5;
    const int absent = group.ranks.back();
    std::atomic<int> entered{0};
    InThreads(size_, [&](int rank) {
      Bootstrap* const mine = ends[static_cast<std::size_t>(rank)].get();
      if (rank == 1 || rank == absent) return;
      // All look until everybody knows; then the time of one is over, and it ends the others'.
      Onlooker onlooker(mine, [&](const std::vector<int>& missing) {
        return missing == std::vector{absent} ? Error(ErrorCode::kUnsupported, "seen") : Status();
      });
      EXPECT_EQ(call.make(mine, group, &onlooker).message(), "seen") << call.name;
      ++entered;
      EXPECT_TRUE(Eventually([&] { return entered == size_ - 2; }));
      const RankGroup next{group.ranks, 6};
      if (rank != 0) {
        EXPECT_FALSE(call.make(mine, next, TestLimit()).ok());
        return;
      }
      const Status late = call.make(mine, next, Deadline::After(2s));
      EXPECT_THAT(late.message(),
                  MatchesRegex(fmt::format("1 of {} ranks did not come within [0-9.]+ s: rank {}",
                                           size_ - 1, absent)))
          << call.name;
      mine->Abort(late);
    });
  }
}

TEST_P(ThreeRanksAndMore, ALossAnywhereEndsTheCallsOfGroups) {
  for (const CallOfGroup& call : kCallsOfGroup) {
    Ends ends = std::get<0>(GetParam()).make(size_);
    InThreads(size_, [&](int rank) {
      const auto mine = std::move(ends[static_cast<std::size_t>(rank)]);
      if (rank == last()) return;  // is in no group, and lost
      RankGroup group{{0, rank}, static_cast<std::uint64_t>(rank)};
      if (rank == 0) group = {{0, last()}, 99};
      const Status made = call.make(mine.get(), group, TestLimit());
      EXPECT_EQ(made.code(), ErrorCode::kPeerLost) << call.name << " on rank " << rank;
      EXPECT_THAT(made.message(), StartsWith(fmt::format("rank {} is lost: it", last())));
    });
  }
}

TEST_P(BootstrapSuite, MessagesReachAnyRankFromAny) {
  InThreads(size_, [&](int rank) {
    for (int to = 0; to < size_; ++to) {
      for (std::uint64_t tag = 0; tag < 3; ++tag) {
        ASSERT_TRUE(
            end(rank)->Send(to, tag, Pattern(rank, to, 40 * static_cast<std::size_t>(tag))).ok());
      }
    }
    for (int from = size_ - 1; from >= 0; --from) {
      for (std::uint64_t tag : {2, 0, 1}) {
        const auto message = end(rank)->Receive(from, tag, TestLimit());
        ASSERT_TRUE(message.ok()) << message.status().message();
        EXPECT_EQ(*message, Pattern(from, rank, 40 * static_cast<std::size_t>(tag)));
      }
    }
  });
}

TEST_P(BootstrapSuite, MessagesOfATagArriveInOrderFromSeveralThreads) {
  constexpr int kMessages = 200;
  InThreads(size_, [&](int rank) {
    const int to = (rank + size_ / 2) % size_;
    const int from = (rank + size_ - size_ / 2) % size_;
    InThreads(4, [&](int thread) {
      const auto tag = static_cast<std::uint64_t>(thread / 2);
      for (int i = 0; i < kMessages; ++i) {
        if (thread % 2 == 0) {
          ASSERT_TRUE(end(rank)->Send(to, tag, Pattern(rank, i, 16)).ok());
        } else {
          const auto message = end(rank)->Receive(from, tag, TestLimit());
          ASSERT_TRUE(message.ok()) << message.status().message();
          ASSERT_EQ(*message, Pattern(from, i, 16)) << "message " << i;
        }
      }
    });
  });
}

TEST_P(SeveralRanks, ALargeMessageReachesAnyRank) {
  const Bytes large = Pattern(1, 2, std::size_t{8} << 20);
  ASSERT_TRUE(end(last())->Send(0, 7, large).ok());
  ASSERT_TRUE(end(0)->Send(last(), 7, large).ok());
  for (const int rank : {0, last()}) {
    const auto message = end(rank)->Receive(last() - rank, 7, TestLimit());
    ASSERT_TRUE(message.ok()) << message.status().message();
    EXPECT_TRUE(*message == large);
  }
}

TEST_P(SeveralRanks, AMessageThatDoesNotComeIsSaid) {
  const auto late = end(0)->Receive(last(), 0x77, Deadline::After(50ms));
  EXPECT_EQ(late.status().code(), ErrorCode::kTimeout);
  EXPECT_THAT(
      late.status().message(),
      MatchesRegex(fmt::format("rank {} sent no message with tag 0x77 within [0-9.]+ s", last())));
  ASSERT_TRUE(end(last())->Send(0, 0x77, Pattern(1, 2, 3)).ok());
  EXPECT_TRUE(end(0)->Receive(last(), 0x77, TestLimit()).ok()) << "a later one can still come";
}

TEST_P(SeveralRanks, AMessageThatIsWaitedForEndsWithALoss) {
  std::thread quitter([&] {
    std::this_thread::sleep_for(20ms);
    end(last())->Abort(Error(ErrorCode::kSystem, "enough"));
  });
  const auto lost = end(0)->Receive(0, 1, TestLimit());
  quitter.join();
  EXPECT_EQ(lost.status().code(), ErrorCode::kPeerLost);
  EXPECT_EQ(lost.status().message(), fmt::format("rank {} is lost: it gave up: enough", last()));
  EXPECT_EQ(end(0)->Send(0, 1, {}).code(), ErrorCode::kPeerLost);
}

TEST_P(BootstrapSuite, ThereIsNoRankOutOfRange) {
  for (const int rank : {-1, size_, INT_MAX}) {
    const std::string text = fmt::format("there is no rank {} among {}", rank, size_);
    EXPECT_EQ(end(0)->Send(rank, 0, {}).message(), text);
    const auto received = end(0)->Receive(rank, 0, TestLimit());
    EXPECT_EQ(received.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(received.status().message(), text);
  }
}

}  // namespace
}  // namespace mori::shmem
