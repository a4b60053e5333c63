// Which hosts a run is on, and how many PEs each of them gets.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"

namespace mori::launcher {

/// Most PEs of one run.
inline constexpr int kMaxPes = 65536;

/// A host as ssh takes it: a name, an address, or `user@` before one of them.
struct HostShare {
  std::string name;
  int n_pes;

  bool operator==(const HostShare&) const = default;
};

/// Hosts in the order in which ranks are given to them. A host that is named twice has its first
/// place and the sum of its PEs, as in the files of batch systems.
using HostList = std::vector<HostShare>;

/// Reads "a:2,b,[fd00::1]:4": names with a number of PEs, 1 where there is none; an IPv6 address is
/// in brackets.
/// @return kInvalidArgument with the entry that is wrong, and how; also for more than `kMaxPes`.
shmem::Result<HostList> ParseHosts(std::string_view text);

/// Reads a file's text: a host a line, as "a", "a:2" or, as Open MPI has it, "a slots=2"; what
/// follows a `#` does not count.
/// @return as `ParseHosts()`, with the number of the line; kInvalidArgument without any host
shmem::Result<HostList> ParseHostfile(std::string_view text);

/// Reads the file of this name. @return as `ParseHostfile()`, and kSystem
shmem::Result<HostList> ReadHostfile(const std::string& path);

/// The first `n_pes` places of the list. @return kInvalidArgument if it has fewer
shmem::Result<HostList> FirstPlaces(const HostList& hosts, int n_pes);

/// Sum over the list.
int CountPes(const HostList& hosts);

}  // namespace mori::launcher
