"""`mori run` with programs that know nothing of the library, and the command line around it."""

from __future__ import annotations

import hashlib
import os
import pathlib
import re
import resource
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


def test_each_pe_finds_its_place_in_the_environment(mori: Launcher) -> None:
    names = ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"]
    script = "; ".join(f'echo "$MORI_{name}"' for name in [*names, "UNIQUE_ID"])
    stale = {"MORI_RANK": "7", "MORI_UNIQUE_ID": "stale", "MORI_WORLD_SIZE": "9"}
    lines = lines_by_pe(mori.run(3, *shell(script), env=stale).stdout)
    ids = {texts[-1] for texts in lines.values()}
    assert {pe: texts[:-1] for pe, texts in lines.items()} == {
        pe: [b"%d" % pe, b"3", b"%d" % pe, b"3"] for pe in range(3)
    }
    assert len(ids) == 1
    assert re.fullmatch(rb"[0-9a-f]{256}", ids.pop())


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


def test_version(mori: Launcher) -> None:
    done = mori.call("--version")
    assert done.returncode == 0
    assert re.fullmatch(rb"mori \d+\.\d+\.\d+\n", done.stdout)


def test_info_shows_version_backends_and_variables(mori: Launcher) -> None:
    version = mori.call("--version").stdout.split()[1]
    set_here = {"MORI_SHMEM_HEAP_SIZE": "123M", "MORI_UNIQUE_ID": "5" * 256}
    done = mori.call("info", env=environment(set_here))
    assert (done.returncode, done.stderr) == (0, b"")
    assert version in done.stdout
    assert b"host" in done.stdout
    assert re.search(rb"MORI_SHMEM_HEAP_SIZE +\"123M\"", done.stdout)
    assert b"MORI_BOOTSTRAP_TIMEOUT" in done.stdout
    assert b"5" * 256 not in done.stdout


def test_info_can_show_variables_only(mori: Launcher) -> None:
    everything = mori.call("info").stdout
    variables = mori.call("info", "--env").stdout
    assert b"MORI_SHMEM_HEAP_SIZE" in variables
    assert variables in everything
    assert variables != everything
