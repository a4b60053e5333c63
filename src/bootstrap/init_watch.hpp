// Who is late to an exchange of init.
#pragma once

#include <chrono>
#include <vector>

#include "base/log.hpp"
#include "base/wait_watch.hpp"
#include "bootstrap/bootstrap.hpp"

namespace mori::shmem {

/// Says so now and then. The end of the wait is its deadline's matter.
class InitWatch final : public WaitWatch {
 public:
  InitWatch(Bootstrap* bootstrap, std::chrono::milliseconds budget)
      : bootstrap_(bootstrap), clock_(budget) {}

  Status Look() override {
    if (clock_.Look() != WaitClock::Due::kLine) return Status();
    const std::vector<int> missing = bootstrap_->Missing();
    LogWarn("still waiting for {}{} in init, {:.3g} s",
            missing.size() == 1 ? "rank "
            : missing.empty()   ? "the others"
                                : "ranks ",
            ListRanks(missing), clock_.ElapsedSeconds());
    return Status();
  }

 private:
  Bootstrap* const bootstrap_;
  WaitClock clock_;
};

}  // namespace mori::shmem
