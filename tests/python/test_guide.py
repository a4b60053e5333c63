"""The code of the guide, word for word, less its CUDA calls."""

from __future__ import annotations

import textwrap

from pes import PeRunner, needs_mpi, needs_torch, run_under_mpi

RENDEZVOUS_VARIABLES = """
import os
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=share("port", free_port).decode())
"""

# Method 1. Left out: torch.cuda.set_device(rank), the nccl half of the backend, and device_id.
PYTORCH_INIT = """
import torch
import torch.distributed as dist
import mori

# Standard PyTorch distributed init
dist.init_process_group(
    backend="cpu:gloo",
    rank=rank, world_size=world_size,
)

# Register the process group with a name
world_group = dist.group.WORLD
torch._C._distributed_c10d._register_process_group("default", world_group)

# Initialize shmem from the registered process group
mori.shmem.shmem_torch_process_group_init("default")
"""

FINALIZATION = """
mori.shmem.shmem_finalize()
# Then destroy PyTorch process group if applicable
dist.destroy_process_group()
"""

# Method 2. The file is in the folder of the test, where no other run finds it.
UNIQUE_ID_INIT = """
import mori
uid_file = str(meeting_dir / "mori_unique_id")

import os, time

if rank == 0:
    unique_id = mori.shmem.shmem_get_unique_id()
    with open(uid_file, 'wb') as f:
        f.write(unique_id)
else:
    while not os.path.exists(uid_file):
        time.sleep(0.1)
    with open(uid_file, 'rb') as f:
        unique_id = f.read()

mori.shmem.shmem_init_attr(
    mori.shmem.MORI_SHMEM_INIT_WITH_UNIQUEID,
    rank, world_size, unique_id,
)
"""

QUICK_REFERENCE = """
import mori

# Initialize from PyTorch process group
mori.shmem.shmem_torch_process_group_init("default")

# Query
my_rank = mori.shmem.shmem_mype()
num_ranks = mori.shmem.shmem_npes()

# Allocate symmetric memory
ptr = mori.shmem.shmem_malloc(size_in_bytes)

# Register existing buffer for RDMA
mori.shmem.shmem_buffer_register(tensor.data_ptr(), tensor.nbytes)

# P2P address translation (intra-node)
remote_ptr = mori.shmem.shmem_ptr_p2p(ptr, my_pe, dest_pe)

# Synchronize
mori.shmem.shmem_barrier_all()

# Cleanup
mori.shmem.shmem_free(ptr)
mori.shmem.shmem_finalize()
"""

MPI_INIT = """
mori.shmem.shmem_init_attr(
    mori.shmem.MORI_SHMEM_INIT_WITH_MPI_COMM,
    rank, world_size, mpi_comm,
)
"""

# What every method must lead to: a world in which a put reaches the next PE.
WORLD_WORKS = """
ptr = mori.shmem.shmem_malloc(8)
next_pe = (mori.shmem.shmem_mype() + 1) % mori.shmem.shmem_npes()
mori.shmem.shmem_p(ptr, mori.shmem.shmem_mype(), next_pe)
mori.shmem.shmem_barrier_all()
sender = (mori.shmem.shmem_mype() - 1) % mori.shmem.shmem_npes()
assert mori.shmem.shmem_g(ptr, mori.shmem.shmem_mype()) == sender
mori.shmem.shmem_free(ptr)
"""


@needs_torch
def test_quick_reference(run_pes: PeRunner) -> None:
    names = """
import torch, torch.distributed as dist
dist.init_process_group("gloo", rank=rank, world_size=world_size)
torch._C._distributed_c10d._register_process_group("default", dist.group.WORLD)
size_in_bytes = 4096
tensor = torch.zeros(1024)
my_pe, dest_pe = rank, 1 - rank
"""
    results = """
assert (my_rank, num_ranks) == (rank, 2)
assert ptr != 0 and remote_ptr not in (0, ptr)
dist.destroy_process_group()
"""
    run_pes(2, RENDEZVOUS_VARIABLES + names + QUICK_REFERENCE + results).succeeded()


@needs_torch
def test_pytorch_process_group(run_pes: PeRunner) -> None:
    ranks = "assert (mori.shmem.shmem_mype(), mori.shmem.shmem_npes()) == (rank, 4)\n"
    code = RENDEZVOUS_VARIABLES + PYTORCH_INIT + ranks + WORLD_WORKS + FINALIZATION
    run_pes(4, code).succeeded()


@needs_torch
def test_pytorch_subgroups_are_worlds_of_their_own(run_pes: PeRunner) -> None:
    code = """
    import torch, torch.distributed as dist, mori
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    groups = [dist.new_group([0, 2]), dist.new_group([1, 3])]
    torch._C._distributed_c10d._register_process_group("mine", groups[rank % 2])
    mori.shmem.shmem_torch_process_group_init("mine")
    assert (mori.shmem.shmem_mype(), mori.shmem.shmem_npes()) == (rank // 2, 2)

    ptr = mori.shmem.shmem_malloc(8)
    mori.shmem.shmem_p(ptr, rank, 1 - rank // 2)
    mori.shmem.shmem_barrier_all()
    assert mori.shmem.shmem_g(ptr, rank // 2) == (rank + 2) % 4
    mori.shmem.shmem_free(ptr)

    # The whole group, afterwards, in the same processes.
    mori.shmem.shmem_finalize()
    torch._C._distributed_c10d._register_process_group("all", dist.group.WORLD)
    mori.shmem.shmem_torch_process_group_init("all")
    assert (mori.shmem.shmem_mype(), mori.shmem.shmem_npes()) == (rank, 4)
    mori.shmem.shmem_barrier_all()
    mori.shmem.shmem_finalize()
    dist.destroy_process_group()
    """
    run_pes(4, RENDEZVOUS_VARIABLES + textwrap.dedent(code)).succeeded()


@needs_torch
def test_pytorch_group_again_changes_nothing(run_pes: PeRunner) -> None:
    again = """
ptr = mori.shmem.shmem_malloc(8)
assert mori.shmem.shmem_torch_process_group_init("default") == 0
assert mori.shmem.shmem_heap_stats().live_blocks == 1
torch._C._distributed_c10d._register_process_group("other", dist.new_group([0]))
expect_error(
    shmem.ErrorCode.ALREADY_INITIALIZED, mori.shmem.shmem_torch_process_group_init, "other")
mori.shmem.shmem_free(ptr)
"""
    run_pes(1, RENDEZVOUS_VARIABLES + PYTORCH_INIT + again + FINALIZATION).succeeded()


@needs_torch
def test_unregistered_pytorch_group_shows_the_missing_line(run_pes: PeRunner) -> None:
    code = """
    line = 'torch._C._distributed_c10d._register_process_group("default", dist.group.WORLD)'
    init = shmem.shmem_torch_process_group_init
    expect_error(shmem.ErrorCode.INVALID_ARGUMENT, init, "default", says=line)

    import torch.distributed as dist
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    expect_error(shmem.ErrorCode.INVALID_ARGUMENT, init, "default", says=line)
    exec("import torch; " + line)
    assert init("default") == 0
    shmem.shmem_finalize()
    dist.destroy_process_group()
    """
    run_pes(1, RENDEZVOUS_VARIABLES + textwrap.dedent(code)).succeeded()


@needs_torch
def test_every_pytorch_rank_learns_why_rank_0_has_no_id(run_pes: PeRunner) -> None:
    code = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo", rank=rank, world_size=world_size)
    torch._C._distributed_c10d._register_process_group("default", dist.group.WORLD)
    init = shmem.shmem_torch_process_group_init
    expect_error(shmem.ErrorCode.INVALID_CONFIG, init, "default", says="nosuch0")
    dist.destroy_process_group()
    """
    run_pes(
        2,
        RENDEZVOUS_VARIABLES + textwrap.dedent(code),
        env_of_rank={0: {"MORI_SOCKET_IFNAME": "nosuch0"}},
    ).succeeded()


def test_unique_id_over_a_file(run_pes: PeRunner) -> None:
    ranks = "assert (mori.shmem.shmem_mype(), mori.shmem.shmem_npes()) == (rank, 3)\n"
    finalization = "mori.shmem.shmem_finalize()\n"
    run_pes(3, UNIQUE_ID_INIT + ranks + WORLD_WORKS + finalization).succeeded()


@needs_mpi
def test_mpi_communicator(run_pes: PeRunner) -> None:
    code = """
from mpi4py import MPI
import mori
mpi_comm = MPI.COMM_WORLD
rank, world_size = mpi_comm.Get_rank(), mpi_comm.Get_size()
"""
    again = """
assert mori.shmem.shmem_init_attr(0, rank, world_size, mpi_comm) == 0
mpi_comm.Barrier()
mori.shmem.shmem_finalize()
assert mpi_comm.allreduce(1) == 4
"""
    ranks = "assert (mori.shmem.shmem_mype(), mori.shmem.shmem_npes()) == (rank, 4)\n"
    script = run_pes.script(code + MPI_INIT + ranks + WORLD_WORKS + again, support=False)
    run = run_under_mpi(4, script)
    assert run.returncode == 0, run.stdout + run.stderr


@needs_mpi
def test_mpi_sub_communicator_and_wrong_communicators(run_pes: PeRunner) -> None:
    code = """
from mpi4py import MPI
from mori import shmem

def error_of(*arguments):
    try:
        shmem.shmem_init_attr(shmem.MORI_SHMEM_INIT_WITH_MPI_COMM, *arguments)
    except shmem.ShmemError as error:
        return error
    raise AssertionError(f"no error for {arguments}")

world = MPI.COMM_WORLD
half = world.Split(world.Get_rank() % 2, -world.Get_rank())
rank, size = half.Get_rank(), half.Get_size()

wrong = error_of(rank, size + 1, half)
assert wrong.code is shmem.ErrorCode.INVALID_ARGUMENT, wrong
assert f"rank {rank} of {size}" in str(wrong), wrong
# One rank that is wrong about itself is an error on both.
wrong = error_of(rank + 7 if rank == 1 else rank, size, half)
assert wrong.code is shmem.ErrorCode.INVALID_ARGUMENT, wrong
assert "rank is 8 of 2, but in the communicator this process is rank 1 of 2" in str(wrong), wrong
assert ("rank 1 of the communicator cannot go on" in str(wrong)) == (rank == 0), wrong
wrong = error_of(rank, size, 0x44000000)
assert wrong.code is shmem.ErrorCode.INVALID_ARGUMENT and "mpi4py" in str(wrong), wrong

shmem.shmem_init_attr(shmem.MORI_SHMEM_INIT_WITH_MPI_COMM, rank, size, half)
assert (shmem.shmem_mype(), shmem.shmem_npes()) == (rank, size) == (1 - world.Get_rank() // 2, 2)
shmem.shmem_barrier_all()
shmem.shmem_finalize()
"""
    run = run_under_mpi(4, run_pes.script(code, support=False))
    assert run.returncode == 0, run.stdout + run.stderr


@needs_mpi
def test_every_mpi_rank_learns_why_rank_0_has_no_id(run_pes: PeRunner) -> None:
    code = """
import os
from mpi4py import MPI
from mori import shmem
rank = MPI.COMM_WORLD.Get_rank()
if rank == 0:
    os.environ["MORI_SOCKET_IFNAME"] = "nosuch0"
try:
    shmem.shmem_init_attr(shmem.MORI_SHMEM_INIT_WITH_MPI_COMM, rank, 2, MPI.COMM_WORLD)
except shmem.ShmemError as error:
    assert error.code is shmem.ErrorCode.INVALID_CONFIG and "nosuch0" in str(error), error
else:
    raise AssertionError("no error")
"""
    run = run_under_mpi(2, run_pes.script(code, support=False))
    assert run.returncode == 0, run.stdout + run.stderr
