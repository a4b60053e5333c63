#include "shmem/group.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <bit>

#include "base/round_up.hpp"
#include "bootstrap/in_process_bootstrap.hpp"
#include "runtime/host/host_runtime.hpp"
#include "support/bootstrap_ranks.hpp"
#include "support/memory_network.hpp"

namespace mori::shmem {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using testing::InThreads;
using testing::MemoryNetwork;
using testing::Posted;

using Nodes = std::vector<std::string>;

constexpr Proposal kBarrier{};
constexpr Proposal kFinalize{Proposal::Call::kFinalize, 0, 0, 0};
constexpr Proposal Malloc(std::uint64_t bytes) { return {Proposal::Call::kMalloc, bytes, 64, 0}; }

/// One PE a node, several, unequal and scattered.
const Nodes kPlacements[] = {{"a", "b"},
                             {"a", "b", "c"},
                             {"a", "b", "a", "c", "b"},
                             {"a", "b", "c", "d", "e"},
                             {"a", "b", "b", "b", "c", "b"},
                             {"a", "b", "c", "d", "e", "f", "g", "h"},
                             {"a", "b", "c", "d", "e", "f", "g", "h", "h", "a", "c", "c"}};

/// How nodes meet.
enum class Way { kBootstrap, kNetwork, kReorderingNetwork };

/// PEs of several nodes, as threads.
class GroupTest : public ::testing::TestWithParam<Way> {
 protected:
  /// Where a PE is put to by the others: a word for each.
  static constexpr std::size_t kWords = 16;

  void Make(const Nodes& nodes, Budget budget = {30s, "MORI_SHMEM_TIMEOUT"}) {
    Clear();
    topology_ = Topology::Of(nodes);
    ends_ = InProcessBootstrap::MakeAll(count());
    std::vector<std::shared_ptr<AddressRange>> ranges;
    for (int node = 0; node < topology_.n_nodes(); ++node)
      ranges.push_back(Memory(Board::BytesFor(static_cast<int>(topology_.PesOf(node).size()))));
    for (int pe = 0; pe < count(); ++pe) {
      const std::vector<int>& around = topology_.PesAround(pe);
      boards_.push_back(Board::Attach(ranges[static_cast<std::size_t>(topology_.NodeOf(pe))],
                                      topology_.IndexOf(pe), static_cast<int>(around.size()),
                                      false));
      PeerWatch::Parts parts;
      parts.board = boards_.back().get();
      parts.my_pe = pe;
      for (int other = 0; other < count(); ++other)
        parts.names.push_back(fmt::format("PE {} (host h{})", other, other));
      parts.node_pes = around;
      parts.bootstrap = end(pe);
      watches_.push_back(std::make_unique<PeerWatch>(std::move(parts)));
      end(pe)->Observe([this, pe](const Bootstrap::Loss& loss) {
        watches_[static_cast<std::size_t>(pe)]->NoteLoss(loss);
      });
      groups_.emplace_back(Group::Parts{&topology_, boards_.back().get(), end(pe),
                                        watches_.back().get(), pe, budget, 30s});
    }
    if (GetParam() != Way::kBootstrap) MakeNetwork();
  }
  void TearDown() override { Clear(); }

  Bootstrap* end(int pe) { return ends_[static_cast<std::size_t>(pe)].get(); }
  Group& group(int pe) { return groups_[static_cast<std::size_t>(pe)]; }
  Channel& channel(int pe) { return transports_[static_cast<std::size_t>(pe)]->channel(); }
  int count() const { return topology_.n_pes(); }
  /// The word of PE `owner` that PE `writer` puts to.
  std::uint64_t& word(int owner, int writer) {
    return words_[static_cast<std::size_t>(owner)][static_cast<std::size_t>(writer)];
  }
  RemotePlace place(int owner, int writer) {
    const RemotePlace start = registrations_[static_cast<std::size_t>(owner)]->place();
    return {start.address + static_cast<std::uint64_t>(writer) * sizeof(std::uint64_t), start.key};
  }
  void LeaveNetwork(int pe) {
    leaders_[static_cast<std::size_t>(pe)].reset();
    registrations_[static_cast<std::size_t>(pe)].reset();
    transports_[static_cast<std::size_t>(pe)].reset();
  }

  Topology topology_;
  std::vector<std::unique_ptr<Board>> boards_;
  std::vector<std::unique_ptr<Bootstrap>> ends_;
  std::vector<std::unique_ptr<PeerWatch>> watches_;
  std::unique_ptr<MemoryNetwork> network_;
  std::vector<std::unique_ptr<RemoteTransport>> transports_;
  std::vector<std::array<std::uint64_t, kWords>> words_;
  std::vector<std::unique_ptr<Registration>> registrations_;
  std::vector<std::unique_ptr<Leaders>> leaders_;
  std::vector<Group> groups_;

 private:
  static std::shared_ptr<AddressRange> Memory(std::uint64_t least) {
    HostRuntime runtime;
    const std::uint64_t page = runtime.GranularityBytes();
    const std::uint64_t bytes = RoundUp(least, page);
    auto memory = runtime.Allocate(bytes, HeapType::kNormal);
    auto reserved = runtime.Reserve(bytes, page);
    EXPECT_TRUE(memory.ok() && reserved.ok() && (*reserved)->Map(0, **memory).ok());
    return std::move(*reserved);
  }

  void MakeNetwork() {
    MemoryNetwork::Options options;
    options.n_pes = count();
    options.reorders = GetParam() == Way::kReorderingNetwork;
    network_ = std::make_unique<MemoryNetwork>(options);
    words_.resize(static_cast<std::size_t>(count()));
    std::vector<RemotePlace> places;
    for (int pe = 0; pe < count(); ++pe) {
      RemoteParts parts;
      parts.self = pe;
      parts.n_pes = count();
      parts.on_loss = [mine = end(pe)](int lost, const std::string& why) {
        mine->Accuse(lost, why);
      };
      transports_.push_back(network_->Join(std::move(parts)));
      RemoteTransport* const transport = transports_.back().get();
      std::array<std::uint64_t, kWords>& words = words_[static_cast<std::size_t>(pe)];
      auto registered = transport->Register(words.data(), sizeof words);
      auto leaders =
          Leaders::Create({transport, &topology_, boards_[static_cast<std::size_t>(pe)].get(), pe});
      ASSERT_TRUE(registered.ok() && leaders.ok());
      registrations_.push_back(std::move(*registered));
      leaders_.push_back(std::move(*leaders));
      places.push_back(leaders_.back()->place());
    }
    for (int pe = 0; pe < count(); ++pe) {
      leaders_[static_cast<std::size_t>(pe)]->SetPlaces(places);
      group(pe).MeetOverNetwork(leaders_[static_cast<std::size_t>(pe)].get());
    }
  }

  void Clear() {
    for (const auto& end : ends_) {
      if (end) end->Observe(nullptr);
    }
    groups_.clear();
    leaders_.clear();
    registrations_.clear();
    words_.clear();
    transports_.clear();
    network_.reset();
    ends_.clear();
    watches_.clear();
    boards_.clear();
  }
};

constexpr auto kNames = [](const auto& test) {
  switch (test.param) {
    case Way::kBootstrap: return "Bootstrap";
    case Way::kNetwork: return "Network";
    case Way::kReorderingNetwork: return "ReorderingNetwork";
  }
  return "";
};
INSTANTIATE_TEST_SUITE_P(Ways, GroupTest,
                         ::testing::Values(Way::kBootstrap, Way::kNetwork, Way::kReorderingNetwork),
                         kNames);

/// What is asked of the network itself.
using NetworkGroupTest = GroupTest;
INSTANTIATE_TEST_SUITE_P(Ways, NetworkGroupTest,
                         ::testing::Values(Way::kNetwork, Way::kReorderingNetwork), kNames);

TEST_P(GroupTest, AllThatProposeTheSameMeet) {
  for (const Nodes& nodes : kPlacements) {
    Make(nodes);
    InThreads(count(), [&](int pe) {
      for (int round = 0; round < 200; ++round) {
        const Proposal proposal =
            round % 3 == 0 ? Malloc(static_cast<std::uint64_t>(round)) : kBarrier;
        const Status met = group(pe).Meet(proposal, "a call");
        ASSERT_TRUE(met.ok()) << met.message();
      }
    });
  }
}

TEST_P(GroupTest, NobodyLeavesBeforeAllHaveCome) {
  for (const Nodes& nodes : kPlacements) {
    Make(nodes);
    std::atomic<int> came{0};
    InThreads(count(), [&](int pe) {
      for (int round = 1; round <= 100; ++round) {
        came.fetch_add(1, std::memory_order_relaxed);
        ASSERT_TRUE(group(pe).Meet(kBarrier, "a call").ok());
        ASSERT_GE(came.load(std::memory_order_relaxed), count() * round);
      }
    });
  }
}

TEST_P(GroupTest, ADisagreementIsTheSameSentenceForAll) {
  // Whoever differs, wherever it stands in the tree, and among the nodes.
  const Nodes nodes{"a", "b", "c", "a", "b", "c", "d", "e", "f", "g", "h", "i"};
  for (int odd = 0; odd < 12; ++odd) {
    Make(nodes);
    std::vector<Status> ended(12);
    InThreads(12, [&](int pe) {
      const bool differs = pe == odd || pe == 11;
      ended[static_cast<std::size_t>(pe)] =
          group(pe).Meet(differs ? Malloc(static_cast<std::uint64_t>(100 + pe)) : kBarrier, "call");
      EXPECT_TRUE(group(pe).Meet(kBarrier, "the next call").ok());
    });
    const int lowest_other = odd == 0 ? 1 : odd;
    for (const Status& status : ended) {
      ASSERT_EQ(status.code(), ErrorCode::kMismatch);
      ASSERT_EQ(status.message(), ended[0].message());
      ASSERT_THAT(status.message(), HasSubstr("PE 0 made "));
      ASSERT_THAT(status.message(), HasSubstr(fmt::format(", PE {} made ", lowest_other)));
    }
  }
}

TEST_P(GroupTest, EveryFieldOfAProposalCounts) {
  const Proposal first{Proposal::Call::kMalloc, 4096, 256, 1};
  const Proposal others[] = {{Proposal::Call::kMalloc, 4097, 256, 1},
                             {Proposal::Call::kMalloc, 4096, 512, 1},
                             {Proposal::Call::kMalloc, 4096, 256, 3},
                             {Proposal::Call::kFree, 4096, 256, 1},
                             kBarrier};
  Make({"a", "b", "c", "d", "e"});
  InThreads(count(), [&](int pe) {
    for (const Proposal& other : others) {
      for (int odd = 0; odd < count(); ++odd) {
        const Status met = group(pe).Meet(pe == odd ? other : first, "a call");
        ASSERT_EQ(met.code(), ErrorCode::kMismatch);
        ASSERT_TRUE(group(pe).Meet(first, "a call").ok());
      }
    }
  });
}

TEST_P(GroupTest, NewsOfOneIsToldToAll) {
  for (const Nodes& nodes : kPlacements) {
    Make(nodes);
    InThreads(count(), [&](int pe) {
      for (int teller = -1; teller < count(); ++teller) {
        bool news = pe == teller;
        ASSERT_TRUE(group(pe).Meet(kBarrier, "a call", &news).ok());
        ASSERT_EQ(news, teller >= 0);
      }
    });
  }
}

TEST_P(GroupTest, WhoDoesNotComeIsNamedAtTheEndOfTheBudget) {
  // The only one of its node, its leader, and another one of a node.
  for (const int late : {2, 1, 3}) {
    Make({"a", "b", "c", "b"}, {300ms, "MORI_SHMEM_TIMEOUT"});
    InThreads(count(), [&](int pe) {
      if (pe == late) return;
      const Status ended = group(pe).Meet(kBarrier, "shmem_barrier_all");
      const std::string expected =
          fmt::format("PE {} (host h{}) did not come within 0.3 s", late, late);
      // Who gives up first is lost to the others.
      if (ended.code() == ErrorCode::kTimeout) {
        EXPECT_EQ(ended.message(), expected + " (MORI_SHMEM_TIMEOUT)");
      } else {
        EXPECT_EQ(ended.code(), ErrorCode::kPeerLost);
        EXPECT_THAT(ended.message(), HasSubstr(expected));
      }
    });
  }
}

TEST_P(GroupTest, AWaitEndsWithThePeThatIsLost) {
  for (const int lost : {2, 1, 3}) {
    Make({"a", "b", "c", "b"});
    InThreads(count(), [&](int pe) {
      if (pe == lost) return end(pe)->Abort(Error(ErrorCode::kSystem, "no more of this"));
      const std::string expected =
          fmt::format("PE {} (host h{}) is lost: it gave up: no more of this", lost, lost);
      for (int call = 0; call < 2; ++call) {
        const Status ended = group(pe).Meet(kBarrier, "shmem_barrier_all");
        EXPECT_EQ(ended.code(), ErrorCode::kPeerLost);
        EXPECT_THAT(ended.message(), HasSubstr(expected));
      }
    });
  }
}

TEST_P(GroupTest, AnOutcomeIsThatOfWhoFailedByItself) {
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

TEST_P(NetworkGroupTest, WhatIsCompleteBeforeAMeetingIsThereAfterIt) {
  for (const Nodes& nodes : kPlacements) {
    Make(nodes);
    InThreads(count(), [&](int pe) {
      for (std::uint64_t round = 1; round <= 50; ++round) {
        for (int to = 0; to < count(); ++to)
          ASSERT_TRUE(channel(pe).PutNbi(to, place(to, pe), &round, sizeof round).ok());
        ASSERT_TRUE(channel(pe).Quiet().ok());
        ASSERT_TRUE(group(pe).Meet(kBarrier, "a call").ok());
        for (int from = 0; from < count(); ++from) ASSERT_EQ(word(pe, from), round);
        ASSERT_TRUE(group(pe).Meet(kBarrier, "a call").ok());
      }
    });
  }
}

TEST_P(NetworkGroupTest, ABarrierTakesAWordPerNodeAndRound) {
  for (const Nodes& nodes : kPlacements) {
    Make(nodes);
    constexpr int kMeetings = 3;
    InThreads(count(), [&](int pe) {
      for (int i = 0; i < kMeetings; ++i) ASSERT_TRUE(group(pe).Meet(kBarrier, "a call").ok());
    });
    const int n_nodes = topology_.n_nodes();
    const int rounds = std::bit_width(static_cast<unsigned>(n_nodes - 1));
    const auto posts = network_->TakePosts();
    EXPECT_EQ(posts.size(), static_cast<std::size_t>(kMeetings * rounds * n_nodes));
    for (const Posted& post : posts) {
      EXPECT_EQ(post.kind, Posted::Kind::kTell);
      EXPECT_EQ(post.bytes, 8u);
      EXPECT_EQ(topology_.IndexOf(post.from), 0);
      EXPECT_EQ(topology_.IndexOf(post.to), 0);
    }
  }
}

/// The network drops what a PE that leaves has under way.
TEST_P(NetworkGroupTest, NothingIsUnderWayAfterAMeetingToFinalize) {
  for (int attempt = 0; attempt < 20; ++attempt) {
    Make({"a", "b", "c", "d", "e"}, {10s, "MORI_SHMEM_TIMEOUT"});
    InThreads(count(), [&](int pe) {
      const Status met = group(pe).Meet(kFinalize, "shmem_finalize");
      EXPECT_TRUE(met.ok()) << met.message();
      LeaveNetwork(pe);
    });
    if (HasFailure()) return;
  }
}

TEST_P(NetworkGroupTest, AnotherCallThanFinalizeIsADisagreement) {
  Make({"a", "b", "c"});
  InThreads(count(), [&](int pe) {
    const Status met = group(pe).Meet(pe == 1 ? kFinalize : kBarrier, "a call");
    EXPECT_EQ(met.code(), ErrorCode::kMismatch);
    EXPECT_THAT(met.message(), HasSubstr("PE 0 made barrier_all(), PE 1 made finalize()"));
  });
}

/// Whenever it goes, the others end, and with its name.
TEST_P(NetworkGroupTest, APeThatTheNetworkLosesEndsMeetingsOfAll) {
  for (int lost = 0; lost < 4; ++lost) {
    Make({"a", "b", "c", "a", "d"});
    std::atomic<int> met_until_then{0};
    InThreads(count(), [&](int pe) {
      if (pe == lost) {
        for (int i = 0; i < 20; ++i) {
          if (group(pe).Meet(kBarrier, "a call").ok()) ++met_until_then;
        }
        network_->Lose(pe, "its connection closed");
        return;
      }
      Status met;
      while (met.ok()) met = group(pe).Meet(kBarrier, "shmem_barrier_all");
      EXPECT_EQ(met.code(), ErrorCode::kPeerLost);
      EXPECT_THAT(met.message(), HasSubstr(fmt::format("PE {} ", lost)));
      EXPECT_THAT(met.message(), HasSubstr("its connection closed"));
    });
    EXPECT_EQ(met_until_then, 20);
  }
}

}  // namespace
}  // namespace mori::shmem
