"""Runs the `mori` command and looks at the processes that it started."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence

import pytest

DEADLINE_SECONDS = 60


def environment(overrides: Mapping[str, str] | None = None) -> dict[str, str]:
    """This process's environment without the variables of the library, and what is given."""
    inherited = {name: text for name, text in os.environ.items() if not name.startswith("MORI_")}
    return {**inherited, **(overrides or {})}


def find_command() -> str:
    """The `mori` command: MORI_COMMAND, that of the running Python environment, or that in PATH."""
    given = os.environ.get("MORI_COMMAND")
    if given:
        return given
    beside_python = os.path.dirname(sys.executable)
    found = shutil.which("mori", path=os.pathsep.join([beside_python, os.environ.get("PATH", "")]))
    if found is None:
        pytest.fail("the mori command is neither in MORI_COMMAND nor in PATH")
    return found


def find_build_dir() -> pathlib.Path:
    """The build folder with the C++ examples."""
    given = os.environ.get("MORI_BUILD_DIR")
    if not given:
        pytest.skip("MORI_BUILD_DIR is not set: the C++ examples are not built")
    return pathlib.Path(given)


class Launcher:
    """The command under test."""

    def __init__(self, path: str) -> None:
        self.path = path

    def call(self, *arguments: str, **keywords: object) -> subprocess.CompletedProcess[bytes]:
        """`mori arguments…`, to its end."""
        keywords.setdefault("env", environment())
        keywords.setdefault("timeout", DEADLINE_SECONDS)
        return subprocess.run([self.path, *arguments], capture_output=True, **keywords)

    def run(
        self,
        n_pes: int,
        *program: str,
        options: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        **keywords: object,
    ) -> subprocess.CompletedProcess[bytes]:
        """`mori run -n n_pes options… -- program…`, to its end."""
        arguments = ["run", "-n", str(n_pes), *options, "--", *program]
        return self.call(*arguments, env=environment(env), **keywords)

    @contextlib.contextmanager
    def started(
        self, n_pes: int, *program: str, options: Sequence[str] = (), **keywords: object
    ) -> Iterator[subprocess.Popen[bytes]]:
        """The same while it runs; it is killed at the end of the block if it still does."""
        keywords.setdefault("stdout", subprocess.PIPE)
        keywords.setdefault("stderr", subprocess.PIPE)
        keywords.setdefault("env", environment())
        process = subprocess.Popen(
            [self.path, "run", "-n", str(n_pes), *options, "--", *program], **keywords
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()


def shell(script: str) -> tuple[str, str, str]:
    """A program for `run()`: a shell script."""
    return ("sh", "-c", script)


def python(script: str) -> tuple[str, str, str, str]:
    """A program for `run()`: Python that starts fast and knows only its standard library."""
    return (sys.executable, "-SEu", "-c", script)


def lines_by_pe(output: bytes) -> dict[int, list[bytes]]:
    """What each PE wrote; fails on a line without a prefix."""
    lines: dict[int, list[bytes]] = {}
    for line in output.split(b"\n")[:-1]:
        prefix, bracket, text = line.partition(b"] ")
        assert prefix.startswith(b"[") and bracket, f"no prefix: {line[:80]!r}"
        lines.setdefault(int(prefix[1:]), []).append(text)
    return lines


def wait_until(holds: Callable[[], object], what: str) -> None:
    """Returns once it holds; fails after a deadline."""
    end = time.monotonic() + DEADLINE_SECONDS
    while not holds():
        assert time.monotonic() < end, f"not within {DEADLINE_SECONDS} s: {what}"
        time.sleep(0.005)


def state_of(process: int) -> str:
    """Letter of a process's state as in /proc, `-` when it is gone."""
    try:
        stat = pathlib.Path(f"/proc/{process}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return "-"
    return stat.rpartition(")")[2].split()[0]


def is_gone(process: int) -> bool:
    """Ended; who reaps it does not matter."""
    return state_of(process) in "-ZX"


def pes_of(launcher: int) -> list[int]:
    """Process ids of the children of a launcher that are PEs."""
    text = pathlib.Path(f"/proc/{launcher}/task/{launcher}/children").read_text()
    return [int(child) for child in text.split() if name_of(int(child)) != "mori guard"]


def name_of(process: int) -> str:
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return pathlib.Path(f"/proc/{process}/comm").read_text().strip()
    return ""


def numbers_in(folder: pathlib.Path, count: int) -> list[int]:
    """Process ids that PEs left as names of files; waits for so many."""
    wait_until(lambda: len(list(folder.iterdir())) >= count, f"{count} processes started")
    return [int(path.name) for path in folder.iterdir()]


def kill_quietly(process: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(process, signal.SIGKILL)
