"""tools/check_includes.py on small trees: each wrong direction is named, right ones pass."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "tools" / "check_includes.py"

HEADERS = (
    "include/mori/shmem/types.hpp",
    "include/mori/shmem/shmem_api.hpp",
    "src/base/status.hpp",
    "src/bootstrap/socket.hpp",
    "src/node/board.hpp",
    "src/runtime/host/host_runtime.hpp",
    "src/transport/transport.hpp",
    "src/transport/selector.hpp",
    "src/heap/heap.hpp",
    "tests/support/pes.hpp",
)


def check(root: Path, path: str, include: str) -> subprocess.CompletedProcess[str]:
    """Checks a tree of empty headers in which only `path` includes something."""
    for header in HEADERS:
        (root / header).parent.mkdir(parents=True, exist_ok=True)
        (root / header).touch()
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"#pragma once\n\n#include {include}\n")
    return subprocess.run(
        [sys.executable, SCRIPT, root], capture_output=True, text=True, check=False, timeout=60
    )


@pytest.mark.parametrize(
    ("path", "include"),
    [
        ("src/base/log.cpp", '"mori/shmem/types.hpp"'),
        ("src/base/log.cpp", "<spdlog/logger.h>"),
        ("src/bootstrap/frame.cpp", '"socket.hpp"'),
        ("src/transport/p2p/p2p.cpp", '"node/board.hpp"'),
        ("src/heap/heap.cpp", '"transport/transport.hpp"'),
        ("src/runtime/factory.cpp", '"runtime/host/host_runtime.hpp"'),
        ("src/runtime/cuda/cuda_runtime.cpp", "<cuda.h>"),
        ("src/shmem/world.cpp", '"mori/shmem/shmem_api.hpp"'),
        ("include/mori/shmem/mpi.hpp", "<mpi.h>"),
        ("tests/unit/host_test.cpp", '"runtime/host/host_runtime.hpp"'),
        ("tests/unit/pes_test.cpp", '"support/pes.hpp"'),
    ],
)
def test_right_direction_passes(tmp_path: Path, path: str, include: str) -> None:
    result = check(tmp_path, path, include)
    assert (result.returncode, result.stdout) == (0, "")


@pytest.mark.parametrize(
    ("path", "include", "reason"),
    [
        ("src/base/log.cpp", '"heap/heap.hpp"', "base may not include heap"),
        ("src/base/log.cpp", '"mori/shmem/shmem_api.hpp"', "base may not include shmem_api"),
        ("src/bootstrap/x.cpp", '"runtime/host/host_runtime.hpp"', "may not include runtime"),
        ("src/node/board.cpp", '"transport/transport.hpp"', "node may not include transport"),
        ("src/heap/heap.cpp", '"transport/selector.hpp"', "remote.hpp only"),
        ("src/shmem/world.cpp", '"runtime/host/host_runtime.hpp"', "internal to runtime"),
        ("src/heap/heap.cpp", "<cuda_runtime.h>", "only for src/runtime/cuda/"),
        ("src/transport/verbs.cpp", "<infiniband/verbs.h>", "only for src/transport/rdma/"),
        ("src/bootstrap/mpi.cpp", "<mpi.h>", "only for include/mori/shmem/mpi.hpp"),
        ("include/mori/shmem/types.hpp", '"base/status.hpp"', "types may not include base"),
        ("examples/put.cpp", '"base/status.hpp"', "examples may not include base"),
        ("src/pybind/mori.cpp", '"heap/heap.hpp"', "pybind may not include heap"),
        ("src/heap/heap.cpp", '"heap/absent.hpp"', "found neither beside the file"),
        ("src/heap/heap.cpp", '"../tests/support/pes.hpp"', "only tests include"),
        ("src/strange/new.cpp", '"base/status.hpp"', "strange is not in the table"),
    ],
)
def test_wrong_direction_is_named(tmp_path: Path, path: str, include: str, reason: str) -> None:
    result = check(tmp_path, path, include)
    assert result.returncode == 1
    assert len(result.stdout.splitlines()) == 1
    assert result.stdout.startswith(f"{path}:3: ")
    assert reason in result.stdout
