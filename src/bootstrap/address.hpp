// IP addresses, and which of this machine's a rendezvous uses.
#pragma once

#include <netinet/in.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.hpp"
#include "base/status.hpp"

namespace mori::shmem {

/// An IPv4 or IPv6 address without a port.
struct IpAddress {
  int family = AF_INET;                  ///< AF_INET or AF_INET6
  std::array<std::uint8_t, 16> bytes{};  ///< network order; the first 4 for IPv4
  std::uint32_t scope_id = 0;  ///< interface index of a link-local IPv6 address; local meaning only

  bool operator==(const IpAddress&) const = default;
  std::string ToString() const;
  bool IsLoopback() const;
  bool IsLinkLocal() const;
  /// The address in a sockaddr_in or sockaddr_in6; 0.0.0.0 for anything else.
  static IpAddress Of(const sockaddr_storage& name);
  sockaddr_storage ToSockaddr(std::uint16_t port, socklen_t* length) const;
};

/// 20 bytes: family (4 or 6), three zeros, 16 address bytes.
void EncodeAddress(const IpAddress& address, ByteWriter* writer);
/// Fails on a family other than 4 and 6.
bool DecodeAddress(ByteReader* reader, IpAddress* address);

struct NetworkInterface {
  std::string name;
  std::vector<IpAddress> addresses;
  bool has_default_route = false;
};

/// This machine's interfaces that are up and have an address, from the kernel: over netlink, or
/// where that is denied by ioctl and /proc, without the IPv6 addresses that cannot be used yet.
Result<std::vector<NetworkInterface>> ListNetworkInterfaces();

/// Most addresses that a unique id has room for.
inline constexpr int kMaxAddresses = 3;

/// Addresses to be reached by, best first. Some may turn out to be of no use: whoever listens on
/// them takes the first `kMaxAddresses` that can be bound.
///
/// `selection` is `MORI_SOCKET_IFNAME`: a comma list of interface names; a name that no interface
/// has counts as a prefix; a leading `=` demands exact names, a leading `^` excludes instead.
/// Empty: the interfaces that are up without loopback and without what containers and tunnels make,
/// default route first, link-local addresses last; the loopback too if there is nothing else that
/// others can call.
/// @return kInvalidConfig if nothing matches; the sentence lists the interfaces there are.
Result<std::vector<IpAddress>> SelectAddresses(std::string_view selection,
                                               const std::vector<NetworkInterface>& interfaces);

/// `SelectAddresses()` over this machine's interfaces.
Result<std::vector<IpAddress>> SelectOwnAddresses(std::string_view selection);

}  // namespace mori::shmem
