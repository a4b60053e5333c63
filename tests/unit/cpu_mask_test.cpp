#include "base/cpu_mask.hpp"

#include <gtest/gtest.h>
#include <sched.h>

#include <thread>

#include "base/machine.hpp"

namespace mori::shmem {
namespace {

CpuMask Cpus(const std::vector<int>& cpus) {
  CpuMask mask;
  for (const int cpu : cpus) {
    const auto byte = static_cast<std::size_t>(cpu / 8);
    if (byte >= mask.size()) mask.resize(byte + 1);
    mask[byte] = static_cast<std::uint8_t>(mask[byte] | 1 << cpu % 8);
  }
  return mask;
}

TEST(CpuMask, PinnedThreadsHaveACpuEachUnlessTwoShareOne) {
  EXPECT_TRUE(EachHasACpu({Cpus({0}), Cpus({1}), Cpus({9})}));
  EXPECT_FALSE(EachHasACpu({Cpus({0}), Cpus({1}), Cpus({0})}));
}

TEST(CpuMask, FreeThreadsHaveACpuEachWhileThereAreEnough) {
  const CpuMask four = Cpus({0, 1, 2, 3});
  EXPECT_TRUE(EachHasACpu({four, four, four, four}));
  EXPECT_FALSE(EachHasACpu({four, four, four, four, four}));
}

/// As many CPUs as threads, but two CPUs for three of them.
TEST(CpuMask, CpusThatOthersCannotUseDoNotHelp) {
  const CpuMask two = Cpus({0, 1});
  EXPECT_FALSE(EachHasACpu({two, two, two, Cpus({2, 3})}));
}

TEST(CpuMask, AThreadGivesWayWhereItCan) {
  EXPECT_TRUE(EachHasACpu({Cpus({0, 1}), Cpus({0})}));
  EXPECT_TRUE(EachHasACpu({Cpus({0, 1}), Cpus({1, 2}), Cpus({0, 2}), Cpus({0, 3})}));
  EXPECT_TRUE(EachHasACpu({Cpus({0, 1}), Cpus({0, 2}), Cpus({0})}));
}

TEST(CpuMask, WithoutACpuThereIsNone) {
  EXPECT_FALSE(EachHasACpu({Cpus({})}));
  EXPECT_TRUE(EachHasACpu({}));
}

TEST(CpuMask, LargeMachines) {
  CpuMask all(128, 0xff);  // 1024 CPUs
  std::vector<CpuMask> masks(1024, all);
  EXPECT_TRUE(EachHasACpu(masks));
  masks.push_back(all);
  EXPECT_FALSE(EachHasACpu(masks));
}

TEST(CpuMask, OfTheCallingThread) {
  std::size_t count = 0;
  for (const std::uint8_t byte : UsableCpus())
    count += static_cast<std::size_t>(__builtin_popcount(byte));
  EXPECT_EQ(count, static_cast<std::size_t>(UsableCpuCount()));
  std::thread([] {
    int cpu = 0;
    cpu_set_t before;
    ASSERT_EQ(::sched_getaffinity(0, sizeof before, &before), 0);
    while (!CPU_ISSET(cpu, &before)) ++cpu;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(UsableCpus(), Cpus({cpu}));
  }).join();
}

}  // namespace
}  // namespace mori::shmem
