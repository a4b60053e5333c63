// Instead of all that needs libfabric's headers, where a build did not find them.
#include "transport/ofi/ofi_transport.hpp"

namespace mori::shmem {

Result<std::unique_ptr<RemoteTransport>> MakeOfiTransport(const OfiOptions&, RemoteParts) {
  return Error(ErrorCode::kUnsupported,
               "this library was built without libfabric (package libfabric-dev)");
}

std::vector<std::string> DescribeOfi(const OfiOptions&) {
  return {"built without libfabric (package libfabric-dev)"};
}

}  // namespace mori::shmem
