"""tools/count_tests.py over files as ctest and pytest write them."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

TOOL = pathlib.Path(__file__).parents[2] / "tools" / "count_tests.py"

PASSED = '<testcase name="Ring.Passes" status="run"><system-out>[ OK ]</system-out></testcase>'
FAILED = '<testcase name="Ring.Fails" status="fail"><failure message=""/></testcase>'
BROKEN = '<testcase name="test_setup"><error message="fixture">no</error></testcase>'
WITHOUT_GPU = """<testcase name="gpu_tests" status="notrun">
<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>
<system-out>gpu_pe.hpp:12: Skipped
no CUDA device</system-out></testcase>"""
WITHOUT_TORCH = """<testcase name="test_group">
<skipped type="pytest.skip" message="torch is left out (MORI_WITHOUT_TORCH=1)">pes.py</skipped>
</testcase>"""
WITHOUT_IP = (
    '<testcase name="test_ipv6"><skipped message="ip is not installed">x</skipped></testcase>'
)


def count(folder: pathlib.Path, *cases: str, ci: bool = True) -> subprocess.CompletedProcess[str]:
    path = folder / "ctest.xml"
    path.write_text(f'<?xml version="1.0"?><testsuite name="all">{"".join(cases)}</testsuite>')
    return subprocess.run(
        [sys.executable, str(TOOL), str(path)],
        env={**os.environ, "CI": "true" if ci else "false"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("cases", "ci", "status", "counts"),
    [
        ([PASSED, PASSED], True, 0, "2 passed, 0 failed, 0 skipped"),
        ([PASSED, FAILED, BROKEN], True, 1, "1 passed, 2 failed, 0 skipped"),
        ([PASSED, WITHOUT_GPU, WITHOUT_TORCH], True, 0, "1 passed, 0 failed, 2 skipped"),
        ([PASSED, WITHOUT_IP], True, 1, "1 passed, 0 failed, 1 skipped"),
        ([PASSED, WITHOUT_IP], False, 0, "1 passed, 0 failed, 1 skipped"),
        ([WITHOUT_GPU], True, 1, "0 passed, 0 failed, 1 skipped"),
        ([], True, 1, "0 passed, 0 failed, 0 skipped"),
    ],
)
def test_counts(
    tmp_path: pathlib.Path, cases: list[str], ci: bool, status: int, counts: str
) -> None:
    done = count(tmp_path, *cases, ci=ci)
    assert done.returncode == status, done.stdout
    assert done.stdout.splitlines()[-1] == f"all: {counts}"


def test_a_refused_skip_is_named(tmp_path: pathlib.Path) -> None:
    done = count(tmp_path, PASSED, WITHOUT_IP)
    assert "test_ipv6 was skipped, which is a failure in CI" in done.stdout


def test_a_file_that_is_not_there_is_a_failure(tmp_path: pathlib.Path) -> None:
    done = subprocess.run(
        [sys.executable, str(TOOL), str(tmp_path / "ctest.xml")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, "ctest: did not run" in done.stdout) == (1, True)


def test_a_test_that_failed_is_named_with_what_it_said(tmp_path: pathlib.Path) -> None:
    done = count(tmp_path, PASSED, FAILED, BROKEN)
    assert "ctest: Ring.Fails FAILED" in done.stdout
    assert "ctest: test_setup FAILED\n  | no" in done.stdout
    assert "Ring.Passes" not in done.stdout
