"""Fixtures of these tests: see pes.py for what they run."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
from launcher_support import Launcher, find_command
from pes import PeRunner

TEST_DEADLINE_SECONDS = 180


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives every test a deadline."""
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_DEADLINE_SECONDS))


@pytest.fixture
def run_pes(tmp_path: pathlib.Path) -> Iterator[PeRunner]:
    """Starts PEs; whatever still runs at the end of the test is killed."""
    runner = PeRunner(tmp_path)
    yield runner
    runner.close()


@pytest.fixture(scope="session")
def mori() -> Launcher:
    return Launcher(find_command())


@pytest.fixture
def started_folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Where processes leave their id, as the name of a file."""
    folder = tmp_path / "started"
    folder.mkdir()
    return folder
