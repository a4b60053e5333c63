"""`mori run` with programs that know nothing of the library, and the command line around it."""

from __future__ import annotations

import ast
import hashlib
import os
import pathlib
import re
import resource
import socket
import subprocess

import pytest
from launcher_support import (
    DEADLINE_SECONDS,
    Launcher,
    environment,
    lines_by_pe,
    python,
    shell,
)

# ---- input and surroundings


PLACE = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
SHOW_ENVIRONMENT = "import os; print({n: t for n, t in os.environ.items() if n != 'LS_COLORS'})"


def environments_of_pes(
    mori: Launcher, n_pes: int, env: dict[str, str] | None = None
) -> list[dict[str, str]]:
    """What each PE of a run finds in its environment."""
    surroundings = {name: "" for name in (*PLACE, "MASTER_ADDR", "MASTER_PORT")}
    done = mori.run(n_pes, *python(SHOW_ENVIRONMENT), env={**surroundings, **(env or {})})
    assert done.returncode == 0, done.stderr
    lines = lines_by_pe(done.stdout)
    return [ast.literal_eval(lines[pe][0].decode()) for pe in range(n_pes)]


def test_each_pe_finds_its_place_in_the_environment(mori: Launcher) -> None:
    stale = {"MORI_RANK": "7", "MORI_UNIQUE_ID": "stale", "MORI_WORLD_SIZE": "9", "RANK": "8"}
    found = environments_of_pes(mori, 3, stale)
    for pe, variables in enumerate(found):
        for prefix in ("MORI_", ""):  # the second ones are those of torch
            values = [variables[prefix + name] for name in PLACE]
            assert values == [str(pe), "3", str(pe), "3"]
    ids = {variables["MORI_UNIQUE_ID"] for variables in found}
    assert len(ids) == 1
    assert re.fullmatch("[0-9a-f]{256}", ids.pop())


def test_programs_of_torch_find_each_other_at_a_free_port(mori: Launcher) -> None:
    found = environments_of_pes(mori, 2)
    assert [variables["MASTER_ADDR"] for variables in found] == ["127.0.0.1"] * 2
    (port,) = {variables["MASTER_PORT"] for variables in found}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", int(port)))


def test_a_meeting_point_for_torch_that_is_set_stays(mori: Launcher) -> None:
    (found,) = environments_of_pes(mori, 1, {"MASTER_ADDR": "host", "MASTER_PORT": "5"})
    assert (found["MASTER_ADDR"], found["MASTER_PORT"]) == ("host", "5")


def test_that_of_a_surrounding_run_does_not(mori: Launcher) -> None:
    torchrun = {"MASTER_ADDR": "host", "MASTER_PORT": "5", "RANK": "1", "WORLD_SIZE": "2"}
    torchrun.update(TORCHELASTIC_RUN_ID="x", TORCHELASTIC_USE_AGENT_STORE="True")
    (found,) = environments_of_pes(mori, 1, torchrun)
    assert (found["MASTER_ADDR"], found["RANK"]) == ("127.0.0.1", "0")
    assert found["MASTER_PORT"] != "5"
    assert not [name for name in found if name.startswith("TORCHELASTIC_")]


def test_each_run_has_its_own_unique_id(mori: Launcher) -> None:
    program = shell('echo "$MORI_UNIQUE_ID"')
    assert mori.run(1, *program).stdout != mori.run(1, *program).stdout


def test_pes_meet_on_loopback(mori: Launcher) -> None:
    done = mori.run(1, *shell('echo "$MORI_SOCKET_IFNAME"'), env={"MORI_SOCKET_IFNAME": ""})
    assert done.stdout == b"[0] lo\n"


def test_an_interface_that_does_not_exist_is_refused(mori: Launcher) -> None:
    done = mori.run(1, "echo", "started", env={"MORI_SOCKET_IFNAME": "nosuch0"})
    assert done.returncode == 1
    assert done.stdout == b""
    assert b"nosuch0" in done.stderr
    assert b"mori run: " in done.stderr


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("MORI_SHMEM_MODE", b"x", b'MORI_SHMEM_MODE: "x" is none of static, vmm, isolation'),
        ("MORI_NODE_ID", b"\xff\n", rb'MORI_NODE_ID: "\xff\x0a" is not 1 to 255 printable'),
    ],
)
def test_a_wrong_variable_is_said_once(
    mori: Launcher, name: str, value: bytes, says: bytes
) -> None:
    done = mori.run(3, "echo", "started", env={name: os.fsdecode(value)})
    assert (done.returncode, done.stdout) == (1, b"")
    assert done.stderr.startswith(b"mori run: " + says)
    assert done.stderr.count(b"\n") == 1


def test_without_any_network_one_pe_runs_and_several_say_why_not(mori: Launcher) -> None:
    """In a namespace of its own, where not even the loopback is up."""

    def alone(*arguments: str) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run(
            ["unshare", "--map-root-user", "--net", mori.path, "run", *arguments],
            env=environment(),
            capture_output=True,
            timeout=DEADLINE_SECONDS,
        )

    if subprocess.run(["unshare", "--map-root-user", "--net", "true"], check=False).returncode:
        pytest.skip("no right to make a network namespace")
    one = alone("-n", "1", "echo", "started")
    assert (one.returncode, one.stdout, one.stderr) == (0, b"[0] started\n", b"")
    two = alone("-n", "2", "echo", "started")
    assert (two.returncode, two.stdout) == (1, b"")
    assert two.stderr.startswith(b"mori run: cannot open a port at which the PEs meet: ")
    assert b"MORI_" not in two.stderr  # none was set


def test_standard_input_is_empty(mori: Launcher) -> None:
    done = mori.run(2, *shell("wc -c"), input=b"for nobody")
    assert {
        pe: [int(text) for text in texts] for pe, texts in lines_by_pe(done.stdout).items()
    } == {
        0: [0],
        1: [0],
    }


def test_pe_0_gets_standard_input_if_asked(mori: Launcher) -> None:
    data = os.urandom(1_000_000)
    done = mori.run(
        2,
        *python("import hashlib, sys; print(hashlib.sha256(sys.stdin.buffer.read()).hexdigest())"),
        options=["--stdin"],
        input=data,
    )
    assert lines_by_pe(done.stdout) == {
        0: [hashlib.sha256(data).hexdigest().encode()],
        1: [hashlib.sha256(b"").hexdigest().encode()],
    }


def test_input_that_pe_0_does_not_read_holds_nobody(mori: Launcher) -> None:
    done = mori.run(2, "true", options=["--stdin"], input=b"x" * 1_000_000)
    assert done.returncode == 0


def test_arguments_reach_the_program_as_they_are(mori: Launcher) -> None:
    arguments = ["-n", "3", "", "[a,b]", "--", "--stdin", "a b", "*", "--help", "run"]
    program = python("import sys; print(sys.argv[1:])")
    expected = b"[0] " + repr(arguments).encode() + b"\n"
    assert mori.call("run", "-n", "1", *program, *arguments).stdout == expected
    assert mori.call("run", "-n1", "--", *program, *arguments).stdout == expected
    assert mori.call("run", "-n", "1", "--no-prefix", *program, "x").stdout == b"['x']\n"


def test_a_program_may_have_the_name_of_a_subcommand(
    mori: Launcher, tmp_path: pathlib.Path
) -> None:
    program = tmp_path / "info"
    program.write_text("#!/bin/sh\necho mine\n")
    program.chmod(0o755)
    search = f"{tmp_path}:{os.environ['PATH']}"
    assert mori.run(1, "info", env={"PATH": search}).stdout == b"[0] mine\n"


def test_closed_standard_streams_do_no_harm(mori: Launcher, tmp_path: pathlib.Path) -> None:
    place = tmp_path / "ran"
    script = f'"{mori.path}" run -n 2 sh -c "echo lost; : > {place}-\\$MORI_RANK" <&- >&- 2>&-'
    done = subprocess.run(["sh", "-c", script], env=environment(), timeout=DEADLINE_SECONDS)
    assert done.returncode == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ran-0", "ran-1"]


def test_pes_have_the_signal_mask_and_dispositions_of_the_launcher(mori: Launcher) -> None:
    script = "grep -E '^Sig(Blk|Ign)' /proc/self/status"
    alone = subprocess.run(
        ["sh", "-c", script], capture_output=True, timeout=DEADLINE_SECONDS, check=True
    )
    done = mori.run(1, *shell(script))
    assert lines_by_pe(done.stdout)[0] == alone.stdout.splitlines()


def test_the_launcher_leaves_no_descriptor_of_its_own_to_pes(mori: Launcher) -> None:
    script = "import os; print(sorted(os.listdir('/proc/self/fd')))"
    alone = subprocess.run(
        python(script), capture_output=True, timeout=DEADLINE_SECONDS, check=True
    )
    done = mori.run(2, *python(script))
    assert lines_by_pe(done.stdout) == {pe: [alone.stdout.strip()] for pe in (0, 1)}


def test_a_low_soft_limit_of_open_files_is_raised_for_the_launcher_only(mori: Launcher) -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    done = mori.run(
        16,
        *shell("ulimit -Sn"),
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (24, hard)),
    )
    assert done.returncode == 0, done.stderr
    assert lines_by_pe(done.stdout) == {pe: [b"24"] for pe in range(16)}


def test_a_hard_limit_of_open_files_that_is_too_low_is_named(mori: Launcher) -> None:
    done = mori.run(
        16,
        "echo",
        "started",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24)),
    )
    assert done.returncode == 1
    assert done.stdout == b""
    assert b"16 PEs" in done.stderr and b"24" in done.stderr and b"ulimit -n" in done.stderr


def test_many_pes(mori: Launcher) -> None:
    done = mori.run(64, *shell("echo $MORI_RANK"))
    assert lines_by_pe(done.stdout) == {pe: [b"%d" % pe] for pe in range(64)}


# ---- command line


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["run", "-n", "0", "true"], "0"),
        (["run", "-n", "-1", "true"], "-1"),
        (["run", "-n", "two", "true"], "two"),
        (["run", "-n", "2.5", "true"], "2.5"),
        (["run", "-n", "", "true"], "-n"),
        (["run", "-n", "99999999999999999999", "true"], "99999999999999999999"),
        (["run", "-n"], "-n"),
        (["run", "true"], "-n is required"),
        (["run", "-n", "2"], "a program is missing"),
        (["run", "-n", "2", "--"], "a program is missing"),
        (["run", "-n", "2", "--bogus", "true"], "--bogus"),
        (["run", "-n", "2", "--grace", "-1", "true"], "-1"),
        (["run", "-n", "2", "--grace", "soon", "true"], "soon"),
        (["run", "-n", "2", "--grace", "nan", "true"], "nan"),
        (["run", "-n", "2", "--grace", "-nan", "true"], "nan"),
        (["run", "-n", "2", "--grace", "inf", "true"], "inf"),
        (["run", "-n", "2", "--grace", "-inf", "true"], "-inf"),
        (["run", "-n", "2", "--grace", "86401", "true"], "from 0 to 86400"),
        (["run", "-n", "2", "--grace", "1e999", "true"], "from 0 to 86400"),
        (["run", "-n", "2", "--grace", "5s", "true"], "5s"),
        (["run", "-n", "65537", "true"], "from 1 to 65536"),
        (["run", "-n", "0x2", "true"], "0x2"),
        (["run", "-n", "2\n3", "true"], r"2\x0a3"),
        (["run", "-np", "2", "true"], "-np is no option: the number of PEs is -n"),
        (["bogus"], "bogus"),
        ([], "subcommand"),
    ],
)
def test_wrong_usage_is_explained(mori: Launcher, arguments: list[str], reason: str) -> None:
    done = mori.call(*arguments)
    assert done.returncode == 2
    assert done.stdout == b""
    first, second = done.stderr.decode().splitlines()
    assert first.startswith("mori: ") and reason in first
    assert second == "Try 'mori --help'."


def test_help_shows_an_example(mori: Launcher) -> None:
    done = mori.call("--help")
    assert done.returncode == 0
    assert b"mori run -n 4 python3 -u train.py" in done.stdout
    run_help = mori.call("run", "--help")
    assert run_help.returncode == 0
    assert b"mori run -n N [options] [--] program [arguments]" in run_help.stdout


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"], ["--version"], ["info"]])
def test_help_that_cannot_be_written_is_an_error(mori: Launcher, arguments: list[str]) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [mori.path, *arguments],
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=DEADLINE_SECONDS,
        )
    assert done.returncode == 1
    assert done.stderr == b"mori: cannot write to standard output\n"


def test_wrong_usage_that_cannot_be_said_keeps_its_status(mori: Launcher) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [mori.path, "bogus"], env=environment(), stderr=full, timeout=DEADLINE_SECONDS
        )
    assert done.returncode == 2


def test_version(mori: Launcher) -> None:
    done = mori.call("--version")
    assert done.returncode == 0
    assert re.fullmatch(rb"mori \d+\.\d+\.\d+\n", done.stdout)
