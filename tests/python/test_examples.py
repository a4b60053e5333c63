"""The demo, started as its text says, and what it does when one of its checks fails."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest
from launcher_support import find_command
from pes import PES_DEADLINE_SECONDS, REPOSITORY, environment

EXAMPLES = REPOSITORY / "examples"


def _run(count: int, script: pathlib.Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [find_command(), "run", "-n", str(count), sys.executable, str(script)],
        env=environment({"MORI_SHMEM_HEAP_SIZE": None}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PES_DEADLINE_SECONDS,
        check=False,
    )


def test_digits_training() -> None:
    run = _run(4, EXAMPLES / "digits_training.py")
    assert run.returncode == 0, run.stdout + run.stderr
    found = re.search(r"held-out accuracy\D+([\d.]+)%", run.stdout)
    assert found and float(found.group(1)) > 95, run.stdout
    assert "to the last bit" in run.stdout
    assert re.search(r"communicating\D+[\d.]+ s \(\d+%\)", run.stdout), run.stdout
    assert all(line.startswith("[0]") for line in run.stdout.splitlines()), "only PE 0 talks"


@pytest.mark.parametrize(
    ("wrong_pes", "complaint"),
    [("{1}", "PE 1 holds other weights than PE 0"), ("{0, 1}", "by more than rounding")],
)
def test_digits_training_fails_with_its_checks(
    tmp_path: pathlib.Path, wrong_pes: str, complaint: str
) -> None:
    script = tmp_path / "wrong_digits.py"
    script.write_text(
        f"""
import sys
sys.path.insert(0, {str(EXAMPLES)!r})
import digits_training as demo
right = demo.train_on_all_pes

def wrong(*arguments):
    weights = right(*arguments)
    return weights + 1e-6 if demo.shmem.shmem_mype() in {wrong_pes} else weights

demo.train_on_all_pes = wrong
demo.main()
"""
    )
    run = _run(2, script)
    assert run.returncode != 0, run.stdout
    assert complaint in run.stderr, run.stderr
