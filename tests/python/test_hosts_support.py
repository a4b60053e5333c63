"""Network namespaces as hosts: what the tests of several hosts rely on."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys

import pytest
from hosts_support import DEADLINE_SECONDS, Host, Wire, launch_agent, network
from launcher_support import is_gone, wait_until

SERVE = (
    "import socket, sys\n"
    "server = socket.create_server((sys.argv[1], 5000), family=socket.AF_INET6"
    " if ':' in sys.argv[1] else socket.AF_INET)\n"
    "print('listening', flush=True)\n"
    "caller, _ = server.accept()\n"
    "caller.sendall(socket.gethostname().encode())\n"
)
CALL = (
    "import socket, sys\n"
    "with socket.create_connection((sys.argv[1], 5000), timeout=float(sys.argv[2])) as caller:\n"
    "    print(caller.recv(99).decode())\n"
)


def serve(host: Host) -> subprocess.Popen[bytes]:
    server = host.start(sys.executable, "-SEc", SERVE, host.address, stdout=subprocess.PIPE)
    assert server.stdout.readline() == b"listening\n"
    return server


def call(host: Host, name: str, seconds: float) -> subprocess.CompletedProcess[bytes]:
    return host.run(sys.executable, "-SEc", CALL, name, str(seconds), capture_output=True)


@pytest.mark.parametrize(("count", "family"), [(2, 4), (2, 6), (3, 4), (8, 4)])
def test_each_host_reaches_the_last_by_name(count: int, family: int) -> None:
    with network(count, family) as hosts:
        for caller in hosts[:-1]:
            with serve(hosts[-1]) as server:
                done = call(caller, hosts[-1].name, DEADLINE_SECONDS)
                assert (done.stdout, done.stderr) == (hosts[-1].name.encode() + b"\n", b"")
                assert server.wait(DEADLINE_SECONDS) == 0


def test_a_host_has_its_own_name_interfaces_and_node() -> None:
    show = 'uname -n; ls /proc/sys/net/ipv4/conf; echo "$MORI_NODE_ID"; pwd'
    with network(2) as hosts:
        for host in hosts:
            done = host.run("sh", "-c", show, stdout=subprocess.PIPE, check=True)
            interfaces = ["all", "default", "eth0", "lo"]
            expected = [host.name, *interfaces, host.name, os.getcwd()]
            assert done.stdout.decode().splitlines() == expected


def test_a_pulled_cable_keeps_hosts_apart_until_it_is_plugged_in_again() -> None:
    with network(2) as (a, b), serve(b) as server:
        b.set_link("down")
        apart = call(a, b.address, 0.2)
        assert (apart.returncode, apart.stdout) == (1, b"")
        b.set_link("up")
        wait_until(lambda: call(a, b.address, 1).stdout == b"b\n", "the host is reached again")
        assert server.wait(DEADLINE_SECONDS) == 0


def test_a_host_stands_still_and_goes_on() -> None:
    with network(2) as (a, b), serve(b) as server:
        b.pause()
        assert call(a, b.address, 0.2).stdout == b""  # connected by the kernel, and no word
        b.resume()
        assert server.wait(DEADLINE_SECONDS) == 0


def test_a_host_that_has_vanished_says_nothing() -> None:
    with network(2) as (a, b), serve(b) as server:
        b.vanish()
        assert server.wait(DEADLINE_SECONDS) == -signal.SIGKILL
        done = call(a, b.address, 0.2)
        assert done.stdout == b"" and b"refused" not in done.stderr


FLOW = (
    "import hashlib, socket, sys\n"
    "server = socket.create_server((sys.argv[1], 5000), family=socket.AF_INET6"
    " if ':' in sys.argv[1] else socket.AF_INET)\n"
    "print('listening', flush=True)\n"
    "caller, _ = server.accept()\n"
    "print(hashlib.sha256(caller.makefile('rb').read()).hexdigest())\n"
)
POUR = (
    "import hashlib, random, socket, sys\n"
    "data = random.Random(1).randbytes(3_000_000)\n"
    "with socket.create_connection((sys.argv[1], 5000), timeout=60) as caller:\n"
    "    caller.sendall(data)\n"
    "print(hashlib.sha256(data).hexdigest())\n"
)


@pytest.mark.parametrize("family", [4, 6])
def test_a_wire_loses_and_reorders_what_arrives_all_the_same(family: int) -> None:
    with network(3, family, Wire(delay=0.001, loss=0.02, reorder=0.05)) as (_, b, c):
        with c.start(sys.executable, "-SEc", FLOW, c.address, stdout=subprocess.PIPE) as server:
            assert server.stdout.readline() == b"listening\n"
            sent = b.run(sys.executable, "-SEc", POUR, c.name, stdout=subprocess.PIPE, check=True)
            assert server.stdout.read() == sent.stdout
        counts = b.wire_counts()
        assert min(counts) > 0 and counts.carried > 3_000_000 / 1400, counts


def test_a_wire_without_faults_loses_nothing() -> None:
    with network(2, wire=Wire()) as (a, b), serve(b) as server:
        assert call(a, b.name, DEADLINE_SECONDS).stdout == b"b\n"
        assert server.wait(DEADLINE_SECONDS) == 0
        assert a.wire_counts()[1:] == (0, 0)


def test_a_pulled_cable_of_a_wire_is_plugged_in_again() -> None:
    with network(2, wire=Wire()) as (a, b), serve(b) as server:
        b.set_link("down")
        assert call(a, b.address, 0.2).stdout == b""
        b.set_link("up")
        wait_until(lambda: call(a, b.address, 1).stdout == b"b\n", "the host is reached again")
        assert server.wait(DEADLINE_SECONDS) == 0


def test_what_runs_on_a_host_ends_with_it() -> None:
    with network(1) as (host,):
        left = host.start("sh", "-c", "trap '' TERM; sleep 1000 & echo; wait", stdout=-1)
        left.stdout.readline()
        children = host.processes()
        assert len(children) == 2
    left.communicate()
    assert all(map(is_gone, children))


def test_hosts_end_with_the_tests_however_those_end(tmp_path: pathlib.Path) -> None:
    script = (
        "from hosts_support import network\n"
        "import os, signal\n"
        "with network(2) as hosts:\n"
        "    print(*(host._keeper.pid for host in hosts), hosts[0]._switch.pid, flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    here = str(pathlib.Path(__file__).parent)
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": here},
        capture_output=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    for keeper in done.stdout.split():
        wait_until(lambda keeper=keeper: is_gone(int(keeper)), "the namespaces are gone")


def test_the_launch_agent_runs_a_command_of_a_shell_on_the_host(tmp_path: pathlib.Path) -> None:
    with network(2) as hosts:
        agent = launch_agent(tmp_path, hosts)
        said = subprocess.run(
            [agent, "b", "echo", "'a  b'", "$(uname -n)"], stdout=subprocess.PIPE, check=True
        )
        assert said.stdout == b"a  b b\n"
        unknown = subprocess.run([agent, "x", "true"], stderr=subprocess.PIPE)
        assert (unknown.returncode, b"resolve hostname x" in unknown.stderr) == (255, True)
