// What the launcher prepares before it starts PEs: descriptors, limits, their environment.
#pragma once

#include <sys/resource.h>

#include <string>
#include <utility>
#include <vector>

#include "base/status.hpp"
#include "base/unique_fd.hpp"
#include "mori/shmem/types.hpp"

namespace mori::launcher {

/// Afterwards descriptors 0 to 2 exist, so that no pipe takes their place.
void OpenStandardStreams();

/// Raises the soft limit of open files for so many PEs, if needed. @return the limit as it was, or
/// kSystem if the hard limit is too low.
shmem::Result<rlimit> MakeRoomForFiles(int n_pes);

struct Pipe {
  shmem::UniqueFd read_end;
  shmem::UniqueFd write_end;
};
/// Close-on-exec, both ends blocking.
shmem::Result<Pipe> MakePipe();

void MakeNonBlocking(const shmem::UniqueFd& fd);

/// Makes this process's environment that of the run: a place in a surrounding run is not the PEs'
/// concern, and PEs of one machine meet on loopback unless `MORI_SOCKET_IFNAME` is set.
void PrepareEnvironment();

/// This process's environment as "NAME=value", with the variables by which `ShmemInit()` finds the
/// other PEs.
std::vector<std::string> PeEnvironment(int pe, int n_pes, const shmem::UniqueId& id);

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
