"""What a snippet runs with when `run_pes` starts it: its rank, and the way to join the others."""

from __future__ import annotations

import os
import pathlib
import socket
import time
from typing import Any, Callable

from mori import shmem

rank = int(os.environ["PE_RANK"])
world_size = int(os.environ["PE_COUNT"])
meeting_dir = pathlib.Path(os.environ["PE_MEETING_DIR"])


def share(name: str, make: Callable[[], bytes]) -> bytes:
    """What `make()` returns on rank 0, on every rank, over a file."""
    path = meeting_dir / name
    if rank == 0:
        content = make()
        unfinished = path.with_suffix(".part")
        unfinished.write_bytes(content)
        unfinished.rename(path)
        return content
    wait_for(path)
    return path.read_bytes()


def wait_for(path: pathlib.Path) -> None:
    """Returns once the file exists, written by another PE; a minute is too long."""
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"{path.name} did not appear"
        time.sleep(0.01)


def free_port() -> bytes:
    """A TCP port that nobody listens on now, as text."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return str(probe.getsockname()[1]).encode()


def join(name: str = "unique_id") -> None:
    """Inits over a unique id; `name` tells several inits of one test apart."""
    unique_id = share(name, shmem.shmem_get_unique_id)
    shmem.shmem_init_attr(shmem.MORI_SHMEM_INIT_WITH_UNIQUEID, rank, world_size, unique_id)


def expect_error(code: shmem.ErrorCode, call: Any, *arguments: Any, says: str = "") -> None:
    """Asserts that `call(*arguments)` raises `code` with a sentence that contains `says`."""
    try:
        result = call(*arguments)
    except shmem.ShmemError as error:
        assert error.code is code, f"{error.code!r}: {error}"
        assert says in str(error), str(error)
    else:
        raise AssertionError(f"{call.__name__}{arguments} returned {result!r}")
