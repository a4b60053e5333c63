"""Other launchers over several hosts: how ranks get a unique id, and what they hear without."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import sys

import pytest
from hosts_support import DEADLINE_SECONDS, HostRunner
from launcher_support import Launcher, environment, is_gone, name_of, python, wait_until
from pes import environment as pe_environment
from pes import needs_torch

MPI_ENVIRONMENT = {
    "OMPI_ALLOW_RUN_AS_ROOT": "1",
    "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    "OMPI_MCA_rmaps_base_oversubscribe": "1",  # Open MPI 4
    "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",  # from 5 on
}
needs_mpi = pytest.mark.skipif(shutil.which("mpirun") is None, reason="MPI is not installed")

SHOW = (
    "import os, sys\n"
    "names = ('OMPI_COMM_WORLD_RANK', 'MORI_NODE_ID', 'MORI_UNIQUE_ID')\n"
    "sys.stdout.write(' '.join(os.environ[name] for name in names) + '\\n')\n"
)
INIT = (
    "from mori import shmem\n"
    "try:\n"
    "    shmem.shmem_init()\n"
    "except shmem.ShmemError as error:\n"
    "    print(error)\n"
)


def mpirun(two: HostRunner, *program: str, before: tuple[str, ...] = ()) -> str:
    """`mpirun` on host a, with two ranks on each host."""
    variables = {
        **MPI_ENVIRONMENT,
        "OMPI_MCA_plm_rsh_agent": str(two.agent),
        "PRTE_MCA_plm_ssh_agent": str(two.agent),
        "MORI_SOCKET_IFNAME": None,
    }
    exports = ("-x", "PYTHONPATH", *(("-x", "MORI_UNIQUE_ID") if before else ()))
    done = two.all[0].run(
        *(*before, "mpirun", "--host", "a:2,b:2", *exports, *program),
        env=pe_environment(variables),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@needs_mpi
def test_ranks_of_mpirun_get_one_id(two: HostRunner) -> None:
    shown = mpirun(two, *python(SHOW), before=(two.mori.path, "meet"))
    ranks = [line.split() for line in sorted(shown.splitlines())]
    assert [rank[:2] for rank in ranks] == [["0", "a"], ["1", "a"], ["2", "b"], ["3", "b"]]
    assert len({rank[2] for rank in ranks}) == 1


@needs_mpi
def test_ranks_of_mpirun_without_an_id_are_told_how_to_get_one(two: HostRunner) -> None:
    shown = mpirun(two, sys.executable, "-c", INIT)
    sentence = (
        "this job of Open MPI has 4 ranks on several nodes, which need a unique id: start it as in "
        "'mori meet mpirun -x MORI_UNIQUE_ID ...', or use shmem_init_attr()"
    )
    assert shown.count(sentence) == 4, shown


# ---- torchrun


def torchrun(
    two: HostRunner, folder: pathlib.Path, code: str
) -> list[subprocess.CompletedProcess[str]]:
    """One rank on each host."""
    script = folder / "rank.py"
    script.write_text(code)
    meeting = ("--master-addr", two.all[0].address, "--master-port", "29500")
    variables = {"MORI_SOCKET_IFNAME": None, "GLOO_SOCKET_IFNAME": "eth0"}
    runs = []
    for rank, host in enumerate(two.all):
        runs.append(
            host.start(
                *(sys.executable, "-m", "torch.distributed.run", "--nnodes", "2"),
                *("--node-rank", str(rank), "--nproc-per-node", "1", *meeting, str(script)),
                env=pe_environment(variables),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    ends = []
    for run in runs:
        out, err = run.communicate(timeout=2 * DEADLINE_SECONDS)
        ends.append(subprocess.CompletedProcess(run.args, run.returncode, out, err))
    return ends


@needs_torch
def test_ranks_of_torchrun_without_an_id_are_told_how_to_get_one(
    two: HostRunner, tmp_path: pathlib.Path
) -> None:
    for done in torchrun(two, tmp_path, INIT):
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout == (
            "shmem_init: this job of torchrun has 2 ranks on several nodes, which need a unique "
            "id: call shmem_torch_process_group_init() once torch.distributed is initialized, or "
            "use shmem_init_attr()\n"
        )


# ---- mori meet


def servers_of(process: int) -> list[int]:
    children = pathlib.Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [int(child) for child in children if name_of(int(child)) == "mori meet"]


@pytest.mark.parametrize("how", ["its end", "a signal"])
def test_the_id_is_served_until_the_command_ends(mori: Launcher, how: str) -> None:
    with subprocess.Popen(
        [mori.path, "meet", "sh", "-c", "echo $MORI_UNIQUE_ID; read line; exit 3"],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as run:
        assert len(run.stdout.readline()) == 257
        (server,) = servers_of(run.pid)
        if how == "a signal":
            run.kill()
        run.stdin.close()
        assert run.stdout.read() == b""  # nobody else holds the other end
        assert run.wait(DEADLINE_SECONDS) == (3 if how == "its end" else -signal.SIGKILL)
    wait_until(lambda: is_gone(server), "the server is gone")


def test_the_terminal_interrupts_the_command_alone(mori: Launcher) -> None:
    with subprocess.Popen(
        [mori.path, "meet", "sh", "-c", "trap 'echo heard' INT; echo on; read line; read line"],
        env=environment(),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    ) as run:
        assert run.stdout.readline() == b"on\n"
        (server,) = servers_of(run.pid)
        os.killpg(run.pid, signal.SIGINT)
        assert run.stdout.readline() == b"heard\n"
        assert not is_gone(server)
        run.stdin.close()


def test_places_of_a_surrounding_run_stay_outside(mori: Launcher) -> None:
    variables = {"MORI_RANK": "1", "MORI_WORLD_SIZE": "2", "RANK": "1", "MASTER_PORT": "5"}
    script = 'echo "$MORI_RANK$MORI_WORLD_SIZE$RANK$MASTER_PORT."'
    done = mori.call("meet", "--", "sh", "-c", script, env=environment(variables))
    assert done.stdout == b".\n"


@pytest.mark.parametrize(
    ("arguments", "variables", "status", "says"),
    [
        ([], {}, 2, "mori: meet: a launcher is missing, as in 'mori meet srun -N 2 ./program'\n"),
        (["nosuch"], {}, 127, 'mori meet: cannot run "nosuch": no such program in PATH\n'),
        (["/"], {}, 126, 'mori meet: cannot run "/": Permission denied\n'),
        (["true"], {"MORI_SOCKET_IFNAME": "nosuch0"}, 1, "MORI_SOCKET_IFNAME=nosuch0 matches no"),
        (["true"], {"MORI_SHMEM_MODE": "x"}, 1, 'mori meet: MORI_SHMEM_MODE: "x" is none of'),
    ],
)
def test_what_keeps_a_command_from_meeting_is_said(
    mori: Launcher, arguments: list[str], variables: dict[str, str], status: int, says: str
) -> None:
    done = mori.call("meet", *arguments, env=environment(variables))
    assert (done.returncode, done.stdout) == (status, b"")
    assert says in done.stderr.decode()
