#include "mori/host_list.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace mori::launcher {
namespace {

using shmem::ErrorCode;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(HostListTest, HostsHaveTheirNumberOfPes) {
  EXPECT_THAT(*ParseHosts("a:2,b"), ElementsAre(HostShare{"a", 2}, HostShare{"b", 1}));
  EXPECT_THAT(*ParseHosts("me@node-1.example.org:16"),
              ElementsAre(HostShare{"me@node-1.example.org", 16}));
  EXPECT_THAT(*ParseHosts("10.0.0.1:65536"), ElementsAre(HostShare{"10.0.0.1", kMaxPes}));
}

TEST(HostListTest, AnAddressOfIpv6IsInBrackets) {
  EXPECT_THAT(*ParseHosts("[fd00::1]:2,[fe80::1%eth0]"),
              ElementsAre(HostShare{"fd00::1", 2}, HostShare{"fe80::1%eth0", 1}));
  EXPECT_THAT(ParseHosts("fd00::1").status().message(), HasSubstr("brackets"));
}

TEST(HostListTest, AHostThatIsNamedAgainGetsMorePes) {
  EXPECT_THAT(*ParseHosts("a:2,b:1,a:1"), ElementsAre(HostShare{"a", 3}, HostShare{"b", 1}));
}

TEST(HostListTest, WrongListsAreExplained) {
  struct Case {
    const char* text;
    const char* says;
  };
  for (const auto& [text, says] : std::initializer_list<Case>{
           {"", R"(a host is missing in "")"},
           {",", "a host is missing"},
           {"a:2,", R"(a host is missing in "a:2,")"},
           {"a,,b", "a host is missing"},
           {":2", R"("" is no host)"},
           {"a:0", R"("0" after host a is no number of PEs from 1 to 65536)"},
           {"a:-1", R"("-1" after host a)"},
           {"a:", R"("" after host a)"},
           {"a:2x", R"("2x" after host a)"},
           {"a: 2", R"(" 2" after host a)"},
           {"a:+2", R"("+2" after host a)"},
           {"a:65537", R"("65537" after host a)"},
           {"a:99999999999999999999", "after host a"},
           {"a:65536,b:1", "with host b there are 65537 PEs"},
           {"a:65536,a:65536", "with host a there are 131072 PEs"},
           {"a b:2", R"("a b" is no host)"},
           {"-oProxyCommand=x:2", "is no host"},
           {"me@-oProxyCommand:2", "is no host"},
           {"-l@a", "is no host"},
           {"@a", "is no host"},
           {"a@", "is no host"},
           {"a;reboot", "is no host"},
           {"$(x)", "is no host"},
           {"h\xc3\xb6st", R"("h\xc3\xb6st" is no host)"},
           {"a:1:2", "several colons"},
           {"[fd00::1", "is no host"},
           {"[fd00::1]2", "is no host"},
           {"[]:2", R"("" is no host)"},
           {"[fd00::1]:0", R"("0" after host fd00::1)"},
       }) {
    const auto hosts = ParseHosts(text);
    ASSERT_FALSE(hosts.ok()) << text;
    EXPECT_EQ(hosts.status().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(hosts.status().message(), HasSubstr(says)) << text;
  }
}

TEST(HostListTest, AFileHasAHostALine) {
  const auto hosts = ParseHostfile(
      "# two hosts\n"
      "\n"
      "a slots=2   # as Open MPI has it\r\n"
      "\tb:3 \n"
      "a\n"
      "[fd00::1]:2");
  ASSERT_TRUE(hosts.ok()) << hosts.status().message();
  EXPECT_THAT(*hosts, ElementsAre(HostShare{"a", 3}, HostShare{"b", 3}, HostShare{"fd00::1", 2}));
}

TEST(HostListTest, AWrongLineOfAFileIsNamed) {
  EXPECT_THAT(ParseHostfile("a\nb slots=0\n").status().message(),
              HasSubstr(R"(line 2: "0" after host b)"));
  EXPECT_THAT(ParseHostfile("a b").status().message(), HasSubstr("a slots=2"));
  EXPECT_THAT(ParseHostfile("a slots=2 max_slots=4").status().message(), HasSubstr("line 1"));
  EXPECT_THAT(ParseHostfile("a,b").status().message(), HasSubstr(R"("a,b" is no host)"));
  EXPECT_THAT(ParseHostfile(std::string("a\0b", 3)).status().message(), HasSubstr(R"(a\x00b)"));
  for (const char* empty : {"", "\n", "# nothing\n"})
    EXPECT_EQ(ParseHostfile(empty).status().message(), "it names no host");
}

TEST(HostListTest, TheFirstPlacesAreThoseOfTheFirstHosts) {
  const HostList hosts = {{"a", 2}, {"b", 2}, {"c", 2}};
  EXPECT_THAT(*FirstPlaces(hosts, 3), ElementsAre(HostShare{"a", 2}, HostShare{"b", 1}));
  EXPECT_EQ(*FirstPlaces(hosts, 6), hosts);
  EXPECT_EQ(FirstPlaces(hosts, 7).status().message(), "7 PEs are asked for, and the hosts take 6");
}

}  // namespace
}  // namespace mori::launcher
