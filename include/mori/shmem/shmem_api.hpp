// Host API: init, queries, memory, registration, barrier, finalize.
//
// Every call acts on the calling thread's PE. A process with one PE may call from any thread; with
// several PEs as threads of one process, a thread is the PE whose init it ran. Unless a call says
// otherwise it may be called from several threads at once, except that the *collective* calls of
// one PE must come one after another, in the same order on every PE.
//
// Errors: calls that return `int` give 0 or an `ErrorCode`; calls that return a pointer give null.
// Every failed call logs one line at ERROR, and leaves the sentence in `ShmemLastError()`; in
// Python it is an exception instead of the line. Nothing throws or aborts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "mori/shmem/types.hpp"

namespace mori::shmem {

// ---- Initialisation (guide, section 2)

/// Makes a token for one init of any number of PEs. Local, does not block.
/// This process answers the PEs' first contact until all have come, so it must live until then; it
/// need not be a PE itself. `MORI_SOCKET_IFNAME` selects the addresses written into the token.
/// @return kInvalidConfig for an interface that does not exist, kSystem if no port can be opened.
MORI_SHMEM_API int ShmemGetUniqueId(UniqueId* id);

/// Joins the PEs that hold the same `id`. Collective over `world_size` callers with distinct ranks;
/// returns when all have joined and every heap is mapped, or with an error on every one of them.
/// Waits for late PEs at most `MORI_BOOTSTRAP_TIMEOUT` seconds. Reads the environment; later
/// changes to it have no effect.
///
/// Again with the same arguments while initialised: 0, nothing changes. With others:
/// kAlreadyInitialized, nothing changes. After `ShmemFinalize()`: a new world, with a new id.
/// @param flag  MORI_SHMEM_INIT_WITH_UNIQUEID (for MPI see mpi.hpp).
/// @return kInvalidArgument (rank, size, damaged id), kInvalidConfig, kMismatch (ranks used twice,
///   sizes, versions or configurations that differ), kTimeout (names the missing ranks), kPeerLost,
///   kOutOfMemory, kUnsupported, kSystem.
MORI_SHMEM_API int ShmemInitAttr(InitFlag flag, int rank, int world_size, const UniqueId& id);

/// As `ShmemInitAttr()`, with rank, size and id from what `mori run`, `torchrun`, `mpirun` or
/// `srun` put into the environment; without any of these, one PE alone. On several nodes it needs
/// `MORI_UNIQUE_ID`.
MORI_SHMEM_API int ShmemInit();

/// Leaves the world: waits for what this process has put on its GPU, and for all PEs (at most
/// `MORI_SHMEM_TIMEOUT`, or `MORI_BOOTSTRAP_TIMEOUT` if that is not set), then gives back memory,
/// descriptors and threads. Collective. Calls of other threads of this PE are waited for: their
/// waits for a word end with kNotInitialized; a collective call, or one that waits for the GPU,
/// goes on to its own end. Pointers into any heap are invalid afterwards, except as
/// `ShmemRetainMemory()` says.
/// @return kNotInitialized; kPeerLost, kTimeout, kMismatch if another PE is in another collective
/// call, or kSystem for a fault of the GPU: then this PE has still been cleaned up, and after
/// kTimeout and kMismatch it is lost to the others.
MORI_SHMEM_API int ShmemFinalize();

/// Whether the calling thread has a PE now. Local.
MORI_SHMEM_API bool ShmemInitialized();

// ---- Queries (guide, section 3). Local.

/// This PE's number, 0 to `ShmemNPes() - 1`; -1 before init and after finalize.
MORI_SHMEM_API int ShmemMyPe();
/// Number of PEs; -1 before init and after finalize.
MORI_SHMEM_API int ShmemNPes();
/// RDMA queue pairs per PE (`MORI_NUM_QP_PER_PE`), used or not; -1 before init and after finalize.
MORI_SHMEM_API int ShmemNumQpPerPe();
/// Number of the GPU whose memory the heap is, as its vendor counts; -1 where it is the host's, and
/// on error.
MORI_SHMEM_API int ShmemDevice();

// ---- Symmetric memory (guide, section 4)

/// Allocates `bytes` on every PE's heap, at the same offset. Collective: all PEs pass the same
/// values and return together. Contents are unspecified. At least 64-byte aligned; blocks of 2 KiB
/// and more are page aligned.
/// @return the local address, or null on all PEs: 0 bytes (kInvalidArgument), no room
///   (kOutOfMemory), values that differ between PEs (kMismatch, every PE's heap as it was).
MORI_SHMEM_API void* ShmemMalloc(std::size_t bytes);
/// The same with an alignment: any power of two, honoured in this PE's and in every peer's address
/// space up to what heaps start at multiples of: the next power of two of what they may grow to,
/// less where a device chooses addresses.
/// @return null with kInvalidArgument for another alignment.
MORI_SHMEM_API void* ShmemMallocAlign(std::size_t alignment, std::size_t bytes);
/// The same with a `MallocFlag`. Memory of another kind than the heap's is given in isolation mode,
/// where each allocation has its own.
/// @return null with kUnsupported in the other modes, and with kInvalidArgument for a value that is
///   no flag.
MORI_SHMEM_API void* ShmemExtMallocWithFlags(std::size_t bytes, unsigned flags);

/// Gives a block back on every PE. Collective; waits for all PEs, so that none still uses the
/// block; kernels of the program that do are the program's error. Null is fine.
/// @return kInvalidArgument for an address that no allocation returned, that is inside one, or that
///   was freed already; kMismatch if PEs pass different blocks. Nothing is freed then, on any PE.
MORI_SHMEM_API int ShmemFree(void* ptr);

/// State of this PE's heap. Local.
MORI_SHMEM_API int ShmemHeapStats(HeapStats* stats);

/// Registers existing memory for remote access by the network. Local. Repeated registration of one
/// range is counted.
/// @return kInvalidArgument for null, 0 bytes or a range that wraps.
MORI_SHMEM_API int ShmemBufferRegister(void* ptr, std::size_t bytes);
/// Undoes one registration of the same range.
/// @return kInvalidArgument for a range that is not registered.
MORI_SHMEM_API int ShmemBufferDeregister(void* ptr, std::size_t bytes);

/// Keeps the memory behind a symmetric address (of this PE, or a peer pointer) mapped until the
/// returned handle is released, even beyond finalize, so that views held by a garbage collector
/// never dangle. Local.
/// @return null for any other address.
MORI_SHMEM_API void* ShmemRetainMemory(const void* ptr);
/// Releases a handle of `ShmemRetainMemory()`. Local, never fails, allowed after finalize. Null is
/// fine.
MORI_SHMEM_API void ShmemReleaseMemory(void* handle);

/// Makes the live block that starts at `ptr` owned, so that a garbage collector can free it. Local.
/// @return a handle for `ShmemDropBlock()`; null with kInvalidArgument for what is no live block of
///   this PE, or has an owner
MORI_SHMEM_API void* ShmemOwnBlock(void* ptr);
/// The owner is gone. Local, never blocks, from any thread, after finalize too. The block is freed
/// at the first collective call after the owners on all PEs are gone, and the kernels that the PEs
/// had launched by then are done; `ShmemFree()` frees it at once, and the owner then has nothing to
/// drop.
MORI_SHMEM_API void ShmemDropBlock(void* handle);

// ---- Peer addresses (guide, section 5). Local.

/// The address here by which `dest_pe`'s copy of `ptr` is reached by load and store. `ptr` is a
/// symmetric address of `my_pe`.
/// @return 0 if that PE is not reached that way, or `ptr` is no symmetric address (not an error),
///   or a PE is out of range or `my_pe` is not this PE (kInvalidArgument).
MORI_SHMEM_API std::uint64_t ShmemPtrP2p(std::uint64_t ptr, int my_pe, int dest_pe);

// ---- Synchronisation (guide, section 6)

/// Returns once all PEs have called it. All puts and atomics that any of them issued before are
/// then visible to all; this holds for what they put on streams, too. Collective.
/// @return kPeerLost if a PE died or left instead of coming; kMismatch if a PE made another
///   collective call; kTimeout; kSystem for a fault of the device.
///
/// This and every other collective call says who is late, at WARN, after 10 seconds and then at
/// growing intervals. With `MORI_SHMEM_TIMEOUT` set it ends with kTimeout after that time, and this
/// PE is lost to the others: it can only finalize.
MORI_SHMEM_API int ShmemBarrierAll();

/// PEs that this PE waits for now in a collective call (asked by another thread, or after kTimeout)
/// and PEs that are lost: up to `capacity` of them in `pes`, ascending. Local.
/// @return how many there are, which may be more than `capacity`; -1 on error: no PE, or null with
/// a capacity
MORI_SHMEM_API int ShmemLatePes(int* pes, int capacity);

// ---- Device modules (guide, section 7)
//
// Kernels that nvcc links into a program or a shared library need no call: init finds them; those
// of a library that is opened later, the next call of this API.

/// Publishes this PE's state to a module that the GPU's driver has loaded (`CUmodule`): kernels in
/// it that include the device headers can run from here on, until finalize. Local.
/// @return kInvalidArgument for a module without the symbol `globalGpuStates`, or of another
///   version of the headers; kUnsupported on the host backend.
MORI_SHMEM_API int ShmemModuleInit(void* module);
/// The same for a library that the driver has loaded (`CUlibrary`), on this PE's device.
MORI_SHMEM_API int ShmemLibraryInit(void* library);

// ---- Diagnostics. Local.

/// Sentence and code of this thread's last failed call; "" and 0 if none failed. Valid until the
/// next call here.
MORI_SHMEM_API const char* ShmemLastError();
MORI_SHMEM_API int ShmemLastErrorCode();
/// "peer lost" for kPeerLost, and so on.
MORI_SHMEM_API const char* ShmemErrorName(int code);
/// "0.1.0".
MORI_SHMEM_API const char* ShmemVersion();
/// What was chosen and why, as text for people: version, the variables that are set, and after init
/// backend, heap, and how each PE is reached. Never fails.
MORI_SHMEM_API std::string ShmemInfo();

}  // namespace mori::shmem
