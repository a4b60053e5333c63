"""Runs the Python code in README.md and docs/ that is marked as runnable.

A fenced `python` block is run if the line above it is one of

    <!-- run -->                  python FILE
    <!-- run: mori run -n 2 -->   mori run -n 2 python FILE
    <!-- run: mori run --hosts a:2,b:2 -->   the same on the hosts of the tests

where FILE holds the block, in an empty folder. It must end with 0. PEs get MORI_SHMEM_HEAP_SIZE and
MORI_SOCKET_IFNAME from the test. A block that imports torch is skipped where torch is missing.
"""

from __future__ import annotations

import importlib.util
import pathlib
import re
import shlex
import subprocess
import sys
from collections.abc import Callable

import pytest
from hosts_support import HostRunner
from launcher_support import find_command
from pes import PES_DEADLINE_SECONDS, REPOSITORY, WITHOUT_TORCH, environment

MARKED_BLOCK = re.compile(
    r"^<!-- run(?:: (?P<command>[^\n]+?))? -->\n```python\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def find_blocks(text: str) -> list[tuple[str, str]]:
    """Command (empty for none) and code of each marked block."""
    return [(found["command"] or "", found["code"]) for found in MARKED_BLOCK.finditer(text)]


def _documented_blocks() -> list[object]:
    parameters = []
    for path in [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]:
        text = path.read_text() if path.exists() else ""
        for number, (command, code) in enumerate(find_blocks(text), start=1):
            parameters.append(pytest.param(command, code, id=f"{path.name}:{number}"))
    return parameters


def test_marked_blocks_are_found_and_no_others() -> None:
    text = """
<!-- run -->
```python
first()
```
```python
not_marked()
```
<!-- run: mori run -n 2 -->
```python
second()
third()
```
<!-- run -->
```sh
not_python
```
"""
    assert find_blocks(text) == [("", "first()\n"), ("mori run -n 2", "second()\nthird()\n")]


@pytest.mark.parametrize(("command", "code"), _documented_blocks())
def test_documented_code_runs(
    tmp_path: pathlib.Path, make_hosts: Callable[..., HostRunner], command: str, code: str
) -> None:
    if "import torch" in code and importlib.util.find_spec("torch") is None:
        pytest.skip(WITHOUT_TORCH)
    script = tmp_path / "documented.py"
    script.write_text(code)
    launcher = shlex.split(command)
    if launcher[:1] == ["mori"]:
        launcher[0] = find_command()
    variables = environment()
    if "--hosts" in launcher:
        del variables["MORI_SOCKET_IFNAME"]
        launcher += ["--launch-agent", str(make_hosts(2).agent)]
    run = subprocess.run(
        [*launcher, sys.executable, str(script)],
        env=variables,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PES_DEADLINE_SECONDS,
        cwd=tmp_path,
        check=False,
    )
    assert run.returncode == 0, run.stdout + run.stderr
