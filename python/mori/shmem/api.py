"""Init, queries, symmetric memory, registration, peer addresses, barrier, finalize.

A *PE* (processing element) is one process, or one thread that ran its own init. Calls marked
*collective* are made by every PE, in the same order, and block until all have come; the others are
local. Every call may be made from any thread of a PE, collective calls one after another. Blocking
calls release the GIL. Ctrl-C does not end a blocking call: KeyboardInterrupt is raised when the
call returns, at the latest when the PE that it waits for has ended.

A call that fails raises `ShmemError`, except the two registration calls, which return a status
code. Before init and after finalize every call raises `ErrorCode.NOT_INITIALIZED`, except where it
says otherwise.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, NamedTuple, Union, cast

from mori import _core
from mori._core import (
    MORI_SHMEM_INIT_WITH_MPI_COMM,
    MORI_SHMEM_INIT_WITH_UNIQUEID,
    ErrorCode,
)
from mori.shmem import _rendezvous
from mori.shmem.errors import failed, shown

if TYPE_CHECKING:
    from mpi4py import MPI

BytesLike = Union[bytes, bytearray, memoryview]

# Which group or communicator this process last joined, so that the same init again is recognised.
_init_lock = threading.Lock()
_joined: tuple[object, ...] | None = None


class HeapStats(NamedTuple):
    """State of this PE's heap. Sizes in bytes."""

    total_bytes: int
    used_bytes: int
    """In live blocks, rounding for alignment included."""
    free_bytes: int
    largest_free_bytes: int
    """The largest request that can succeed at default alignment."""
    live_blocks: int


# ---- Initialisation


def shmem_torch_process_group_init(group_name: str) -> int:
    """Joins the ranks of a registered PyTorch process group. Collective over that group.

    PE numbers are the ranks within the group. The group must have been registered with
    `torch._C._distributed_c10d._register_process_group(group_name, group)`; it is used here to
    carry the unique id, and not afterwards. The same group again, while initialised, changes
    nothing. The environment is read once, here.

    Returns 0. Raises `ShmemError`: INVALID_ARGUMENT for a name that is not registered, UNSUPPORTED
    if this PyTorch has no torch.distributed, and what `shmem_init_attr()` raises.
    """
    global _joined
    with _init_lock:
        group = _rendezvous.find_torch_group(group_name)
        joining = ("torch", group_name, group.rank(), group.size())
        if _core.initialized() and _joined == joining:
            return 0
        unique_id = _rendezvous.share_over_torch(group)
        _core.init_with_unique_id(group.rank(), group.size(), unique_id)
        _joined = joining
    return 0


def shmem_get_unique_id() -> bytes:
    """Makes the 128-byte token by which the PEs of one init find each other. Local.

    It holds a secret: who knows it can join. Send it to all ranks by any means. This process
    answers the ranks until all have come, so it must live until then; it need not be a PE itself.
    `MORI_SOCKET_IFNAME` selects the addresses in the token. May be called before init.

    Raises `ShmemError`: INVALID_CONFIG for an interface that does not exist, SYSTEM if no port can
    be opened.
    """
    return _core.get_unique_id()


def shmem_init_attr(
    flags: int,
    rank: int,
    nranks: int,
    unique_id: BytesLike | MPI.Comm,
) -> int:
    """Joins `nranks` PEs as number `rank`. Collective; returns when every heap is mapped.

    With `MORI_SHMEM_INIT_WITH_UNIQUEID` the last argument is what one process got from
    `shmem_get_unique_id()`; an id serves one init. With `MORI_SHMEM_INIT_WITH_MPI_COMM` it is an
    mpi4py communicator, whose rank and size the other arguments repeat; it carries the id, and is
    not used afterwards. Late ranks are waited for at most `MORI_BOOTSTRAP_TIMEOUT` seconds. The
    environment is read once, here.

    The same arguments again, while initialised, change nothing; others raise ALREADY_INITIALIZED.
    After `shmem_finalize()` a new id makes a new world, of any size.

    Returns 0. Raises `ShmemError`: INVALID_ARGUMENT (flags, rank, size, an id that is damaged or of
    a wrong length), INVALID_CONFIG (an environment variable), MISMATCH (a rank used twice; sizes,
    versions or configurations that differ), TIMEOUT (names the missing ranks), PEER_LOST,
    OUT_OF_MEMORY, UNSUPPORTED, SYSTEM.
    """
    if flags == MORI_SHMEM_INIT_WITH_UNIQUEID:
        _core.init_with_unique_id(rank, nranks, cast("BytesLike", unique_id))
    elif flags == MORI_SHMEM_INIT_WITH_MPI_COMM:
        _init_over_mpi(rank, nranks, unique_id)
    else:
        raise failed(
            f"flags is {shown(flags)}; it must be MORI_SHMEM_INIT_WITH_MPI_COMM (0) or"
            " MORI_SHMEM_INIT_WITH_UNIQUEID (1)",
            ErrorCode.INVALID_ARGUMENT,
        )
    return 0


def _init_over_mpi(rank: int, world_size: int, communicator: object) -> None:
    global _joined
    with _init_lock:
        joining = ("mpi", communicator, rank, world_size)
        if _core.initialized() and _joined == joining:
            return
        unique_id = _rendezvous.share_over_mpi(communicator, rank, world_size)
        _core.init_with_unique_id(rank, world_size, unique_id)
        _joined = joining


def shmem_mpi_init() -> int:
    """Joins the ranks of mpi4py's `MPI.COMM_WORLD`. Collective.

    Returns 0. Raises `ShmemError`: UNSUPPORTED without mpi4py, and what `shmem_init_attr()` raises.
    """
    try:
        from mpi4py import MPI
    except ImportError as error:
        raise failed(f"mpi4py cannot be imported: {error}", ErrorCode.UNSUPPORTED) from error
    world = MPI.COMM_WORLD
    _init_over_mpi(world.Get_rank(), world.Get_size(), world)
    return 0


def shmem_init() -> int:
    """As `shmem_init_attr()`, with rank, size and id taken from the environment. Collective.

    Understands what `mori run`, `torchrun`, `mpirun`, `srun` and others set (docs/launchers.md);
    without any of them this process is one PE alone. Ranks on several nodes need `MORI_UNIQUE_ID`
    (docs/hosts.md).

    Returns 0. Raises what `shmem_init_attr()` raises.
    """
    _core.init()
    return 0


def shmem_finalize() -> int:
    """Leaves the world and gives back its memory, descriptors and threads. Collective.

    Waits for what this process has put on its GPU, and for all PEs, at most `MORI_SHMEM_TIMEOUT`
    seconds, or `MORI_BOOTSTRAP_TIMEOUT` if that is not set. Addresses into any heap are invalid
    afterwards; numpy, torch and DLPack views stay readable until they are dropped.

    Returns 0. Raises `ShmemError`: PEER_LOST, TIMEOUT, MISMATCH if another PE is in another
    collective call, or SYSTEM for a fault of the GPU, when this PE has still been cleaned up;
    NOT_INITIALIZED.
    """
    global _joined
    try:
        _core.finalize()
    finally:
        _joined = None
    return 0


def shmem_initialized() -> bool:
    """Whether the calling thread has a PE now. Local; never raises."""
    return _core.initialized()


# ---- Queries


def shmem_mype() -> int:
    """This PE's number, 0 to `shmem_npes() - 1`. Local."""
    return _core.mype()


def shmem_npes() -> int:
    """Number of PEs. Local."""
    return _core.npes()


def shmem_num_qp_per_pe() -> int:
    """RDMA queue pairs per PE (`MORI_NUM_QP_PER_PE`), used or not. Local."""
    return _core.num_qp_per_pe()


def shmem_device() -> int:
    """Number of the GPU whose memory the heap is, as its vendor counts; -1 on the host. Local."""
    return _core.device()


def shmem_info() -> str:
    """What was chosen and why, as text for people. Local; never raises.

    Version and environment; after init also backend, heap and reach of each PE.
    """
    return _core.info()


# ---- Symmetric memory


def shmem_malloc(size: int) -> int:
    """Allocates `size` bytes on every PE's heap, at the same offset. Collective.

    All PEs pass the same size. Contents are unspecified. At least 64-byte aligned; blocks of 2 KiB
    and more are page aligned. Release with `shmem_free()`.

    Returns the local address. Raises `ShmemError` on every PE: INVALID_ARGUMENT for 0 bytes,
    OUT_OF_MEMORY, MISMATCH if the PEs' sizes differ; every heap is then as it was.
    """
    return _core.malloc(size)


def shmem_malloc_align(alignment: int, size: int) -> int:
    """As `shmem_malloc()`, aligned to a power of two. Collective.

    The alignment holds in every PE's address space. It can be up to what heaps start at multiples
    of: the next power of two of what they may grow to, less where a device chooses addresses.

    Raises also INVALID_ARGUMENT for any other alignment.
    """
    return _core.malloc_align(alignment, size)


def shmem_ext_malloc_with_flags(size: int, flags: int) -> int:
    """As `shmem_malloc()`, with the flags of HIP's extended allocation. Collective.

    `MORI_SHMEM_MALLOC_DEFAULT` (0), `…_FINE_GRAINED` (1), `…_UNCACHED` (3). Memory of another kind
    than the heap's is given in isolation mode, where each allocation has its own.

    Raises also UNSUPPORTED in the other modes, INVALID_ARGUMENT for any other flags.
    """
    return _core.malloc_with_flags(size, flags)


def shmem_free(ptr: int) -> None:
    """Gives a block back on every PE. Collective. 0 is fine and does nothing.

    Waits for all PEs, and for what they put on streams; kernels of the program that use the block
    have ended. Views of the block stay readable, but show what is allocated there next, or zeros
    where the memory is gone; views of GPU memory that is gone must not be used.

    Raises `ShmemError`, and frees nothing on any PE: INVALID_ARGUMENT for an address that no
    allocation returned, that is inside one, or that was freed already; MISMATCH if PEs pass
    different blocks.
    """
    _core.free(ptr)


def shmem_heap_stats() -> HeapStats:
    """State of this PE's heap. Local."""
    return HeapStats(*_core.heap_stats())


def shmem_buffer_register(ptr: int, size: int) -> int:
    """Registers `size` bytes of existing memory at `ptr` for access by the network. Local.

    Repeated registration of a range is counted. Ranges may overlap: each is registered by itself,
    and a part of a registered range is another range. The memory must stay allocated until it is
    deregistered.

    Returns a status code: 0, or an `ErrorCode`; INVALID_ARGUMENT for null, 0 bytes, a range that
    wraps, or a number that is no address or no size.
    """
    return _core.buffer_register(ptr, size)


def shmem_buffer_deregister(ptr: int, size: int) -> int:
    """Undoes one `shmem_buffer_register()` of the same range. Local.

    Returns a status code: 0, or an `ErrorCode`; INVALID_ARGUMENT for a range that is not
    registered.
    """
    return _core.buffer_deregister(ptr, size)


# ---- Peer addresses


def shmem_ptr_p2p(dest_ptr: int, my_pe: int, dest_pe: int) -> int:
    """The address here that reaches `dest_pe`'s copy of `dest_ptr` by load and store. Local.

    `dest_ptr` is a symmetric address of this PE, whose number is `my_pe`. `shmem_numpy()` and
    `shmem_tensor()` give the same memory as arrays.

    Returns 0 if that PE is reached by RDMA only, or `dest_ptr` is no symmetric address. Raises
    `ShmemError`: INVALID_ARGUMENT for a PE out of range, or a `my_pe` that is not this PE.
    """
    return _core.ptr_p2p(dest_ptr, my_pe, dest_pe)


# ---- Synchronisation


def shmem_barrier_all() -> None:
    """Returns once all PEs have called it. Collective.

    All puts and atomics that any PE issued before are then visible to all.

    Raises `ShmemError`: PEER_LOST if a PE died or left instead of coming; MISMATCH if a PE made
    another collective call; TIMEOUT after `MORI_SHMEM_TIMEOUT` seconds, if that is set, and this PE
    is lost to the others then; SYSTEM for a fault of the GPU; NOT_INITIALIZED.
    """
    _core.barrier_all()


def shmem_late_pes() -> list[int]:
    """PEs that this PE waits for now in a collective call (ask from another thread, or after
    TIMEOUT), and PEs that are lost. Local.
    """
    return _core.late_pes()


# ---- Device modules


def shmem_module_init(hip_module: int) -> int:
    """Publishes this PE's state to a GPU module that was loaded at run time. Local.

    Returns 0. Raises `ShmemError`: UNSUPPORTED on the host backend.
    """
    _core.module_init(hip_module)
    return 0


def shmem_library_init(library_handle: int) -> int:
    """The same for a library that the driver has loaded (CUDA: `CUlibrary`). Local."""
    _core.library_init(library_handle)
    return 0
