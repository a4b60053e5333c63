// Which of libfabric's providers serves, over which interface.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transport/ofi/library.hpp"
#include "transport/ofi/ofi_transport.hpp"

namespace mori::shmem::ofi {

struct FreeInfo {
  const Library* library = nullptr;
  void operator()(fi_info* info) const { library->free_info(info); }
};
using Info = std::unique_ptr<fi_info, FreeInfo>;

/// What may be opened, best first: endpoints with messages in order, writes and reads.
/// @return kUnsupported if there is none; the sentence says what was asked for
Result<std::vector<Info>> FindProviders(const Library* library, const OfiOptions& options);

/// "tcp;ofi_rxm"
std::string ProviderName(const fi_info& info);
/// The IP address of this end; 0.0.0.0 where the network has none.
IpAddress SourceAddress(const fi_info& info);
/// "tcp;ofi_rxm over eth0 (10.0.0.7)"
std::string DescribeProvider(const fi_info& info);

}  // namespace mori::shmem::ofi
