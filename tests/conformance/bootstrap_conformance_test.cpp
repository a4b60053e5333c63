// What every bootstrap owes, over all implementations.
#include "bootstrap/bootstrap.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
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

Ends MakeSocketEnds(int size) {
  auto server = testing::StartRendezvous();
  EXPECT_TRUE(server.ok()) << server.status().message();
  std::vector<SocketBootstrap::Options> ranks;
  for (int rank = 0; rank < size; ++rank) ranks.push_back(testing::RankOptions(rank, size));
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
const Implementation kImplementations[] = {{"Socket", MakeSocketEnds},
                                           {"InProcess", InProcessBootstrap::MakeAll}};

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

INSTANTIATE_TEST_SUITE_P(Bootstrap, BootstrapSuite,
                         ::testing::Combine(::testing::ValuesIn(kImplementations),
                                            ::testing::Values(1, 2, 3, 10, 20)),
                         NameOf);

class SeveralRanks : public BootstrapSuite {};
INSTANTIATE_TEST_SUITE_P(Bootstrap, SeveralRanks,
                         ::testing::Combine(::testing::ValuesIn(kImplementations),
                                            ::testing::Values(2, 3, 10, 20)),
                         NameOf);

class ThreeRanksAndMore : public BootstrapSuite {};
INSTANTIATE_TEST_SUITE_P(Bootstrap, ThreeRanksAndMore,
                         ::testing::Combine(::testing::ValuesIn(kImplementations),
                                            ::testing::Values(3, 10, 20)),
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

}  // namespace
}  // namespace mori::shmem
