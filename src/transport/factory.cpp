#include "transport/factory.hpp"

namespace mori::shmem {

Result<std::unique_ptr<RemoteTransport>> MakeRemoteTransport(const Config&, RemoteParts) {
  return Error(ErrorCode::kUnsupported,
               "this version has no network transport: start all PEs on one machine, or check "
               "MORI_NODE_ID and MORI_DISABLE_P2P");
}

}  // namespace mori::shmem
