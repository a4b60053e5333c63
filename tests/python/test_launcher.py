"""`mori run` with programs that know nothing of the library, and the command line around it."""

from __future__ import annotations

import hashlib
import os
import pathlib
import pty
import re
import resource
import select
import signal
import subprocess

import pytest
from launcher_support import (
    DEADLINE_SECONDS,
    Launcher,
    environment,
    find_command,
    is_gone,
    kill_quietly,
    lines_by_pe,
    numbers_in,
    pes_of,
    python,
    shell,
    state_of,
    wait_until,
)


@pytest.fixture(scope="session")
def mori() -> Launcher:
    return Launcher(find_command())


@pytest.fixture
def started_folder(tmp_path: pathlib.Path) -> pathlib.Path:
    """Where processes leave their id, as the name of a file."""
    folder = tmp_path / "started"
    folder.mkdir()
    return folder


# ---- output


def test_lines_of_both_streams_are_marked_with_their_pe(mori: Launcher) -> None:
    done = mori.run(3, *shell('echo "out $MORI_RANK"; echo "err $MORI_RANK" >&2'))
    assert done.returncode == 0
    assert lines_by_pe(done.stdout) == {pe: [b"out %d" % pe] for pe in range(3)}
    assert lines_by_pe(done.stderr) == {pe: [b"err %d" % pe] for pe in range(3)}


def test_lines_written_in_pieces_by_many_pes_stay_whole_and_in_order(mori: Launcher) -> None:
    count = 300
    done = mori.run(
        6,
        *python(
            f"""
import os
pe = os.environ["MORI_RANK"]
text = "".join(f"{{pe}}:{{i}}:" + "x" * (i % 97) + chr(10) for i in range({count})).encode()
for begin in range(0, len(text), 41):
    os.write(1, text[begin:begin + 41])
"""
        ),
    )
    assert done.returncode == 0
    assert lines_by_pe(done.stdout) == {
        pe: [b"%d:%d:%s" % (pe, i, b"x" * (i % 97)) for i in range(count)] for pe in range(6)
    }


def test_streams_that_share_a_file_do_not_tear_each_others_lines(
    mori: Launcher, tmp_path: pathlib.Path
) -> None:
    program = python(
        """
import os
for i in range(200):
    for piece in (b"a" * 10, b"b" * 5000, b"\\n"):
        os.write(1, piece)
        os.write(2, piece)
"""
    )
    with open(tmp_path / "both", "wb") as both:
        subprocess.run(
            [mori.path, "run", "-n", "2", "--", *program],
            env=environment(),
            stdout=both,
            stderr=subprocess.STDOUT,
            timeout=DEADLINE_SECONDS,
            check=True,
        )
    line = b"a" * 10 + b"b" * 5000
    assert lines_by_pe((tmp_path / "both").read_bytes()) == {pe: [line] * 400 for pe in (0, 1)}


def test_a_very_long_line_of_one_pe_arrives_as_one_line(mori: Launcher) -> None:
    size = 3_000_000
    done = mori.run(1, *python(f"print('x' * {size})"))
    assert done.stdout == b"[0] " + b"x" * size + b"\n"


def test_very_long_lines_of_several_pes_arrive_in_pieces_that_do_not_mix(mori: Launcher) -> None:
    size = 3_000_000
    done = mori.run(
        3,
        *python(f"import os; print(os.environ['MORI_RANK'] * {size}); print('end')"),
    )
    lines = lines_by_pe(done.stdout)
    for pe, digit in enumerate((b"0", b"1", b"2")):
        assert lines[pe][-1] == b"end"
        assert b"".join(lines[pe][:-1]) == digit * size
        assert all(lines[pe])


ALL_BYTES = bytes(range(256)) * 1000
WRITE_ALL_BYTES = "import sys; sys.stdout.buffer.write(bytes(range(256)) * 1000)"


def test_binary_output_keeps_its_bytes(mori: Launcher) -> None:
    done = mori.run(2, *python(WRITE_ALL_BYTES))
    lines = lines_by_pe(done.stdout)
    assert lines == {0: ALL_BYTES.split(b"\n"), 1: ALL_BYTES.split(b"\n")}


def test_without_prefix_the_output_of_one_pe_is_byte_for_byte_its_own(mori: Launcher) -> None:
    done = mori.run(1, *python(WRITE_ALL_BYTES), options=["--no-prefix"])
    assert done.stdout == ALL_BYTES


def test_without_prefix_lines_stay_whole(mori: Launcher) -> None:
    done = mori.run(4, *shell("printf 'a line'"), options=["--no-prefix"])
    assert done.stdout.split(b"\n") == [b"a line"] * 4


def test_a_last_line_without_newline_is_completed(mori: Launcher) -> None:
    done = mori.run(2, *shell("printf 'first\\nlast'"))
    assert lines_by_pe(done.stdout) == {pe: [b"first", b"last"] for pe in (0, 1)}


def test_an_empty_line_is_a_line(mori: Launcher) -> None:
    assert mori.run(1, *shell("echo; echo")).stdout == b"[0] \n[0] \n"


def test_output_that_is_read_late_is_complete(mori: Launcher) -> None:
    size = 4_000_000
    program = python(f"import sys; sys.stdout.write('0123456789abcde\\n' * ({size} // 16))")
    with mori.started(2, *program, options=["--no-prefix"]) as run:
        wait_until(lambda: bool(select.select([run.stdout], [], [], 0)[0]), "output came")
        (first,) = pes_of(run.pid)[:1]
        wait_until(lambda: state_of(first) == "S", "a PE waits for its output to be read")
        out, _ = run.communicate(timeout=DEADLINE_SECONDS)
    assert run.returncode == 0
    assert out == b"0123456789abcde\n" * (2 * size // 16)


def test_output_of_a_pe_that_ends_at_once_is_not_lost(mori: Launcher) -> None:
    done = mori.run(8, *python("import os; os.write(1, b'x' * 60000 + b'\\n'); os._exit(0)"))
    assert lines_by_pe(done.stdout) == {pe: [b"x" * 60000] for pe in range(8)}


def test_a_process_that_left_its_pe_and_keeps_the_pipe_does_not_hold_the_launcher(
    mori: Launcher, started_folder: pathlib.Path
) -> None:
    done = mori.run(
        1,
        *python(
            f"""
import pathlib, subprocess, sys
print("before", flush=True)
left = subprocess.Popen(["sleep", "1000"], start_new_session=True)
pathlib.Path({str(started_folder)!r}, str(left.pid)).touch()
"""
        ),
    )
    (left,) = numbers_in(started_folder, 1)
    try:
        assert done.returncode == 0
        assert done.stdout == b"[0] before\n"
        assert not is_gone(left)
    finally:
        kill_quietly(left)


def test_pes_end_when_nobody_reads_their_output(mori: Launcher) -> None:
    with mori.started(2, "yes") as run:
        run.stdout.read(100)
        run.stdout.close()
        assert run.wait(DEADLINE_SECONDS) == 128 + signal.SIGPIPE
        assert run.stderr.read() == b""


def test_a_full_disk_is_reported(mori: Launcher) -> None:
    with open("/dev/full", "wb") as full:
        done = subprocess.run(
            [mori.path, "run", "-n", "1", "echo", "text"],
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=DEADLINE_SECONDS,
        )
    assert done.returncode == 1
    assert done.stderr == (b"mori run: cannot write the output of PEs: No space left on device\n")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"TERM": "xterm"}, rb"\x1b\[\d+m\[0\]\x1b\[0m text\r\n"),
        ({"TERM": "xterm", "NO_COLOR": "1"}, rb"\[0\] text\r\n"),
        ({"TERM": "dumb"}, rb"\[0\] text\r\n"),
    ],
)
def test_prefixes_have_colour_on_a_terminal(
    mori: Launcher, variables: dict[str, str], expected: bytes
) -> None:
    terminal, pes_side = pty.openpty()
    try:
        subprocess.run(
            [mori.path, "run", "-n", "1", "echo", "text"],
            env={**environment(), **variables},
            stdout=pes_side,
            timeout=DEADLINE_SECONDS,
            check=True,
        )
        assert re.fullmatch(expected, os.read(terminal, 1000))
    finally:
        os.close(terminal)
        os.close(pes_side)


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


# ---- exit status


@pytest.mark.parametrize(
    ("script", "status", "text"),
    [
        ("exit 1", 1, b"exited with status 1"),
        ("exit 255", 255, b"exited with status 255"),
        ("kill -KILL $$", 137, b"killed by SIGKILL"),
        ("kill -TERM $$", 143, b"killed by SIGTERM"),
    ],
)
def test_the_status_is_that_of_the_pe_that_failed(
    mori: Launcher, script: str, status: int, text: bytes
) -> None:
    done = mori.run(3, *shell(f"[ $MORI_RANK = 1 ] || exit 0; {script}"))
    assert done.returncode == status
    assert done.stderr == (
        b"mori run: PE 1 failed first: " + text + b"; PE 0, 2 exited with status 0\n"
    )


def test_success_is_silent(mori: Launcher) -> None:
    done = mori.run(3, "true")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_first_pe_that_failed_counts(mori: Launcher) -> None:
    done = mori.run(
        4, *shell("[ $MORI_RANK != 2 ] || exit 7; trap 'exit 9' TERM; sleep 1000 & wait")
    )
    assert done.returncode == 7
    assert done.stderr == (
        b"mori run: PE 2 failed first: exited with status 7; PE 0-1, 3 exited with status 9\n"
    )


def test_pes_that_fail_because_of_another_have_time_to_say_so(
    mori: Launcher, tmp_path: pathlib.Path
) -> None:
    mark = tmp_path / "failing"
    script = f"""
if [ $MORI_RANK = 1 ]; then : > {mark}; exit 5; fi
while [ ! -e {mark} ]; do sleep 0.01; done
sleep 0.1
echo "peer lost" >&2
exit 6
"""
    done = mori.run(3, *shell(script))
    assert done.returncode == 5
    *messages, summary = done.stderr.splitlines()
    assert sorted(messages) == [b"[0] peer lost", b"[2] peer lost"]
    assert summary == (
        b"mori run: PE 1 failed first: exited with status 5; PE 0, 2 exited with status 6"
    )


def test_a_pe_that_ignores_sigterm_is_killed_after_the_grace_period(mori: Launcher) -> None:
    script = "trap '' TERM; [ $MORI_RANK = 0 ] || exit 3; while :; do sleep 1; done"
    done = mori.run(2, *shell(script), options=["--grace", "0.2"])
    assert done.returncode == 3
    assert done.stderr == (
        b"mori run: PE 1 failed first: exited with status 3; PE 0 killed by SIGKILL\n"
    )


def test_a_stopped_pe_is_ended_too(mori: Launcher) -> None:
    script = "if [ $MORI_RANK = 0 ]; then kill -STOP $$; sleep 1000; fi; exit 3"
    done = mori.run(2, *shell(script), options=["--grace", "1000"])
    assert done.returncode == 3


@pytest.mark.parametrize(
    ("program", "status", "reason"),
    [
        ("no-such-program", 127, "cannot run 'no-such-program': no such program in PATH"),
        ("./no/such", 127, "cannot run './no/such': No such file or directory"),
        ("{folder}/plain", 126, "cannot run '{folder}/plain': Permission denied"),
        ("{folder}", 126, "cannot run '{folder}': Permission denied"),
        (
            "{folder}/lost",
            127,
            "cannot run '{folder}/lost': the interpreter that it names does not exist",
        ),
    ],
)
def test_a_program_that_cannot_be_run_is_named(
    mori: Launcher, tmp_path: pathlib.Path, program: str, status: int, reason: str
) -> None:
    (tmp_path / "plain").write_text("text")
    (tmp_path / "lost").write_text("#!/no/such/interpreter\n")
    (tmp_path / "lost").chmod(0o755)
    done = mori.run(4, program.format(folder=tmp_path))
    assert done.returncode == status
    assert done.stderr.decode() == f"mori run: {reason.format(folder=tmp_path)}\n"


# ---- signals


def test_an_exit_in_success_leaves_the_others_running(mori: Launcher) -> None:
    done = mori.run(2, *shell("[ $MORI_RANK = 0 ] && exit 0; sleep 0.3; echo done"))
    assert done.returncode == 0
    assert done.stdout == b"[1] done\n"


SAY_READY_AND_WAIT = """
import os, signal, sys, time
def stop(number, frame):
    print("got", signal.Signals(number).name, flush=True)
    sys.exit(0)
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
    signal.signal(number, stop)
print("ready", flush=True)
while True:
    time.sleep(1)
"""


def read_lines(run: subprocess.Popen[bytes], count: int) -> list[bytes]:
    return [run.stdout.readline() for _ in range(count)]


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGQUIT"])
def test_a_stop_signal_reaches_all_pes(mori: Launcher, name: str) -> None:
    number = signal.Signals[name]
    with mori.started(3, *python(SAY_READY_AND_WAIT), options=["--grace", "1000"]) as run:
        assert sorted(read_lines(run, 3)) == [b"[%d] ready\n" % pe for pe in range(3)]
        run.send_signal(number)
        out, err = run.communicate(timeout=DEADLINE_SECONDS)
    assert run.returncode == 128 + number
    assert sorted(out.splitlines()) == [b"[%d] got %s" % (pe, name.encode()) for pe in range(3)]
    assert err == b"mori run: ended by %s; PE 0-2 exited with status 0\n" % name.encode()


def test_ctrl_c_on_the_terminal_reaches_all_pes(mori: Launcher) -> None:
    process, terminal = pty.fork()
    if process == 0:
        program = [mori.path, "run", "-n", "2", "--", *python(SAY_READY_AND_WAIT)]
        os.execve(mori.path, program, {**environment(), "TERM": "dumb"})
    try:
        seen = b""
        while seen.count(b"ready") < 2:
            seen += os.read(terminal, 1000)
        os.write(terminal, b"\x03")
        while b"mori run: ended by SIGINT; PE 0-1 exited with status 0" not in seen:
            seen += os.read(terminal, 1000)
        assert seen.count(b"got SIGINT") == 2
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 130
    finally:
        kill_quietly(process)
        os.close(terminal)


SHRUG_OFF_INTERRUPTS = """
import signal, time
signal.signal(signal.SIGINT, lambda number, frame: print("not yet", flush=True))
print("ready", flush=True)
while True:
    time.sleep(1)
"""


def test_a_second_ctrl_c_kills_at_once(mori: Launcher) -> None:
    with mori.started(2, *python(SHRUG_OFF_INTERRUPTS), options=["--grace", "1000"]) as run:
        read_lines(run, 2)
        run.send_signal(signal.SIGINT)
        assert sorted(read_lines(run, 2)) == [b"[0] not yet\n", b"[1] not yet\n"]
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=DEADLINE_SECONDS)
    assert run.returncode == 130
    assert err == b"mori run: ended by SIGINT; PE 0-1 killed by SIGKILL\n"


def test_pes_that_ignore_an_interrupt_are_killed_after_the_grace_period(mori: Launcher) -> None:
    with mori.started(2, *python(SHRUG_OFF_INTERRUPTS), options=["--grace", "0.2"]) as run:
        read_lines(run, 2)
        run.send_signal(signal.SIGINT)
        _, err = run.communicate(timeout=DEADLINE_SECONDS)
    assert run.returncode == 130
    assert err == b"mori run: ended by SIGINT; PE 0-1 killed by SIGKILL\n"


def test_a_stop_signal_ends_the_launcher_while_its_output_is_not_read(mori: Launcher) -> None:
    with mori.started(1, "yes") as run:
        wait_until(lambda: len(pes_of(run.pid)) == 1, "the PE started")
        (pe,) = pes_of(run.pid)
        wait_until(
            lambda: all(state_of(p) == "S" for p in (pe, run.pid) * 20), "both wait for a reader"
        )
        run.send_signal(signal.SIGTERM)
        wait_until(lambda: not pes_of(run.pid), "the PE ended")
        assert run.poll() is None  # it keeps what is not read
        run.send_signal(signal.SIGTERM)
        assert run.wait(DEADLINE_SECONDS) == 128 + signal.SIGTERM
        assert run.stderr.read() == b"mori run: ended by SIGTERM; PE 0 killed by SIGTERM\n"


def test_a_hangup_that_is_ignored_stays_ignored(mori: Launcher, tmp_path: pathlib.Path) -> None:
    go_on = tmp_path / "go-on"
    script = f"echo ready; while [ ! -e {go_on} ]; do sleep 0.01; done; echo survived"
    with mori.started(
        1, *shell(script), preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    ) as run:
        read_lines(run, 1)
        run.send_signal(signal.SIGHUP)
        go_on.touch()
        out, _ = run.communicate(timeout=DEADLINE_SECONDS)
    assert (run.returncode, out) == (0, b"[0] survived\n")


@pytest.mark.parametrize("name", ["SIGUSR1", "SIGUSR2"])
def test_user_signals_are_handed_on(mori: Launcher, name: str) -> None:
    script = """
import signal, sys
signals = {signal.SIGUSR1, signal.SIGUSR2}
signal.pthread_sigmask(signal.SIG_BLOCK, signals)
print("ready", flush=True)
print(signal.Signals(signal.sigwait(signals)).name)
"""
    with mori.started(2, *python(script)) as run:
        read_lines(run, 2)
        run.send_signal(signal.Signals[name])
        out, _ = run.communicate(timeout=DEADLINE_SECONDS)
    assert run.returncode == 0
    assert lines_by_pe(out) == {pe: [name.encode()] for pe in (0, 1)}


def test_job_control_stops_and_continues_pes(mori: Launcher) -> None:
    with mori.started(2, *shell("echo ready; exec sleep 1000")) as run:
        read_lines(run, 2)
        pes = pes_of(run.pid)
        assert len(pes) == 2
        run.send_signal(signal.SIGTSTP)
        for process in (run.pid, *pes):
            wait_until(lambda process=process: state_of(process) == "T", "stopped")
        run.send_signal(signal.SIGCONT)
        for process in (run.pid, *pes):
            wait_until(lambda process=process: state_of(process) == "S", "continued")


# ---- what is left behind

LEAVE_A_CHILD = """
sleep 1000 &
: > {folder}/$!
: > {folder}/$$
"""


def test_processes_that_pes_started_end_with_a_failure(
    mori: Launcher, started_folder: pathlib.Path
) -> None:
    script = LEAVE_A_CHILD.format(folder=started_folder)
    wait_for_all = f"while [ $(ls {started_folder} | wc -l) -lt 4 ]; do sleep 0.01; done"
    done = mori.run(2, *shell(f"{script}\n{wait_for_all}\n[ $MORI_RANK = 0 ] && exit 3; wait"))
    assert done.returncode == 3
    assert all(is_gone(process) for process in numbers_in(started_folder, 4))


def test_processes_that_pes_left_behind_end_with_the_run(
    mori: Launcher, started_folder: pathlib.Path
) -> None:
    done = mori.run(2, *shell(LEAVE_A_CHILD.format(folder=started_folder)))
    assert done.returncode == 0
    assert all(is_gone(process) for process in numbers_in(started_folder, 4))


def test_processes_left_behind_may_finish_what_they_do_on_sigterm(
    mori: Launcher, tmp_path: pathlib.Path
) -> None:
    place = tmp_path / "cleaned"
    ready = tmp_path / "ready"
    helper = f"(trap ': > {place}; exit' TERM; : > {ready}; while :; do sleep 0.01; done) &"
    done = mori.run(1, *shell(f"{helper} while [ ! -e {ready} ]; do sleep 0.01; done"))
    assert done.returncode == 0
    assert place.exists()


def test_processes_that_pes_started_end_with_a_stop_signal(
    mori: Launcher, started_folder: pathlib.Path
) -> None:
    script = LEAVE_A_CHILD.format(folder=started_folder) + "wait"
    with mori.started(2, *shell(script)) as run:
        processes = numbers_in(started_folder, 4)
        run.send_signal(signal.SIGTERM)
        assert run.wait(DEADLINE_SECONDS) == 143
    assert all(is_gone(process) for process in processes)


def test_a_killed_launcher_leaves_nothing_behind(
    mori: Launcher, started_folder: pathlib.Path
) -> None:
    script = LEAVE_A_CHILD.format(folder=started_folder) + "wait"
    with mori.started(4, *shell(script)) as run:
        processes = numbers_in(started_folder, 8)
        run.kill()
        run.wait(DEADLINE_SECONDS)
        for process in processes:
            wait_until(lambda process=process: is_gone(process), f"process {process} ended")


def test_ended_pes_and_orphans_are_no_zombies(mori: Launcher, tmp_path: pathlib.Path) -> None:
    end = tmp_path / "end"
    script = f"""
[ $MORI_RANK != 0 ] || exit 0
sh -c 'sleep 0 & exit' & wait
echo ready
while [ ! -e {end} ]; do sleep 0.01; done
"""
    with mori.started(3, *shell(script)) as run:
        read_lines(run, 2)
        wait_until(lambda: len(pes_of(run.pid)) == 2, "only the running PEs are children")
        end.touch()
        assert run.wait(DEADLINE_SECONDS) == 0


def test_a_process_that_cannot_be_ended_holds_the_launcher_for_a_while_only(
    mori: Launcher, started_folder: pathlib.Path
) -> None:
    """A zombie of the PE's group, whose parent lives elsewhere and does not care."""
    script = f"""
import os, pathlib, time
if os.fork() == 0:
    zombie = os.fork()
    if zombie == 0:
        os._exit(0)
    os.setsid()
    os.waitid(os.P_PID, zombie, os.WEXITED | os.WNOWAIT)
    pathlib.Path({str(started_folder)!r}, str(os.getpid())).touch()
    time.sleep(1000)
while not os.listdir({str(started_folder)!r}):
    time.sleep(0.01)
print("done")
"""
    done = mori.run(1, *python(script), options=["--grace", "0.1"])
    kill_quietly(*numbers_in(started_folder, 1))
    assert (done.returncode, done.stdout, done.stderr) == (0, b"[0] done\n", b"")


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
