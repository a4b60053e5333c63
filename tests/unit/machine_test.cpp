#include "base/machine.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <thread>

namespace mori::shmem {
namespace {

namespace fs = std::filesystem;

/// A root whose files the test writes.
class FakeRoot : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = fs::temp_directory_path() / "mori-machine-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern.data()), nullptr);
    root_ = pattern + "/";
  }
  void TearDown() override { fs::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) const {
    fs::create_directories(fs::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  void WriteMemory(const std::string& kibibytes) const {
    Write("proc/meminfo", "MemFree:         1000 kB\nHugePages_Total:       0\nMemTotal:       " +
                              kibibytes + " kB\nMemAvailable:    500 kB\n");
  }

  std::string root_;
};

using MachineTest = FakeRoot;

TEST_F(MachineTest, BootIdIsTheKernels) {
  Write("proc/sys/kernel/random/boot_id", "0b57f2f4-7f02-4b0e-a3a7-1c0f2ad2bf37\n");
  const auto id = BootId(root_);
  ASSERT_TRUE(id.ok()) << id.status().message();
  EXPECT_EQ(*id, "0b57f2f4-7f02-4b0e-a3a7-1c0f2ad2bf37");
}

TEST_F(MachineTest, BootIdIsTheHostNameWhereTheKernelHasNone) {
  const auto id = BootId(root_);
  ASSERT_TRUE(id.ok()) << id.status().message();
  EXPECT_EQ(*id, HostName());
}

TEST_F(MachineTest, ABootIdThatCannotBeReadIsAnError) {
  Write("proc/sys/kernel/random/boot_id", "");
  const auto id = BootId(root_);
  EXPECT_EQ(id.status().code(), ErrorCode::kSystem);
}

TEST_F(MachineTest, AMachineIsABootAndANetworkNamespace) {
  Write("proc/sys/kernel/random/boot_id", "boot\n");
  EXPECT_EQ(MachineId(root_), "");
  fs::create_directories(root_ + "proc/self/ns");
  fs::create_symlink("net:[4026531840]", root_ + "proc/self/ns/net");
  EXPECT_EQ(MachineId(root_), "boot net:[4026531840]");
  Write("proc/sys/kernel/random/boot_id", "");
  EXPECT_EQ(MachineId(root_), "");
}

TEST_F(MachineTest, BootIdOfThisMachineStaysTheSame) {
  const auto first = BootId(), second = BootId();
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_FALSE(first->empty());
  EXPECT_EQ(*first, *second);
}

TEST_F(MachineTest, MemoryIsWhatIsThere) {
  WriteMemory("1024");
  EXPECT_EQ(MemoryBytes(root_), 1u << 20);
}

TEST_F(MachineTest, MemoryIsWhatTheControlGroupAllowsIfThatIsLess) {
  struct Row {
    const char* file;
    const char* limit;
    std::uint64_t bytes;
  };
  for (const Row& row : {Row{"sys/fs/cgroup/memory.max", "4096\n", 4096},
                         Row{"sys/fs/cgroup/memory.max", "max\n", 1u << 20},
                         Row{"sys/fs/cgroup/memory.max", "9223372036854771712\n", 1u << 20},
                         Row{"sys/fs/cgroup/memory.max", "0\n", 1u << 20},
                         Row{"sys/fs/cgroup/memory.max", "", 1u << 20},
                         Row{"sys/fs/cgroup/memory.max", "12 apples\n", 1u << 20},
                         Row{"sys/fs/cgroup/memory/memory.limit_in_bytes", "8192\n", 8192}}) {
    WriteMemory("1024");
    Write(row.file, row.limit);
    EXPECT_EQ(MemoryBytes(root_), row.bytes) << row.file << ": " << row.limit;
    fs::remove_all(root_ + "sys");
  }
}

TEST_F(MachineTest, TheLimitOfAnOwnGroupAndOfItsParentsHolds) {
  struct Row {
    const char* groups;  // /proc/self/cgroup
    const char* file;
    const char* limit;
    std::uint64_t bytes;
    const char* source;
  };
  constexpr const char* kV2 = "0::/jobs/17\n";
  constexpr const char* kV1 = "9:name=systemd:/x\n4:cpu,memory:/jobs/17\n2:cpuset:/y\n0::/\n";
  constexpr const char* kMachine = "this machine's memory";
  for (const Row& row : {
           Row{kV2, "sys/fs/cgroup/jobs/17/memory.max", "4096\n", 4096,
               "the limit of control group \"/jobs/17\""},
           Row{kV2, "sys/fs/cgroup/jobs/memory.max", "8192\n", 8192,
               "the limit of control group \"/jobs\""},
           Row{kV2, "sys/fs/cgroup/memory.max", "8192\n", 8192, "the limit of control group \"/\""},
           Row{kV2, "sys/fs/cgroup/unified/jobs/17/memory.max", "4096\n", 4096,
               "the limit of control group \"/jobs/17\""},
           Row{kV2, "sys/fs/cgroup/other/memory.max", "4096\n", 1u << 20, kMachine},
           Row{kV2, "sys/fs/cgroup/jobs/17/memory.max", "max\n", 1u << 20, kMachine},
           Row{kV1, "sys/fs/cgroup/memory/jobs/17/memory.limit_in_bytes", "4096\n", 4096,
               "the limit of control group \"/jobs/17\""},
           Row{kV1, "sys/fs/cgroup/memory/jobs/memory.limit_in_bytes", "8192\n", 8192,
               "the limit of control group \"/jobs\""},
           Row{kV1, "sys/fs/cgroup/memory/x/memory.limit_in_bytes", "4096\n", 1u << 20, kMachine},
           // The path is the host's; a container sees its own part of the hierarchy as the top.
           Row{"4:memory:/docker/12ab\n", "sys/fs/cgroup/memory/memory.limit_in_bytes", "8192\n",
               8192, "the limit of control group \"/\""},
           Row{"0::/../../etc\n", "sys/fs/cgroup/memory.max", "8192\n", 8192,
               "the limit of control group \"/\""},
           Row{"no group\n0:\n::\n", "sys/fs/cgroup/memory.max", "8192\n", 8192,
               "the limit of control group \"/\""},
       }) {
    WriteMemory("1024");
    Write("proc/self/cgroup", row.groups);
    Write(row.file, row.limit);
    const MemoryLimit limit = FindMemoryLimit(root_);
    EXPECT_EQ(limit.bytes, row.bytes) << row.groups << row.file << ": " << row.limit;
    EXPECT_EQ(limit.source, row.source) << row.groups << row.file << ": " << row.limit;
    fs::remove_all(root_ + "sys");
  }
}

TEST_F(MachineTest, WithoutProcTheKernelTellsTheMemory) {
  const MemoryLimit limit = FindMemoryLimit(root_);
  EXPECT_GT(limit.bytes, 1u << 20);
  EXPECT_LT(limit.bytes, std::uint64_t{1} << 60);
  EXPECT_EQ(limit.source, "this machine's memory by sysinfo(), since /proc/meminfo cannot be read");
}

TEST_F(MachineTest, MemoryOfThisMachineIsSomething) {
  EXPECT_GT(MemoryBytes(), 1u << 20);
  EXPECT_LT(MemoryBytes(), std::uint64_t{1} << 60);
}

TEST_F(MachineTest, HostNameIsTheSystems) {
  char name[256];
  ASSERT_EQ(::gethostname(name, sizeof name), 0);
  EXPECT_EQ(HostName(), name);
}

TEST_F(MachineTest, UsableCpusAreThoseOfTheThread) {
  EXPECT_GE(UsableCpuCount(), 1);
  std::thread([] {
    cpu_set_t all, one;
    ASSERT_EQ(::sched_getaffinity(0, sizeof all, &all), 0);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
      if (CPU_ISSET(cpu, &all)) CPU_SET(cpu, &one);
    }
    ASSERT_EQ(::sched_setaffinity(0, sizeof one, &one), 0);
    EXPECT_EQ(UsableCpuCount(), 1);
  }).join();
}

}  // namespace
}  // namespace mori::shmem
