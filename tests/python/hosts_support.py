"""Network namespaces as the machines of one network: each test makes its own, and they end with it.

    with network(2) as (a, b):
        a.run("ping", "-c1", b.address, check=True)

A host is a namespace of network, host name and mounts. Its one interface, eth0, is joined to those
of the others by a bridge in a namespace of its own, so that nothing of this machine's network is
seen or touched. It lives as long as a process that waits for the end of its standard input: it goes
with the tests, however they end. Process ids, files and memory are this machine's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import pytest
from launcher_support import Launcher, environment, find_build_dir, is_gone

DEADLINE_SECONDS = 60
NAMES = "abcdefgh"
NAMESPACES = ("--net", "--uts", "--mount")


def _own_rights() -> list[str]:
    """What lets a user who is not root make namespaces."""
    return [] if os.geteuid() == 0 else ["--user", "--map-root-user"]


@functools.cache
def why_not() -> str:
    """Why this process cannot make hosts; empty where it can."""
    trial = "ip link add x type veth peer name y && ip link add z type bridge && mount -t tmpfs x /"
    tried = subprocess.run(
        ["unshare", *_own_rights(), *NAMESPACES, "sh", "-c", trial],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    return "" if tried.returncode == 0 else tried.stdout.decode(errors="replace").strip()


class _Keeper:
    """A process that holds namespaces until `close()`, or the end of this process."""

    def __init__(self, enter: Sequence[str], script: str) -> None:
        self._process = subprocess.Popen(
            [*enter, "sh", "-ec", f"{script}\necho ready\nexec cat"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        said = self._process.stdout.readline()
        if said != b"ready\n":
            rest = self._process.communicate()[0]
            raise RuntimeError(f"no namespace: {(said + rest).decode(errors='replace')}")
        self.pid = self._process.pid

    def enter(self, *namespaces: str) -> list[str]:
        own = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", "--target", str(self.pid), *own, *namespaces]

    def call(self, script: str) -> None:
        """Runs a shell script with the namespace's network."""
        words = [*self.enter("--net"), "sh", "-ec", script]
        subprocess.run(words, check=True, timeout=DEADLINE_SECONDS)

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait(DEADLINE_SECONDS)


@dataclasses.dataclass(frozen=True)
class Wire:
    """What packets meet on their way from one host to another."""

    delay: float = 0.0  # seconds, one way
    loss: float = 0.0  # probability, of a packet of TCP
    reorder: float = 0.0  # the same, that later ones overtake it
    seed: int = 1
    # With this one TCP cuts its stream between the bytes of words.
    mtu: int = 1400

    @property
    def arguments(self) -> list[str]:
        return [str(value) for value in (self.delay, self.loss, self.reorder, self.seed)]


class WireCounts(NamedTuple):
    """Packets of TCP that a wire got, and what became of some of them."""

    carried: int
    lost: int
    overtaken: int


class _Forwarder:
    """The process that is a wire: see wire.py."""

    def __init__(self, wire: Wire, switch: _Keeper, names: Iterable[str]) -> None:
        program = [sys.executable, "-SE", pathlib.Path(__file__).parent / "wire.py"]
        self._process = subprocess.Popen(
            [*switch.enter("--net"), *program, *wire.arguments, *names],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        said = self._process.stdout.readline()
        if said != b"ready\n":
            rest = self._process.communicate()[0].decode(errors="replace")
            if not pathlib.Path("/dev/net/tun").exists():
                pytest.skip("this machine has no /dev/net/tun")
            pytest.skip(f"no right to open /dev/net/tun: {rest}")

    def counts(self) -> WireCounts:
        self._process.stdin.write(b"\n")
        self._process.stdin.flush()
        return WireCounts(*map(int, self._process.stdout.readline().split()))

    def close(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.stdout.close()
        assert self._process.wait(DEADLINE_SECONDS) == 0, "the wire has failed"


@dataclasses.dataclass(frozen=True)
class Host:
    """One of the machines. PEs that run in it are a node of this name."""

    name: str
    address: str
    _keeper: _Keeper
    _switch: _Keeper
    _forwarder: _Forwarder | None

    def command(self, *words: str, folder: str | os.PathLike[str] | None = None) -> list[str]:
        """A command line for this machine that runs `words` on the host, in this folder."""
        enter = self._keeper.enter(*NAMESPACES, f"--wdns={folder or os.getcwd()}")
        return [*enter, "env", f"MORI_NODE_ID={self.name}", *words]

    def run(self, *words: str, **keywords: object) -> subprocess.CompletedProcess[bytes]:
        keywords.setdefault("timeout", DEADLINE_SECONDS)
        return subprocess.run(self.command(*words), **keywords)

    def start(self, *words: str, **keywords: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen(self.command(*words), **keywords)

    @property
    def network_path(self) -> str:
        """Its network namespace, for setns()."""
        return f"/proc/{self._keeper.pid}/ns/net"

    def processes(self) -> list[int]:
        """Those that run on the host, but for the one that keeps it."""
        found = []
        here = os.stat(f"/proc/{self._keeper.pid}/ns/net")
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.path.samestat(os.stat(folder / "ns/net"), here):
                    found.append(int(folder.name))
        return sorted(set(found) - {self._keeper.pid})

    def signal(self, number: int) -> None:
        """To every process on the host, also to what they start meanwhile."""
        reached: set[int] = set()
        while new := set(self.processes()) - reached:
            for process in new:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)
            reached |= new

    def pause(self) -> None:
        """All of the host stands still; its kernel still answers on the network."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.signal(signal.SIGCONT)

    def wire_counts(self) -> WireCounts:
        """What the wire, of all hosts together, did so far."""
        return self._forwarder.counts()

    def set_link(self, state: str) -> None:
        """`down` pulls the cable, as the host's eth0 sees it; `up` plugs it in again."""
        self._switch.call(f"ip link set to-{self.name} {state}")

    def vanish(self) -> None:
        """The machine has lost its power: nothing more of it reaches the others."""
        self._switch.call(f"ip link del to-{self.name}")
        self.signal(signal.SIGKILL)

    def close(self) -> None:
        """Ends the host and whatever runs on it."""
        end = time.monotonic() + DEADLINE_SECONDS
        while self._running():
            assert time.monotonic() < end, f"host {self.name} has processes that do not end"
            self.signal(signal.SIGKILL)
            time.sleep(0.005)
        self._keeper.close()

    def _running(self) -> bool:
        return not all(map(is_gone, self.processes()))


def address_of(index: int, family: int) -> tuple[str, int]:
    """That of a host, and the bits that all of them have in common."""
    return (f"10.77.0.{index + 1}", 24) if family == 4 else (f"fd77::{index + 1:x}", 64)


def _plug_in(
    name: str, keeper: _Keeper, switch: _Keeper, wire: Wire | None, others: Iterable[str]
) -> str:
    """Gives a host its eth0. @return what the host has to do itself once it has an address."""
    if wire is None:
        switch.call(f"ip link add to-{name} type veth peer name eth0 netns {keeper.pid}")
    else:
        switch.call(f"ip link set host-{name} netns {keeper.pid} name eth0")
    switch.call(f"ip link set to-{name} master bridge up")
    if wire is None:
        return ""
    # What is lost is sent again without the fifth of a second that TCP would wait for it.
    patience = "".join(f"ip route add {other} dev eth0 rto_min 20ms\n" for other in others)
    return f"ip link set eth0 mtu {wire.mtu}\n{patience}"


def _make_host(
    name: str,
    switch: _Keeper,
    forwarder: _Forwarder | None,
    wire: Wire | None,
    addresses: dict[str, tuple[str, int]],
    names: pathlib.Path,
) -> Host:
    address, bits = addresses[name]
    others = [other for other, _ in addresses.values() if other != address]
    # A user who is not root makes them all in the switch's namespace of users.
    inside = [] if os.geteuid() == 0 else switch.enter()
    script = f"mount --bind '{names}' /etc/hosts\nhostname {name}\nip link set lo up"
    keeper = _Keeper([*inside, "unshare", *NAMESPACES], script)
    try:
        then = _plug_in(name, keeper, switch, wire, others)
        at_once = "nodad" if ":" in address else ""
        keeper.call(f"ip addr add {address}/{bits} dev eth0 {at_once}\nip link set eth0 up\n{then}")
    except BaseException:
        keeper.close()
        raise
    return Host(name, address, keeper, switch, forwarder)


@contextlib.contextmanager
def network(count: int, family: int = 4, wire: Wire | None = None) -> Iterator[tuple[Host, ...]]:
    """So many hosts, named a, b, ..., which know each other's names.

    `family` is 4, or 6 for hosts that have IPv6 addresses only. With a `wire`, packets between them
    meet what it says.
    """
    if why_not():
        pytest.skip(f"no right to make network namespaces: {why_not()}")
    with contextlib.ExitStack() as ends:
        folder = ends.enter_context(tempfile.TemporaryDirectory(prefix="hosts-"))
        names = pathlib.Path(folder) / "hosts"
        addresses = {name: address_of(i, family) for i, name in enumerate(NAMES[:count])}
        known = [f"{address} {name}\n" for name, (address, _) in addresses.items()]
        names.write_text("127.0.0.1 localhost\n::1 localhost\n" + "".join(known))
        pathlib.Path(folder).chmod(0o755)
        joined = "ip link add bridge type bridge\nip link set bridge up"
        switch = _Keeper(["unshare", *_own_rights(), "--net"], joined)
        ends.callback(switch.close)
        forwarder = _Forwarder(wire, switch, addresses) if wire else None
        if forwarder:
            ends.callback(forwarder.close)
        hosts = []
        for name in addresses:
            host = _make_host(name, switch, forwarder, wire, addresses, names)
            ends.callback(host.close)
            hosts.append(host)
        yield tuple(hosts)


AGENT = """#!/bin/sh
# What ssh does: its words, joined by blanks, are a command for the shell of the host.
host=$1
shift
case $host in
{cases}
*) echo "ssh: Could not resolve hostname $host: Name or service not known" >&2; exit 255 ;;
esac
"""


def launch_agent(folder: pathlib.Path, hosts: Sequence[Host]) -> pathlib.Path:
    """A program that is called as `PROGRAM HOST command…`, as ssh is, for these hosts."""
    cases = []
    for host in hosts:
        enter = " ".join(host.command("sh", "-c", folder="/"))
        cases.append(f'{host.name}) exec {enter} "$*" ;;')
    path = folder / "agent"
    path.write_text(AGENT.format(cases="\n".join(cases)))
    path.chmod(0o755)
    return path


def parent_of(process: int) -> int:
    stat = pathlib.Path(f"/proc/{process}/stat").read_text()
    return int(stat.rpartition(")")[2].split()[1])


class HostRunner:
    """Some hosts, and the launcher with an agent for them."""

    def __init__(self, mori: Launcher, hosts: Sequence[Host], agent: pathlib.Path) -> None:
        self.mori = mori
        self.all = hosts
        self.agent = agent

    def arguments(self, places: str, program: Sequence[str], options: Sequence[str]) -> list[str]:
        agent = ["--launch-agent", str(self.agent)]
        return ["run", "--hosts", places, *agent, *options, "--", *program]

    def run(
        self,
        places: str,
        *program: str,
        options: Sequence[str] = (),
        env: dict[str, str] | None = None,
        **keywords: object,
    ) -> subprocess.CompletedProcess[bytes]:
        keywords.setdefault("timeout", 2 * DEADLINE_SECONDS)  # of all hosts, on one machine
        arguments = self.arguments(places, program, options)
        return self.mori.call(*arguments, env=environment(env), **keywords)

    def run_on_nodes(self, tests: Sequence[str], **variables: str) -> None:
        """Runs tests of multi_pe_tests, whose PEs go to these hosts by the names of their nodes.

        Nodes of nodes_test.cpp have names like those of hosts; MORI_TEST_NODES makes node0, ....
        """
        program = find_build_dir() / "tests" / "multi_pe_tests"
        networks = ",".join(
            f"{node}={host.network_path}"
            for index, host in enumerate(self.all)
            for node in (host.name, f"node{index}")
        )
        done = self.all[0].run(
            *("env", "-u", "MORI_NODE_ID", f"MORI_TEST_NETWORKS={networks}"),
            *(f"{name}={value}" for name, value in variables.items()),
            *(program, f"--gtest_filter={':'.join(tests)}"),
            env=environment(),
            capture_output=True,
            timeout=2 * DEADLINE_SECONDS,
        )
        said = done.stdout.decode(errors="replace")
        assert done.returncode == 0, said
        assert f"[  PASSED  ] {len(tests)} test" in said

    @contextlib.contextmanager
    def started(
        self, places: str, *program: str, options: Sequence[str] = ()
    ) -> Iterator[subprocess.Popen[bytes]]:
        process = subprocess.Popen(
            [self.mori.path, *self.arguments(places, program, options)],
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def agent_of(self, host: Host) -> int:
        """Process id of the launcher's agent on a host."""
        there = host.processes()
        (found,) = [process for process in there if parent_of(process) not in there]
        return found

    def left(self) -> list[int]:
        """What runs on any of the hosts."""
        return [p for host in self.all for p in host.processes() if not is_gone(p)]
