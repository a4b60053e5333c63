// What the launcher prepares before it starts PEs: descriptors, limits, their environment.
#pragma once

#include <sys/resource.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "base/unique_fd.hpp"
#include "bootstrap/address.hpp"
#include "mori/shmem/types.hpp"

namespace mori::launcher {

/// Whether a run can be looked after at all: a container may deny system calls without which the
/// launcher could not see or end its PEs. For a process without children. @return kSystem
shmem::Status CheckSystemCalls();

/// Afterwards descriptors 0 to 2 exist, so that no pipe takes their place.
void OpenStandardStreams();

/// Raises the soft limit of open files for so many PEs, if needed. @return the limit as it was
/// (unlimited where the system does not say), or kSystem if the hard limit is too low.
shmem::Result<rlimit> MakeRoomForFiles(int n_pes);

/// Closes every descriptor from `first` on, also where `close_range()` is missing or denied. For a
/// process that has one thread.
void CloseDescriptorsFrom(int first);

struct Pipe {
  shmem::UniqueFd read_end;
  shmem::UniqueFd write_end;
};
/// Close-on-exec, both ends blocking.
shmem::Result<Pipe> MakePipe();

shmem::Status MakeNonBlocking(const shmem::UniqueFd& fd);

/// Takes what is said of a place in a surrounding run, and of where its ranks meet, out of this
/// process's environment: it is not the PEs' concern.
void LeaveSurroundingRun();

/// PEs of one machine meet on loopback, if there is one, unless `MORI_SOCKET_IFNAME` is set.
/// Programs of torch find each other by MASTER_ADDR and MASTER_PORT: those that are set, or
/// loopback and a port that is free now.
void MeetOnLoopback();

/// Whether the environment says where programs of torch find each other.
bool MasterIsSet();
/// Says it. Empty texts leave the environment as it is.
void SetMaster(const std::string& address, const std::string& port);

/// A port of this address that nobody has at the moment; 0 if there is none.
int FreePort(const shmem::IpAddress& address);

/// The PEs of a run that one machine has: `count` of all `world`, with consecutive ranks.
struct PeShare {
  int first = 0;
  int count = 1;
  int world = 1;
};

/// This process's environment as "NAME=value", with the variables by which `ShmemInit()` finds the
/// other PEs, and those by which programs of torch do.
std::vector<std::string> PeEnvironment(const PeShare& share, int local_rank,
                                       const std::optional<shmem::UniqueId>& id);

/// Strings with the array of pointers that exec wants: it ends with null.
class StringArray {
 public:
  explicit StringArray(std::vector<std::string> strings) : strings_(std::move(strings)) {
    for (std::string& string : strings_) pointers_.push_back(string.data());
    pointers_.push_back(nullptr);
  }
  StringArray(const StringArray&) = delete;
  StringArray& operator=(const StringArray&) = delete;

  char* const* data() const { return pointers_.data(); }

 private:
  std::vector<std::string> strings_;
  std::vector<char*> pointers_;
};

}  // namespace mori::launcher
