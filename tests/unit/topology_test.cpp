#include "topology/topology.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mori::shmem {
namespace {

using ::testing::ElementsAre;

TEST(Topology, NodesAreNumberedByTheirFirstPe) {
  const std::vector<std::string> ids{"b", "a", "b", "c", "a", "b"};
  const Topology topology = Topology::Of(ids);
  EXPECT_EQ(topology.n_pes(), 6);
  ASSERT_EQ(topology.n_nodes(), 3);
  EXPECT_THAT(topology.PesOf(0), ElementsAre(0, 2, 5));
  EXPECT_THAT(topology.PesOf(1), ElementsAre(1, 4));
  EXPECT_THAT(topology.PesOf(2), ElementsAre(3));
  EXPECT_THAT(topology.PesAround(4), ElementsAre(1, 4));
  EXPECT_EQ(topology.NodeOf(5), 0);
  EXPECT_EQ(topology.IndexOf(5), 2);
  EXPECT_EQ(topology.IndexOf(3), 0);
  EXPECT_EQ(topology.LeaderOf(1), 1);
  EXPECT_TRUE(topology.AreTogether(0, 5));
  EXPECT_FALSE(topology.AreTogether(0, 4));
}

TEST(Topology, OnePeIsOneNode) {
  const std::vector<std::string> ids{""};
  const Topology topology = Topology::Of(ids);
  EXPECT_EQ(topology.n_nodes(), 1);
  EXPECT_THAT(topology.PesAround(0), ElementsAre(0));
}

TEST(Topology, EveryPeMayBeItsOwnNode) {
  std::vector<std::string> ids;
  for (int pe = 0; pe < 64; ++pe) ids.push_back(std::to_string(pe));
  const Topology topology = Topology::Of(ids);
  EXPECT_EQ(topology.n_nodes(), 64);
  EXPECT_EQ(topology.LeaderOf(63), 63);
  EXPECT_EQ(topology.IndexOf(63), 0);
}

}  // namespace
}  // namespace mori::shmem
