"""The wheel, built and installed by pip: the package runs, outside projects build against it."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest
from device_code_support import find_nvcc
from pes import REPOSITORY, environment

BUILD_SECONDS = 1200
OUTSIDE = REPOSITORY / "tests" / "install" / "outside"
OUTSIDE_SAYS = "PE 0 of 1 read 42 through the barrier\n"

# The build counts to the time of the test that asks for it first.
pytestmark = pytest.mark.timeout(BUILD_SECONDS)


def run(command: list[str], folder: pathlib.Path, **variables: str | None) -> str:
    """What the command prints; it sees nothing of a build folder, and must succeed."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment({"PYTHONPATH": None, "LD_LIBRARY_PATH": None, **variables}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """The folder in which the wheel is installed, the only thing in it."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    quiet = ["--quiet", "--no-deps"]
    build = [*pip, "wheel", *quiet, "--no-build-isolation", "--wheel-dir", str(folder)]
    run([*build, str(REPOSITORY)], folder)
    (wheel,) = folder.glob("*.whl")
    run([*pip, "install", *quiet, "--target", str(folder / "site"), str(wheel)], folder)
    return folder / "site"


def test_the_command_starts_pes_that_import_the_package(
    site: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    script = """
import mori
mori.shmem.shmem_init()
print(mori.shmem.shmem_mype(), mori.__file__)
mori.shmem.shmem_finalize()
"""
    command = [str(site / "bin" / "mori"), "run", "-n", "2", sys.executable, "-c", script]
    printed = run(command, tmp_path, PYTHONPATH=str(site))
    package = site / "mori" / "__init__.py"
    assert sorted(printed.splitlines()) == [f"[{pe}] {pe} {package}" for pe in range(2)]


def test_a_project_outside_builds_with_cmake(site: pathlib.Path, tmp_path: pathlib.Path) -> None:
    configure = ["cmake", "-G", "Ninja", "-S", str(OUTSIDE), "-B", "build"]
    run([*configure, f"-DCMAKE_PREFIX_PATH={site / 'mori'}"], tmp_path)
    run(["cmake", "--build", "build"], tmp_path)
    assert run([str(tmp_path / "build" / "outside")], tmp_path) == OUTSIDE_SAYS


def test_a_project_outside_builds_with_pkg_config(
    site: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    path = str(site / "mori" / "lib" / "pkgconfig")
    ask = ["pkg-config", "--cflags", "--libs", "mori-shmem"]
    flags = run(ask, tmp_path, PKG_CONFIG_PATH=path).split()
    source = OUTSIDE / "outside.cpp"
    # nvcc takes fewer options of the linker than the host's compiler does.
    for compiler in (["c++"], [find_nvcc(), "--cudart=none"]):
        run([*compiler, "-std=c++17", str(source), "-o", "outside", *flags], tmp_path)
        assert run([str(tmp_path / "outside")], tmp_path) == OUTSIDE_SAYS


def test_the_library_shows_its_public_names_only(
    site: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """Parts of the C++ library that were compiled into it are nobody else's."""
    library = site / "mori" / "lib" / "libmori_shmem.so"
    shown = run(["nm", "-DC", "--defined-only", str(library)], tmp_path).splitlines()
    names = [line.split(maxsplit=2)[2] for line in shown]
    assert any(name.startswith("mori::shmem::ShmemInit(") for name in names)
    assert [name for name in names if not name.startswith(("mori::shmem::", "MoriShmem"))] == []
    (module,) = (site / "mori").glob("_core.*.so")
    shown = run(["nm", "-D", "--defined-only", str(module)], tmp_path).splitlines()
    assert [line.split()[-1] for line in shown] == ["PyInit__core"]
