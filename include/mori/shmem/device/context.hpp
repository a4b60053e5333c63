// What the host publishes to kernels: plain data behind one symbol.
#pragma once

#include "mori/shmem/device/platform.hpp"

namespace mori::shmem::device {

inline constexpr u64 kContextMagic =
    0x4d4f524944455643;  // "MORIDEVC": says that a state was published
/// Of this layout. A change that only takes from what is reserved, or adds at the end, keeps it.
inline constexpr u32 kContextAbi = 2;

/// PEs that are found without a load from memory; the others are in tables.
inline constexpr u32 kInlinePes = 64;
/// PEs that kernels can synchronise.
inline constexpr u64 kMaxKernelPes = 4096;

/// Where load and store reach a PE; 0 where they do not.
struct PeAddresses {
  u64 heap;  ///< its heap: symmetric addresses are there + offset
  u64 sync;  ///< its `SyncWords`
};

/// Why a thread of a kernel ended before its time.
enum class FaultReason : u32 {
  kNone = 0,             ///< no fault
  kPeOutOfRange = 1,     ///< `pe` is not 0 to `value` - 1, the PEs there are
  kPeOutOfReach = 2,     ///< load and store do not reach `pe`
  kPeLost = 3,           ///< `pe`, the one that was lost first, while the call waited
  kTwoMeetings = 4,      ///< this PE, `pe`, was in a barrier or collective of that kind already
  kTooManyElements = 5,  ///< of `value` bytes: there are not so many addresses
  kRemoteFailed = 6,     ///< a command on the ring failed, and whoever serves it knows why
  kNotGlobal = 7,        ///< the ring was to bring or take what is the thread's or block's own
};
/// What the thread had called.
enum class FaultCall : u32 {
  kPtr = 0,  ///< or whatever else only asks for an address
  kPut = 1,
  kGet = 2,
  kAtomic = 3,
  kSignal = 4,
  kWait = 5,
  kQuiet = 6,
  kBarrier = 7,             ///< or sync
  kCollective = 8,          ///< in a program's kernel
  kBarrierOnStream = 9,     ///< in a kernel of the library
  kCollectiveOnStream = 10  ///< the same
};

/// What kernels tell the host of the first fault: one for each PE, in memory of the host that its
/// device has mapped (`DeviceContext::faults`), zeroed by the host at init.
///
/// A thread that cannot go on writes it, by one store of 16 bytes, if `reason` is still `kNone`; a
/// fence of the system follows, and the thread ends (AMD: its wave). Its kernel goes on without it
/// and ends, and the device's context lives. Of several threads that fail at the same time one is
/// told of. No atomic is used: not every link has them.
///
/// The host loads `reason` with acquire order at its next call, makes an error of it, counts that,
/// and zeroes the record for the next one. Where there is no record, a kernel ends as by a failed
/// assertion.
struct alignas(16) FaultRecord {
  FaultReason reason;
  FaultCall call;
  i32 pe;
  u32 value;
};
static_assert(sizeof(FaultRecord) == 16, "written by one store");
/// What the device has mapped of them.
struct Faults {
  FaultRecord record;
  u32 taken;  ///< how many the host has taken: waits that were under way at one are in vain
};

/// What a state begins with. A module says by its own which one it was compiled for, before any was
/// published.
struct AbiHeader {
  u64 magic;  ///< `kContextMagic`, or nothing was published
  u32 abi;
  u32 bytes;  ///< of the state; once published, of that part which library and module both know
};

struct Ring;

/// What kernels need more rarely, in memory of the device. It may grow at its end, as `bytes` says.
struct DeviceTables {
  AbiHeader header;
  Ring* rings;  ///< to threads of the host that do what load and store cannot; null: none
  u32 n_rings;
  u32 reserved0;
};

/// Some PE is not reached by load and store, but by a ring.
inline constexpr u32 kHasRemotePes = 1;

/// A PE as its kernels see it. Pointers are addresses of the device.
///
/// In constant memory: fences empty the L1 cache, and a load from farther away in front of each
/// operation would cost as much as the operation.
struct DeviceContext {
  AbiHeader header;
  u32 my_pe;
  u32 n_pes;
  u32 flags;
  u32 n_inline;            ///< of `inline_pes`, those that there are
  u64 heap_base;           ///< symmetric addresses are heap_base + offset
  u64 heap_bytes;          ///< of its addresses, whether memory is there or not
  const PeAddresses* pes;  ///< by PE
  const DeviceTables* tables;
  const u32* first_lost;  ///< 0, or 1 + the PE that was lost first; null if nobody watches
  Faults* faults;         ///< null: a fault ends the kernel as a failed assertion does
  u64 reserved[6];
  PeAddresses inline_pes[kInlinePes];  ///< the first of `pes`
};
static_assert(sizeof(DeviceContext) == 128 + 16 * kInlinePes,
              "kernels compiled earlier read this layout");
static_assert(56 * sizeof(DeviceContext) <= 64 << 10,
              "a program of so many units with relocatable device code links (docs/device.md)");

/// What a module has before a state is published, and after it was taken away.
inline constexpr DeviceContext kStateOfNobody = {{0, kContextAbi, sizeof(DeviceContext)},
                                                 0,
                                                 0,
                                                 0,
                                                 0,
                                                 0,
                                                 0,
                                                 nullptr,
                                                 nullptr,
                                                 nullptr,
                                                 nullptr,
                                                 {},
                                                 {}};

/// What kernels of the library between few PEs have room for.
inline constexpr u32 kFewPes = 8;
inline constexpr u32 kMeetingBlocks = 128;  ///< blocks of a kernel that meet those of other PEs
inline constexpr u64 kInboxWords = 4096;    ///< of a small message: 4 bytes of data each
/// Inboxes are emptied after so many exchanges of small messages.
inline constexpr u64 kExchangesOfInbox = u64{1} << 20;

/// Of each PE, zeroed before its first use.
struct SyncWords {
  // Of barriers and collectives in a program's kernels, one at a time:
  u64 epochs[kMaxKernelPes];  ///< [pe]: the last barrier that `pe` has come to
  u32 is_meeting;             ///< how many threads of this PE are in one and have not met all yet
  u32 has_met_twice;          ///< 1 for good once a meeting was begun beside another one
  // Of the library's kernels on streams, of which one runs at a time:
  u32 blocks_meeting[kMeetingBlocks];         ///< 1 while a block of that number is in one
  u64 stream_epochs[kMaxKernelPes];           ///< as `epochs`
  u64 blocks_done;                            ///< of the one that runs now
  u64 meetings_sent[kFewPes];                 ///< the last meeting of which `pe` has been told
  u64 meetings[kFewPes];                      ///< the last one to which `pe` has come
  u64 exchanges;                              ///< of small messages, that this PE has completed
  u64 block_epochs[kMeetingBlocks][kFewPes];  ///< as `epochs`, of each block
  u64 inboxes[2][kFewPes][kInboxWords];       ///< [exchange % 2][from]
};

/// What the library's kernels between few PEs need, as their argument: what they read of constant
/// memory first would cost as much as all else they do.
struct FewPes {
  u32 my_pe;
  u32 n_pes;  ///< 0: there are more
  SyncWords* sync[kFewPes];
};

}  // namespace mori::shmem::device

namespace mori::shmem::detail {

/// The state of kernels that nvcc linked into a program or a shared library: one in each
/// translation unit. `publish` copies the first `bytes` of a context to the current device, on a
/// stream of it, and gives a `cudaError_t`; it fails until the CUDA runtime knows the unit's
/// kernels.
struct LinkedState {
  device::AbiHeader compiled_for;
  int (*publish)(const device::DeviceContext* context, device::u64 bytes, void* stream);
};

}  // namespace mori::shmem::detail

/// The state of the PE whose kernels these are; `ShmemModuleInit()` fills it. One in each module.
#if defined(__clang__) && (defined(__CUDA__) || defined(__HIP__))
// Weak: in each translation unit, and never taken for a constant that nobody writes. Protected: the
// loader finds it, as it does all variables of HIP, and code reaches it without a load of its
// address.
extern "C" {
__attribute__((constant, weak, visibility("protected")))
mori::shmem::device::DeviceContext globalGpuStates = mori::shmem::device::kStateOfNobody;
}
#elif defined(__CUDACC__)
extern "C" {
static __constant__ mori::shmem::device::DeviceContext globalGpuStates =
    mori::shmem::device::kStateOfNobody;
}
#else
// Never published: no kernel runs here. Of each thread, so that threads of a test can be PEs.
inline thread_local mori::shmem::device::DeviceContext globalGpuStates =
    mori::shmem::device::kStateOfNobody;
#endif

#if defined(MORI_DEVICE_LINKED)
// The library is told of a unit when the program starts or the shared library is opened, and fills
// its state at init.
namespace mori::shmem::detail {

/// Weak: kernels can be linked without the library, and then trap when run.
extern "C" __attribute__((weak)) void MoriShmemAddLinkedStateV2(LinkedState* state);
extern "C" __attribute__((weak)) void MoriShmemRemoveLinkedStateV2(LinkedState* state);

}  // namespace mori::shmem::detail

namespace {

struct MoriLinkedState : mori::shmem::detail::LinkedState {
  MoriLinkedState() : LinkedState{mori::shmem::device::kStateOfNobody.header, &Publish} {
    if (mori::shmem::detail::MoriShmemAddLinkedStateV2 != nullptr)
      mori::shmem::detail::MoriShmemAddLinkedStateV2(this);
  }
  ~MoriLinkedState() {
    if (mori::shmem::detail::MoriShmemRemoveLinkedStateV2 != nullptr)
      mori::shmem::detail::MoriShmemRemoveLinkedStateV2(this);
  }
  MoriLinkedState(const MoriLinkedState&) = delete;
  MoriLinkedState& operator=(const MoriLinkedState&) = delete;

  static int Publish(const mori::shmem::device::DeviceContext* context,
                     mori::shmem::device::u64 bytes, void* stream) {
    return static_cast<int>(cudaMemcpyToSymbolAsync(globalGpuStates, context, bytes, 0,
                                                    cudaMemcpyHostToDevice,
                                                    static_cast<cudaStream_t>(stream)));
  }
};
MoriLinkedState mori_linked_state;

}  // namespace
#endif
