"""Ordering claims of the host operations, each tried with its fence and seen to fail without.

A program is built twice: against the sources as they are, and against a copy in which one fence
is taken away. Store buffering shows on the processor itself; message passing and the barrier show
under the thread sanitizer; what a strongly ordered processor hides is looked for in the machine
code for a weakly ordered one.
"""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "ordering"
HOST_OPS = "include/mori/shmem/host_ops.hpp"
BOARD = "src/node/board.cpp"
WORD_ATOMIC = "src/base/word_atomic.cpp"
# Copies stay calls, which the sanitizer sees.
SANITIZE = ["-O1", "-g", "-fsanitize=thread", "-fno-builtin"]
SANITIZER_FOUND_A_RACE = 66
BUILD_SECONDS = 240


def tree_with(tmp_path: pathlib.Path, broken: tuple[str, str, str] | None) -> pathlib.Path:
    """A copy of the headers and sources, with one text of one file replaced wherever it stands."""
    tree = tmp_path / ("broken" if broken else "right")
    shutil.copytree(ROOT / "include", tree / "include")
    shutil.copytree(ROOT / "src", tree / "src")
    if broken:
        path, before, after = broken
        file = tree / path
        text = file.read_text()
        assert before in text, f"{path} does not have {before!r} any more"
        file.write_text(text.replace(before, after))
    return tree


def build(tree: pathlib.Path, program: str, flags: list[str], sources: list[str]) -> pathlib.Path:
    binary = tree / program.removesuffix(".cpp")
    command = ["g++", "-std=c++20", *flags, f"-I{tree}/include", f"-I{tree}/src", f"-I{PROGRAMS}"]
    command += [str(PROGRAMS / program), *(str(tree / source) for source in sources)]
    command += ["-o", str(binary), "-pthread", "-lfmt"]
    subprocess.run(command, check=True, timeout=BUILD_SECONDS)
    return binary


def run(binary: pathlib.Path, *arguments: str) -> int:
    return subprocess.run(
        [str(binary), *arguments], timeout=120, capture_output=True, check=False
    ).returncode


@pytest.mark.timeout(600)
def test_quiet_completes_stores_before_later_loads(tmp_path: pathlib.Path) -> None:
    fence = "std::atomic_thread_fence(std::memory_order_seq_cst);"
    right = build(tree_with(tmp_path, None), "quiet.cpp", ["-O2"], [])
    broken = build(tree_with(tmp_path, (HOST_OPS, fence, "")), "quiet.cpp", ["-O2"], [])
    assert run(right) == 0
    # On a busy machine the threads may rarely run at the same time: one of some runs must show it.
    assert any(run(broken) == 1 for _ in range(20))


@pytest.mark.timeout(900)
def test_a_quiet_on_a_stream_completes_stores_before_later_loads(tmp_path: pathlib.Path) -> None:
    fence = "std::atomic_thread_fence(std::memory_order_seq_cst);"
    sources = ["src/shmem/host_streams.cpp", "src/base/element_copy.cpp", "src/base/status.cpp"]
    right, broken = (
        build(tree_with(tmp_path, change), "quiet_on_stream.cpp", ["-O2"], sources)
        for change in (None, ("src/shmem/host_streams.cpp", fence, ""))
    )
    assert run(right) == 0
    assert any(run(broken) == 1 for _ in range(20))


@pytest.mark.timeout(900)
def test_who_sees_the_word_sees_the_data(tmp_path: pathlib.Path) -> None:
    writers = ["signal-set", "signal-add", "atomic-set", "atomic-add"]
    right = build(tree_with(tmp_path, None), "message.cpp", SANITIZE, [])
    assert [run(right, how) for how in writers] == [0] * len(writers)
    relaxed_store = (HOST_OPS, "__ATOMIC_RELEASE", "__ATOMIC_RELAXED")
    broken = build(tree_with(tmp_path, relaxed_store), "message.cpp", SANITIZE, [])
    assert [run(broken, how) for how in writers[:3]] == [SANITIZER_FOUND_A_RACE] * 3


@pytest.mark.timeout(900)
@pytest.mark.parametrize("order", ["__ATOMIC_ACQUIRE", "__ATOMIC_ACQ_REL"])
def test_data_behind_a_word_without_its_order_is_a_race(tmp_path: pathlib.Path, order: str) -> None:
    broken = build(
        tree_with(tmp_path, (HOST_OPS, order, "__ATOMIC_RELAXED")), "message.cpp", SANITIZE, []
    )
    how = "signal-set" if order == "__ATOMIC_ACQUIRE" else "atomic-add"
    assert run(broken, how) == SANITIZER_FOUND_A_RACE


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, None),
        ("fetch_add(one, std::memory_order_acq_rel)", "fetch_add(one, std::memory_order_relaxed)"),
        (
            "store(epoch + 1, std::memory_order_seq_cst)",
            "store(epoch + 1, std::memory_order_relaxed)",
        ),
    ],
    ids=["right", "arrival-relaxed", "release-relaxed"],
)
def test_barrier_orders_what_was_written_before_it(
    tmp_path: pathlib.Path, before: str | None, after: str
) -> None:
    tree = tree_with(tmp_path, None if before is None else (BOARD, before, after))
    binary = build(
        tree,
        "board.cpp",
        SANITIZE,
        ["src/node/board.cpp", "src/base/status.cpp", "src/base/unique_fd.cpp"],
    )
    if before is None:
        assert run(binary) == 0
    else:  # who arrives last decides which order is missed
        assert any(run(binary) == SANITIZER_FOUND_A_RACE for _ in range(20))


def test_the_changes_of_the_gpus_litmus_tests_find_their_text(tmp_path: pathlib.Path) -> None:
    subprocess.run(
        [str(ROOT / "tools" / "gpu_litmus.sh"), str(tmp_path)],
        env={**os.environ, "UNTIL": "change"},
        check=True,
        timeout=60,
    )


def aarch64_code(tree: pathlib.Path, source: pathlib.Path) -> str:
    """Machine code of a source for a weakly ordered processor."""
    machine = subprocess.run(
        ["g++", "-dumpmachine"], capture_output=True, text=True, check=True
    ).stdout.strip()
    version = subprocess.run(
        ["g++", "-dumpversion"], capture_output=True, text=True, check=True
    ).stdout.strip()
    # The system's headers take any processor but this machine's for one of 32 bits, and have types
    # that others lack: three of them are replaced.
    (tree / "system" / "gnu").mkdir(parents=True, exist_ok=True)
    (tree / "system" / "gnu" / "stubs-32.h").touch()
    (tree / "system" / "bits").mkdir(exist_ok=True)
    (tree / "system" / "bits" / "wordsize.h").write_text(
        "#define __WORDSIZE 64\n#define __WORDSIZE_TIME64_COMPAT32 0\n"
    )
    without = ("FLOAT128", "DISTINCT_FLOAT128", "FLOAT64X", "FLOAT64X_LONG_DOUBLE")
    (tree / "system" / "bits" / "floatn.h").write_text(
        "".join(f"#define __HAVE_{each} 0\n" for each in without)
        + "#include <bits/floatn-common.h>\n"
    )
    headers = [
        tree / "system",
        f"/usr/include/c++/{version}",
        f"/usr/include/{machine}/c++/{version}",
    ]
    headers.append(f"/usr/include/{machine}")
    command = ["clang++", "--target=aarch64-linux-gnu", "-std=c++20", "-O2", "-S", "-o", "-"]
    command += [flag for folder in headers for flag in ("-isystem", str(folder))]
    command += [f"-I{tree}/include", f"-I{tree}/src", f"-I{PROGRAMS}", str(source)]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, timeout=BUILD_SECONDS
    ).stdout


def aarch64_functions(tree: pathlib.Path) -> dict[str, str]:
    """That of the probes, by function."""
    code = aarch64_code(tree, PROGRAMS / "instructions.cpp")
    return {
        match[1]: match[2]
        for match in re.finditer(
            r"^(probe_\w+):.*?\n(.*?)\.Lfunc_end", code, re.MULTILINE | re.DOTALL
        )
    }


INSTRUCTIONS = [
    ("probe_fence", r"\bdmb\tish\b", "std::memory_order_release"),
    ("probe_quiet", r"\bdmb\tish\b", "std::memory_order_seq_cst"),
    ("probe_atomic_set", r"\bstlr\b", "__ATOMIC_RELEASE"),
    ("probe_atomic_fetch", r"\bldar\b", "__ATOMIC_ACQUIRE"),
    ("probe_signal_fetch", r"\bldar\b", "__ATOMIC_ACQUIRE"),
    ("probe_test", r"\bldar\b", "__ATOMIC_ACQUIRE"),
]


@pytest.mark.parametrize(
    ("function", "instruction", "order"), INSTRUCTIONS, ids=[row[0] for row in INSTRUCTIONS]
)
def test_a_weakly_ordered_processor_gets_its_fence(
    tmp_path: pathlib.Path, function: str, instruction: str, order: str
) -> None:
    right = aarch64_functions(tree_with(tmp_path, None))
    assert re.search(instruction, right[function]), right[function]
    relaxed = "std::memory_order_relaxed" if order.startswith("std::") else "__ATOMIC_RELAXED"
    broken = aarch64_functions(tree_with(tmp_path, (HOST_OPS, order, relaxed)))
    assert not re.search(instruction, broken[function]), broken[function]


@pytest.mark.parametrize(
    ("instruction", "order"),
    [(r"\bstlxr\b", "std::memory_order_acq_rel"), (r"\bldar\b", "std::memory_order_acquire")],
    ids=["change", "read"],
)
def test_atomics_out_of_line_are_ordered_on_a_weakly_ordered_processor(
    tmp_path: pathlib.Path, instruction: str, order: str
) -> None:
    right = tree_with(tmp_path, None)
    code = aarch64_code(right, right / WORD_ATOMIC)
    assert re.search(instruction, code), code
    assert not re.search(r"\b(ldxr|stxr)\b", code), code  # these have no order
    broken = tree_with(tmp_path, (WORD_ATOMIC, order, "std::memory_order_relaxed"))
    assert not re.search(instruction, aarch64_code(broken, broken / WORD_ATOMIC))
