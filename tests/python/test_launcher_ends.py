"""`mori run`: how PEs end, by themselves and by signals, and what is left behind."""

from __future__ import annotations

import ctypes
import os
import pathlib
import pty
import resource
import signal
import subprocess
import sys

import pytest
from launcher_support import (
    DEADLINE_SECONDS,
    Launcher,
    environment,
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


def await_ends(folder: pathlib.Path, count: int) -> str:
    """Shell: waits until so many processes left their id in the folder, and the launcher has heard
    of their end."""
    return (
        f"while [ $(ls {folder} | wc -l) -lt {count} ]; do sleep 0.01; done; "
        f"for pid in $(ls {folder}); do while kill -0 $pid; do sleep 0.01; done 2> /dev/null; done"
    )


def await_marks(folder: pathlib.Path, count: int) -> str:
    """Shell: waits until so many PEs have left a file in the folder."""
    return f"while [ $(ls {folder} | wc -l) -lt {count} ]; do sleep 0.01; done"


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
    mori: Launcher, started_folder: pathlib.Path, script: str, status: int, text: bytes
) -> None:
    others = f"[ $MORI_RANK = 1 ] || {{ : > {started_folder}/$$; exit 0; }}"
    done = mori.run(3, *shell(f"{others}; {await_ends(started_folder, 2)}; {script}"))
    assert done.returncode == status
    assert done.stderr == (
        b"mori run: PE 1 failed first: " + text + b"; PE 0, 2 exited with status 0\n"
    )


def test_success_is_silent(mori: Launcher) -> None:
    done = mori.run(3, "true")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_first_pe_that_failed_counts(mori: Launcher, started_folder: pathlib.Path) -> None:
    script = f"""
if [ $MORI_RANK = 2 ]; then {await_marks(started_folder, 3)}; exit 7; fi
trap 'exit 9' TERM
: > {started_folder}/$MORI_RANK
sleep 1000 & wait
"""
    done = mori.run(4, *shell(script))
    assert done.returncode == 7
    assert done.stderr == (
        b"mori run: PE 2 failed first: exited with status 7; PE 0-1, 3 exited with status 9\n"
    )


def test_pes_that_fail_because_of_another_have_time_to_say_so(
    mori: Launcher, started_folder: pathlib.Path
) -> None:
    script = f"""
if [ $MORI_RANK = 1 ]; then : > {started_folder}/$$; exit 5; fi
{await_ends(started_folder, 1)}
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


def test_a_pe_that_ignores_sigterm_is_killed_after_the_grace_period(
    mori: Launcher, started_folder: pathlib.Path
) -> None:
    script = f"""
if [ $MORI_RANK = 1 ]; then {await_marks(started_folder, 1)}; exit 3; fi
trap '' TERM
: > {started_folder}/0
while :; do sleep 1; done
"""
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
        ("no-such-program", 127, 'cannot run "no-such-program": no such program in PATH'),
        ("./no/such", 127, 'cannot run "./no/such": No such file or directory'),
        ("{folder}/plain", 126, 'cannot run "{folder}/plain": Permission denied'),
        ("{folder}", 126, 'cannot run "{folder}": Permission denied'),
        (
            "{folder}/lost",
            127,
            'cannot run "{folder}/lost": the interpreter that it names does not exist',
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


def test_an_exit_in_success_leaves_the_others_running(
    mori: Launcher, started_folder: pathlib.Path
) -> None:
    first = f"[ $MORI_RANK = 0 ] && {{ : > {started_folder}/$$; exit 0; }}"
    done = mori.run(2, *shell(f"{first}; {await_ends(started_folder, 1)}; echo done"))
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


COUNT_STOPS = """
import os, signal, sys, time
place, ready = sys.argv[1:]
signals = os.open(place, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
signal.signal(signal.SIGTERM, lambda *_: None)
pe = os.getpid()
if os.fork() == 0:
    signal.signal(signal.SIGTERM, lambda *_: os.write(signals, b"x"))
    open(ready, "w").close()
    while os.getppid() == pe:
        time.sleep(0.01)
    time.sleep(0.3)  # a second one would come now
    os._exit(0)
while os.stat(place).st_size == 0:
    time.sleep(0.01)
"""


def test_what_stays_in_the_group_of_a_pe_gets_a_stop_signal_once(
    mori: Launcher, tmp_path: pathlib.Path
) -> None:
    place, ready = tmp_path / "signals", tmp_path / "ready"
    with mori.started(1, sys.executable, "-c", COUNT_STOPS, str(place), str(ready)) as run:
        wait_until(ready.exists, "the child is there")
        run.send_signal(signal.SIGTERM)
        run.wait(DEADLINE_SECONDS)
    assert place.read_bytes() == b"x"


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


PTRACE_SEIZE = 0x4206


def test_a_process_that_cannot_be_ended_holds_the_launcher_for_a_while_only(
    mori: Launcher, started_folder: pathlib.Path
) -> None:
    """It stays a zombie, since a debugger that does not care has to reap it first."""
    go_on = started_folder.parent / "go-on"
    script = f"sleep 1000 & : > {started_folder}/$!; while [ ! -e {go_on} ]; do sleep 0.01; done"
    with mori.started(1, *shell(script), options=["--grace", "0.1"]) as run:
        (left,) = numbers_in(started_folder, 1)
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.ptrace(PTRACE_SEIZE, left, None, None) == 0, os.strerror(ctypes.get_errno())
        go_on.touch()
        out, err = run.communicate(timeout=DEADLINE_SECONDS)
    assert (run.returncode, out, err) == (0, b"", b"")


LEAVE_THE_GROUP = """
import os, pathlib, signal, subprocess, sys, time
left = subprocess.Popen(["sleep", "1000"], start_new_session=True)
pathlib.Path(sys.argv[1], str(left.pid)).touch()
if os.fork() == 0:  # a daemon, as it is written in books
    os.setsid()
    if os.fork() == 0:
        pathlib.Path(sys.argv[1], str(os.getpid())).touch()
        if "deaf" in sys.argv:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pathlib.Path(sys.argv[1] + "-ready", str(os.getpid())).touch()
        time.sleep(1000)
    os._exit(0)
ready = pathlib.Path(sys.argv[1] + "-ready")
while len(list(ready.iterdir())) < int(os.environ["MORI_WORLD_SIZE"]):
    time.sleep(0.01)
"""


@pytest.mark.parametrize("end", ["sys.exit(0)", "sys.exit(3)", "os.kill(os.getpid(), 9)"])
@pytest.mark.parametrize("kind", ["", "deaf"])
def test_processes_that_left_the_group_end_with_the_run(
    mori: Launcher, started_folder: pathlib.Path, end: str, kind: str
) -> None:
    pathlib.Path(f"{started_folder}-ready").mkdir()
    program = [*python(LEAVE_THE_GROUP + end), str(started_folder), kind]
    mori.run(2, *program, options=["--grace", "0.2"])
    assert all(is_gone(process) for process in numbers_in(started_folder, 4))


def test_children_that_the_launcher_had_before_are_not_its_own(
    mori: Launcher, tmp_path: pathlib.Path
) -> None:
    script = f'sleep 1000 & echo $! > {tmp_path}/before; exec "$@"'
    done = subprocess.run(
        ["sh", "-c", script, "sh", mori.path, "run", "-n", "1", "true"],
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        timeout=DEADLINE_SECONDS,
    )
    before = int((tmp_path / "before").read_text())
    try:
        assert done.returncode == 0
        assert not is_gone(before)
    finally:
        kill_quietly(before)


# ---- limits


def test_a_limit_of_file_size_is_an_error_of_the_output(
    mori: Launcher, tmp_path: pathlib.Path
) -> None:
    place = tmp_path / "cleaned"
    script = f"trap ': > {place}; exit 7' PIPE; while :; do echo 0123456789abcdef; done"
    with open(tmp_path / "out", "wb") as out:
        done = subprocess.run(
            [mori.path, "run", "-n", "1", "--", *shell(script)],
            env=environment(),
            stdout=out,
            stderr=subprocess.PIPE,
            timeout=DEADLINE_SECONDS,
            preexec_fn=lambda: resource.setrlimit(
                resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY)
            ),
        )
    assert done.returncode == 7
    assert b"mori run: cannot write the output of PEs: File too large\n" in done.stderr
    assert b"PE 0 failed first: exited with status 7" in done.stderr
    assert place.exists(), "the PE could not clean up when its output was no longer taken"


def test_a_launcher_that_may_poll_no_longer_hears_its_pes(
    mori: Launcher, started_folder: pathlib.Path
) -> None:
    script = f"echo ready; while [ ! -e {started_folder}/go ]; do sleep 0.01; done; echo done"
    with mori.started(2, *shell(script)) as run:
        read_lines(run, 2)
        # poll(2) takes no more entries than a process may have files
        hard = resource.prlimit(run.pid, resource.RLIMIT_NOFILE)[1]
        resource.prlimit(run.pid, resource.RLIMIT_NOFILE, (1, hard))
        (started_folder / "go").touch()
        out, err = run.communicate(timeout=DEADLINE_SECONDS)
    assert (run.returncode, err) == (0, b"")
    assert lines_by_pe(out) == {0: [b"done"], 1: [b"done"]}


@pytest.mark.parametrize("name", ["SIGALRM", "SIGXCPU"])
def test_a_limit_of_time_ends_the_run_like_a_stop_signal(mori: Launcher, name: str) -> None:
    number = signal.Signals[name]
    script = f"trap 'echo cleaned; exit 0' {name[3:]}; echo ready; while :; do sleep 0.01; done"
    with mori.started(1, *shell(script), options=["--grace", "1000"]) as run:
        read_lines(run, 1)
        run.send_signal(number)
        out, err = run.communicate(timeout=DEADLINE_SECONDS)
    assert (run.returncode, out) == (128 + number, b"[0] cleaned\n")
    assert err.endswith(b"mori run: ended by %s; PE 0 exited with status 0\n" % name.encode())
