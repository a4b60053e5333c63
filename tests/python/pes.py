"""Runs snippets and scripts as PEs: processes on this machine that talk over loopback only."""

from __future__ import annotations

import dataclasses
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Mapping, Sequence

import pytest

HERE = pathlib.Path(__file__).parent
REPOSITORY = HERE.parent.parent
PES_DEADLINE_SECONDS = 120

BASE_ENVIRONMENT = {
    "MORI_SOCKET_IFNAME": "lo",
    "MORI_SHMEM_BACKEND": "host",  # what they read by the CPU, whatever GPU there is
    "MORI_SHMEM_HEAP_SIZE": "16M",
    "MORI_BOOTSTRAP_TIMEOUT": "60",
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
}


def _missing(*modules: str) -> bool:
    return any(importlib.util.find_spec(name) is None for name in modules)


WITHOUT_TORCH = (
    "torch is left out (MORI_WITHOUT_TORCH=1)"
    if os.environ.get("MORI_WITHOUT_TORCH") == "1"
    else "torch is not importable"
)
needs_torch = pytest.mark.skipif(_missing("torch"), reason=WITHOUT_TORCH)


@dataclasses.dataclass(frozen=True)
class Pe:
    """How one PE ended."""

    rank: int
    status: int
    stdout: str
    stderr: str

    def __str__(self) -> str:
        return (
            f"--- PE {self.rank} ended with {self.status}\n{self.stdout}"
            f"--- its standard error\n{self.stderr}"
        )


class Pes(tuple[Pe, ...]):
    """All PEs of one run, by rank."""

    def succeeded(self) -> Pes:
        """Asserts that each ended with 0."""
        assert all(pe.status == 0 for pe in self), str(self)
        return self

    def __str__(self) -> str:
        return "\n" + "\n".join(map(str, self))


def environment(overrides: Mapping[str, str | None] | None = None) -> dict[str, str]:
    """This process's environment as PEs get it; an override of None removes a variable."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("MORI_")}
    python_path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    merged = {**inherited, **BASE_ENVIRONMENT, "PYTHONPATH": python_path, **(overrides or {})}
    return {name: text for name, text in merged.items() if text is not None}


class PeRunner:
    """Starts PEs for one test; none of them outlives it."""

    def __init__(self, directory: pathlib.Path) -> None:
        self._directory = directory
        self._runs = 0
        self._processes: list[subprocess.Popen[bytes]] = []

    def __call__(
        self,
        count: int,
        code: str,
        *,
        env: Mapping[str, str | None] | None = None,
        env_of_rank: Mapping[int, Mapping[str, str | None]] | None = None,
        deadline_seconds: float = PES_DEADLINE_SECONDS,
    ) -> Pes:
        """Runs `code` after `from pe_support import *` in `count` processes and waits for all.

        At the deadline the rest is killed and the test fails, with the output of all.
        """
        script = self.script(code)
        meeting_dir = script.parent
        for rank in range(count):
            variables = {
                "PE_RANK": str(rank),
                "PE_COUNT": str(count),
                "PE_MEETING_DIR": str(meeting_dir),
                **(env or {}),
                **((env_of_rank or {}).get(rank, {})),
            }
            self._start([sys.executable, str(script)], variables, meeting_dir / f"pe{rank}")
        return self._wait(meeting_dir, count, deadline_seconds)

    def script(self, code: str, *, support: bool = True) -> pathlib.Path:
        """A file with `code`, in a folder of its own, for tests that start it themselves."""
        self._runs += 1
        folder = self._directory / f"run{self._runs}"
        folder.mkdir()
        path = folder / "pe.py"
        path.write_text(("from pe_support import *\n" if support else "") + textwrap.dedent(code))
        return path

    def _start(
        self, command: Sequence[str], variables: Mapping[str, str | None], output: pathlib.Path
    ) -> None:
        with (
            open(output.with_suffix(".out"), "wb") as out,
            open(output.with_suffix(".err"), "wb") as err,
        ):
            self._processes.append(
                subprocess.Popen(
                    command,
                    env=environment(variables),
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    cwd=output.parent,
                )
            )

    def _wait(self, folder: pathlib.Path, count: int, deadline_seconds: float) -> Pes:
        end = time.monotonic() + deadline_seconds
        late = []
        for rank, process in enumerate(self._processes):
            try:
                process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                late.append(rank)
                process.kill()
                process.wait()
        pes = Pes(
            Pe(
                rank,
                self._processes[rank].returncode,
                (folder / f"pe{rank}.out").read_text(),
                (folder / f"pe{rank}.err").read_text(),
            )
            for rank in range(count)
        )
        self._processes.clear()
        assert not late, f"PEs {late} still ran after {deadline_seconds} s:{pes}"
        return pes

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()


def is_open_mpi() -> bool:
    if shutil.which("mpirun") is None:
        return False
    version = subprocess.run(["mpirun", "--version"], capture_output=True, text=True, check=False)
    return "Open MPI" in version.stdout


def run_under_mpi(count: int, script: pathlib.Path) -> subprocess.CompletedProcess[str]:
    """Runs a Python script on `count` ranks under the mpirun of this machine."""
    options = ["--oversubscribe", "--mca", "btl_tcp_if_include", "lo"] if is_open_mpi() else []
    variables = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    return subprocess.run(
        ["mpirun", "-n", str(count), *options, sys.executable, str(script)],
        env=environment(variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PES_DEADLINE_SECONDS,
        cwd=script.parent,
        check=False,
    )


needs_mpi = pytest.mark.skipif(
    _missing("mpi4py") or shutil.which("mpirun") is None,
    reason="mpi4py is not importable or mpirun is not installed",
)
