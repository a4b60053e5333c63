// What a user can get wrong: each row gets its code and a sentence that names what matters, and
// nothing is lost.
#include <gtest/gtest.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "support/run_pes.hpp"

namespace mori::shmem {
namespace {

using testing::Failures;
using testing::Outcome;
using testing::Pe;

using Environment = std::vector<std::pair<std::string, std::string>>;

void ExpectError(int code, ErrorCode expected, const std::vector<std::string>& parts) {
  PE_CHECK_EQ(code, static_cast<int>(expected));
  PE_CHECK_EQ(ShmemLastErrorCode(), static_cast<int>(expected));
  for (const auto& part : parts) {
    if (std::string(ShmemLastError()).find(part) == std::string::npos) {
      throw testing::PeFailure(fmt::format("no \"{}\" in: {}", part, ShmemLastError()));
    }
  }
}

// ---- environment: the same on all PEs

struct EnvironmentRow {
  const char* name;
  Environment environment;
  ErrorCode code;
  std::vector<std::string> parts;
};
void PrintTo(const EnvironmentRow& row, std::ostream* out) { *out << row.name; }

class WrongEnvironment : public ::testing::TestWithParam<EnvironmentRow> {};

TEST_P(WrongEnvironment, InitFailsOnEveryPeAndNamesTheVariable) {
  const EnvironmentRow& row = GetParam();
  // The id is made before the wrong value is set, as the id needs an environment too.
  const auto outcomes = testing::RunProcesses(2, [&](const Pe& pe) {
    for (const auto& [name, value] : row.environment) {
      value.empty() ? ::unsetenv(name.c_str()) : ::setenv(name.c_str(), value.c_str(), 1);
    }
    ExpectError(pe.TryInit(), row.code, row.parts);
    PE_CHECK(!ShmemInitialized());
  });
  EXPECT_EQ(Failures(outcomes), "");
}

INSTANTIATE_TEST_SUITE_P(
    Rows, WrongEnvironment,
    ::testing::Values(
        EnvironmentRow{"HeapSizeUnset",
                       {{"MORI_SHMEM_HEAP_SIZE", ""}, {"MORI_SHMEM_MODE", "static"}},
                       ErrorCode::kInvalidConfig,
                       {"MORI_SHMEM_HEAP_SIZE is not set", "export MORI_SHMEM_HEAP_SIZE=6G"}},
        EnvironmentRow{"HeapSizeMalformed",
                       {{"MORI_SHMEM_HEAP_SIZE", "lots"}},
                       ErrorCode::kInvalidConfig,
                       {"MORI_SHMEM_HEAP_SIZE", "lots"}},
        EnvironmentRow{"HeapSizeZero",
                       {{"MORI_SHMEM_HEAP_SIZE", "0"}},
                       ErrorCode::kInvalidConfig,
                       {"MORI_SHMEM_HEAP_SIZE"}},
        EnvironmentRow{"HeapSizeNegative",
                       {{"MORI_SHMEM_HEAP_SIZE", "-6G"}},
                       ErrorCode::kInvalidConfig,
                       {"MORI_SHMEM_HEAP_SIZE", "-6G"}},
        EnvironmentRow{"HeapSizeFractional",
                       {{"MORI_SHMEM_HEAP_SIZE", "1.5G"}},
                       ErrorCode::kInvalidConfig,
                       {"MORI_SHMEM_HEAP_SIZE", "1.5G"}},
        EnvironmentRow{"HeapSizeOverflowing",
                       {{"MORI_SHMEM_HEAP_SIZE", "99999999999G"}},
                       ErrorCode::kInvalidConfig,
                       {"MORI_SHMEM_HEAP_SIZE", "99999999999G"}},
        EnvironmentRow{"HeapSizeTiny",
                       {{"MORI_SHMEM_HEAP_SIZE", "1"}},
                       ErrorCode::kInvalidConfig,
                       {"MORI_SHMEM_HEAP_SIZE", "1 byte", "4 KiB"}},
        EnvironmentRow{"HeapLargerThanMemory",
                       {{"MORI_SHMEM_HEAP_SIZE", "1000000G"}},
                       ErrorCode::kInvalidConfig,
                       {"MORI_SHMEM_HEAP_SIZE", "of memory"}},
        EnvironmentRow{"ModeUnknown",
                       {{"MORI_SHMEM_MODE", "magic"}},
                       ErrorCode::kInvalidConfig,
                       {"MORI_SHMEM_MODE", "magic", "static"}},
        EnvironmentRow{"ChunkSizeMalformed",
                       {{"MORI_SHMEM_MODE", "vmm"}, {"MORI_SHMEM_VMM_CHUNK_SIZE", "a few"}},
                       ErrorCode::kInvalidConfig,
                       {"MORI_SHMEM_VMM_CHUNK_SIZE", "a few", "64M"}},
        EnvironmentRow{"ChunkSizeZero",
                       {{"MORI_SHMEM_MODE", "vmm"}, {"MORI_SHMEM_VMM_CHUNK_SIZE", "0"}},
                       ErrorCode::kInvalidConfig,
                       {"MORI_SHMEM_VMM_CHUNK_SIZE"}},
        EnvironmentRow{"ChunkSizeAbsurd",
                       {{"MORI_SHMEM_MODE", "vmm"}, {"MORI_SHMEM_VMM_CHUNK_SIZE", "4096T"}},
                       ErrorCode::kInvalidConfig,
                       {"MORI_SHMEM_VMM_CHUNK_SIZE is 4 PiB", "of memory there are"}},
        EnvironmentRow{"HeapTypeUnknown",
                       {{"MORI_SHMEM_HEAP_TYPE", "wet"}},
                       ErrorCode::kInvalidConfig,
                       {"MORI_SHMEM_HEAP_TYPE", "wet", "uncached"}},
        EnvironmentRow{"LogLevelUnknown",
                       {{"MORI_GLOBAL_LOG_LEVEL", "LOUD"}},
                       ErrorCode::kInvalidConfig,
                       {"MORI_GLOBAL_LOG_LEVEL", "LOUD", "WARN"}},
        EnvironmentRow{"BackendNotAvailable",
                       {{"MORI_SHMEM_BACKEND", "hip"}},
                       ErrorCode::kUnsupported,
                       {"MORI_SHMEM_BACKEND=hip"}},
        EnvironmentRow{"InterfaceThatDoesNotExist",
                       {{"MORI_SOCKET_IFNAME", "nosuch0"}},
                       ErrorCode::kInvalidConfig,
                       {"MORI_SOCKET_IFNAME=nosuch0", "there are:", "lo"}},
        EnvironmentRow{"P2pDisabledWithoutNetwork",
                       {{"MORI_DISABLE_P2P", "1"}, {"MORI_SHMEM_TRANSPORT", "p2p"}},
                       ErrorCode::kUnsupported,
                       {"MORI_SHMEM_TRANSPORT=p2p allows no network", "MORI_DISABLE_P2P"}}),
    [](const auto& row) { return row.param.name; });

// ---- PEs that disagree, or have it wrong alone

TEST(WrongInit, AFailureOfOnePeReachesAllOthers) {
  const auto outcomes = testing::RunProcesses(3, [](const Pe& pe) {
    ::setenv("MORI_SHMEM_MODE", "static", 1);
    if (pe.rank == 1) ::unsetenv("MORI_SHMEM_HEAP_SIZE");
    if (pe.rank == 1) {
      ExpectError(pe.TryInit(), ErrorCode::kInvalidConfig, {"MORI_SHMEM_HEAP_SIZE"});
    } else {
      ExpectError(pe.TryInit(), ErrorCode::kPeerLost,
                  {"rank 1", "failed during init", "MORI_SHMEM_HEAP_SIZE is not set"});
    }
  });
  EXPECT_EQ(Failures(outcomes), "");
}

TEST(WrongInit, WhatIsChosenByItselfIsLikeWhatIsAskedFor) {
  const auto outcomes = testing::RunProcesses(2, [](const Pe& pe) {
    if (pe.rank == 0) ::setenv("MORI_SHMEM_BACKEND", "host", 1);
    if (pe.rank == 1) ::setenv("MORI_SHMEM_BACKEND", "auto", 1);
    ::setenv("CUDA_VISIBLE_DEVICES", "", 1);
    pe.Init();
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
  EXPECT_EQ(Failures(outcomes), "");
}

struct SettingRow {
  std::string name;
  std::vector<std::pair<std::string, std::string>> both;  ///< set on both PEs
  std::string first, second;                              ///< values on PE 0 and PE 1
  std::string first_shown, second_shown;
};
void PrintTo(const SettingRow& row, std::ostream* out) { *out << row.name; }

class SettingThatDiffers : public ::testing::TestWithParam<SettingRow> {};

TEST_P(SettingThatDiffers, IsNamedOnEveryPeWithBothValues) {
  const SettingRow& row = GetParam();
  const auto outcomes = testing::RunProcesses(2, [&](const Pe& pe) {
    for (const auto& [name, value] : row.both) ::setenv(name.c_str(), value.c_str(), 1);
    ::setenv(row.name.c_str(), (pe.rank == 0 ? row.first : row.second).c_str(), 1);
    ExpectError(pe.TryInit(), ErrorCode::kMismatch,
                {row.name + " must be the same on all PEs: PE 0 has " + row.first_shown +
                 ", PE 1 has " + row.second_shown});
  });
  EXPECT_EQ(Failures(outcomes), "");
}

INSTANTIATE_TEST_SUITE_P(
    Rows, SettingThatDiffers,
    ::testing::Values(
        SettingRow{"MORI_SHMEM_MODE", {}, "static", "isolation", "static", "isolation"},
        SettingRow{"MORI_SHMEM_HEAP_SIZE", {}, "8M", "16M", "8 MiB", "16 MiB"},
        SettingRow{"MORI_SHMEM_VMM_CHUNK_SIZE",
                   {{"MORI_SHMEM_MODE", "vmm"}},
                   "64K",
                   "128K",
                   "64 KiB",
                   "128 KiB"},
        SettingRow{"MORI_SHMEM_HEAP_TYPE", {}, "normal", "uncached", "normal", "uncached"},
        SettingRow{"MORI_NUM_QP_PER_PE", {}, "1", "4", "1", "4"},
        SettingRow{"MORI_ENABLE_RAIL_ONLY", {}, "0", "1", "0", "1"},
        SettingRow{"MORI_DISABLE_P2P", {}, "0", "1", "0", "1"}),
    [](const auto& row) { return row.param.name; });

/// Rounded to two decimals, both are 1 GiB.
TEST(WrongInit, SizesThatDifferALittleAreNamedOnEveryPe) {
  const auto outcomes = testing::RunProcesses(2, [](const Pe& pe) {
    ::setenv("MORI_SHMEM_HEAP_SIZE", pe.rank == 0 ? "1024M" : "1026M", 1);
    ExpectError(
        pe.TryInit(), ErrorCode::kMismatch,
        {"MORI_SHMEM_HEAP_SIZE must be the same on all PEs: PE 0 has 1 GiB, PE 1 has 1026 MiB"});
  });
  EXPECT_EQ(Failures(outcomes), "");
}

TEST(WrongInit, SettingsThatDifferAreNamedOnEveryPe) {
  const auto outcomes = testing::RunProcesses(3, [](const Pe& pe) {
    if (pe.rank == 2) ::setenv("MORI_SHMEM_HEAP_SIZE", "16M", 1);
    const int code = pe.TryInit();
    PE_CHECK(code != 0);
    for (const char* part : {"MORI_SHMEM_HEAP_SIZE must be the same on all PEs", "PE 0 has 8 MiB",
                             "PE 2 has 16 MiB"}) {
      PE_CHECK(std::strstr(ShmemLastError(), part) != nullptr);
    }
  });
  EXPECT_EQ(Failures(outcomes), "");
}

TEST(WrongInit, RankUsedTwiceIsNamed) {
  const auto outcomes = testing::RunProcesses(2, [](const Pe& pe) {
    const int code = ShmemInitAttr(MORI_SHMEM_INIT_WITH_UNIQUEID, 0, pe.size, pe.id);
    ExpectError(code, ErrorCode::kMismatch, {"rank 0 was used twice", "process"});
  });
  EXPECT_EQ(Failures(outcomes), "");
}

TEST(WrongInit, SizesThatDifferAreNamed) {
  const auto outcomes = testing::RunProcesses(2, [](const Pe& pe) {
    const int code = ShmemInitAttr(MORI_SHMEM_INIT_WITH_UNIQUEID, pe.rank, 2 + pe.rank, pe.id);
    ExpectError(code, ErrorCode::kMismatch, {"says that there are", "ranks, rank"});
  });
  EXPECT_EQ(Failures(outcomes), "");
}

TEST(WrongInit, PesOfDifferentNodesNeedANetwork) {
  const auto outcomes = testing::RunProcesses(2, [](const Pe& pe) {
    ::setenv("MORI_NODE_ID", pe.rank == 0 ? "left" : "right", 1);
    ::setenv("MORI_SHMEM_TRANSPORT", "p2p", 1);
    PE_CHECK_EQ(pe.TryInit(), static_cast<int>(ErrorCode::kUnsupported));
    PE_CHECK(std::strstr(ShmemLastError(), "MORI_SHMEM_TRANSPORT") != nullptr);
  });
  EXPECT_EQ(Failures(outcomes), "");
}

TEST(WrongInit, RankOutOfRange) {
  const auto outcomes = testing::RunProcesses(1, [](const Pe& pe) {
    for (const auto& [rank, size] : {std::pair{-1, 2}, {2, 2}}) {
      ExpectError(ShmemInitAttr(MORI_SHMEM_INIT_WITH_UNIQUEID, rank, size, pe.id),
                  ErrorCode::kInvalidArgument,
                  {"rank " + std::to_string(rank) + " is out of range", "has ranks 0 to 1"});
    }
    for (const int size : {0, -3}) {
      ExpectError(ShmemInitAttr(MORI_SHMEM_INIT_WITH_UNIQUEID, 0, size, pe.id),
                  ErrorCode::kInvalidArgument,
                  {"the world size is " + std::to_string(size) + "; it must be 1 or more"});
    }
    pe.Init();  // the id is still good
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
  EXPECT_EQ(Failures(outcomes), "");
}

TEST(WrongInit, FlagThatGoesWithMpi) {
  const auto outcomes = testing::RunProcesses(1, [](const Pe& pe) {
    ExpectError(ShmemInitAttr(MORI_SHMEM_INIT_WITH_MPI_COMM, 0, 1, pe.id),
                ErrorCode::kInvalidArgument, {"MORI_SHMEM_INIT_WITH_UNIQUEID", "mpi.hpp"});
    ExpectError(ShmemInitAttr(static_cast<InitFlag>(7), 0, 1, pe.id), ErrorCode::kInvalidArgument,
                {"flag 7"});
    PE_CHECK_EQ(ShmemGetUniqueId(nullptr), static_cast<int>(ErrorCode::kInvalidArgument));
  });
  EXPECT_EQ(Failures(outcomes), "");
}

TEST(WrongInit, UniqueIdDamagedOfAnotherVersionOrNoneAtAll) {
  const auto outcomes = testing::RunProcesses(1, [](const Pe& pe) {
    const auto init = [](const UniqueId& id) {
      return ShmemInitAttr(MORI_SHMEM_INIT_WITH_UNIQUEID, 0, 1, id);
    };
    UniqueId id = pe.id;
    id.bytes[40] ^= 1;
    ExpectError(init(id), ErrorCode::kInvalidArgument, {"damaged"});
    id = pe.id;
    id.bytes[4] = 9;
    ExpectError(init(id), ErrorCode::kInvalidArgument, {"format version 9"});
    ExpectError(init(UniqueId{}), ErrorCode::kInvalidArgument, {"no unique id"});
  });
  EXPECT_EQ(Failures(outcomes), "");
}

TEST(WrongInit, UniqueIdUsedAlready) {
  const auto outcomes = testing::RunProcesses(2, [](const Pe& pe) {
    pe.Init();
    PE_CHECK_EQ(ShmemFinalize(), 0);
    ExpectError(pe.TryInit(), ErrorCode::kInvalidArgument, {"used this unique id already"});
  });
  EXPECT_EQ(Failures(outcomes), "");
}

TEST(WrongInit, UniqueIdWhoseMakerIsGone) {
  UniqueId id{};
  const int file = ::memfd_create("id", 0);
  const Outcome maker = testing::RunAlone([&] {
    UniqueId made;
    PE_CHECK_EQ(ShmemGetUniqueId(&made), 0);
    PE_CHECK_EQ(::pwrite(file, made.bytes, sizeof made, 0), static_cast<ssize_t>(sizeof made));
  });
  ASSERT_TRUE(maker.ok()) << maker.output;
  ASSERT_EQ(::pread(file, id.bytes, sizeof id, 0), static_cast<ssize_t>(sizeof id));
  ::close(file);
  const Outcome user = testing::RunAlone([&] {
    ExpectError(ShmemInitAttr(MORI_SHMEM_INIT_WITH_UNIQUEID, 0, 1, id), ErrorCode::kPeerLost,
                {"nobody answers for this unique id at 127.0.0.1",
                 "has ended, or the id was used already"});
  });
  EXPECT_TRUE(user.ok()) << user.output;
}

TEST(WrongInit, ARankThatNeverComesIsNamedWithinTheBudget) {
  testing::Options options;
  options.environment = {{"MORI_BOOTSTRAP_TIMEOUT", "1"}};
  const auto outcomes = testing::RunProcesses(
      2,
      [](const Pe& pe) {
        const int code = ShmemInitAttr(MORI_SHMEM_INIT_WITH_UNIQUEID, 2 * pe.rank, 4, pe.id);
        ExpectError(code, ErrorCode::kTimeout,
                    {"2 of 4 ranks did not come within 1 s (MORI_BOOTSTRAP_TIMEOUT)",
                     "missing ranks 1, 3"});
      },
      options);
  EXPECT_EQ(Failures(outcomes), "");
}

// ---- calls on a world of two PEs

struct CallRow {
  const char* name;
  int (*call)(const Pe& pe,
              std::byte* block);  ///< `block`: 4096 bytes that every PE has; returns the code
  ErrorCode code;
  std::vector<std::string> parts;
};
void PrintTo(const CallRow& row, std::ostream* out) { *out << row.name; }

class WrongCall : public ::testing::TestWithParam<CallRow> {};

TEST_P(WrongCall, IsRefusedAndTheHeapIsAsItWas) {
  const CallRow& row = GetParam();
  const auto outcomes = testing::RunProcesses(2, [&](const Pe& pe) {
    pe.Init();
    auto* block = static_cast<std::byte*>(ShmemMalloc(4096));
    std::memset(block, 7, 4096);
    HeapStats before{}, after{};
    PE_CHECK_EQ(ShmemHeapStats(&before), 0);
    ExpectError(row.call(pe, block), row.code, row.parts);
    PE_CHECK_EQ(ShmemHeapStats(&after), 0);
    PE_CHECK_EQ(std::memcmp(&before, &after, sizeof before), 0);
    for (int i = 0; i < 4096; ++i) PE_CHECK_EQ(static_cast<int>(block[i]), 7);
    PE_CHECK_EQ(ShmemFree(nullptr), 0);
    PE_CHECK_EQ(ShmemFree(block), 0);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
  EXPECT_EQ(Failures(outcomes), "");
}

int CodeOf(const void* block) { return block == nullptr ? ShmemLastErrorCode() : 0; }
int local_word = 0;

INSTANTIATE_TEST_SUITE_P(Rows, WrongCall,
                         ::testing::
                             Values(CallRow{"AllocationOfZero",
                                            [](const Pe&, std::byte*) {
                                              return CodeOf(ShmemMalloc(0));
                                            },
                                            ErrorCode::kInvalidArgument,
                                            {"shmem_malloc", "0 bytes"}},
                                    CallRow{"AllocationOfMoreThanIsFree",
                                            [](const Pe&, std::byte*) {
                                              return CodeOf(ShmemMalloc(16 << 20));
                                            },
                                            ErrorCode::kOutOfMemory,
                                            {"16 MiB", "heap of 8 MiB", "largest free block",
                                             "MORI_SHMEM_HEAP_SIZE"}},
                                    CallRow{"AllocationThatOverflows",
                                            [](const Pe&, std::byte*) {
                                              return CodeOf(ShmemMalloc(SIZE_MAX));
                                            },
                                            ErrorCode::kOutOfMemory,
                                            {"MORI_SHMEM_HEAP_SIZE"}},
                                    CallRow{"AlignmentNoPowerOfTwo",
                                            [](const Pe&, std::byte*) {
                                              return CodeOf(ShmemMallocAlign(48, 64));
                                            },
                                            ErrorCode::kInvalidArgument,
                                            {"alignment 48 is no power of two"}},
                                    CallRow{"AlignmentZero",
                                            [](const Pe&, std::byte*) {
                                              return CodeOf(ShmemMallocAlign(0, 64));
                                            },
                                            ErrorCode::kInvalidArgument,
                                            {"alignment 0"}},
                                    CallRow{"SizesThatDiffer",
                                            [](const Pe& pe, std::byte*) {
                                              return CodeOf(ShmemMalloc(
                                                  static_cast<std::size_t>(64 + pe.rank)));
                                            },
                                            ErrorCode::kMismatch,
                                            {"PE 0", "64 bytes", "PE 1", "65 bytes"}},
                                    CallRow{"FreeOfUnknown",
                                            [](const Pe&, std::byte*) {
                                              return ShmemFree(&local_word);
                                            },
                                            ErrorCode::kInvalidArgument,
                                            {"shmem_free", "no address of this heap"}},
                                    CallRow{"FreeOfInterior",
                                            [](const Pe&, std::byte* block) {
                                              return ShmemFree(block + 64);
                                            },
                                            ErrorCode::kInvalidArgument,
                                            {"64 bytes inside the block of 4096 bytes"}},
                                    CallRow{"FreeTwice",
                                            [](const Pe&, std::byte*) {
                                              void* other = ShmemMalloc(64);
                                              ShmemFree(other);
                                              return ShmemFree(other);
                                            },
                                            ErrorCode::kInvalidArgument,
                                            {"freed already"}},
                                    CallRow{"PutToPeTooHigh",
                                            [](const Pe&, std::byte* block) {
                                              return ShmemPutMem(block, &local_word, 4, 2);
                                            },
                                            ErrorCode::kInvalidArgument,
                                            {"put", "PE 2 is out of range", "0 to 1"}},
                                    CallRow{"GetFromPeNegative",
                                            [](const Pe&, std::byte* block) {
                                              return ShmemGetMem(&local_word, block, 4, -1);
                                            },
                                            ErrorCode::kInvalidArgument,
                                            {"get", "PE -1 is out of range"}},
                                    CallRow{"PutToLocalMemory",
                                            [](const Pe&, std::byte*) {
                                              return ShmemPutMem(&local_word, &local_word, 4, 0);
                                            },
                                            ErrorCode::kInvalidArgument,
                                            {"no symmetric address"}},
                                    CallRow{"PutBeyondTheHeap",
                                            [](const Pe&, std::byte* block) {
                                              return ShmemPutMem(block, block, std::size_t{9} << 20,
                                                                 1);
                                            },
                                            ErrorCode::kInvalidArgument,
                                            {"leave the heap"}},
                                    CallRow{"PutOfMoreBytesThanANumberSays",
                                            [](const Pe&, std::byte* block) {
                                              auto* words = reinterpret_cast<std::uint64_t*>(block);
                                              return ShmemPut(words, words, std::size_t{1} << 61,
                                                              1);
                                            },
                                            ErrorCode::kInvalidArgument,
                                            {"leave the heap"}},
                                    CallRow{"GetOfMoreBytesThanANumberSays",
                                            [](const Pe&, std::byte* block) {
                                              auto* words = reinterpret_cast<std::uint64_t*>(block);
                                              return ShmemGet(words, words,
                                                              (std::size_t{1} << 61) + 1, 1);
                                            },
                                            ErrorCode::kInvalidArgument,
                                            {"leave the heap"}},
                                    CallRow{"PutWithSignalBeyondTheHeap",
                                            [](const Pe&, std::byte* block) {
                                              return ShmemPutMemSignal(
                                                  block, block, std::size_t{9} << 20,
                                                  reinterpret_cast<std::uint64_t*>(block), 1,
                                                  SignalOp::kSet, 1);
                                            },
                                            ErrorCode::kInvalidArgument,
                                            {"shmem_putmem_signal", "leave the heap"}},
                                    CallRow{"AtomicOnAMisalignedWord",
                                            [](const Pe&, std::byte* block) {
                                              return ShmemAtomicAdd(
                                                  reinterpret_cast<std::uint64_t*>(block + 4),
                                                  std::uint64_t{1}, 0);
                                            },
                                            ErrorCode::kInvalidArgument,
                                            {"shmem_atomic_add", "not aligned"}},
                                    CallRow{"FetchFromPeOutOfRange",
                                            [](const Pe&, std::byte* block) {
                                              return ShmemAtomicFetch(
                                                         reinterpret_cast<std::uint64_t*>(block),
                                                         99) == 0
                                                         ? ShmemLastErrorCode()
                                                         : 0;
                                            },
                                            ErrorCode::kInvalidArgument,
                                            {"PE 99 is out of range"}},
                                    CallRow{"QuietOfPeOutOfRange",
                                            [](const Pe&, std::byte*) { return ShmemQuiet(2); },
                                            ErrorCode::kInvalidArgument,
                                            {"shmem_quiet", "PE 2 is out of range"}},
                                    CallRow{"PointerForPeOutOfRange",
                                            [](const Pe& pe, std::byte* block) {
                                              return ShmemPtrP2p(
                                                         reinterpret_cast<std::uintptr_t>(block),
                                                         pe.rank, 2) == 0
                                                         ? ShmemLastErrorCode()
                                                         : 0;
                                            },
                                            ErrorCode::kInvalidArgument,
                                            {"shmem_ptr_p2p", "PE 2 is out of range"}},
                                    CallRow{"PointerForAnotherMyPe",
                                            [](const Pe& pe, std::byte* block) {
                                              return ShmemPtrP2p(
                                                         reinterpret_cast<std::uintptr_t>(block),
                                                         1 - pe.rank, 0) == 0
                                                         ? ShmemLastErrorCode()
                                                         : 0;
                                            },
                                            ErrorCode::kInvalidArgument,
                                            {"my_pe is"}},
                                    CallRow{"WaitWithAnUnknownComparison",
                                            [](const Pe&, std::byte* block) {
                                              return ShmemWaitUntil(
                                                  reinterpret_cast<std::int32_t*>(block),
                                                  static_cast<Cmp>(6), 0);
                                            },
                                            ErrorCode::kInvalidArgument,
                                            {"wait_until: comparison 6 is unknown"}},
                                    CallRow{"TestWithAnUnknownComparison",
                                            [](const Pe&, std::byte* block) {
                                              return ShmemTest(
                                                         reinterpret_cast<std::int32_t*>(block),
                                                         static_cast<Cmp>(-1), 0)
                                                         ? 0
                                                         : ShmemLastErrorCode();
                                            },
                                            ErrorCode::kInvalidArgument,
                                            {"test: comparison -1 is unknown"}},
                                    CallRow{"WaitForAWordThatIsNotAligned",
                                            [](const Pe&, std::byte* block) {
                                              return ShmemWaitUntil(
                                                  reinterpret_cast<std::int32_t*>(block + 2),
                                                  Cmp::kEq, 0);
                                            },
                                            ErrorCode::kInvalidArgument,
                                            {"wait_until", "not aligned"}},
                                    CallRow{"UnknownSignalOperation",
                                            [](const Pe&, std::byte* block) {
                                              return ShmemPutMemSignal(
                                                  block, block + 64, 8,
                                                  reinterpret_cast<std::uint64_t*>(block), 1,
                                                  static_cast<SignalOp>(2), 0);
                                            },
                                            ErrorCode::kInvalidArgument,
                                            {"shmem_putmem_signal", "operation 2 is unknown"}},
                                    CallRow{"ModuleInitOnTheHost",
                                            [](const Pe&,
                                               std::byte* block) { return ShmemModuleInit(block); },
                                            ErrorCode::kUnsupported,
                                            {"shmem_module_init"}}),
                         [](const auto& row) { return row.param.name; });

INSTANTIATE_TEST_SUITE_P(UntilQuiet, WrongCall,
                         ::testing::Values(CallRow{"PutNbiToPeTooHigh",
                                                   [](const Pe&, std::byte* block) {
                                                     return ShmemPutMemNbi(block, block, 4, 2);
                                                   },
                                                   ErrorCode::kInvalidArgument,
                                                   {"putmem_nbi", "PE 2 is out of range"}},
                                           CallRow{"GetNbiFromPeNegative",
                                                   [](const Pe&, std::byte* block) {
                                                     return ShmemGetMemNbi(block, block, 4, -1);
                                                   },
                                                   ErrorCode::kInvalidArgument,
                                                   {"getmem_nbi", "PE -1 is out of range"}}),
                         [](const auto& row) { return row.param.name; });

// ---- calls without a world

void EveryCallSaysNotInitialized() {
  alignas(8) static std::uint64_t word = 0;
  HeapStats stats;
  const auto expect = [](int code) {
    ExpectError(code, ErrorCode::kNotInitialized, {"before init, or after finalize"});
  };
  const auto expect_value = [&](bool is_error_value) {
    PE_CHECK(is_error_value);
    expect(ShmemLastErrorCode());
  };
  PE_CHECK(!ShmemInitialized());
  expect_value(ShmemMyPe() == -1);
  expect_value(ShmemNPes() == -1);
  expect_value(ShmemNumQpPerPe() == -1);
  expect_value(ShmemMalloc(64) == nullptr);
  expect_value(ShmemMallocAlign(64, 64) == nullptr);
  expect_value(ShmemExtMallocWithFlags(64, 0) == nullptr);
  expect(ShmemFree(&word));
  expect(ShmemFree(nullptr));
  expect(ShmemHeapStats(&stats));
  expect(ShmemBufferRegister(&word, 8));
  expect(ShmemBufferDeregister(&word, 8));
  expect_value(ShmemRetainMemory(&word) == nullptr);
  expect_value(ShmemPtrP2p(reinterpret_cast<std::uintptr_t>(&word), 0, 0) == 0);
  expect(ShmemBarrierAll());
  expect(ShmemModuleInit(&word));
  expect(ShmemFinalize());
  expect(ShmemPutMem(&word, &word, 8, 0));
  expect(ShmemGetMem(&word, &word, 8, 0));
  expect(ShmemP(&word, std::uint64_t{1}, 0));
  expect_value(ShmemG(&word, 0) == 0);
  expect_value(ShmemAtomicFetchAdd(&word, std::uint64_t{1}, 0) == 0);
  expect(ShmemAtomicSet(&word, std::uint64_t{1}, 0));
  // Each is true of the 0 that a failed look would give.
  expect(ShmemWaitUntil(&word, Cmp::kNe, std::uint64_t{1}));
  expect(ShmemWaitUntil(&word, Cmp::kEq, std::uint64_t{0}));
  std::uint64_t seen = 5;
  expect(ShmemSignalWaitUntil(&word, Cmp::kEq, 0, &seen));
  PE_CHECK_EQ(seen, std::uint64_t{5});
  expect_value(!ShmemTest(&word, Cmp::kEq, std::uint64_t{0}));
  expect_value(ShmemSignalFetch(&word) == 0);
  expect(ShmemFence());
  expect(ShmemQuiet());
  expect(ShmemQuiet(0));
  PE_CHECK(ShmemInfo().find("not initialized") != std::string::npos);
}

TEST(WithoutAWorld, EveryCallBeforeInitSaysSo) {
  const Outcome outcome = testing::RunAlone(EveryCallSaysNotInitialized);
  EXPECT_TRUE(outcome.ok()) << outcome.output;
}

TEST(WithoutAWorld, EveryCallAfterFinalizeSaysSo) {
  const auto outcomes = testing::RunProcesses(2, [](const Pe& pe) {
    pe.Init();
    PE_CHECK_EQ(ShmemFinalize(), 0);
    EveryCallSaysNotInitialized();
  });
  EXPECT_EQ(Failures(outcomes), "");
}

TEST(WithoutAWorld, AThreadThatIsNoPeAmongThreadsThatAre) {
  const auto outcomes = testing::RunThreads(2, [](const Pe& pe) {
    pe.Init();
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    std::string failure;
    std::thread([&] {
      try {
        ExpectError(ShmemBarrierAll(), ErrorCode::kNotInitialized, {"no PE"});
      } catch (const std::exception& thrown) {
        failure = thrown.what();
      }
    }).join();
    PE_CHECK_EQ(failure, "");
    PE_CHECK_EQ(ShmemBarrierAll(), 0);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
  EXPECT_EQ(Failures(outcomes), "");
}

TEST(Log, AFailureIsLoggedOnce) {
  const auto outcomes = testing::RunProcesses(1, [](const Pe& pe) {
    pe.Init();
    ShmemMalloc(0);
    PE_CHECK_EQ(ShmemFinalize(), 0);
  });
  const std::string& output = outcomes[0].output;
  const auto first = output.find("0 bytes");
  ASSERT_NE(first, std::string::npos) << output;
  EXPECT_EQ(output.find("0 bytes", first + 1), std::string::npos) << output;
  EXPECT_NE(output.find("PE 0/1 error: shmem_malloc"), std::string::npos) << output;
}

}  // namespace
}  // namespace mori::shmem
