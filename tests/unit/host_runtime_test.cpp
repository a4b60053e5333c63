#include "runtime/host/host_runtime.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>

#include <cstring>
#include <fstream>

#include "support/forked.hpp"

namespace mori::shmem {
namespace {

using testing::RunForked;

std::size_t OpenDescriptors() {
  std::size_t count = 0;
  DIR* directory = ::opendir("/proc/self/fd");
  while (::readdir(directory) != nullptr) ++count;
  ::closedir(directory);
  return count;
}

std::size_t MappingsOfHeaps() {
  std::ifstream maps("/proc/self/maps");
  std::size_t count = 0;
  for (std::string line; std::getline(maps, line);)
    count += line.find("mori_shmem_heap") != std::string::npos ? 1 : 0;
  return count;
}

class HostRuntimeTest : public ::testing::Test {
 protected:
  void SetUp() override { descriptors_ = OpenDescriptors(); }
  void TearDown() override {
    EXPECT_EQ(OpenDescriptors(), descriptors_) << "a descriptor leaks";
    EXPECT_EQ(MappingsOfHeaps(), 0u) << "a mapping leaks";
  }

  std::uint64_t page() const { return runtime_.GranularityBytes(); }
  std::unique_ptr<DeviceMemory> Allocate(std::uint64_t bytes) {
    auto memory = runtime_.Allocate(bytes, HeapType::kUncached);
    EXPECT_TRUE(memory.ok()) << memory.status().message();
    return std::move(memory).value();
  }
  std::unique_ptr<AddressRange> Reserve(std::uint64_t bytes) {
    auto range = runtime_.Reserve(bytes, page());
    EXPECT_TRUE(range.ok()) << range.status().message();
    return std::move(range).value();
  }
  static UniqueFd Export(const DeviceMemory& memory) {
    auto descriptor = memory.Export();
    EXPECT_TRUE(descriptor.ok()) << descriptor.status().message();
    return std::move(descriptor).value();
  }

  HostRuntime runtime_;
  std::size_t descriptors_ = 0;
};

TEST_F(HostRuntimeTest, DescribesThisMachine) {
  EXPECT_EQ(runtime_.backend(), Backend::kHost);
  EXPECT_GE(page(), 4096u);
  EXPECT_EQ(page() & (page() - 1), 0u);
  EXPECT_GT(runtime_.MemoryBytes(), 0u);
  EXPECT_THAT(runtime_.Describe(),
              ::testing::MatchesRegex("[0-9]+ CPUs?, [0-9.]+ [KMGTPE]iB: .*(memory|group).*"));
  EXPECT_EQ(runtime_.DescribeHeapType(HeapType::kNormal), "cached and coherent");
  EXPECT_EQ(runtime_.DescribeHeapType(HeapType::kUncached),
            "coherent for all CPUs and devices (cached; the host has no other kind)");
}

TEST_F(HostRuntimeTest, MemoryIsZeroedAndHoldsWhatIsWritten) {
  const auto memory = Allocate(4 * page());
  EXPECT_EQ(memory->bytes(), 4 * page());
  const auto range = Reserve(4 * page());
  ASSERT_TRUE(range->Map(0, *memory).ok());
  for (std::uint64_t i = 0; i < range->bytes(); ++i)
    ASSERT_EQ(range->base()[i], std::byte{0}) << "at " << i;
  std::memset(range->base(), 0x5a, range->bytes());
  EXPECT_EQ(range->base()[4 * page() - 1], std::byte{0x5a});
}

TEST_F(HostRuntimeTest, ImportedMemoryIsTheSameMemory) {
  const auto memory = Allocate(2 * page());
  auto imported = runtime_.Import(Export(*memory), 2 * page());
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  EXPECT_EQ((*imported)->bytes(), 2 * page());
  const auto mine = Reserve(2 * page()), theirs = Reserve(2 * page());
  ASSERT_TRUE(mine->Map(0, *memory).ok());
  ASSERT_TRUE(theirs->Map(0, **imported).ok());
  EXPECT_NE(mine->base(), theirs->base());
  mine->base()[page()] = std::byte{42};
  EXPECT_EQ(theirs->base()[page()], std::byte{42});
  theirs->base()[0] = std::byte{7};
  EXPECT_EQ(mine->base()[0], std::byte{7});
}

TEST_F(HostRuntimeTest, MemoryLivesAsLongAsAMapping) {
  const auto range = Reserve(page());
  {
    const auto memory = Allocate(page());
    ASSERT_TRUE(range->Map(0, *memory).ok());
    range->base()[0] = std::byte{1};
  }
  EXPECT_EQ(range->base()[0], std::byte{1});
}

TEST_F(HostRuntimeTest, AnExportSurvivesItsOwner) {
  UniqueFd exported;
  {
    const auto memory = Allocate(page());
    const auto range = Reserve(page());
    ASSERT_TRUE(range->Map(0, *memory).ok());
    range->base()[3] = std::byte{9};
    exported = Export(*memory);
  }
  auto imported = runtime_.Import(std::move(exported), page());
  ASSERT_TRUE(imported.ok()) << imported.status().message();
  const auto range = Reserve(page());
  ASSERT_TRUE(range->Map(0, **imported).ok());
  EXPECT_EQ(range->base()[3], std::byte{9});
}

TEST_F(HostRuntimeTest, AnExportIsNotInherited) {
  const auto memory = Allocate(page());
  const UniqueFd exported = Export(*memory);
  EXPECT_EQ(::fcntl(exported.get(), F_GETFD) & FD_CLOEXEC, FD_CLOEXEC);
}

TEST_F(HostRuntimeTest, AHolderCannotTakeTheMemoryAway) {
  const auto memory = Allocate(2 * page());
  const UniqueFd exported = Export(*memory);
  EXPECT_NE(::ftruncate(exported.get(), static_cast<off_t>(page())), 0) << "it shrank";
  EXPECT_NE(::ftruncate(exported.get(), static_cast<off_t>(3 * page())), 0) << "it grew";
  EXPECT_NE(::fcntl(exported.get(), F_ADD_SEALS, F_SEAL_WRITE), 0) << "it became read-only";
}

TEST_F(HostRuntimeTest, MemoryOfAnotherSizeIsRefused) {
  const auto memory = Allocate(2 * page());
  for (const std::uint64_t agreed : {page(), 3 * page(), std::uint64_t{0}}) {
    const auto imported = runtime_.Import(Export(*memory), agreed);
    ASSERT_FALSE(imported.ok());
    EXPECT_EQ(imported.status().code(), ErrorCode::kMismatch);
    EXPECT_EQ(imported.status().message(),
              fmt::format("a peer sent heap memory of {} bytes where {} were agreed", 2 * page(),
                          agreed));
  }
}

TEST_F(HostRuntimeTest, MemoryThatMayShrinkUnderUsIsRefused) {
  UniqueFd unsealed(::memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(unsealed.get(), static_cast<off_t>(page())), 0);
  UniqueFd growing(::memfd_create("growing", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(::ftruncate(growing.get(), static_cast<off_t>(page())), 0);
  ASSERT_EQ(::fcntl(growing.get(), F_ADD_SEALS, F_SEAL_GROW), 0);
  UniqueFd device(::open("/dev/zero", O_RDWR | O_CLOEXEC));
  for (UniqueFd* descriptor : {&unsealed, &growing, &device}) {
    const std::uint64_t bytes = descriptor == &device ? 0 : page();
    const auto imported = runtime_.Import(std::move(*descriptor), bytes);
    ASSERT_FALSE(imported.ok());
    EXPECT_EQ(imported.status().code(), ErrorCode::kMismatch);
    EXPECT_EQ(imported.status().message(),
              "a peer sent a descriptor that is no sealed heap memory");
  }
}

TEST_F(HostRuntimeTest, NoDescriptorIsRefused) {
  const auto imported = runtime_.Import(UniqueFd(), page());
  EXPECT_EQ(imported.status().code(), ErrorCode::kSystem);
  EXPECT_EQ(imported.status().message(),
            "look at a peer's heap memory: Bad file descriptor (errno 9)");
}

TEST_F(HostRuntimeTest, ReservationsHaveTheirAlignment) {
  for (std::uint64_t alignment = page(); alignment <= std::uint64_t{1} << 31; alignment *= 8) {
    auto range = runtime_.Reserve(3 * page(), alignment);
    ASSERT_TRUE(range.ok()) << range.status().message();
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>((*range)->base()) % alignment, 0u) << alignment;
    EXPECT_EQ((*range)->bytes(), 3 * page());
  }
}

TEST_F(HostRuntimeTest, AReservationThatWrapsAroundIsRefused) {
  for (const std::uint64_t bytes : {UINT64_MAX - page() + 1, std::uint64_t{1} << 62}) {
    const auto range = runtime_.Reserve(bytes, page());
    ASSERT_FALSE(range.ok());
    EXPECT_EQ(range.status().code(), ErrorCode::kOutOfMemory);
  }
}

TEST_F(HostRuntimeTest, ReservationsDoNotOverlap) {
  const auto one = Reserve(16 * page()), two = Reserve(16 * page());
  const auto low = std::min(one->base(), two->base()), high = std::max(one->base(), two->base());
  EXPECT_GE(high - low, static_cast<std::ptrdiff_t>(16 * page()));
}

TEST_F(HostRuntimeTest, AReservationCanHoldSeveralMemories) {
  const auto range = Reserve(4 * page());
  const auto first = Allocate(page()), second = Allocate(2 * page());
  ASSERT_TRUE(range->Map(0, *first).ok());
  ASSERT_TRUE(range->Map(2 * page(), *second).ok());
  range->base()[0] = std::byte{1};
  range->base()[4 * page() - 1] = std::byte{2};
  const auto view = Reserve(2 * page());
  ASSERT_TRUE(view->Map(0, *second).ok());
  EXPECT_EQ(view->base()[2 * page() - 1], std::byte{2});
}

TEST_F(HostRuntimeTest, MappingBeyondAReservationIsRefused) {
  const auto range = Reserve(2 * page());
  const auto memory = Allocate(2 * page());
  for (const std::uint64_t offset : {page(), 2 * page(), 3 * page(), UINT64_MAX - page() + 1}) {
    const Status refused = range->Map(offset, *memory);
    EXPECT_EQ(refused.code(), ErrorCode::kInternal);
    EXPECT_EQ(refused.message(), fmt::format("{} bytes at offset {} leave a range of {}",
                                             2 * page(), offset, 2 * page()));
  }
}

TEST_F(HostRuntimeTest, MoreAddressesThanThereAreAreRefused) {
  for (const std::uint64_t bytes : {std::uint64_t{1} << 60, UINT64_MAX - page() + 1}) {
    const auto range = runtime_.Reserve(bytes, page());
    EXPECT_EQ(range.status().code(), ErrorCode::kOutOfMemory) << bytes;
  }
}

TEST_F(HostRuntimeTest, MoreMemoryThanThereCanBeIsRefused) {
  const auto memory = runtime_.Allocate(std::uint64_t{1} << 63, HeapType::kNormal);
  ASSERT_FALSE(memory.ok());
  EXPECT_EQ(memory.status().code(), ErrorCode::kOutOfMemory) << memory.status().message();
}

TEST_F(HostRuntimeTest, AProcessLimitIsAnErrorNotASignal) {
  EXPECT_EQ(RunForked(1,
                      [&](int) -> std::string {
                        const rlimit limit{1 << 20, 1 << 20};
                        if (::setrlimit(RLIMIT_FSIZE, &limit) != 0) return "setrlimit failed";
                        return runtime_.Allocate(2 << 20, HeapType::kNormal).status().message();
                      }),
            "process 0: 2 MiB of heap memory are over this process's limit of 1 MiB for a file "
            "(ulimit -f)\n");
}

TEST_F(HostRuntimeTest, IsWhatAutoAndHostStandFor) {
  for (const Backend backend : {Backend::kHost}) {
    Config config;
    config.backend = backend;
    const auto runtime = MakeDeviceRuntime(config);
    ASSERT_TRUE(runtime.ok());
    EXPECT_EQ((*runtime)->backend(), Backend::kHost);
  }
}

TEST_F(HostRuntimeTest, OtherBackendsAreRefusedByName) {
  Config config;
  config.backend = Backend::kHip;
  const auto hip = MakeDeviceRuntime(config);
  EXPECT_EQ(hip.status().code(), ErrorCode::kUnsupported);
  EXPECT_EQ(
      hip.status().message(),
      "MORI_SHMEM_BACKEND=hip is not available in this version: set MORI_SHMEM_BACKEND=host or "
      "leave it unset");
}

// Not with the fixture, which counts descriptors: a driver that is there opens some.
TEST(CudaRuntimeTest, WithoutADriverItIsRefusedWithTheReason) {
  Config config;
  config.backend = Backend::kCuda;
  const auto cuda = MakeDeviceRuntime(config);
  if (cuda.ok()) GTEST_SKIP() << "there is a CUDA device";
  EXPECT_EQ(cuda.status().code(), ErrorCode::kUnsupported);
  EXPECT_THAT(cuda.status().message(), ::testing::StartsWith("MORI_SHMEM_BACKEND=cuda is not "
                                                             "available: "));
}

}  // namespace
}  // namespace mori::shmem
