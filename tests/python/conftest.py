"""Fixtures of these tests: see pes.py for what they run."""

from __future__ import annotations

import contextlib
import os
import pathlib
import signal
from collections.abc import Callable, Iterator

import pytest
from hosts_support import HostRunner, Wire, launch_agent, network
from launcher_support import Launcher, find_command
from pes import PeRunner

TEST_DEADLINE_SECONDS = 180
# Why a test may be skipped on a machine of CI (CI=true); any other skip is a failure there.
ACCEPTED_SKIPS = ("no CUDA device", "MORI_WITHOUT_TORCH=1", "this machine has no /dev/net/tun")


def pytest_configure() -> None:
    """Lets the processes that tests start have every signal's default, under nohup too.

    What ignores a signal passes that on to the programs that it starts, what handles it does not.
    """
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, lambda number, frame: None)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Makes a skip a failure in CI, where nothing that can be installed may be missing."""
    outcome = yield
    report = outcome.get_result()
    if os.environ.get("CI") == "true" and report.skipped and not hasattr(report, "wasxfail"):
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        if not any(accepted in reason for accepted in ACCEPTED_SKIPS):
            report.outcome = "failed"
            report.longrepr = f"skipped where CI=true: {reason}"


@pytest.hookimpl(tryfirst=True)
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


@pytest.fixture
def make_hosts(mori: Launcher, tmp_path: pathlib.Path) -> Iterator[Callable[..., HostRunner]]:
    """Makes hosts for one test: `make_hosts(count, family=4, wire=None)`."""
    with contextlib.ExitStack() as ends:

        def make(count: int, family: int = 4, wire: Wire | None = None) -> HostRunner:
            hosts = ends.enter_context(network(count, family, wire))
            return HostRunner(mori, hosts, launch_agent(tmp_path, hosts))

        yield make


@pytest.fixture
def two(make_hosts: Callable[..., HostRunner]) -> HostRunner:
    """Two hosts."""
    return make_hosts(2)
