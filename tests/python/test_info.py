"""`mori info`: what it shows, and what it says against the environment."""

from __future__ import annotations

import re
import subprocess

from launcher_support import Launcher, environment
from pes import REPOSITORY


def test_info_shows_version_backends_and_variables(mori: Launcher) -> None:
    version = mori.call("--version").stdout.split()[1]
    set_here = {"MORI_SHMEM_HEAP_SIZE": "123M", "MORI_UNIQUE_ID": "5" * 256}
    done = mori.call("info", env=environment(set_here))
    assert (done.returncode, done.stderr) == (0, b"")
    assert version in done.stdout
    assert b"host" in done.stdout
    assert b'MORI_SHMEM_HEAP_SIZE = "123M"\n' in done.stdout
    assert b"MORI_BOOTSTRAP_TIMEOUT not set\n" in done.stdout
    assert b"5" * 256 not in done.stdout


def variable_rows() -> list[tuple[str, list[str]]]:
    """Name and the cells meaning, values, default and note, of docs/environment.md."""
    page = (REPOSITORY / "docs" / "environment.md").read_text()
    table = page.split("<!-- variables: begin -->")[1].split("<!-- variables: end -->")[0]
    rows = [line.strip("|").split(" | ") for line in table.strip().splitlines()[2:]]
    return [(row[0].strip(" `"), [cell.strip() for cell in row[1:]]) for row in rows]


def test_info_says_what_the_documentation_says_of_each_variable(mori: Launcher) -> None:
    text = " ".join(mori.call("info", "--env").stdout.decode().split())
    for name, (meaning, values, default, note) in variable_rows():
        told = f"{name} not set {meaning} values: {values} default: {default} {note}".strip()
        if name != "LD_LIBRARY_PATH":
            assert told in text


def test_info_says_every_value_that_cannot_be_used(mori: Launcher) -> None:
    wrong = {"MORI_SHMEM_MODE": "dynamic", "MORI_RANK": "-1", "MORI_RDMA_TC": "\n\udcff"}
    done = mori.call("info", env=environment({**wrong, "MORI_BOGUS": "1", "MORI_NODE_ID": "a"}))
    assert done.returncode == 1
    lines = done.stderr.decode("ascii").splitlines()
    assert [line.split(": ")[1] for line in lines] == [*sorted(wrong, reverse=True), "warning"]
    assert '"\\x0a\\xff" is not a whole number' in lines[1]
    assert '"MORI_BOGUS" is unknown' in lines[3]
    assert b'MORI_NODE_ID = "a"\n' in done.stdout  # the others are shown all the same


def test_info_needs_no_files_that_a_wheel_does_not_have(mori: Launcher) -> None:
    told = mori.call("info", env=environment({"MORI_QWERTZUIOP": "1"}))
    assert b"MORI_QWERTZUIOP" in told.stderr
    assert b"docs/" not in told.stdout + told.stderr


def test_info_says_what_limits_memory(mori: Launcher) -> None:
    assert re.search(
        rb"^machine .*: \d+ CPUs? for this process, memory ", mori.call("info").stdout, re.M
    )


def test_variables_of_the_projects_scripts_are_known(mori: Launcher) -> None:
    uses = re.compile(r"\$\{?(MORI_\w+)|(?:environ(?:\.get\(|\[)|getenv\(|_TAG = )\"(MORI_\w+)")
    names: set[str] = set()
    folders = ("tools", "tests", "benchmarks", "examples", "python", ".ci", "Makefile")
    listed = subprocess.run(
        ["git", "ls-files", "-z", *folders], cwd=REPOSITORY, capture_output=True, check=True
    )
    for path in filter(None, listed.stdout.decode().split("\0")):
        if path.endswith((".sh", ".py", ".cpp", ".hpp", ".h", "Makefile", "/run")):
            found = uses.findall((REPOSITORY / path).read_text())
            names.update(one or other for one, other in found)
    assert {"MORI_WITHOUT_TORCH", "MORI_BENCH_PIN", "MORI_NVCC"} <= names
    done = mori.call("info", "--env", env=environment(dict.fromkeys(names, "1")))
    assert [line for line in done.stderr.decode().splitlines() if "is unknown" in line] == []


def test_info_says_which_networks_there_are(mori: Launcher) -> None:
    def networks(**variables: str) -> str:
        text = mori.call("info", env=environment(variables)).stdout.decode()
        found = re.search(r"^networks +(.*)$", text, re.MULTILINE)
        assert found
        return found[1]

    assert re.fullmatch(
        r"libfabric [\d.]+, tcp;ofi_rxm over lo \(127\.0\.0\.1\)",
        networks(MORI_SOCKET_IFNAME="lo", MORI_OFI_PROVIDER="tcp;ofi_rxm"),
    )
    assert 'MORI_OFI_PROVIDER="nosuch"' in networks(MORI_OFI_PROVIDER="nosuch")
    assert "MORI_SOCKET_IFNAME" in networks(MORI_SOCKET_IFNAME="nosuch0")


def test_info_can_show_variables_only(mori: Launcher) -> None:
    everything = mori.call("info").stdout
    variables = mori.call("info", "--env").stdout
    assert b"MORI_SHMEM_HEAP_SIZE" in variables
    assert variables in everything
    assert variables != everything
