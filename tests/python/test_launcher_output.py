"""`mori run`: what PEs write."""

from __future__ import annotations

import os
import pathlib
import pty
import re
import select
import signal
import subprocess

import pytest
from launcher_support import (
    DEADLINE_SECONDS,
    Launcher,
    environment,
    is_gone,
    lines_by_pe,
    numbers_in,
    pes_of,
    python,
    shell,
    state_of,
    wait_until,
)


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
    assert done.returncode == 0
    assert done.stdout == b"[0] before\n"
    assert is_gone(left)


def test_what_a_pipe_holds_when_its_pe_has_ended_is_written(
    mori: Launcher, tmp_path: pathlib.Path
) -> None:
    """PE 0 writes until the launcher takes no more, PE 1 then fits into its pipe; nobody reads."""
    kept, pipe = 1 << 20, 1 << 16  # what the launcher keeps before it pauses; what a pipe holds
    program = python(
        f"""
import os, pathlib, time
folder = pathlib.Path({str(tmp_path)!r})
if os.environ["MORI_RANK"] == "0":
    os.set_blocking(1, False)
    written = 0
    while True:
        try:
            written += os.write(1, b"0" * 4095 + b"\\n")
        except BlockingIOError:
            if written > {kept} + 2 * {pipe} - 16384:
                break
            time.sleep(0.001)
    (folder / "written").write_text(str(written))
    (folder / "full").touch()
else:
    while not (folder / "full").exists():
        time.sleep(0.001)
    os.write(1, b"1" * 30000 + b"\\n")
"""
    )
    with mori.started(2, *program, options=["--no-prefix"]) as run:
        wait_until(lambda: (tmp_path / "full").exists(), "the launcher takes no more")
        wait_until(lambda: not pes_of(run.pid), "the PEs have ended, and the launcher knows")
        out, _ = run.communicate(timeout=DEADLINE_SECONDS)
    assert run.returncode == 0
    lines = out.splitlines()
    assert out.count(b"0") == int((tmp_path / "written").read_text()) // 4096 * 4095
    assert lines.count(b"1" * 30000) == 1


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
