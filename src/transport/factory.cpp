#include "transport/factory.hpp"

#include "bootstrap/address.hpp"
#include "transport/ofi/ofi_transport.hpp"

namespace mori::shmem {

Result<std::unique_ptr<RemoteTransport>> MakeRemoteTransport(const Config& config,
                                                             RemoteParts parts) {
  if (config.network == Network::kP2p) {
    return Error(ErrorCode::kUnsupported,
                 "MORI_SHMEM_TRANSPORT=p2p allows no network, and not all PEs are on this node, or "
                 "MORI_DISABLE_P2P is set");
  }
  if (config.network == Network::kVerbs) {
    return Error(ErrorCode::kUnsupported,
                 "MORI_SHMEM_TRANSPORT=verbs: this version has no such network; leave it unset, or "
                 "set it to ofi");
  }
  OfiOptions options;
  options.provider = config.ofi_provider;
  options.connect_limit = config.bootstrap_timeout;
  MORI_ASSIGN_OR_RETURN(options.addresses, SelectOwnAddresses(config.socket_ifname));
  return MakeOfiTransport(options, std::move(parts));
}

}  // namespace mori::shmem
