// Remote memory over libfabric.
//
// Small operations travel as messages, which a thread of the PE they are for carries out in their
// order (wire.hpp says what is in them); large ones are writes and reads of the network itself.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "bootstrap/address.hpp"
#include "transport/remote.hpp"

namespace mori::shmem {

struct OfiOptions {
  /// `MORI_OFI_PROVIDER`: as libfabric calls it, "tcp;ofi_rxm"; empty takes the best that works.
  std::string provider;
  /// This machine's addresses, best first, for networks that have IP addresses: one is taken.
  std::vector<IpAddress> addresses;
  /// How long a PE that never answered may take to do so.
  std::chrono::milliseconds connect_limit{300'000};
};

/// Local. The first call of a process takes a third of a second and may set these variables of its
/// environment where they are not set: IPATH_NO_BACKTRACE, FI_OFI_RXM_BUFFER_SIZE,
/// FI_OFI_RXM_MSG_RX_SIZE; an empty FI_LOG_LEVEL is taken out.
/// @return kUnsupported if the library, or a provider that serves, is not there
Result<std::unique_ptr<RemoteTransport>> MakeOfiTransport(const OfiOptions& options,
                                                          RemoteParts parts);
/// For people: what the library finds here, a line each, best first: "libfabric 1.17, tcp;ofi_rxm
/// over eth0 (10.0.0.7)"; or one line that says why nothing serves. Opens no endpoint.
std::vector<std::string> DescribeOfi(const OfiOptions& options);

}  // namespace mori::shmem
