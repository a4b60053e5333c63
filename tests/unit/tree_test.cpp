#include "bootstrap/tree.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

namespace mori::shmem {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

using Nodes = std::vector<std::uint32_t>;

/// Numbers nodes by their first rank.
Nodes Numbered(const Nodes& ids) {
  std::map<std::uint32_t, std::uint32_t> numbers;
  Nodes nodes;
  for (const std::uint32_t id : ids)
    nodes.push_back(numbers.emplace(id, static_cast<std::uint32_t>(numbers.size())).first->second);
  return nodes;
}

/// Placements of ranks: one node, one rank a node, blocks, round robin, unequal and scattered.
std::vector<Nodes> Placements() {
  std::vector<Nodes> placements;
  for (const std::size_t size : {1, 2, 9, 10, 64, 100, 700}) {
    Nodes one(size), alone(size), blocks(size), robin(size), scattered(size);
    std::mt19937 random(static_cast<unsigned>(size));
    for (std::size_t rank = 0; rank < size; ++rank) {
      const auto number = static_cast<std::uint32_t>(rank);
      alone[rank] = number;
      blocks[rank] = number / 8;
      robin[rank] = number % 7;
      scattered[rank] = random() % 3 == 0 ? 0 : random() % 20;
    }
    for (const Nodes& nodes : {one, alone, blocks, robin, scattered})
      placements.push_back(Numbered(nodes));
  }
  return placements;
}

TEST(Tree, EveryRankButTheFirstHangsBelowAnotherThatKnowsIt) {
  for (const Nodes& nodes : Placements()) {
    const Tree tree(nodes);
    std::multiset<int> children;
    for (int rank = 0; rank < tree.size(); ++rank) {
      for (const int child : tree.Children(rank)) {
        children.insert(child);
        EXPECT_EQ(tree.Parent(child), rank);
      }
      EXPECT_LE(tree.Children(rank).size(), 2u * kTreeFanOut);
    }
    EXPECT_FALSE(tree.Parent(0).has_value());
    ASSERT_EQ(static_cast<int>(children.size()), tree.size() - 1);
    for (int rank = 1; rank < tree.size(); ++rank) EXPECT_EQ(children.count(rank), 1u);
  }
}

TEST(Tree, OneConnectionOfANodeCrossesTheNetworkUpwards) {
  for (const Nodes& nodes : Placements()) {
    const Tree tree(nodes);
    std::map<std::uint32_t, int> crossing;
    for (int rank = 1; rank < tree.size(); ++rank) {
      const std::uint32_t node = nodes[static_cast<std::size_t>(rank)];
      if (nodes[static_cast<std::size_t>(*tree.Parent(rank))] != node) ++crossing[node];
    }
    EXPECT_EQ(static_cast<int>(crossing.size()), tree.nodes() - 1);
    for (const auto& [node, count] : crossing) EXPECT_EQ(count, 1) << "of node " << node;
  }
}

TEST(Tree, DepthGrowsWithTheLogarithm) {
  const auto heap_depth = [](int count) {
    int depth = 0;
    for (int last = count - 1; last > 0; last = HeapParent(last)) ++depth;
    return depth;
  };
  for (const Nodes& nodes : Placements()) {
    const Tree tree(nodes);
    const int most = heap_depth(tree.nodes()) + heap_depth(tree.size());
    for (int rank = 0; rank < tree.size(); ++rank) {
      int depth = 0;
      for (auto at = tree.Parent(rank); at; at = tree.Parent(*at)) ++depth;
      EXPECT_LE(depth, most);
    }
  }
}

TEST(Tree, TheWayDownLeadsToEveryRankBelowAndToNoOther) {
  for (const Nodes& nodes : Placements()) {
    const Tree tree(nodes);
    if (tree.size() > 100) continue;
    for (int from = 0; from < tree.size(); ++from) {
      for (int to = 0; to < tree.size(); ++to) {
        int at = from;
        int steps = 0;
        while (at != to && steps <= tree.size()) {
          const auto next = tree.ChildTowards(at, to);
          if (!next) break;
          EXPECT_EQ(tree.Parent(*next), at);
          at = *next;
          ++steps;
        }
        bool is_below = from == to;
        for (auto up = tree.Parent(to); up && !is_below; up = tree.Parent(*up))
          is_below = *up == from;
        EXPECT_EQ(at == to, is_below) << "from " << from << " to " << to;
      }
    }
  }
}

TEST(Tree, LeadersComeBeforeTheRanksOfTheNode) {
  // Nodes {0, 3, 4} and {1, 2}.
  const Tree tree(Nodes{0, 1, 1, 0, 0});
  EXPECT_EQ(tree.nodes(), 2);
  EXPECT_THAT(tree.Children(0), ElementsAre(1, 3, 4));
  EXPECT_THAT(tree.Children(1), ElementsAre(2));
  EXPECT_THAT(tree.Children(2), IsEmpty());
}

TEST(Tree, OfOneNodeIsAHeapOfRanks) {
  const Tree counted(20);
  const Tree numbered(Nodes(20, 0));
  for (const Tree& tree : {counted, numbered}) {
    EXPECT_EQ(tree.nodes(), 1);
    EXPECT_THAT(tree.Children(0), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8));
    EXPECT_THAT(tree.Children(2), ElementsAre(17, 18, 19));
    EXPECT_EQ(tree.Parent(19), 2);
  }
}

}  // namespace
}  // namespace mori::shmem
