"""Fixtures of these tests: see pes.py for what they run."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator

import pytest
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
