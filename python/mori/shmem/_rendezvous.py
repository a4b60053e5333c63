"""How a PyTorch group or an MPI communicator carries the unique id from its rank 0 to the others.

What travels is a ticket of fixed size: the id, or why rank 0 has none, so that then every rank
raises the same error instead of waiting for an id that never comes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mori import _core
from mori._core import ErrorCode
from mori.shmem.errors import ShmemError, failed, shown

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup

TICKET_BYTES = 1024


def find_torch_group(name: str) -> ProcessGroup:
    """The process group registered as `name`."""
    import torch.distributed as dist

    if not dist.is_available():
        raise failed(
            "this PyTorch was built without torch.distributed; use shmem_init_attr() with a"
            " unique id",
            ErrorCode.UNSUPPORTED,
        )
    from torch._C import _distributed_c10d

    resolve: Any = _distributed_c10d._resolve_process_group
    try:
        group: ProcessGroup = resolve(name)
    except (RuntimeError, ValueError) as error:
        quoted = f'"{shown(name)[1:-1]}"'
        raise failed(
            f"no PyTorch process group is registered as {quoted}; after init_process_group()"
            f" add torch._C._distributed_c10d._register_process_group({quoted}, dist.group.WORLD)",
            ErrorCode.INVALID_ARGUMENT,
        ) from error
    return group


def share_over_torch(group: ProcessGroup) -> bytes:
    """The id that the group's rank 0 makes. Collective over the group."""
    import torch
    from torch.distributed import BroadcastOptions

    content = _make_ticket() if group.rank() == 0 else bytes(TICKET_BYTES)
    ticket = torch.tensor(list(content), dtype=torch.uint8, device=_carrying_device(group))
    options = BroadcastOptions()
    options.rootRank = 0
    group.broadcast([ticket], options).wait()
    return _open_ticket(bytes(ticket.tolist()))


def _carrying_device(group: ProcessGroup) -> torch.device:
    """CPU if the group can broadcast from there, else what its backend needs."""
    import torch

    kinds = {device.type for device in group._device_types}
    if "cpu" in kinds or not kinds:
        return torch.device("cpu")
    return torch.device(kinds.pop())


def share_over_mpi(communicator: Any, rank: int, world_size: int) -> bytes:
    """The id that rank 0 of an mpi4py communicator makes. Collective over the communicator."""
    required = ("Get_rank", "Get_size", "allgather", "bcast")
    if not all(hasattr(communicator, name) for name in required):
        raise failed(
            f"mpi_comm is of type {type(communicator).__name__}; it must be an mpi4py communicator"
            " such as mpi4py.MPI.COMM_WORLD",
            ErrorCode.INVALID_ARGUMENT,
        )
    own_rank, own_size = communicator.Get_rank(), communicator.Get_size()
    said = communicator.allgather((rank, world_size))
    if objections := _objections(said, own_size):
        first = min(objections)
        told = f"rank {first} of the communicator cannot go on: {objections[first]}"
        raise failed(objections.get(own_rank, told), ErrorCode.INVALID_ARGUMENT)
    return _open_ticket(communicator.bcast(_make_ticket() if own_rank == 0 else None, root=0))


def _objections(said: list[tuple[int, int]], size: int) -> dict[int, str]:
    """What is wrong with what each rank of a communicator of `size` said of itself, by rank."""
    return {
        rank: f"rank is {said_rank} of {said_size}, but in the communicator this process is rank"
        f" {rank} of {size}"
        for rank, (said_rank, said_size) in enumerate(said)
        if (said_rank, said_size) != (rank, size)
    }


def _make_ticket() -> bytes:
    """One byte of code, then the id or the sentence."""
    try:
        code, content = ErrorCode.OK, _core.get_unique_id()
    except ShmemError as error:
        reason = str(error).partition(": ")[2]  # without the call, which each rank names itself
        sentence = f"rank 0 could not make the unique id: {reason}"
        code, content = error.code, sentence.encode()[: TICKET_BYTES - 1]
    return (bytes([code]) + content).ljust(TICKET_BYTES, b"\0")


def _open_ticket(ticket: bytes) -> bytes:
    code, content = ErrorCode(ticket[0]), ticket[1:]
    if code is not ErrorCode.OK:
        raise failed(content.rstrip(b"\0").decode(errors="replace"), code)
    return content[: _core.UNIQUE_ID_BYTES]
