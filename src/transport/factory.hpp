// The only place that knows which networks there are.
#pragma once

#include <memory>

#include "base/config.hpp"
#include "transport/remote.hpp"

namespace mori::shmem {

/// The network that `config` asks for, or the first that works here. Local.
/// @return kUnsupported if there is none; the sentence says what was tried
Result<std::unique_ptr<RemoteTransport>> MakeRemoteTransport(const Config& config,
                                                             RemoteParts parts);

}  // namespace mori::shmem
