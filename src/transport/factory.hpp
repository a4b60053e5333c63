// The only place that knows which networks there are.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/config.hpp"
#include "transport/remote.hpp"

namespace mori::shmem {

/// The network that `config` asks for, or the first that works here. Local.
/// @return kUnsupported if there is none; the sentence says what was tried
Result<std::unique_ptr<RemoteTransport>> MakeRemoteTransport(const Config& config,
                                                             RemoteParts parts);

/// For people: the networks that are here, a line each, best first, or why there is none.
std::vector<std::string> DescribeNetworks(const Config& config);

}  // namespace mori::shmem
