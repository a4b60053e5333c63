"""`mori run --hosts`: PEs on several hosts, which are network namespaces."""

from __future__ import annotations

import ast
import contextlib
import hashlib
import ipaddress
import os
import pathlib
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Callable

import pytest
from hosts_support import HostRunner
from launcher_support import (
    DEADLINE_SECONDS,
    Launcher,
    environment,
    lines_by_pe,
    numbers_in,
    python,
    shell,
    state_of,
    wait_until,
)

HOSTS_DOCUMENT = pathlib.Path(__file__).parents[2] / "docs" / "hosts.md"
GREETING = b"\0mori agent\0"
SHOW = "import os, socket; print((socket.gethostname(), os.getcwd(), dict(os.environ)))"


def shown(done: subprocess.CompletedProcess[bytes]) -> list[tuple[str, str, dict[str, str]]]:
    """Host, working directory and environment of each PE that ran SHOW."""
    assert done.returncode == 0, done.stderr.decode()
    lines = lines_by_pe(done.stdout)
    return [ast.literal_eval(lines[pe][0].decode()) for pe in range(len(lines))]


# ---- places


@pytest.mark.parametrize("family", [4, 6])
def test_each_pe_knows_its_place(make_hosts: Callable[..., HostRunner], family: int) -> None:
    hosts = make_hosts(2, family)
    found = shown(hosts.run("a:2,b:2", *python(SHOW)))
    assert [host for host, _, _ in found] == ["a", "a", "b", "b"]
    for pe, (_, folder, variables) in enumerate(found):
        for prefix in ("MORI_", ""):  # the second ones are those of torch
            names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
            assert [variables[prefix + name] for name in names] == [str(pe), "4", str(pe % 2), "2"]
        assert variables["MASTER_ADDR"] == hosts.all[0].address
        assert "MORI_SOCKET_IFNAME" not in variables
        assert folder == os.getcwd()
    for name in ("MORI_UNIQUE_ID", "MASTER_PORT"):
        assert len({variables[name] for _, _, variables in found}) == 1
    # Where PEs meet is an address of the first host.
    assert hosts.all[0].address in addresses_in(found[0][2]["MORI_UNIQUE_ID"])


def addresses_in(unique_id: str) -> list[str]:
    data = bytes.fromhex(unique_id)
    entries = [data[60 + 20 * i : 80 + 20 * i] for i in range(data[56])]
    return [
        str(ipaddress.ip_address(entry[4:8] if entry[0] == 4 else entry[4:20])) for entry in entries
    ]


def test_ranks_follow_the_order_of_hosts(make_hosts: Callable[..., HostRunner]) -> None:
    hosts = make_hosts(3)
    place = shell('echo "$(uname -n) $MORI_LOCAL_RANK of $MORI_LOCAL_WORLD_SIZE"')
    expected = [b"c 0 of 1", b"a 0 of 3", b"a 1 of 3", b"a 2 of 3", b"b 0 of 1"]
    # A host that is named again gets more PEs, at its first place.
    done = hosts.run("c,a:2,b:1,a:1", *place)
    assert lines_by_pe(done.stdout) == {pe: [line] for pe, line in enumerate(expected)}
    done = hosts.run("a:2,b:2,c:2", *place, options=["-n", "3"])
    expected = [b"a 0 of 2", b"a 1 of 2", b"b 0 of 1"]
    assert lines_by_pe(done.stdout) == {pe: [line] for pe, line in enumerate(expected)}


def test_a_hostfile_is_read(two: HostRunner, tmp_path: pathlib.Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# of a batch system\na slots=1\nb:2\n")
    agent = ["--launch-agent", str(two.agent)]
    program = shell('echo "$(uname -n)"')
    done = two.mori.call("run", "--hostfile", str(path), *agent, *program)
    assert lines_by_pe(done.stdout) == {0: [b"a"], 1: [b"b"], 2: [b"b"]}


def test_this_machine_needs_no_ssh(mori: Launcher) -> None:
    done = mori.call("run", "--hosts", "localhost:2", *python(SHOW))
    for _, folder, variables in shown(done):
        assert folder == os.getcwd()
        assert (variables["MORI_SOCKET_IFNAME"], variables["MASTER_ADDR"]) == ("lo", "127.0.0.1")


# ---- what travels


def test_variables_travel_by_rule_and_by_name(two: HostRunner) -> None:
    given = {
        "MORI_SHMEM_HEAP_SIZE": "5M",
        "MORI_NODE_ID": "mine",
        "MORI_RANK": "7",
        "MORI_UNIQUE_ID": "stale",
        "PATH": "/travels:" + os.environ["PATH"],
        "LD_LIBRARY_PATH": "/libraries",
        "PYTHONPATH": "/modules",
        "ASKED_FOR": "a 'b' \\ \n c",
        "NOT_ASKED_FOR": "1",
    }
    options = ["-x", "ASKED_FOR", "-x", "GIVEN=x=y"]
    for host, _, variables in shown(two.run("a,b", *python(SHOW), options=options, env=given)):
        for name in ("MORI_SHMEM_HEAP_SIZE", "PATH", "LD_LIBRARY_PATH", "PYTHONPATH", "ASKED_FOR"):
            assert variables[name] == given[name]
        assert (variables["GIVEN"], variables["MORI_NODE_ID"]) == ("x=y", host)
        assert variables["MORI_UNIQUE_ID"] != "stale"


def test_a_meeting_point_for_torch_that_is_set_travels(two: HostRunner) -> None:
    given = {"MASTER_ADDR": "host", "MASTER_PORT": "5"}
    for _, _, variables in shown(two.run("a,b", *python(SHOW), env=given)):
        assert (variables["MASTER_ADDR"], variables["MASTER_PORT"]) == ("host", "5")


def test_a_variable_that_is_not_there_cannot_travel(two: HostRunner) -> None:
    done = two.run("a,b", "true", options=["-x", "NO_SUCH"])
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr == b'mori run: -x "NO_SUCH": there is no such variable\n'


def test_the_unique_id_is_on_no_command_line_and_with_pes_only(
    two: HostRunner, started_folder: pathlib.Path
) -> None:
    script = f'echo "$MORI_UNIQUE_ID"; : > {started_folder}/$$; sleep 1000'
    with two.started("a,b", *shell(script)) as run:
        unique_id = run.stdout.readline().split()[1]
        pes = numbers_in(started_folder, 2)
        for folder in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                assert unique_id not in (folder / "cmdline").read_bytes()
        for host in two.all:
            environ = pathlib.Path(f"/proc/{two.agent_of(host)}/environ").read_bytes()
            assert unique_id not in environ
        assert unique_id in pathlib.Path(f"/proc/{pes[0]}/environ").read_bytes()


def test_a_hosts_interface_is_the_one_that_is_named(two: HostRunner) -> None:
    found = shown(two.run("a,b", *python(SHOW), env={"MORI_SOCKET_IFNAME": "eth0"}))
    assert addresses_in(found[0][2]["MORI_UNIQUE_ID"])[0] == two.all[0].address
    done = two.run("a,b", "true", env={"MORI_SOCKET_IFNAME": "nosuch0"})
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"mori run: host a: MORI_SOCKET_IFNAME=nosuch0 matches no")


def test_a_host_with_the_loopback_alone_says_so(two: HostRunner) -> None:
    two.all[0].run("ip", "link", "del", "eth0", check=True)
    done = two.run("a,b", "true")
    assert (done.returncode, done.stdout) == (1, b"")
    assert b"mori run: host a: it has no network interface that other hosts reach" in done.stderr


# ---- input and output


def test_lines_of_all_hosts_are_whole(two: HostRunner) -> None:
    script = (
        "import os, sys\n"
        "for i in range(3000):\n"
        "    print(os.environ['MORI_RANK'], i, 'x' * (i % 300))\n"
        "    print('error', i, file=sys.stderr)\n"
    )
    done = two.run("a:2,b:2", *python(script))
    assert done.returncode == 0
    out, err = lines_by_pe(done.stdout), lines_by_pe(done.stderr)
    for pe in range(4):
        assert out[pe] == [b"%d %d %s" % (pe, i, b"x" * (i % 300)) for i in range(3000)]
        assert err[pe] == [b"error %d" % i for i in range(3000)]


def test_output_keeps_its_bytes_without_prefixes(two: HostRunner) -> None:
    script = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 4000)"
    done = two.run("a", *python(script), options=["--no-prefix"])
    assert done.stdout == bytes(range(256)) * 4000


def test_a_reader_that_waits_holds_the_pes_and_loses_nothing(
    two: HostRunner, started_folder: pathlib.Path
) -> None:
    script = (
        "import os, pathlib, sys\n"
        f"mark = pathlib.Path('{started_folder}', str(os.getpid()))\n"
        "mark.touch()\n"
        "for i in range(400): sys.stdout.write('x' * 99_999 + '\\n')\n"
        "mark.unlink()\n"
    )
    with two.started("a,b", *python(script)) as run:
        pes = numbers_in(started_folder, 2)
        rests = 0

        def all_rest() -> bool:
            nonlocal rests
            rests = rests + 1 if all(state_of(pe) == "S" for pe in pes) else 0
            return rests == 50

        wait_until(all_rest, "the PEs wait for their reader")
        assert len(list(started_folder.iterdir())) == 2
        assert sum(len(line) - 4 for line in run.stdout) == 2 * 400 * 100_000
        assert run.wait(DEADLINE_SECONDS) == 0


def test_pes_whose_output_nobody_reads_end_as_without_a_launcher(two: HostRunner) -> None:
    arguments = two.arguments("a,b", python("while True: print('x' * 1000)"), [])
    with subprocess.Popen(
        [two.mori.path, *arguments],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as run:
        run.stdout.readline()
        run.stdout.close()
        assert run.wait(DEADLINE_SECONDS) != 0
    wait_until(lambda: not two.left(), "nothing is left")


def test_pe_0_gets_standard_input_on_its_host(two: HostRunner) -> None:
    data = os.urandom(3_000_000)
    count = "import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"
    done = two.run("a,b", *python(count), options=["--stdin"], input=data)
    assert lines_by_pe(done.stdout) == {
        0: [hashlib.sha256(data).hexdigest().encode()],
        1: [hashlib.sha256(b"").hexdigest().encode()],
    }
    assert two.run("a,b", "true", options=["--stdin"], input=data).returncode == 0


# ---- ends


def await_start(folder: pathlib.Path, then: str) -> tuple[str, str, str]:
    return shell(f": > {folder}/$$; {then}")


def check_ended(hosts: HostRunner) -> None:
    wait_until(lambda: not hosts.left(), "nothing is left on the hosts")


@pytest.mark.parametrize(
    ("script", "status", "text"),
    [("exit 3", 3, "exited with status 3"), ("kill -KILL $$", 137, "killed by SIGKILL")],
)
def test_a_pe_that_fails_ends_those_of_all_hosts(
    two: HostRunner, script: str, status: int, text: str
) -> None:
    done = two.run("a:2,b:2", *shell(f"[ $MORI_RANK = 3 ] && {script}; sleep 1000"))
    assert done.returncode == status
    expected = f"mori run: PE 3 on host b failed first: {text}; PE 0-2 killed by SIGTERM\n"
    assert done.stderr.decode() == expected
    check_ended(two)


def test_what_ignores_the_request_is_killed_on_its_host(
    two: HostRunner, started_folder: pathlib.Path
) -> None:
    script = f"trap '' TERM; : > {started_folder}/$$; while :; do sleep 0.1; done"
    with two.started("a,b", *shell(script), options=["--grace", "0.2"]) as run:
        numbers_in(started_folder, 2)
        run.send_signal(signal.SIGTERM)
        assert run.wait(DEADLINE_SECONDS) == 143
        error = run.stderr.read().decode()
        assert error == "mori run: ended by SIGTERM; PE 0-1 killed by SIGKILL\n"
    check_ended(two)


def test_what_pes_leave_behind_ends_on_its_host(
    two: HostRunner, started_folder: pathlib.Path
) -> None:
    script = f"setsid sh -c ': > {started_folder}/$$; exec sleep 1000' & "
    script += f"while [ ! -e {started_folder}/$! ]; do sleep 0.01; done"
    done = two.run("a,b", *shell(script))
    assert done.returncode == 0
    check_ended(two)


def test_an_interrupt_reaches_all_hosts(two: HostRunner, started_folder: pathlib.Path) -> None:
    script = "trap 'echo heard; exit 0' INT; while :; do sleep 0.05; done"
    with two.started("a,b", *await_start(started_folder, script)) as run:
        numbers_in(started_folder, 2)
        run.send_signal(signal.SIGINT)
        out, err = run.communicate(timeout=DEADLINE_SECONDS)
    assert run.returncode == 130
    assert lines_by_pe(out) == {0: [b"heard"], 1: [b"heard"]}
    assert err == b"mori run: ended by SIGINT; PE 0-1 exited with status 0\n"
    check_ended(two)


def test_a_second_interrupt_kills(two: HostRunner, started_folder: pathlib.Path) -> None:
    script = f"trap 'echo heard' INT; : > {started_folder}/$$; while :; do sleep 0.05; done"
    with two.started("a,b", *shell(script), options=["--grace", "1000"]) as run:
        numbers_in(started_folder, 2)
        run.send_signal(signal.SIGINT)
        assert {run.stdout.readline() for _ in range(2)} == {b"[0] heard\n", b"[1] heard\n"}
        run.send_signal(signal.SIGINT)
        assert run.wait(DEADLINE_SECONDS) == 130
        assert b"PE 0-1 killed by SIGKILL" in run.stderr.read()
    check_ended(two)


def test_user_signals_reach_pes(two: HostRunner, started_folder: pathlib.Path) -> None:
    script = (
        f"trap 'echo heard; exit 0' USR1; : > {started_folder}/$$; while :; do sleep 0.05; done"
    )
    with two.started("a,b", *shell(script)) as run:
        numbers_in(started_folder, 2)
        run.send_signal(signal.SIGUSR1)
        out, _ = run.communicate(timeout=DEADLINE_SECONDS)
    assert (run.returncode, lines_by_pe(out)) == (0, {0: [b"heard"], 1: [b"heard"]})


def test_a_stopped_run_stops_its_pes(two: HostRunner, started_folder: pathlib.Path) -> None:
    with two.started("a,b", *await_start(started_folder, "exec sleep 1000")) as run:
        pes = numbers_in(started_folder, 2)
        run.send_signal(signal.SIGTSTP)
        for process in [*pes, run.pid]:
            wait_until(lambda process=process: state_of(process) == "T", "it has stopped")
        run.send_signal(signal.SIGCONT)
        for process in pes:
            wait_until(lambda process=process: state_of(process) == "S", "it goes on")
        run.send_signal(signal.SIGTERM)
        assert run.wait(DEADLINE_SECONDS) == 143


def test_a_killed_launcher_leaves_nothing_on_the_hosts(
    two: HostRunner, started_folder: pathlib.Path
) -> None:
    script = f"sleep 1000 & : > {started_folder}/$!; : > {started_folder}/$$; wait"
    with two.started("a:2,b:2", *shell(script)) as run:
        numbers_in(started_folder, 8)
        run.kill()
    check_ended(two)


def test_an_agent_whose_input_ends_leaves_nothing(
    two: HostRunner, tmp_path: pathlib.Path, started_folder: pathlib.Path
) -> None:
    """As with ssh, the agent is no child of what the launcher starts: its input tells it."""
    far = tmp_path / "far-agent"
    far.write_text(
        "#!/usr/bin/env python3\nimport subprocess, sys\n"
        f"sys.exit(subprocess.call(['setsid', '{two.agent}', *sys.argv[1:]]))\n"
    )
    far.chmod(0o755)
    script = f"sleep 1000 & : > {started_folder}/$!; : > {started_folder}/$$; wait"
    two.agent = far
    with two.started("a,b", *shell(script)) as run:
        numbers_in(started_folder, 4)
        run.kill()
    check_ended(two)


def test_a_killed_agent_is_told_with_its_host(
    two: HostRunner, started_folder: pathlib.Path
) -> None:
    with two.started("a:2,b:2", *await_start(started_folder, "exec sleep 1000")) as run:
        numbers_in(started_folder, 4)
        os.kill(two.agent_of(two.all[1]), signal.SIGKILL)
        _, err = run.communicate(timeout=DEADLINE_SECONDS)
    assert run.returncode == 1
    assert err == b"mori run: host b is lost: agent killed by SIGKILL\n"
    check_ended(two)


def test_a_host_that_vanishes_is_told(two: HostRunner, started_folder: pathlib.Path) -> None:
    with two.started("a:2,b:2", *await_start(started_folder, "exec sleep 1000")) as run:
        numbers_in(started_folder, 4)
        two.all[1].vanish()
        _, err = run.communicate(timeout=DEADLINE_SECONDS)
    assert run.returncode == 1
    assert b"host b" in err
    check_ended(two)


def test_a_host_that_stands_still_does_not_hold_the_end(
    two: HostRunner, started_folder: pathlib.Path
) -> None:
    options = ["--grace", "0.2"]
    with two.started(
        "a:2,b:2", *await_start(started_folder, "exec sleep 1000"), options=options
    ) as run:
        numbers_in(started_folder, 4)
        two.all[1].pause()
        run.send_signal(signal.SIGTERM)
        _, err = run.communicate(timeout=DEADLINE_SECONDS)
    assert run.returncode == 143
    ended = "mori run: ended by SIGTERM; PE 0-1 killed by SIGTERM"
    assert err.decode() == f"{ended}; PE 2 (host b), PE 3 (host b) did not end after SIGKILL\n"
    check_ended(two)


# ---- hosts that cannot be used


def test_a_program_that_one_host_lacks_is_told_with_the_host(
    two: HostRunner, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "here"
    folder.mkdir()
    program = folder / "program"
    program.write_text("#!/bin/sh\nsleep 1000\n")
    program.chmod(0o755)
    two.all[1].run("mount", "-t", "tmpfs", "none", str(folder), check=True)
    done = two.run("a,b", str(program))
    assert (done.returncode, done.stdout) == (127, b"")
    assert done.stderr.decode() == (
        f'mori run: host b: cannot run "{program}": No such file or directory\n'
    )
    check_ended(two)


def test_a_working_directory_that_one_host_lacks_is_told(
    two: HostRunner, tmp_path: pathlib.Path
) -> None:
    folder = tmp_path / "here" / "there"
    folder.mkdir(parents=True)
    two.all[1].run("mount", "-t", "tmpfs", "none", str(folder.parent), check=True)
    done = two.run("a,b", "echo", "started", cwd=folder)
    assert (done.returncode, done.stdout) == (1, b"")
    expected = f'mori run: host b: cannot enter "{folder}", the working directory of mori run: '
    assert done.stderr.decode().startswith(expected + "No such file or directory")


def test_a_host_without_the_command_is_told(two: HostRunner, tmp_path: pathlib.Path) -> None:
    folder = tmp_path / "here's a place"
    folder.mkdir()
    command = folder / "mori"
    command.symlink_to(two.mori.path)
    options = ["--remote-mori", str(command)]
    assert two.run("a,b", "true", options=options).returncode == 0  # quoted for the shell there
    two.all[1].run("mount", "-t", "tmpfs", "none", str(folder), check=True)
    done = two.run("a,b", "true", options=options)
    assert (done.returncode, done.stdout) == (1, b"")
    expected = f'mori run: host b: "{command}" cannot be run there: install MORI Shmem in the same '
    assert done.stderr.decode().startswith(expected)
    assert b"not found" in done.stderr  # the words of the shell there


def test_all_hosts_that_cannot_be_reached_are_told_before_any_pe_starts(two: HostRunner) -> None:
    done = two.run("a,nosuch:3,neither", "echo", "started")
    assert (done.returncode, done.stdout) == (1, b"")
    for name in ("nosuch", "neither"):
        assert (
            f"mori run: host {name} cannot be reached: agent exited with status 255: ssh: Could "
            f"not resolve hostname {name}: Name or service not known\n"
        ) in done.stderr.decode()
    assert done.stderr.count(b"\n") == 2
    check_ended(two)


def test_a_launch_agent_that_is_not_there_is_told(mori: Launcher) -> None:
    done = mori.call("run", "--hosts", "a,b", "--launch-agent", "/no/such --option", "true")
    assert (done.returncode, done.stdout) == (127, b"")
    expected = b'mori run: cannot run "/no/such": No such file or directory, to reach host a\n'
    assert done.stderr == expected


def test_ssh_is_called_without_questions(mori: Launcher, tmp_path: pathlib.Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\necho "ssh $*" >&2\nexit 255\n')
    ssh.chmod(0o755)
    env = environment({"PATH": f"{tmp_path}:{os.environ['PATH']}"})
    done = mori.call("run", "--hosts", "me@far:2", "true", env=env)
    assert done.returncode == 1
    own = os.path.realpath(mori.path)
    documented = re.search(r"^ssh .* -- HOST PATH agent$", HOSTS_DOCUMENT.read_text(), re.M)[0]
    call = documented.replace("HOST", "me@far").replace("PATH", own)
    reached = "mori run: host me@far cannot be reached: ssh exited with status 255: "
    assert done.stderr.decode() == f"{reached}{call}\n"


def fake_agent(folder: pathlib.Path, script: str) -> list[str]:
    path = folder / "fake"
    path.write_text(f"#!{sys.executable} -SEu\nimport os, sys\n{script}\n")
    path.chmod(0o755)
    return ["--launch-agent", str(path)]


def message(kind: int, payload: bytes) -> bytes:
    return struct.pack("<IB", len(payload), kind) + payload


def hello(version: bytes, protocol: int = 1) -> bytes:
    return message(32, struct.pack("<II", protocol, len(version)) + version)


def test_a_login_that_talks_is_let_talk(two: HostRunner, tmp_path: pathlib.Path) -> None:
    run_agent = f"os.execv('{two.agent}', ['{two.agent}', *sys.argv[1:]])"
    options = fake_agent(tmp_path, f"print('Welcome! ' * 20_000)\n{run_agent}")
    done = two.mori.call("run", "--hosts", "a,b", *options, "echo", "started")
    assert lines_by_pe(done.stdout) == {0: [b"started"], 1: [b"started"]}
    assert (done.returncode, done.stderr) == (0, b"")


def test_another_version_is_refused(mori: Launcher, tmp_path: pathlib.Path) -> None:
    wait = "sys.stdin.buffer.read()"
    for said in (hello(b"9.9.9"), hello(b"9.9.9", protocol=2)):
        options = fake_agent(tmp_path, f"sys.stdout.buffer.write({GREETING + said!r})\n{wait}")
        done = mori.call("run", "--hosts", "a", *options, "true")
        assert done.returncode == 1
        assert done.stderr.startswith(b"mori run: host a has version 9.9.9 of the mori command, ")
        assert done.stderr.count(b"\n") == 1


VERSION_PLACE = b"<version>"


@pytest.mark.parametrize(
    "said",
    [
        b"\xff" * 100,  # a length beyond every message
        message(32, b""),
        message(99, b""),
        message(33, b"\0" * 9),  # ready, before its hello
        hello(VERSION_PLACE) + hello(VERSION_PLACE),
        hello(VERSION_PLACE) + message(39, b""),  # over, before it was started
        hello(VERSION_PLACE) + message(36, struct.pack("<iBI", 0, 0, 0)),
        hello(VERSION_PLACE) + message(37, struct.pack("<ii", 0, 0)),
        hello(VERSION_PLACE) + message(34, struct.pack("<Ii", 0, 256)),
        hello(VERSION_PLACE) + message(38, b""),
    ],
)
def test_what_is_no_agent_is_refused(mori: Launcher, tmp_path: pathlib.Path, said: bytes) -> None:
    version = mori.call("--version").stdout.split()[1]
    if VERSION_PLACE in said:
        said = said.replace(hello(VERSION_PLACE), hello(version))
    script = f"sys.stdout.buffer.write({GREETING + said!r})\nsys.stdin.buffer.read()"
    done = mori.call("run", "--hosts", "a", *fake_agent(tmp_path, script), "true")
    assert done.returncode == 1
    assert done.stderr == (
        b"mori run: host a sent something that is no message of an agent, or none of its turn\n"
    )


def test_an_agent_that_ends_before_its_time_is_told_with_its_words(
    mori: Launcher, tmp_path: pathlib.Path
) -> None:
    options = fake_agent(tmp_path, "print('first'); print('last words', file=sys.stderr)")
    done = mori.call("run", "--hosts", "a", *options, "true")
    assert done.returncode == 1
    said = done.stderr.decode()
    assert said.startswith("mori run: host a cannot be reached: fake exited with status 0: ")
    assert "first" in said and "last words" in said


def test_an_interrupt_ends_a_run_that_waits_for_a_host(
    mori: Launcher, tmp_path: pathlib.Path
) -> None:
    mark = tmp_path / "waits"
    options = fake_agent(tmp_path, f"open('{mark}', 'w')\nimport time\ntime.sleep(1000)")
    arguments = ["run", "--hosts", "a", *options, "true"]
    with subprocess.Popen([mori.path, *arguments], stderr=subprocess.PIPE) as run:
        wait_until(mark.exists, "the agent was called")
        run.send_signal(signal.SIGINT)
        assert run.communicate(timeout=DEADLINE_SECONDS)[1] == b"mori run: ended by SIGINT\n"
        assert run.returncode == 130


@pytest.mark.parametrize(
    "orders", [b"x" * 100, message(1, b""), message(2, b"\0" * 9), message(3, b"\0" * 5)]
)
def test_an_agent_takes_no_orders_but_a_launchers(mori: Launcher, orders: bytes) -> None:
    done = mori.call("agent", input=orders)
    assert done.stdout.startswith(GREETING)
    assert done.stderr == b"mori agent: standard input holds no orders of mori run\n"


# ---- command line


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--hosts", "", "true"], 'run: --hosts: a host is missing in ""'),
        (["--hosts", "a:0", "true"], 'run: --hosts: "0" after host a is no number of PEs'),
        (["--hosts", "a:-1", "true"], '"-1" after host a'),
        (["--hosts", "a:65537", "true"], "from 1 to 65536"),
        (["--hosts", "a:65536,b", "true"], "65537 PEs, and a run has 65536 at most"),
        (["--hosts", "-oProxyCommand=x", "true"], "is no host"),
        (["--hosts", "a,b", "-n", "3", "true"], "3 PEs are asked for, and the hosts take 2"),
        (["--hosts", "a", "--hostfile", "x", "true"], "--hostfile"),
        (["--hostfile", "/no/such/file", "true"], "/no/such/file: cannot read it: No such file"),
        (["--hostfile", "/dev/null", "true"], "/dev/null: it names no host"),
        (["--hostfile", "/", "true"], "cannot read it"),
        (["-n", "1", "--launch-agent", "x", "true"], "--launch-agent is of use with --hosts"),
        (["-n", "1", "--remote-mori", "x", "true"], "--remote-mori is of use with --hosts"),
        (["--hosts", "a", "--launch-agent", " ", "true"], "--launch-agent names no command"),
        (["--hosts", "a", "-x", "=1", "true"], '-x "=1" names no variable'),
        (["--hosts", "a"], "a program is missing"),
    ],
)
def test_wrong_usage_is_explained(mori: Launcher, arguments: list[str], reason: str) -> None:
    done = mori.call("run", *arguments)
    assert (done.returncode, done.stdout) == (2, b"")
    first, second = done.stderr.decode().splitlines()
    assert first.startswith("mori: ") and reason in first
    assert second == "Try 'mori --help'."
