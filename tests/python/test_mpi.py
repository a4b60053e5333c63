"""The header-only MPI path in C++ under mpirun, and `ShmemInit()` from a launcher's environment."""

from __future__ import annotations

import pathlib
import re
import shutil
import signal
import subprocess
import sys

import pytest
from launcher_support import (
    DEADLINE_SECONDS,
    Launcher,
    environment,
    find_build_dir,
    find_command,
    lines_by_pe,
)

REPOSITORY = pathlib.Path(__file__).parent.parent.parent
PE_ENVIRONMENT = {
    "MORI_SOCKET_IFNAME": "lo",
    "MORI_SHMEM_HEAP_SIZE": "16M",
    "MORI_BOOTSTRAP_TIMEOUT": "30",
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",  # Open MPI 4
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # from 5 on
    "OMPI_MCA_btl": "self,vader",
}

ALREADY_INITIALIZED, INVALID_ARGUMENT, INVALID_CONFIG = 2, 3, 4

needs_mpi = pytest.mark.skipif(
    shutil.which("mpirun") is None or shutil.which("mpicxx") is None, reason="MPI is not installed"
)


@pytest.fixture(scope="module")
def examples() -> pathlib.Path:
    return find_build_dir() / "examples"


@pytest.fixture(scope="module")
def mpi_cases(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The program of all cases, built as a user would: with the compiler of the MPI."""
    library_folder = find_build_dir() / "src"
    program = tmp_path_factory.mktemp("mpi") / "mpi_cases"
    command = ["mpicxx", "-std=c++17", "-Wall", "-Wextra", "-Wshadow", "-Werror"]
    command += ["-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX", f"-I{REPOSITORY / 'include'}"]
    command += [str(pathlib.Path(__file__).with_name("mpi_cases.cpp")), "-o", str(program)]
    command += [f"-L{library_folder}", "-lmori_shmem", f"-Wl,-rpath,{library_folder}"]
    subprocess.run(command, check=True, timeout=2 * DEADLINE_SECONDS)
    return program


def mpirun(n_ranks: int, *program: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["mpirun", "-n", str(n_ranks), *map(str, program)],
        env=environment(PE_ENVIRONMENT),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )


def shown(output: str, what: str) -> dict[int, list[tuple[int, str]]]:
    """Code and sentence of each call of that name, by rank."""
    results: dict[int, list[tuple[int, str]]] = {}
    for rank, code, text in re.findall(rf"^rank (\d+): {what} gave (\d+): (.*)$", output, re.M):
        results.setdefault(int(rank), []).append((int(code), text))
    return results


# ---- the example, and rightful uses


@needs_mpi
@pytest.mark.parametrize("n_ranks", [1, 2, 4])
def test_example_over_mpi(examples: pathlib.Path, n_ranks: int) -> None:
    done = mpirun(n_ranks, examples / "mpi_allreduce")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"{n_ranks} ranks, 65536 values: the sums are the same\n"


@needs_mpi
@pytest.mark.parametrize(
    "case",
    [
        "mpi after finalize",
        "init again after finalize",
        "ShmemMpiInit",
        "freed communicator",
        "reversed communicator",
        "halves",
        "twice alike",
    ],
)
@pytest.mark.parametrize("n_ranks", [1, 4])
def test_right_use(mpi_cases: pathlib.Path, case: str, n_ranks: int) -> None:
    done = mpirun(n_ranks, mpi_cases, case)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "error" not in done.stderr
    assert all(code == 0 for calls in shown(done.stdout, "init").values() for code, _ in calls)


# ---- wrong uses: every rank gets an error that names the cause, and a right init works afterwards


def refused(mpi_cases: pathlib.Path, case: str, n_ranks: int, what: str) -> list[tuple[int, str]]:
    """What the first call of each rank gave."""
    done = mpirun(n_ranks, mpi_cases, case)
    assert done.returncode == 0, done.stdout + done.stderr
    results = shown(done.stdout, what)
    assert sorted(results) == list(range(n_ranks))
    for code, text in (calls[0] for calls in results.values()):
        assert code != 0
        assert text in done.stderr  # logged too
    return [results[rank][0] for rank in range(n_ranks)]


@needs_mpi
@pytest.mark.parametrize(
    ("case", "code", "sentence"),
    [
        (
            "wrong flag",
            INVALID_ARGUMENT,
            "flag 1 does not go with a communicator: that is MORI_SHMEM_INIT_WITH_MPI_COMM, 0",
        ),
        (
            "unknown flag",
            INVALID_ARGUMENT,
            "flag 7 does not go with a communicator: that is MORI_SHMEM_INIT_WITH_MPI_COMM, 0",
        ),
        ("null communicator", INVALID_ARGUMENT, "the communicator is MPI_COMM_NULL"),
    ],
)
def test_wrong_use_by_all_ranks(
    mpi_cases: pathlib.Path, case: str, code: int, sentence: str
) -> None:
    for seen_code, text in refused(mpi_cases, case, 2, "init"):
        assert seen_code == code
        assert text.startswith(sentence)


@needs_mpi
def test_use_before_mpi_init(mpi_cases: pathlib.Path) -> None:
    done = mpirun(2, mpi_cases, "before MPI_Init")
    assert done.returncode == 0, done.stdout + done.stderr
    sentence = "MPI is not initialised: call MPI_Init() before"
    for what in ("init", "ShmemMpiInit"):  # no rank knows its number then
        calls = shown(done.stdout, what)[0]
        assert calls.count((INVALID_ARGUMENT, sentence)) == 2


@needs_mpi
@pytest.mark.parametrize("what", ["init", "ShmemMpiInit"])
def test_use_after_mpi_finalize(mpi_cases: pathlib.Path, what: str) -> None:
    done = mpirun(2, mpi_cases, "after MPI_Finalize")
    assert done.returncode == 0, done.stdout + done.stderr
    for calls in shown(done.stdout, what).values():
        code, text = calls[-1]
        assert code == INVALID_ARGUMENT
        assert text == "MPI is finalised already: its communicators are of no use any more"


@needs_mpi
def test_wrong_size_is_named_with_the_right_one(mpi_cases: pathlib.Path) -> None:
    assert refused(mpi_cases, "wrong size on all", 3, "init") == [
        (
            INVALID_ARGUMENT,
            f"rank is {rank} of 4, but in the communicator this process is rank {rank} of 3",
        )
        for rank in range(3)
    ]


@needs_mpi
def test_wrong_rank_of_one_is_told_to_all(mpi_cases: pathlib.Path) -> None:
    own = "rank is 5 of 3, but in the communicator this process is rank 1 of 3"
    told = f"rank 1 of the communicator cannot go on: {own}"
    assert refused(mpi_cases, "wrong rank on one", 3, "init") == [
        (INVALID_ARGUMENT, told),
        (INVALID_ARGUMENT, own),
        (INVALID_ARGUMENT, told),
    ]


@needs_mpi
def test_failure_of_rank_0_to_make_an_id_is_told_to_all(mpi_cases: pathlib.Path) -> None:
    results = refused(mpi_cases, "no interface on rank 0", 3, "init")
    assert all(code == INVALID_CONFIG and "nosuch0" in text for code, text in results)
    told = "rank 0 of the communicator cannot go on: no unique id could be made: "
    assert [text.startswith(told) for _, text in results] == [False, True, True]


@needs_mpi
def test_ranks_of_another_world_are_refused(mpi_cases: pathlib.Path) -> None:
    done = mpirun(2, mpi_cases, "twice different")
    assert done.returncode == 0, done.stdout + done.stderr
    for rank, calls in shown(done.stdout, "second init").items():
        assert calls == [
            (
                ALREADY_INITIALIZED,
                f"this process is PE {rank} of 2 already:"
                " it cannot become rank 0 of 1 before ShmemFinalize()",
            )
        ]


@needs_mpi
def test_init_of_some_ranks_only_is_told_to_all(mpi_cases: pathlib.Path) -> None:
    results = refused(mpi_cases, "some initialised", 3, "init")
    own = "this process is PE 0 of 1 already: it cannot become rank 0 of 3 before ShmemFinalize()"
    told = f"rank 0 of the communicator cannot go on: {own}"
    assert results == [(ALREADY_INITIALIZED, text) for text in (own, told, told)]


def test_header_fits_an_mpi_whose_handles_are_integers(tmp_path: pathlib.Path) -> None:
    """As MPICH's are: the overload with a unique id must stay apart."""
    compiler = shutil.which("c++") or pytest.skip("no C++ compiler")
    (tmp_path / "mpi.h").write_text(
        """
#pragma once
typedef int MPI_Comm;
typedef int MPI_Datatype;
typedef int MPI_Op;
#define MPI_COMM_WORLD ((MPI_Comm)0x44000000)
#define MPI_COMM_NULL ((MPI_Comm)0x04000000)
#define MPI_BYTE ((MPI_Datatype)1)
#define MPI_INT ((MPI_Datatype)2)
#define MPI_MIN ((MPI_Op)3)
#define MPI_IN_PLACE ((void*)-1)
#define MPI_SUCCESS 0
#define MPI_MAX_ERROR_STRING 512
extern "C" {
int MPI_Initialized(int*);
int MPI_Finalized(int*);
int MPI_Comm_test_inter(MPI_Comm, int*);
int MPI_Comm_rank(MPI_Comm, int*);
int MPI_Comm_size(MPI_Comm, int*);
int MPI_Error_string(int, char*, int*);
int MPI_Bcast(void*, int, MPI_Datatype, int, MPI_Comm);
int MPI_Allreduce(const void*, void*, int, MPI_Datatype, MPI_Op, MPI_Comm);
}
"""
    )
    (tmp_path / "use.cpp").write_text(
        """
#include "mori/shmem/mpi.hpp"
using namespace mori::shmem;
int Use(const UniqueId& id, MPI_Comm comm) {
  return ShmemInitAttr(MORI_SHMEM_INIT_WITH_UNIQUEID, 0, 1, id) +
         ShmemInitAttr(MORI_SHMEM_INIT_WITH_MPI_COMM, 0, 1, MPI_COMM_WORLD) +
         ShmemInitAttr(MORI_SHMEM_INIT_WITH_MPI_COMM, 0, 1, comm) + ShmemMpiInit(comm);
}
"""
    )
    for standard in ("c++17", "c++20"):
        subprocess.run(
            [
                *(compiler, f"-std={standard}", "-Wall", "-Wextra", "-Werror", "-fsyntax-only"),
                *(f"-I{tmp_path}", f"-I{REPOSITORY / 'include'}", str(tmp_path / "use.cpp")),
            ],
            check=True,
            timeout=DEADLINE_SECONDS,
        )


# ---- the other examples, and ShmemInit() from the environment


def ring_lines(n_pes: int) -> list[str]:
    return [
        f"PE {pe} of {n_pes}: the message from PE {(pe - 1) % n_pes} is right"
        for pe in range(n_pes)
    ]


@needs_mpi
@pytest.mark.parametrize("n_ranks", [1, 2, 4])
def test_init_from_the_environment_of_mpirun(examples: pathlib.Path, n_ranks: int) -> None:
    done = mpirun(n_ranks, examples / "ring_put")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ring_lines(n_ranks)


@pytest.mark.parametrize("n_pes", [1, 2, 5])
def test_init_from_the_environment_of_mori_run(examples: pathlib.Path, n_pes: int) -> None:
    done = Launcher(find_command()).run(n_pes, str(examples / "ring_put"), env=PE_ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert {
        pe: [line.decode() for line in lines] for pe, lines in lines_by_pe(done.stdout).items()
    } == {pe: [line] for pe, line in enumerate(ring_lines(n_pes))}


@needs_mpi
def test_mori_run_inside_an_mpi_job_counts_its_own_pes(examples: pathlib.Path) -> None:
    command = [find_command(), "run", "--no-prefix", "-n", "3", examples / "ring_put"]
    done = mpirun(1, *command)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ring_lines(3)


def test_one_pe_alone_without_a_launcher(examples: pathlib.Path) -> None:
    done = subprocess.run(
        [examples / "ring_put"],
        env=environment(PE_ENVIRONMENT),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ring_lines(1)


@pytest.mark.parametrize("n_pes", [1, 4, 9])
def test_threads_as_pes(examples: pathlib.Path, n_pes: int) -> None:
    done = subprocess.run(
        [examples / "threads_as_pes", str(n_pes)],
        env=environment(PE_ENVIRONMENT),
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        f"PE {pe} of {n_pes}: counted to {1000 * n_pes}, right" for pe in range(n_pes)
    ]


def test_an_example_without_a_heap_size_fails(examples: pathlib.Path) -> None:
    without = {**PE_ENVIRONMENT, "MORI_SHMEM_HEAP_SIZE": ""}
    done = Launcher(find_command()).run(2, str(examples / "ring_put"), env=without)
    assert done.returncode == 1
    assert done.stdout == b""
    assert b"MORI_SHMEM_HEAP_SIZE" in done.stderr


def test_pes_say_whom_they_lost_before_the_launcher_ends_them() -> None:
    script = """
import os, signal
from mori import shmem
shmem.shmem_init()
shmem.shmem_barrier_all()
if shmem.shmem_mype() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
shmem.shmem_barrier_all()
"""
    done = Launcher(find_command()).run(3, sys.executable, "-c", script, env=PE_ENVIRONMENT)
    assert done.returncode == 128 + signal.SIGKILL
    *lines, summary = done.stderr.splitlines()
    for pe in (0, 2):
        assert any(re.match(rb"\[%d\] .*PE 1 \(.*\) is lost" % pe, line) for line in lines)
    assert summary == (
        b"mori run: PE 1 failed first: killed by SIGKILL; PE 0, 2 exited with status 1"
    )
