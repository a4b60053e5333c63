"""The rules that conftest.py adds, seen by a pytest of their own."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent


def _pytest(
    folder: pathlib.Path, code: str, *, ignored: tuple[int, ...] = (), **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs `code` as a file of tests beside a copy of conftest.py's rules."""
    (folder / "test_it.py").write_text(code)
    (folder / "pytest.ini").write_text("[pytest]\n")

    def ignore() -> None:
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)

    inherited = {name: text for name, text in os.environ.items() if name != "CI"}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "test_it.py"],
        cwd=folder,
        env={**inherited, "PYTHONPATH": str(HERE), **variables},
        preexec_fn=ignore,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def _skips(reason: str) -> str:
    return f"import pytest\n\ndef test_skipped():\n    pytest.skip({reason!r})\n"


@pytest.mark.parametrize(
    ("reason", "variables", "status"),
    [
        ("ip is not installed", {"CI": "true"}, 1),
        ("ip is not installed", {}, 0),
        ("no CUDA device", {"CI": "true"}, 0),
        ("torch is left out (MORI_WITHOUT_TORCH=1)", {"CI": "true"}, 0),
    ],
)
def test_a_skip_is_a_failure_in_ci(
    tmp_path: pathlib.Path, reason: str, variables: dict[str, str], status: int
) -> None:
    done = _pytest(tmp_path, _skips(reason), **variables)
    assert done.returncode == status, done.stdout
    assert reason in done.stdout or status == 0


def test_programs_get_every_signals_default_where_pytest_ignores_it(tmp_path: pathlib.Path) -> None:
    code = """
import signal, subprocess, sys

def test_default():
    for name in ("SIGINT", "SIGHUP", "SIGQUIT", "SIGTERM"):
        script = f"kill -{name[3:]} $$; exit 0"
        assert subprocess.run(["sh", "-c", script]).returncode == -getattr(signal, name)
"""
    ignored = (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM)
    done = _pytest(tmp_path, code, ignored=ignored)
    assert done.returncode == 0, done.stdout
