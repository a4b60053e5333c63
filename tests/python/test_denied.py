"""System calls that a container or a service denies: a run works without them, or a sentence says
why not. It never hangs, and nothing crashes."""

from __future__ import annotations

import errno
import os
import pathlib
import platform
import re
import socket
import subprocess
import sys

import deny
import pytest
from launcher_support import (
    DEADLINE_SECONDS,
    Launcher,
    environment,
    find_build_dir,
    is_gone,
    numbers_in,
    shell,
    wait_until,
)

pytestmark = pytest.mark.skipif(platform.system() != "Linux", reason="no filter for system calls")

ERRORS = (errno.EPERM, errno.ENOSYS, errno.EACCES)

# All that the library and the launcher call; test_the_tables_name_every_call says when one is
# missing.
WORKS_WITHOUT = (
    "access",
    "clock_nanosleep",
    "close_range",
    "getdents64",
    "ioctl",
    "lseek",
    "madvise",
    "membarrier",
    "mincore",
    "pidfd_open",
    "prctl",
    "prlimit64",
    "readlink",
    "rseq",
    "sched_getaffinity",
    "sched_setaffinity",
    "sched_yield",
    "set_robust_list",
    "setsockopt",
    "shutdown",
    "statfs",
    "sysinfo",
    "uname",
)
MAY_NEED = (
    "accept4",
    "bind",
    "clone",
    "clone3",
    "connect",
    "dup2",
    "epoll_create1",
    "epoll_ctl",
    "epoll_pwait",
    "epoll_wait",
    "eventfd2",
    "fcntl",
    "ftruncate",
    "getrandom",
    "getsockname",
    "getsockopt",
    "kill",
    "listen",
    "memfd_create",
    "pipe2",
    "poll",
    "recvfrom",
    "recvmsg",
    "rt_sigaction",
    "rt_sigprocmask",
    "sendmsg",
    "sendto",
    "setpgid",
    "signalfd4",
    "socket",
    "socketpair",
    "vfork",
    "wait4",
)

# What a run on several hosts calls beside these.
MAY_NEED_ON_HOSTS = ("chdir", "getcwd")

# What a network calls beside these.
MAY_NEED_ON_A_NETWORK = (
    "accept",
    "epoll_create",
    "get_mempolicy",
    "getpeername",
    "set_mempolicy",
)

# What no program starts or ends without, under one C library or another, and what cannot fail.
OF_EVERY_PROGRAM = (
    *("arch_prctl", "brk", "close", "execve", "exit", "exit_group", "fstat", "futex", "mmap"),
    *("mprotect", "munmap", "newfstatat", "open", "openat", "pread64", "read", "rt_sigreturn"),
    *("sigaltstack", "stat", "statx", "write", "writev"),
    *("clock_getres", "clock_gettime", "getcpu", "getegid", "geteuid", "getgid", "getpgrp"),
    *("getpid", "getppid", "gettid", "gettimeofday", "getuid", "nanosleep", "restart_syscall"),
    *("set_tid_address", "tgkill", "umask"),
)


@pytest.fixture(scope="module")
def numbers() -> dict[str, int]:
    return deny.call_numbers()


def run_denied(
    mori: Launcher, denied: tuple[int | str, ...], n_pes: int
) -> subprocess.CompletedProcess[str]:
    """`ring_put` under the launcher, where `denied`, as deny.py takes it, is denied."""
    program = find_build_dir() / "examples" / "ring_put"
    variables = {"MORI_SHMEM_HEAP_SIZE": "4M", "MORI_BOOTSTRAP_TIMEOUT": "5"}
    return subprocess.run(
        [
            *(sys.executable, str(pathlib.Path(deny.__file__)), *map(str, denied), "--"),
            *(mori.path, "run", "-n", str(n_pes), "--grace", "2", "--", str(program)),
        ],
        env=environment(variables),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )


AGENT = '#!/bin/sh\nshift\nexec "$@"\n'


def run_denied_on_hosts(
    mori: Launcher, folder: pathlib.Path, error: int, number: int
) -> subprocess.CompletedProcess[str]:
    """The same with two agents, which are on this machine, and two PEs."""
    agent = folder / "agent"
    agent.write_text(AGENT)
    agent.chmod(0o755)
    variables = {
        "MORI_SHMEM_HEAP_SIZE": "4M",
        "MORI_BOOTSTRAP_TIMEOUT": "5",
        "MORI_SOCKET_IFNAME": "lo",
        "PATH": os.pathsep.join([os.path.dirname(mori.path), os.environ["PATH"]]),
    }
    return subprocess.run(
        [
            *(sys.executable, str(pathlib.Path(deny.__file__)), str(error), str(number), "--"),
            *(mori.path, "run", "--hosts", "a,b", "--launch-agent", str(agent), "--grace", "2"),
            str(find_build_dir() / "examples" / "ring_put"),
        ],
        env=environment(variables),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )


def works(done: subprocess.CompletedProcess[str], n_pes: int) -> bool:
    return done.returncode == 0 and done.stdout.count("is right") == n_pes


def says_why(done: subprocess.CompletedProcess[str]) -> bool:
    """A sentence of the launcher or of a PE, and no crash."""
    of_launcher = r"mori run: (host \S+ )?(cannot|is lost:) .*"
    of_pe = r"(\[\d+\] )?\[mori\] (PE \S+ )?error: .*"
    sentence = f"^({of_launcher}|{of_pe})$"
    crashed = done.returncode < 0 or "killed by" in done.stderr or "terminate" in done.stderr
    return done.returncode > 0 and not crashed and bool(re.search(sentence, done.stderr, re.M))


@pytest.mark.parametrize("call", WORKS_WITHOUT)
def test_runs_without(mori: Launcher, numbers: dict[str, int], call: str) -> None:
    for error in ERRORS:
        done = run_denied(mori, (error, numbers[call]), 2)
        assert works(done, 2), f"{errno.errorcode[error]}: {done.returncode} {done.stderr}"


@pytest.mark.parametrize("call", MAY_NEED)
def test_runs_without_or_says_why_not(mori: Launcher, numbers: dict[str, int], call: str) -> None:
    if call not in numbers:
        pytest.skip(f"no {call} on this machine")
    for error in ERRORS:
        done = run_denied(mori, (error, numbers[call]), 2)
        fine = works(done, 2) or says_why(done)
        assert fine, f"{errno.errorcode[error]}: {done.returncode} {done.stdout} {done.stderr}"


@pytest.mark.parametrize("call", (*WORKS_WITHOUT, *MAY_NEED, *MAY_NEED_ON_HOSTS))
def test_a_run_on_hosts_works_without_or_says_why_not(
    mori: Launcher, numbers: dict[str, int], tmp_path: pathlib.Path, call: str
) -> None:
    if call not in numbers:
        pytest.skip(f"no {call} on this machine")
    done = run_denied_on_hosts(mori, tmp_path, errno.EPERM, numbers[call])
    may_need = call in MAY_NEED or call in MAY_NEED_ON_HOSTS
    fine = works(done, 2) or (may_need and says_why(done))
    assert fine, f"{done.returncode} {done.stdout} {done.stderr}"


def run_over_a_network(mori: Launcher, *filter_arguments: str) -> subprocess.CompletedProcess[str]:
    """Two PEs that reach each other by the network alone."""
    variables = {"MORI_SHMEM_HEAP_SIZE": "4M", "MORI_BOOTSTRAP_TIMEOUT": "5"}
    variables |= {"MORI_DISABLE_P2P": "1", "MORI_SOCKET_IFNAME": "lo"}
    return subprocess.run(
        [
            *(sys.executable, str(pathlib.Path(deny.__file__)), *filter_arguments, "--"),
            *(mori.path, "run", "-n", "2", "--grace", "2", "--"),
            str(find_build_dir() / "examples" / "ring_put"),
        ],
        env=environment(variables),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )


@pytest.mark.parametrize("call", (*WORKS_WITHOUT, *MAY_NEED, *MAY_NEED_ON_A_NETWORK))
def test_a_run_over_a_network_works_without_or_says_why_not(
    mori: Launcher, numbers: dict[str, int], call: str
) -> None:
    if call not in numbers:
        pytest.skip(f"no {call} on this machine")
    done = run_over_a_network(mori, str(errno.EPERM), str(numbers[call]))
    assert works(done, 2) or says_why(done), f"{done.returncode} {done.stdout} {done.stderr}"


def test_the_tables_name_every_call(
    mori: Launcher, numbers: dict[str, int], tmp_path: pathlib.Path
) -> None:
    """Any other call would end its process (SIGSYS). `strace -f -c mori run...` then shows which
    one it is: it belongs into a table."""
    names = (*WORKS_WITHOUT, *MAY_NEED, *MAY_NEED_ON_HOSTS, *MAY_NEED_ON_A_NETWORK)
    known = sorted(numbers[name] for name in (*names, *OF_EVERY_PROGRAM) if name in numbers)
    only = ("only", *map(str, known))
    for done in (run_denied(mori, only, 2), run_over_a_network(mori, *only)):
        assert works(done, 2), f"{done.returncode} {done.stdout} {done.stderr}"


@pytest.mark.parametrize(
    ("family", "may_need"),
    [("AF_INET", True), ("AF_INET6", False), ("AF_NETLINK", False), ("AF_UNIX", True)],
)
def test_runs_without_a_family_of_sockets(
    mori: Launcher, numbers: dict[str, int], family: str, may_need: bool
) -> None:
    value = int(getattr(socket, family))
    done = run_denied(mori, (errno.EAFNOSUPPORT, numbers["socket"], value), 2)
    assert works(done, 2) or (may_need and says_why(done)), done.stderr


@pytest.mark.parametrize("call", ["close_range", "getdents64"])
def test_a_killed_launcher_leaves_nothing_behind_without(
    mori: Launcher, numbers: dict[str, int], started_folder: pathlib.Path, call: str
) -> None:
    script = f"sleep 1000 & : > {started_folder}/$!; : > {started_folder}/$$; wait"
    denied = (errno.EPERM, numbers[call])
    command = [sys.executable, str(pathlib.Path(deny.__file__)), *map(str, denied), "--"]
    command += [mori.path, "run", "-n", "2", "--", *shell(script)]
    with subprocess.Popen(command, env=environment()) as run:
        processes = numbers_in(started_folder, 4)
        run.kill()
    for process in processes:
        wait_until(lambda process=process: is_gone(process), f"process {process} ended")
