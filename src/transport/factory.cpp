#include "transport/factory.hpp"

#include "bootstrap/address.hpp"
#include "transport/ofi/ofi_transport.hpp"

namespace mori::shmem {
namespace {

Result<OfiOptions> OfiOptionsOf(const Config& config) {
  OfiOptions options;
  options.provider = config.ofi_provider;
  options.connect_limit = config.bootstrap_timeout;
  MORI_ASSIGN_OR_RETURN(options.addresses, SelectOwnAddresses(config.socket_ifname));
  return options;
}

}  // namespace

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
  MORI_ASSIGN_OR_RETURN(const OfiOptions options, OfiOptionsOf(config));
  return MakeOfiTransport(options, std::move(parts));
}

std::vector<std::string> DescribeNetworks(const Config& config) {
  const auto options = OfiOptionsOf(config);
  if (!options.ok()) return {options.status().message()};
  return DescribeOfi(*options);
}

}  // namespace mori::shmem
