#include "transport/ofi/connections.hpp"

#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <tuple>

namespace mori::shmem::ofi {
namespace {

using Address = Connections::Address;

/// Family, address and port; the rest of a name says nothing.
std::tuple<int, std::uint16_t, std::array<std::uint8_t, 16>> KeyOf(const sockaddr_storage& name) {
  std::array<std::uint8_t, 16> bytes{};
  if (name.ss_family == AF_INET) {
    sockaddr_in in{};
    std::memcpy(&in, &name, sizeof in);
    std::memcpy(bytes.data(), &in.sin_addr, sizeof in.sin_addr);
    return {AF_INET, in.sin_port, bytes};
  }
  if (name.ss_family == AF_INET6) {
    sockaddr_in6 in{};
    std::memcpy(&in, &name, sizeof in);
    std::memcpy(bytes.data(), &in.sin6_addr, sizeof in.sin6_addr);
    return {AF_INET6, in.sin6_port, bytes};
  }
  return {0, 0, bytes};
}

bool IsIp(const Address& address) {
  return address.name.ss_family == AF_INET || address.name.ss_family == AF_INET6;
}

Address AddressOf(ByteView name) {
  Address address;
  if (name.size() == sizeof(sockaddr_in) || name.size() == sizeof(sockaddr_in6))
    std::memcpy(&address.name, name.data(), name.size());
  return IsIp(address) ? address : Address();
}

/// What a forked child needs is made before: it must not wait for locks of other threads.
class Registry {
 public:
  struct Known {
    const Connections* of;
    const Address* own;
    const std::vector<Address>* peers;
  };

  static Registry& Instance() {
    static auto* const registry = new Registry;
    return *registry;
  }

  std::mutex mutex;
  std::vector<Known> all;

  /// Calls `use(fd)` for each of these sockets. Allocates nothing.
  template <typename Use>
  void ForEach(const Connections* of, Use use) const {
    const int folder = ::open("/proc/self/fd", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (folder < 0) return;
    alignas(8) char entries[4096];
    for (;;) {
      const long got = ::syscall(SYS_getdents64, folder, entries, sizeof entries);
      if (got <= 0) break;
      for (long at = 0; at < got;) {
        std::uint16_t record = 0;
        std::memcpy(&record, entries + at + 16, sizeof record);  // d_reclen
        const char* name = entries + at + 19;                    // d_name
        const int fd = *name >= '0' && *name <= '9' ? std::atoi(name) : -1;
        if (fd >= 0 && fd != folder && IsOne(of, fd)) use(fd);
        at += record;
      }
    }
    ::close(folder);
  }

 private:
  Registry() {
    ::pthread_atfork([] { Instance().mutex.lock(); }, [] { Instance().mutex.unlock(); },
                     [] {
                       Instance().ForEach(nullptr, [](int fd) { ::close(fd); });
                       Instance().mutex.unlock();
                     });
  }

  bool IsOne(const Connections* of, int fd) const {
    Address here, there;
    socklen_t bytes = sizeof here.name;
    if (::getsockname(fd, reinterpret_cast<sockaddr*>(&here.name), &bytes) != 0 || !IsIp(here))
      return false;
    bytes = sizeof there.name;
    const bool is_connected =
        ::getpeername(fd, reinterpret_cast<sockaddr*>(&there.name), &bytes) == 0;
    return std::any_of(all.begin(), all.end(), [&](const Known& known) {
      if (of != nullptr && known.of != of) return false;
      const auto is_own = [&] { return KeyOf(known.own->name) == KeyOf(here.name); };
      return is_own() ||
             (is_connected && std::binary_search(known.peers->begin(), known.peers->end(), there));
    });
  }
};

}  // namespace

bool Connections::Address::operator<(const Address& other) const {
  return KeyOf(name) < KeyOf(other.name);
}

Connections::Connections(ByteView own) : own_(AddressOf(own)) {
  Registry& registry = Registry::Instance();
  const std::lock_guard lock(registry.mutex);
  registry.all.push_back({this, &own_, &peers_});
}

Connections::~Connections() {
  Registry& registry = Registry::Instance();
  const std::lock_guard lock(registry.mutex);
  std::erase_if(registry.all, [this](const auto& known) { return known.of == this; });
}

void Connections::Add(ByteView peer) {
  const Address address = AddressOf(peer);
  if (!IsIp(address)) return;
  const std::lock_guard lock(Registry::Instance().mutex);
  peers_.insert(std::upper_bound(peers_.begin(), peers_.end(), address), address);
}

void Connections::CloseOnExec() const {
  if (!IsIp(own_)) return;
  Registry& registry = Registry::Instance();
  const std::lock_guard lock(registry.mutex);
  registry.ForEach(this, [](int fd) {
    const int flags = ::fcntl(fd, F_GETFD);
    if (flags >= 0 && (flags & FD_CLOEXEC) == 0) ::fcntl(fd, F_SETFD, flags | FD_CLOEXEC);
  });
}

}  // namespace mori::shmem::ofi
