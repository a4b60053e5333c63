#include "support/run_pes.hpp"

#include <signal.h>

#include <gtest/gtest.h>

namespace mori::shmem::testing {
namespace {

TEST(RunPes, AProcessHasEverySignalsDefaultWhereTheTestsIgnoreIt) {
  const auto before = ::signal(SIGINT, SIG_IGN);
  const Outcome outcome = RunAlone([] { ::raise(SIGINT); });
  ::signal(SIGINT, before);
  EXPECT_EQ(outcome.signal, SIGINT) << outcome.output;
}

}  // namespace
}  // namespace mori::shmem::testing
