#include "transport/route.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mori::shmem {
namespace {

using ::testing::ElementsAre;

std::vector<Reach> Reaches(const Config& config, const std::vector<std::string>& nodes, int self) {
  std::vector<Reach> reaches;
  for (const Route& route : ChooseRoutes(config, Topology::Of(nodes), self))
    reaches.push_back(route.reach);
  return reaches;
}

Config WithoutP2p() {
  Config config;
  config.disable_p2p = true;
  return config;
}

TEST(ChooseRoutes, ANodeIsReachedByLoadAndStore) {
  EXPECT_THAT(Reaches(Config{}, {"a", "a", "a"}, 1),
              ElementsAre(Reach::kNear, Reach::kSelf, Reach::kNear));
}

TEST(ChooseRoutes, OtherNodesAreReachedByTheNetwork) {
  EXPECT_THAT(Reaches(Config{}, {"a", "b", "a", "c"}, 0),
              ElementsAre(Reach::kSelf, Reach::kRemote, Reach::kNear, Reach::kRemote));
}

TEST(ChooseRoutes, WithoutLoadAndStoreTheNodeIsReachedByTheNetworkToo) {
  EXPECT_THAT(Reaches(WithoutP2p(), {"a", "a", "b"}, 1),
              ElementsAre(Reach::kRemote, Reach::kSelf, Reach::kRemote));
}

TEST(ChooseRoutes, BothEndsOfAPairChooseAlike) {
  const std::vector<std::string> nodes{"a", "b", "a", "b", "c"};
  for (const Config& config : {Config{}, WithoutP2p()}) {
    for (int a = 0; a < 5; ++a) {
      for (int b = 0; b < 5; ++b) {
        EXPECT_EQ(Reaches(config, nodes, a)[static_cast<std::size_t>(b)],
                  Reaches(config, nodes, b)[static_cast<std::size_t>(a)]);
      }
    }
  }
}

TEST(NeedsNetwork, OnlyWhereSomePairDoes) {
  EXPECT_FALSE(NeedsNetwork(Config{}, Topology::Of(std::vector<std::string>{"a", "a"})));
  EXPECT_TRUE(NeedsNetwork(Config{}, Topology::Of(std::vector<std::string>{"a", "b"})));
  EXPECT_TRUE(NeedsNetwork(WithoutP2p(), Topology::Of(std::vector<std::string>{"a", "a"})));
  EXPECT_FALSE(NeedsNetwork(WithoutP2p(), Topology::Of(std::vector<std::string>{"a"})));
}

TEST(RouteName, EveryReachHasOne) {
  EXPECT_EQ(RouteName({Reach::kSelf, ""}, "ofi"), "self");
  EXPECT_EQ(RouteName({Reach::kNear, ""}, "ofi"), "p2p");
  EXPECT_EQ(RouteName({Reach::kRemote, ""}, "ofi"), "ofi");
}

}  // namespace
}  // namespace mori::shmem
