// What kernels tell the host before they end early, and what a lost PE leaves to the others.
#include <unistd.h>

#include <cstring>

#include "base/fault_point.hpp"
#include "cuda_host/cuda_pe.hpp"
#include "mori/shmem/device/context.hpp"

namespace mori::shmem {
namespace {

using device::FaultCall;
using device::FaultReason;
using device::FaultRecord;
using testing::CudaOptions;
using testing::Failures;
using testing::Pe;

/// Where kernels of this PE write.
device::Faults* FaultsOfPe() {
  device::Faults* faults = testing::StateOfPe()->faults;
  PE_CHECK(faults != nullptr);
  return faults;
}
FaultRecord* Record() { return &FaultsOfPe()->record; }

struct Told {
  FaultRecord record;
  ErrorCode code;
  const char* sentence;
};
/// In a record: the other of two PEs.
constexpr std::int32_t kOther = -2;
const Told kTold[] = {
    {{FaultReason::kPeOutOfRange, FaultCall::kPut, 7, 2},
     ErrorCode::kInvalidArgument,
     "its put named PE 7, and there are PEs 0 to 1"},
    {{FaultReason::kPeOutOfRange, FaultCall::kAtomic, -1, 2},
     ErrorCode::kInvalidArgument,
     "its atomic named PE -1"},
    {{FaultReason::kPeOutOfReach, FaultCall::kGet, 1, 0},
     ErrorCode::kUnsupported,
     "its get named PE 1, which load and store do not reach"},
    {{FaultReason::kTwoMeetings, FaultCall::kBarrierOnStream, 0, 0},
     ErrorCode::kInvalidArgument,
     "came to a barrier on a stream"},
    {{FaultReason::kTooManyElements, FaultCall::kPut, 1, 8},
     ErrorCode::kInvalidArgument,
     "its put named more elements of 8 bytes than there are addresses"},
    {{FaultReason::kNotGlobal, FaultCall::kPut, 1, 0},
     ErrorCode::kInvalidArgument,
     "its put named, for a PE of another node, memory that is the thread's"},
    {{FaultReason::kPeLost, FaultCall::kWait, kOther, 0}, ErrorCode::kPeerLost, " (host "},
    {{FaultReason::kPeLost, FaultCall::kWait, 99, 0}, ErrorCode::kPeerLost, "during its wait"},
    {{static_cast<FaultReason>(77), FaultCall::kQuiet, 0, 0},
     ErrorCode::kInternal,
     "in a quiet, for reason 77"},
    {{static_cast<FaultReason>(77), static_cast<FaultCall>(99), 0, 0},
     ErrorCode::kInternal,
     "in a call, for reason 77"},
};

/// By whatever call comes next, which is made all the same, and once.
TEST(CudaHostFaults, AKernelsFaultIsTheErrorOfTheNextCall) {
  EXPECT_EQ(
      Failures(RunProcesses(
          2,
          [](const Pe& pe) {
            pe.Init();
            std::uint64_t* words = testing::Words(4);
            FaultRecord* record = Record();
            for (Told told : kTold) {
              if (told.record.pe == kOther) told.record.pe = 1 - pe.rank;
              const auto check = [&](const char* call, int code) {
                if (code == static_cast<int>(told.code) &&
                    std::strstr(ShmemLastError(), told.sentence) != nullptr)
                  return;
                throw testing::PeFailure(fmt::format("{}: {}: {}", call, code, ShmemLastError()));
              };
              *record = told.record;
              check("put", ShmemP(words, std::uint64_t{3}, pe.rank));
              PE_CHECK_EQ(ShmemG(words, pe.rank), 3u);
              *record = told.record;
              std::uint64_t got = 0;
              check("get", ShmemGetMem(&got, words, sizeof got, pe.rank));
              PE_CHECK_EQ(got, 3u);
              *record = told.record;
              check("atomic", ShmemAtomicAdd(words, std::uint64_t{1}, pe.rank));
              PE_CHECK_EQ(ShmemG(words, pe.rank), 4u);
              *record = told.record;
              check("quiet", ShmemQuiet());
              *record = told.record;
              check("fence", ShmemFence());
              *record = told.record;
              check("stream", ShmemBarrierAllOnStream(nullptr));
              // The others get their barrier.
              if (pe.rank == 1) *record = told.record;
              const int code = ShmemBarrierAll();
              if (pe.rank == 1) {
                check("barrier", code);
              } else {
                PE_CHECK_EQ(code, 0);
              }
              PE_CHECK_EQ(ShmemBarrierAll(), 0);
            }
            *record = kTold[0].record;
            PE_CHECK_EQ(ShmemFinalize(), static_cast<int>(kTold[0].code));
          },
          CudaOptions())),
      "");
}

TEST(CudaHostFaults, OnesThatTheHostHasTakenAreCounted) {
  EXPECT_EQ(Failures(RunProcesses(
                1,
                [](const Pe& pe) {
                  pe.Init();
                  const device::Faults* faults = FaultsOfPe();
                  FaultRecord* record = Record();
                  for (std::uint32_t taken = 0; taken < 3; ++taken) {
                    PE_CHECK_EQ(ShmemQuiet(), 0);
                    PE_CHECK_EQ(faults->taken, taken);
                    *record = kTold[0].record;
                    PE_CHECK_EQ(ShmemQuiet(), static_cast<int>(kTold[0].code));
                  }
                  PE_CHECK(record->reason == FaultReason::kNone);
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                },
                CudaOptions())),
            "");
}

FaultRecord* record_to_write = nullptr;
std::uint64_t* word_to_set = nullptr;

TEST(CudaHostFaults, AWaitTellsAFaultThoughItsWordComesInTheSameMoment) {
  EXPECT_EQ(Failures(RunProcesses(
                1,
                [](const Pe& pe) {
                  pe.Init();
                  word_to_set = testing::Words(1);
                  PE_CHECK_EQ(ShmemP(word_to_set, std::uint64_t{0}, 0), 0);
                  record_to_write = Record();
                  fault_hook = [](const char* point) {
                    if (std::strcmp(point, "wait: before the look for an end") != 0) return;
                    *record_to_write = {FaultReason::kPeOutOfRange, FaultCall::kPut, 7, 1};
                    *word_to_set = 1;
                  };
                  const int code = ShmemWaitUntil(word_to_set, Cmp::kEq, std::uint64_t{1});
                  fault_hook = nullptr;
                  PE_CHECK_EQ(code, static_cast<int>(ErrorCode::kInvalidArgument));
                  PE_CHECK_EQ(ShmemWaitUntil(word_to_set, Cmp::kEq, std::uint64_t{1}), 0);
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                },
                CudaOptions())),
            "");
}

/// Survivors keep their context: they leave, and come again as fewer.
TEST(CudaHostFaults, SurvivorsOfALostPeStartASmallerWorld) {
  const auto outcomes = RunProcesses(
      3,
      [](const Pe& pe) {
        pe.Init();
        FaultRecord* record = Record();
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
        if (pe.rank == 2) ::_exit(0);
        while (ShmemBarrierAll() == 0) {
        }
        *record = {FaultReason::kPeLost, FaultCall::kBarrierOnStream, 2, 0};
        PE_CHECK(ShmemFinalize() != 0);
        Pe again = pe;
        again.size = 2;
        again.id = pe.FreshId(1);
        again.Init();
        std::uint64_t* words = testing::Words(1);
        PE_CHECK_EQ(ShmemP(words, std::uint64_t(pe.rank) + 1, 1 - pe.rank), 0);
        PE_CHECK_EQ(ShmemBarrierAll(), 0);
        PE_CHECK_EQ(ShmemG(words, pe.rank), std::uint64_t(2 - pe.rank));
        PE_CHECK_EQ(ShmemFinalize(), 0);
      },
      CudaOptions());
  EXPECT_EQ(Failures(outcomes), "");
}

// ---- memory that is dropped

TEST(CudaHostDrops, ABlockIsNotGivenOutAgainUnderAKernel) {
  EXPECT_EQ(Failures(RunProcesses(
                2,
                [](const Pe& pe) {
                  pe.Init();
                  void* block = ShmemMalloc(2 << 20);
                  void* owner = ShmemOwnBlock(block);
                  PE_CHECK(owner != nullptr);
                  void* stream = fake_cuda::MakeStream();
                  if (pe.rank == 1) fake_cuda::Block(stream);
                  fake_cuda::Post(stream);
                  ShmemDropBlock(owner);
                  PE_CHECK_EQ(ShmemBarrierAll(), 0);
                  void* other = ShmemMalloc(2 << 20);
                  PE_CHECK(other != nullptr && other != block);
                  // What is put on streams from now on is not waited for.
                  void* later = fake_cuda::MakeStream();
                  fake_cuda::Block(later);
                  fake_cuda::Post(later);
                  if (pe.rank == 1) fake_cuda::Release(stream);
                  PE_CHECK_EQ(ShmemBarrierAll(), 0);
                  PE_CHECK_EQ(ShmemMalloc(2 << 20), block);
                  fake_cuda::Release(later);
                  PE_CHECK_EQ(ShmemFinalize(), 0);
                },
                CudaOptions())),
            "");
}

}  // namespace
}  // namespace mori::shmem
