#include "bootstrap/address.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <linux/if_addr.h>
#include <net/if.h>
#include <sys/ioctl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <set>
#include <sstream>

#include "base/sodium.hpp"
#include "base/unique_fd.hpp"

namespace mori::shmem {
namespace {

constexpr std::string_view kVariable = "MORI_SOCKET_IFNAME";

/// Interfaces that other hosts cannot reach us by: bridges and pairs of containers and virtual
/// machines, tunnels.
constexpr std::string_view kVirtualPrefixes[] = {
    "docker", "veth", "virbr", "cni",    "br-",  "flannel", "cali", "tun",
    "tap",    "wg",   "lxc",   "podman", "vnet", "dummy",   "kube", "tailscale"};

bool IsVirtual(std::string_view name) {
  return std::any_of(std::begin(kVirtualPrefixes), std::end(kVirtualPrefixes),
                     [&](std::string_view prefix) { return name.starts_with(prefix); });
}

bool IsLoopbackOnly(const NetworkInterface& interface) {
  return std::all_of(interface.addresses.begin(), interface.addresses.end(),
                     [](const IpAddress& address) { return address.IsLoopback(); });
}

std::vector<std::string> SplitNames(std::string_view list) {
  std::vector<std::string> names;
  std::stringstream stream{std::string(list)};
  for (std::string name; std::getline(stream, name, ',');) {
    const auto first = name.find_first_not_of(" \t");
    if (first == std::string::npos) continue;
    names.push_back(name.substr(first, name.find_last_not_of(" \t") - first + 1));
  }
  return names;
}

std::string NamesOf(const std::vector<NetworkInterface>& interfaces) {
  std::string names;
  for (const auto& interface : interfaces) {
    if (!names.empty()) names += ", ";
    names += interface.name;
  }
  return names.empty() ? "none" : names;
}

/// The names in use of interfaces with a default route, IPv4 and IPv6.
std::set<std::string> DefaultRouteInterfaces() {
  std::set<std::string> names;
  std::ifstream ipv4("/proc/net/route");
  std::string line;
  std::getline(ipv4, line);  // heading
  while (std::getline(ipv4, line)) {
    std::istringstream fields(line);
    std::string name, destination;
    if (fields >> name >> destination && destination == "00000000") names.insert(name);
  }
  std::ifstream ipv6("/proc/net/ipv6_route");
  while (std::getline(ipv6, line)) {
    std::istringstream fields(line);
    std::string destination, prefix, field, name;
    fields >> destination >> prefix;
    while (fields >> field) name = field;
    const bool is_default =
        destination.find_first_not_of('0') == std::string::npos && prefix == "00";
    if (is_default && name != "lo") names.insert(name);
  }
  return names;
}

bool Matches(const NetworkInterface& interface, const std::vector<std::string>& names, bool exact,
             const std::vector<NetworkInterface>& all) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    if (interface.name == name) return true;
    const bool names_one = std::any_of(
        all.begin(), all.end(), [&](const NetworkInterface& other) { return other.name == name; });
    return !exact && !names_one && interface.name.starts_with(name);
  });
}

/// Whether another host, or another process here, can call one of its addresses. A link-local IPv6
/// address needs the number of the caller's interface, which nobody else knows.
bool CanBeCalled(const NetworkInterface& interface) {
  return std::any_of(
      interface.addresses.begin(), interface.addresses.end(), [](const IpAddress& address) {
        return !address.IsLoopback() && (address.family == AF_INET || !address.IsLinkLocal());
      });
}

std::vector<NetworkInterface> AutoSelect(const std::vector<NetworkInterface>& interfaces) {
  std::vector<NetworkInterface> chosen;
  std::copy_if(interfaces.begin(), interfaces.end(), std::back_inserter(chosen),
               [](const NetworkInterface& i) { return !IsLoopbackOnly(i) && !IsVirtual(i.name); });
  // A laptop off line, or nothing but a container's pair.
  if (std::none_of(chosen.begin(), chosen.end(), CanBeCalled)) chosen = interfaces;
  std::stable_sort(chosen.begin(), chosen.end(), [](const auto& a, const auto& b) {
    const auto rank = [](const NetworkInterface& i) {
      return (IsLoopbackOnly(i) ? 4 : 0) + (IsVirtual(i.name) ? 2 : 0) +
             (i.has_default_route ? 0 : 1);
    };
    return rank(a) < rank(b);
  });
  return chosen;
}

}  // namespace

std::string IpAddress::ToString() const {
  char text[INET6_ADDRSTRLEN] = "?";
  ::inet_ntop(family, bytes.data(), text, sizeof text);
  return text;
}

bool IpAddress::IsLoopback() const {
  if (family == AF_INET) return bytes[0] == 127;
  in6_addr address;
  std::memcpy(&address, bytes.data(), sizeof address);
  return IN6_IS_ADDR_LOOPBACK(&address) != 0;
}

bool IpAddress::IsLinkLocal() const {
  if (family == AF_INET) return bytes[0] == 169 && bytes[1] == 254;
  return bytes[0] == 0xfe && (bytes[1] & 0xc0) == 0x80;
}

IpAddress IpAddress::Of(const sockaddr_storage& name) {
  IpAddress address;
  if (name.ss_family == AF_INET) {
    std::memcpy(address.bytes.data(), &reinterpret_cast<const sockaddr_in*>(&name)->sin_addr, 4);
  } else if (name.ss_family == AF_INET6) {
    const auto* in6 = reinterpret_cast<const sockaddr_in6*>(&name);
    address.family = AF_INET6;
    std::memcpy(address.bytes.data(), &in6->sin6_addr, 16);
    address.scope_id = in6->sin6_scope_id;
  }
  return address;
}

sockaddr_storage IpAddress::ToSockaddr(std::uint16_t port, socklen_t* length) const {
  sockaddr_storage storage{};
  if (family == AF_INET) {
    auto* in = reinterpret_cast<sockaddr_in*>(&storage);
    in->sin_family = AF_INET;
    in->sin_port = htons(port);
    std::memcpy(&in->sin_addr, bytes.data(), 4);
    *length = sizeof *in;
  } else {
    auto* in6 = reinterpret_cast<sockaddr_in6*>(&storage);
    in6->sin6_family = AF_INET6;
    in6->sin6_port = htons(port);
    in6->sin6_scope_id = scope_id;
    std::memcpy(&in6->sin6_addr, bytes.data(), 16);
    *length = sizeof *in6;
  }
  return storage;
}

void EncodeAddress(const IpAddress& address, ByteWriter* writer) {
  writer->Int<std::uint32_t>(address.family == AF_INET ? 4 : 6).Raw(address.bytes);
}

bool DecodeAddress(ByteReader* reader, IpAddress* address) {
  const auto family = reader->Int<std::uint32_t>();
  const ByteView bytes = reader->Raw(16);
  if (!reader->ok() || (family != 4 && family != 6)) return false;
  address->family = family == 4 ? AF_INET : AF_INET6;
  std::copy(bytes.begin(), bytes.end(), address->bytes.begin());
  return true;
}

namespace {

/// Interfaces as they are found, address by address.
class InterfaceList {
 public:
  void Add(const std::string& name, const IpAddress& address) {
    auto found = std::find_if(interfaces_.begin(), interfaces_.end(),
                              [&](const auto& interface) { return interface.name == name; });
    if (found == interfaces_.end()) {
      found = interfaces_.insert(interfaces_.end(), NetworkInterface{});
      found->name = name;
      found->has_default_route = default_routes_.contains(name);
    }
    found->addresses.push_back(address);
  }
  bool empty() const { return interfaces_.empty(); }
  std::vector<NetworkInterface> Take() { return std::move(interfaces_); }

 private:
  const std::set<std::string> default_routes_ = DefaultRouteInterfaces();
  std::vector<NetworkInterface> interfaces_;
};

bool IsUp(int socket, const char* name) {
  ifreq request{};
  std::strncpy(request.ifr_name, name, sizeof request.ifr_name - 1);
  return ::ioctl(socket, SIOCGIFFLAGS, &request) == 0 && (request.ifr_flags & IFF_UP) != 0;
}

/// IPv4 addresses, as the kernel gave them before there was netlink.
void AddIpv4ByIoctl(InterfaceList* list) {
  const UniqueFd socket(::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket.valid()) return;
  std::vector<ifreq> requests(256);
  ifconf config{};
  config.ifc_len = static_cast<int>(requests.size() * sizeof(ifreq));
  config.ifc_req = requests.data();
  if (::ioctl(socket.get(), SIOCGIFCONF, &config) != 0) return;
  requests.resize(static_cast<std::size_t>(config.ifc_len) / sizeof(ifreq));
  for (const ifreq& request : requests) {
    if (request.ifr_addr.sa_family != AF_INET || !IsUp(socket.get(), request.ifr_name)) continue;
    sockaddr_storage name{};
    std::memcpy(&name, &request.ifr_addr, sizeof request.ifr_addr);
    list->Add(request.ifr_name, IpAddress::Of(name));
  }
}

/// One line of /proc/net/if_inet6 an address: 32 digits, interface, prefix, scope, flags, name.
void AddIpv6FromProc(InterfaceList* list) {
  constexpr unsigned kNotUsable = IFA_F_TENTATIVE | IFA_F_DADFAILED;
  std::ifstream file("/proc/net/if_inet6");
  for (std::string line; std::getline(file, line);) {
    std::istringstream fields(line);
    std::string digits, name;
    unsigned index = 0, prefix = 0, scope = 0, flags = 0;
    fields >> digits >> std::hex >> index >> prefix >> scope >> flags >> name;
    IpAddress address;
    address.family = AF_INET6;
    std::size_t length = 0;
    const bool read =
        fields && ::sodium_hex2bin(address.bytes.data(), address.bytes.size(), digits.data(),
                                   digits.size(), nullptr, &length, nullptr) == 0;
    if (!read || length != address.bytes.size() || (flags & kNotUsable) != 0) continue;
    if (address.IsLinkLocal()) address.scope_id = index;
    list->Add(name, address);
  }
}

}  // namespace

Result<std::vector<NetworkInterface>> ListNetworkInterfaces() {
  InterfaceList interfaces;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) {  // netlink is denied, as in the sandboxes of services
    const int error = errno;
    AddIpv4ByIoctl(&interfaces);
    AddIpv6FromProc(&interfaces);
    if (interfaces.empty()) return Status::FromErrno(error, "list the network interfaces");
    return interfaces.Take();
  }
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    sockaddr_storage name{};
    std::memcpy(&name, entry->ifa_addr,
                family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6));
    interfaces.Add(entry->ifa_name, IpAddress::Of(name));
  }
  ::freeifaddrs(list);
  return interfaces.Take();
}

Result<std::vector<IpAddress>> SelectAddresses(std::string_view selection,
                                               const std::vector<NetworkInterface>& interfaces) {
  std::vector<NetworkInterface> chosen;
  if (selection.empty()) {
    chosen = AutoSelect(interfaces);
  } else {
    const char mark = selection.front();
    const bool exclude = mark == '^';
    const bool exact = mark == '=';
    const auto names = SplitNames(selection.substr(exclude || exact ? 1 : 0));
    for (const auto& interface : interfaces) {
      if (Matches(interface, names, exact, interfaces) != exclude) chosen.push_back(interface);
    }
    if (exclude) chosen = AutoSelect(chosen);
  }
  std::vector<IpAddress> addresses;
  for (const auto& interface : chosen) {
    addresses.insert(addresses.end(), interface.addresses.begin(), interface.addresses.end());
  }
  if (addresses.empty()) {
    return selection.empty()
               ? Error(ErrorCode::kSystem,
                       "this machine has no network interface that is up, not even lo")
               : Error(ErrorCode::kInvalidConfig,
                       "{}={} matches no network interface that is up and has an address; there "
                       "are: {}",
                       kVariable, selection, NamesOf(interfaces));
  }
  std::stable_sort(addresses.begin(), addresses.end(), [](const IpAddress& a, const IpAddress& b) {
    return a.IsLinkLocal() < b.IsLinkLocal();
  });
  return addresses;
}

Result<std::vector<IpAddress>> SelectOwnAddresses(std::string_view selection) {
  MORI_ASSIGN_OR_RETURN(const auto interfaces, ListNetworkInterfaces());
  return SelectAddresses(selection, interfaces);
}

}  // namespace mori::shmem
