#include "bootstrap/address.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cerrno>
#include <set>

#include "support/denied_call.hpp"
#include "support/forked.hpp"

#include <cstring>

#include "support/bootstrap_ranks.hpp"

namespace mori::shmem {
namespace {

using testing::Address;
using ::testing::ElementsAre;

// ---- one address ----

TEST(IpAddress, IsShownAsText) {
  for (const char* text : {"10.0.0.1", "127.0.0.1", "::1", "fe80::1234", "2001:db8::5"}) {
    EXPECT_EQ(Address(text).ToString(), text);
  }
}

TEST(IpAddress, KnowsItsKind) {
  struct Row {
    const char* text;
    bool loopback, link_local;
  };
  for (const Row& row :
       {Row{"127.0.0.1", true, false}, Row{"127.8.9.10", true, false}, Row{"::1", true, false},
        Row{"169.254.3.4", false, true}, Row{"fe80::1", false, true}, Row{"febf::1", false, true},
        Row{"fec0::1", false, false}, Row{"10.0.0.1", false, false},
        Row{"169.253.0.1", false, false}, Row{"2001:db8::1", false, false}}) {
    EXPECT_EQ(Address(row.text).IsLoopback(), row.loopback) << row.text;
    EXPECT_EQ(Address(row.text).IsLinkLocal(), row.link_local) << row.text;
  }
}

TEST(IpAddress, BecomesASocketAddress) {
  socklen_t length = 0;
  sockaddr_storage storage = Address("10.1.2.3").ToSockaddr(80, &length);
  sockaddr_in in;
  ASSERT_EQ(length, sizeof in);
  std::memcpy(&in, &storage, sizeof in);
  EXPECT_EQ(in.sin_family, AF_INET);
  EXPECT_EQ(ntohs(in.sin_port), 80);
  EXPECT_EQ(ntohl(in.sin_addr.s_addr), 0x0a010203u);

  IpAddress link_local = Address("fe80::7");
  link_local.scope_id = 3;
  storage = link_local.ToSockaddr(65535, &length);
  sockaddr_in6 in6;
  ASSERT_EQ(length, sizeof in6);
  std::memcpy(&in6, &storage, sizeof in6);
  EXPECT_EQ(in6.sin6_family, AF_INET6);
  EXPECT_EQ(ntohs(in6.sin6_port), 65535);
  EXPECT_EQ(in6.sin6_scope_id, 3u);
  EXPECT_EQ(in6.sin6_addr.s6_addr[15], 7);
}

TEST(IpAddress, TakesTwentyBytesAndComesBack) {
  for (const char* text : {"10.1.2.3", "255.255.255.255", "fe80::1", "2001:db8::5"}) {
    ByteWriter writer;
    EncodeAddress(Address(text), &writer);
    EXPECT_EQ(writer.bytes().size(), 20u);
    ByteReader reader(writer.bytes());
    IpAddress decoded;
    ASSERT_TRUE(DecodeAddress(&reader, &decoded));
    EXPECT_EQ(decoded, Address(text));
    EXPECT_TRUE(reader.AtEnd());
  }
}

TEST(IpAddress, OfAnotherFamilyIsRefused) {
  for (const std::uint32_t family : {0u, 2u, 5u, 7u, 10u, 0x104u, 0x06000000u}) {
    const Bytes bytes = ByteWriter().Int(family).Raw(Bytes(16)).Take();
    ByteReader reader(bytes);
    IpAddress decoded;
    EXPECT_FALSE(DecodeAddress(&reader, &decoded)) << family;
  }
}

TEST(IpAddress, CutOffIsRefused) {
  ByteWriter writer;
  EncodeAddress(Address("10.1.2.3"), &writer);
  for (std::size_t size = 0; size < 20; ++size) {
    ByteReader reader(ByteView(writer.bytes()).first(size));
    IpAddress decoded;
    EXPECT_FALSE(DecodeAddress(&reader, &decoded)) << size << " bytes";
  }
}

// ---- which of a machine's ----

NetworkInterface Interface(const std::string& name, const std::vector<std::string>& addresses,
                           bool has_default_route = false) {
  NetworkInterface interface;
  interface.name = name;
  for (const auto& text : addresses) interface.addresses.push_back(Address(text));
  interface.has_default_route = has_default_route;
  return interface;
}

const NetworkInterface kLo = Interface("lo", {"127.0.0.1", "::1"});
const NetworkInterface kDocker = Interface("docker0", {"172.17.0.1"});
const NetworkInterface kVeth = Interface("veth12ab", {"fe80::9"});

/// A machine such as many are.
std::vector<NetworkInterface> Server() {
  return {kLo,
          kDocker,
          kVeth,
          Interface("eth0", {"10.0.0.1", "fe80::1"}),
          Interface("eth1", {"10.1.0.1"}, true),
          Interface("eth10", {"10.10.0.1"}),
          Interface("ib0", {"10.2.0.1"})};
}

struct Selected {
  const char* what;
  const char* selection;
  std::vector<NetworkInterface> interfaces;
  std::vector<std::string> addresses;
};

std::vector<Selected> SelectionTable() {
  return {
      {"default route first, no container, no loopback",
       "",
       Server(),
       {"10.1.0.1", "10.0.0.1", "10.10.0.1", "10.2.0.1", "fe80::1"}},
      {"every kind of bridge, pair and tunnel is passed over",
       "",
       {Interface("docker0", {"1.0.0.1"}), Interface("veth0", {"1.0.0.2"}),
        Interface("virbr0", {"1.0.0.3"}), Interface("cni0", {"1.0.0.4"}),
        Interface("br-1a2b", {"1.0.0.5"}), Interface("flannel.1", {"1.0.0.6"}),
        Interface("cali77", {"1.0.0.7"}), Interface("tun0", {"1.0.0.8"}),
        Interface("tap0", {"1.0.0.9"}), Interface("wg0", {"1.0.0.10"}),
        Interface("eth0", {"10.0.0.1"})},
       {"10.0.0.1"}},
      {"IPv6 only", "", {kLo, Interface("eth0", {"2001:db8::1"})}, {"2001:db8::1"}},
      {"link-local last",
       "",
       {Interface("eth0", {"fe80::1", "169.254.1.1", "10.0.0.1"}), Interface("eth1", {"10.1.0.1"})},
       {"10.0.0.1", "10.1.0.1", "fe80::1", "169.254.1.1"}},
      {"with nothing but link-local IPv6, what processes here can call first",
       "",
       {kLo, Interface("eth0", {"fe80::1"})},
       {"127.0.0.1", "::1", "fe80::1"}},
      {"link-local IPv4 can be called",
       "",
       {kLo, Interface("eth0", {"169.254.1.1"})},
       {"169.254.1.1"}},
      {"the loopback if there is nothing else", "", {kLo}, {"127.0.0.1", "::1"}},
      {"a container's before the loopback", "", {kLo, kDocker}, {"172.17.0.1", "127.0.0.1", "::1"}},
      {"all that there are: some may turn out to be of no use",
       "",
       {Interface("eth0", {"1.0.0.1", "1.0.0.2", "1.0.0.3", "1.0.0.4"})},
       {"1.0.0.1", "1.0.0.2", "1.0.0.3", "1.0.0.4"}},
      {"one by name", "ib0", Server(), {"10.2.0.1"}},
      {"the loopback by name", "lo", Server(), {"127.0.0.1", "::1"}},
      {"a container's by name", "docker0", Server(), {"172.17.0.1"}},
      {"a name is no prefix where an interface has it", "eth1", Server(), {"10.1.0.1"}},
      {"a prefix", "eth", Server(), {"10.0.0.1", "10.1.0.1", "10.10.0.1", "fe80::1"}},
      {"a list", "ib0,eth1", Server(), {"10.1.0.1", "10.2.0.1"}},
      {"a list with spaces and gaps", " ib0 ,, eth1,", Server(), {"10.1.0.1", "10.2.0.1"}},
      {"a list with a name that is not there", "nosuch0,ib0", Server(), {"10.2.0.1"}},
      {"exact", "=eth1", Server(), {"10.1.0.1"}},
      {"an exact list", "=eth10,ib0", Server(), {"10.10.0.1", "10.2.0.1"}},
      {"all but one", "^eth1", Server(), {"10.0.0.1", "10.10.0.1", "10.2.0.1", "fe80::1"}},
      {"all but a prefix", "^eth", Server(), {"10.2.0.1"}},
      {"all but a list", "^eth,ib", Server(), {"172.17.0.1", "127.0.0.1", "::1", "fe80::9"}},
  };
}

std::vector<std::string> Texts(const std::vector<IpAddress>& addresses) {
  std::vector<std::string> texts;
  for (const auto& address : addresses) texts.push_back(address.ToString());
  return texts;
}

TEST(SelectAddresses, Table) {
  for (const Selected& row : SelectionTable()) {
    const auto selected = SelectAddresses(row.selection, row.interfaces);
    ASSERT_TRUE(selected.ok()) << row.what << ": " << selected.status().message();
    EXPECT_EQ(Texts(*selected), row.addresses) << row.what;
  }
}

TEST(SelectAddresses, WhatMatchesNothingListsTheNamesThereAre) {
  for (const char* selection :
       {"nosuch0", "=eth", "=et,docker", "^eth,ib,docker,veth,lo", ",", "="}) {
    const auto selected = SelectAddresses(selection, Server());
    ASSERT_FALSE(selected.ok()) << selection;
    EXPECT_EQ(selected.status().code(), ErrorCode::kInvalidConfig);
    EXPECT_EQ(
        selected.status().message(),
        fmt::format("MORI_SOCKET_IFNAME={} matches no network interface that is up and has an "
                    "address; there are: lo, docker0, veth12ab, eth0, eth1, eth10, ib0",
                    selection));
  }
}

TEST(SelectAddresses, WithoutAnInterfaceSaysSo) {
  const auto chosen = SelectAddresses("eth0", {});
  EXPECT_EQ(chosen.status().code(), ErrorCode::kInvalidConfig);
  EXPECT_EQ(chosen.status().message(),
            "MORI_SOCKET_IFNAME=eth0 matches no network interface that is up and has an address; "
            "there are: none");
  const auto any = SelectAddresses("", {});
  EXPECT_EQ(any.status().code(), ErrorCode::kSystem);
  EXPECT_EQ(any.status().message(),
            "this machine has no network interface that is up, not even lo");
}

TEST(SelectAddresses, AnInterfaceWithoutAddressIsNoMatch) {
  const auto selected = SelectAddresses("eth0", {kLo, Interface("eth0", {})});
  EXPECT_EQ(selected.status().code(), ErrorCode::kInvalidConfig);
}

TEST(ListNetworkInterfaces, HasTheLoopbackOfThisMachine) {
  const auto interfaces = ListNetworkInterfaces();
  ASSERT_TRUE(interfaces.ok()) << interfaces.status().message();
  const auto selected = SelectAddresses("=lo", *interfaces);
  ASSERT_TRUE(selected.ok()) << selected.status().message();
  for (const auto& address : *selected) EXPECT_TRUE(address.IsLoopback()) << address.ToString();
}

/// A line an interface and its addresses, in an order of their own.
std::set<std::string> Lines(const std::vector<NetworkInterface>& interfaces) {
  std::set<std::string> lines;
  for (const auto& interface : interfaces) {
    for (const auto& address : interface.addresses) {
      lines.insert(fmt::format("{} {} scope {} {}", interface.name, address.ToString(),
                               address.scope_id, interface.has_default_route));
    }
  }
  return lines;
}

TEST(ListNetworkInterfaces, FindsTheSameWithoutNetlink) {
  const auto with = ListNetworkInterfaces();
  ASSERT_TRUE(with.ok()) << with.status().message();
  EXPECT_EQ(testing::RunForked(1,
                               [&](int) -> std::string {
                                 if (!testing::DenyCall(SYS_socket, EAFNOSUPPORT, AF_NETLINK))
                                   return "this machine has no seccomp";
                                 const auto without = ListNetworkInterfaces();
                                 if (!without.ok()) return without.status().message();
                                 if (Lines(*without) == Lines(*with)) return "";
                                 std::string found;
                                 for (const auto& line : Lines(*without)) found += line + "\n";
                                 return "found: " + found;
                               }),
            "");
}

TEST(ListNetworkInterfaces, WithoutAnySocketSaysSo) {
  EXPECT_EQ(testing::RunForked(1,
                               [&](int) -> std::string {
                                 if (!testing::DenyCall(SYS_socket, EACCES)) return "no seccomp";
                                 const auto none = ListNetworkInterfaces();
                                 // /proc needs no socket: a machine with IPv6 has those addresses.
                                 if (none.ok()) return none->empty() ? "empty" : "";
                                 return none.status().message().starts_with(
                                            "list the network interfaces: ")
                                            ? ""
                                            : none.status().message();
                               }),
            "");
}

}  // namespace
}  // namespace mori::shmem
