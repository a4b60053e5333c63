// The TCP connections that libfabric makes for an endpoint. It does not say which descriptors are
// its own, and neither closes them on exec nor in forked children, where they would hide the death
// of their parent. They are known by their addresses: the endpoint's own port on this side, or a
// peer's on the other.
//
// Limits: descriptors of networks other than TCP are not known, and a program that is started by
// posix_spawn() within a tenth of a second after a connection was made may have it.
#pragma once

#include <sys/socket.h>

#include <vector>

#include "base/bytes.hpp"

namespace mori::shmem::ofi {

/// Thread-safe. As long as it lives, forked children close these connections before fork returns
/// there.
class Connections {
 public:
  /// @param own  the name of an endpoint: a sockaddr_in or sockaddr_in6, or nothing that is known
  explicit Connections(ByteView own);
  ~Connections();
  Connections(const Connections&) = delete;

  /// Connections to an endpoint of that name, too.
  void Add(ByteView peer);
  /// From now on those that there are close on exec.
  void CloseOnExec() const;

  struct Address {
    sockaddr_storage name{};
    bool operator<(const Address& other) const;
  };

 private:
  Address own_;
  std::vector<Address> peers_;  ///< sorted; under the lock of the registry
};

}  // namespace mori::shmem::ofi
