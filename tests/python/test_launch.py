"""`shmem_init()` by what launchers put into the environment.

The table of launchers is in tests/unit/launch_test.cpp.
"""

from __future__ import annotations

import os

import pytest
from pes import PeRunner

RAW = os.fsdecode(b"\xff\n[mori] PE 0/2 ready")
SHOWN = r'"\xff\x0a[mori] PE 0/2 ready"'
OF_TORCH = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MORI_NODE_ID"])
def test_raw_bytes_are_an_error_with_a_printable_sentence(run_pes: PeRunner, name: str) -> None:
    code = f"""
    expect_error(shmem.ErrorCode.INVALID_CONFIG, shmem.shmem_init, says={SHOWN!r})
    """
    (pe,) = run_pes(1, code, env={**OF_TORCH, name: RAW}).succeeded()
    assert all(line.startswith("[mori] ") for line in pe.stderr.splitlines())


def test_a_rank_without_a_job_is_an_error(run_pes: PeRunner) -> None:
    code = """
    expect_error(shmem.ErrorCode.INVALID_CONFIG, shmem.shmem_init, says="MASTER_PORT")
    """
    without = {"MASTER_ADDR": None, "MASTER_PORT": None}
    run_pes(1, code, env={"RANK": "1", "WORLD_SIZE": "2", **without}).succeeded()


def test_a_size_beyond_all_worlds_is_refused_before_it_costs_anything(run_pes: PeRunner) -> None:
    code = """
    expect_error(shmem.ErrorCode.INVALID_CONFIG, shmem.shmem_init, says="PEs at most")
    """
    run_pes(1, code, env={**OF_TORCH, "WORLD_SIZE": "2147483647"}).succeeded()
