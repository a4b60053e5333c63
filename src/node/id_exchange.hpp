// A unique id from rank 0 to the other ranks of a job on one machine, over an abstract socket that
// only the same user gets through.
#pragma once

#include <functional>
#include <string>

#include "base/deadline.hpp"
#include "base/status.hpp"
#include "base/unique_fd.hpp"
#include "mori/shmem/types.hpp"

namespace mori::shmem {

class IdExchange {
 public:
  /// @param meeting  text that only the ranks of this job know alike.
  IdExchange(std::string meeting, int rank, int size, const Deadline& deadline)
      : meeting_(std::move(meeting)), rank_(rank), size_(size), deadline_(deadline) {}

  /// On rank 0 makes an id with `make` and gives it, or the reason why there is none, to all
  /// others; on the others fetches it. Collective.
  /// @return kTimeout with the missing ranks, kPeerLost, kSystem, or what `make` failed with.
  Result<UniqueId> Run(const std::function<Result<UniqueId>()>& make) const;

 private:
  Status Serve(const Result<UniqueId>& id) const;
  Result<UniqueId> Fetch() const;
  Result<UniqueId> AskFor(int server) const;
  Status RankZeroIsLate() const;

  std::string meeting_;
  int rank_;
  int size_;
  Deadline deadline_;
};

}  // namespace mori::shmem
