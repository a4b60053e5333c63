// A unique id from rank 0 to the other ranks of a job on one machine, over an abstract socket that
// only the same user gets through.
#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/bytes.hpp"
#include "base/deadline.hpp"
#include "base/status.hpp"
#include "base/unique_fd.hpp"
#include "mori/shmem/types.hpp"

namespace mori::shmem {

class IdExchange {
 public:
  struct Options {
    /// How long a caller may say nothing before it is told to come again.
    std::chrono::milliseconds patience{2'000};
    /// So many callers are heard at the same time; beyond, the one that is silent for longest is
    /// told to come again.
    std::size_t max_callers = 512;
    /// After this time, and again after twice as long each time, a line says who is waited for.
    std::chrono::milliseconds first_line{5'000};
    std::string hint = {};  ///< a sentence for the end of that line and of the error; may be empty
  };

  /// @param meeting  text that only the ranks of this job know alike.
  IdExchange(std::string meeting, int rank, int size, const Deadline& deadline, Options options)
      : meeting_(std::move(meeting)),
        rank_(rank),
        size_(size),
        deadline_(deadline),
        options_(std::move(options)) {}

  /// On rank 0 makes an id with `make` and gives it, or the reason why there is none, to all
  /// others; on the others fetches it. Collective.
  /// @return kTimeout with the missing ranks, kMismatch for sizes that differ, kPeerLost, kSystem,
  /// or what `make` failed with.
  Result<UniqueId> Run(const std::function<Result<UniqueId>()>& make) const;

 private:
  struct Caller {
    UniqueFd fd;
    Deadline patience;
    Bytes said = {};
  };
  /// When the next line about late ranks is due.
  struct NextLine {
    Deadline due;
    std::chrono::milliseconds pause;
  };

  /// What rank 0 tells all who come, and who has heard it.
  struct News {
    Bytes reply;
    std::set<int> arrived = {};
    Status differs = {};  ///< the first size that is not rank 0's: it is the reply from then on
  };

  Status Serve(const Result<UniqueId>& id) const;
  Status Admit(int listener, std::vector<Caller>* callers) const;
  /// @return whether the caller stays.
  bool Hear(Caller& caller, News* news) const;
  Result<UniqueId> Fetch() const;
  /// Empty: to come again.
  Result<std::optional<UniqueId>> AskFor(int server, NextLine* line) const;

  NextLine FirstLine() const;
  void SayWhenDue(NextLine* line, const std::function<std::string()>& who) const;
  std::string Missing(const std::set<int>& arrived) const;
  Status Late(std::string_view who) const;

  std::string meeting_;
  int rank_;
  int size_;
  Deadline deadline_;
  Options options_;
};

}  // namespace mori::shmem
