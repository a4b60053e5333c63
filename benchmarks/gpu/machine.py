"""What this machine has: GPUs, compiler, packages; and a daemon of MPS of our own."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def lines_of(*command: str) -> list[str]:
    """What a command prints, no lines if it cannot be run."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return done.stdout.strip().splitlines() if done.returncode == 0 else []


def find_nvcc() -> str:
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    found = shutil.which("nvcc") or shutil.which("nvcc", path=f"{home}/bin")
    if not found:
        sys.exit("no nvcc")
    return found


def find_package(name: str) -> Path | None:
    """The folder of a Python package that brings a library: `nvidia.nvshmem`, `nvidia.nccl`."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:
        return None
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]) if places else None


def use_gpus(most: int | None) -> list[str]:
    """The first so many, or all; makes only those visible."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    count = len(lines_of("nvidia-smi", "-L"))
    names = visible.split(",") if visible else [str(gpu) for gpu in range(count)]
    if not names:
        sys.exit("no GPU")
    used = names[:most]
    if used != names:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(used)
    return used


def compute_capability() -> str:
    found = lines_of("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
    return found[0].strip().replace(".", "") if found else "90"


def describe(nvcc: str) -> dict[str, str]:
    gpus = lines_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    name, _, driver = (gpus or ["unknown, unknown"])[0].partition(", ")
    version = [line for line in lines_of(nvcc, "--version") if "release" in line]
    return {"gpu": name, "driver": driver, "nvcc": version[0].strip() if version else "unknown"}


def commit() -> str:
    return (lines_of("git", "rev-parse", "--short", "HEAD") or ["unknown"])[0]


class Mps:
    """A daemon of our own: kernels of two processes run side by side on one GPU under it only."""

    def __init__(self) -> None:
        self.folder = ""

    def start(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="mori-mps-")
        os.environ["CUDA_MPS_PIPE_DIRECTORY"] = self.folder
        os.environ["CUDA_MPS_LOG_DIRECTORY"] = self.folder
        try:
            self._control("-d", seconds=60)
        except (OSError, subprocess.SubprocessError) as error:
            self.end()
            sys.exit(f"no daemon of MPS: {error}")

    def end(self) -> None:
        if not self.folder:
            return
        pid_file = Path(self.folder) / "nvidia-cuda-mps-control.pid"
        pid = pid_file.read_text().strip() if pid_file.exists() else ""
        try:
            self._control(seconds=30, says="quit\n")
        except subprocess.TimeoutExpired:
            if pid.isdigit():
                os.kill(int(pid), signal.SIGKILL)
        except (OSError, subprocess.SubprocessError):
            pass  # it is not there any more
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder = ""

    @staticmethod
    def _control(*arguments: str, seconds: float, says: str = "") -> None:
        subprocess.run(
            ["nvidia-cuda-mps-control", *arguments],
            input=says,
            text=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=True,
        )
