"""Builds the programs of a benchmark, starts one at a time, and keeps their figures."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import machine
from machine import ROOT

HERE = Path(__file__).resolve().parent
COMPILE_SECONDS = 300
#: options that a record leaves out
PATHS = ("--build-dir", "--library", "--nvshmem", "--nccl", "--output")


def add_arguments(parser: argparse.ArgumentParser, repeats: int) -> None:
    """The options that all benchmarks on GPUs have."""
    parser.add_argument(
        "--repeats", type=int, default=repeats, help=f"rounds over the programs [{repeats}]"
    )
    parser.add_argument("--gpus", type=int, help="how many to use [all that are of use]")
    parser.add_argument("--only", default="", help="groups of figures, separated by commas")
    parser.add_argument("--limit", type=int, default=60, help="seconds a program may take [60]")
    parser.add_argument("--build-dir", type=Path, default=ROOT / "build" / "gpu-bench")
    parser.add_argument("--library", type=Path, help="libmori_shmem.so [built in --build-dir]")
    parser.add_argument("--no-build", action="store_true", help="run what is built already")
    parser.add_argument("--nvshmem", type=Path, help="folder with its include and lib")
    parser.add_argument(
        "--nvshmem-env",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="environment for it alone",
    )
    parser.add_argument("--commit", default="", help="what was built [asks git]")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results")
    parser.add_argument("--show", type=Path, help="table and plots of a finished run")


def command_line(script: str) -> str:
    """What was called, without the paths of this machine."""
    words = iter(sys.argv[1:])
    kept = [script]
    for word in words:
        if word in PATHS:
            next(words, None)
        elif word.partition("=")[0] not in PATHS:
            kept.append(word)
    return " ".join(kept)


class Job:
    """A command in a session of its own, that ends with all that it started."""

    def __init__(self, command: list[str], environment: dict[str, str] | None = None):
        # No pipe: who is killed may keep it open.
        self._output = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=self._output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )

    def finish(self, seconds: float) -> str:
        """Waits for it. Returns what went wrong, nothing if all is well."""
        try:
            status = self._process.wait(seconds)
            ending = f"status {status}"
        except subprocess.TimeoutExpired:
            self._end()
            status = None
            ending = f"no end in {seconds:g} s"
        except BaseException:  # we are to end, too
            self._end()
            raise
        self._output.seek(0)
        text = self._output.read().decode(errors="replace")
        self._output.close()
        if status == 0:
            return ""
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        telling = [line for line in lines if "BAD" in line or "error" in line.lower()]
        return ": ".join([ending, *filter(None, [" | ".join((telling or lines)[-4:])[:800]])])

    def _end(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(10)


@dataclass(frozen=True)
class Program:
    name: str  #: of its source and of what is built of it
    library: str  #: mori, nvshmem, nccl, or bare


class Workshop:
    """Where programs are built, and what they need of the machine."""

    def __init__(self, options: argparse.Namespace, nccl: Path | None = None):
        self.options = options
        self.nvshmem: Path | None = options.nvshmem or machine.find_package("nvidia.nvshmem")
        self.nccl = nccl
        self.compute_capability = machine.compute_capability()
        self.nvcc = machine.find_nvcc()

    def path(self, program: Program) -> Path:
        return self.options.build_dir / "programs" / program.name

    @property
    def library(self) -> Path:
        default = self.options.build_dir / "src" / "libmori_shmem.so"
        return (self.options.library or default).resolve()

    def build(self, programs: Iterable[Program]) -> dict[Program, str]:
        """All side by side. Returns what went wrong, by program."""
        failed = "" if self.options.library else self._build_library()
        (self.options.build_dir / "programs" / "lib").mkdir(parents=True, exist_ok=True)
        jobs: dict[Program, Job] = {}
        failures: dict[Program, str] = {}
        for program in programs:
            if failed and program.library == "mori":
                failures[program] = failed
            else:
                jobs[program] = Job(self._command(program))
        for program, job in jobs.items():
            failure = job.finish(COMPILE_SECONDS)
            if failure:
                failures[program] = f"does not compile: {failure}"
        return failures

    def _build_library(self) -> str:
        build = str(self.options.build_dir)
        configure = ["cmake", "-S", str(ROOT), "-B", build, "-G", "Ninja"]
        configure += ["-DCMAKE_BUILD_TYPE=Release", "-DMORI_BUILD_TESTS=OFF"]
        configure += ["-DMORI_BUILD_EXAMPLES=OFF", "-DMORI_BUILD_TOOLS=OFF"]
        configure += [f"-DMORI_CUDA_ARCHITECTURES={self.compute_capability}"]
        for command in (configure, ["cmake", "--build", build, "--target", "mori_shmem"]):
            failure = Job(command).finish(COMPILE_SECONDS)
            if failure:
                return f"{' '.join(command)}: {failure}"
        return ""

    def _command(self, program: Program) -> list[str]:
        command = [self.nvcc, "-std=c++17", "-O3", f"-arch=sm_{self.compute_capability}"]
        command += [str(HERE / f"{program.name}.cu"), "-o", str(self.path(program))]
        if program.library == "mori":
            folder = self.library.parent
            command += [f"-I{ROOT / 'include'}", f"-L{folder}", "-lmori_shmem"]
            command += ["-Xlinker", f"-rpath={folder}"]
        if program.library == "nvshmem" and self.nvshmem:
            lib = self.nvshmem / "lib"
            link = self.options.build_dir / "programs" / "lib" / "libnvshmem_host.so"
            link.unlink(missing_ok=True)
            link.symlink_to(next(iter(sorted(lib.glob("libnvshmem_host.so*"))), "missing"))
            command += ["-rdc=true", f"-I{self.nvshmem / 'include'}", f"-L{lib}"]
            command += [f"-L{link.parent}", "-lnvshmem_device", "-lnvshmem_host", "-lcuda"]
            command += ["-Xlinker", f"-rpath={lib}"]
            stubs = Path(self.nvcc).resolve().parents[1] / "lib64" / "stubs"
            command += [f"-L{stubs}"]
        if program.library == "nccl":
            command += ["-ldl"]
        return command

    def environment(self, program: Program, more: dict[str, str]) -> dict[str, str]:
        environment = {key: v for key, v in os.environ.items() if not key.startswith("MORI_")}
        environment |= more
        folder = {"nvshmem": self.nvshmem, "nccl": self.nccl}.get(program.library)
        if folder:
            paths = [str(folder / "lib"), environment.get("LD_LIBRARY_PATH", "")]
            environment["LD_LIBRARY_PATH"] = ":".join(path for path in paths if path)
        # Multicast can put the GPUs of a shared host out of service.
        environment["NVSHMEM_DISABLE_NVLS"] = "1"
        environment["NCCL_NVLS_ENABLE"] = "0"
        if program.library == "nvshmem":
            environment |= dict(pair.split("=", 1) for pair in self.options.nvshmem_env)
        return environment


class Series:
    """Each figure's medians of all rounds so far."""

    def __init__(self) -> None:
        self._rows: dict[tuple, dict] = {}
        self.facts: dict[str, dict] = {}

    def rows(self) -> list[dict]:
        return list(self._rows.values())

    def run(
        self,
        workshop: Workshop,
        program: Program,
        arguments: list[str],
        limit: int,
        environment: dict[str, str] | None = None,
        **more: object,
    ) -> str:
        """Starts a program, and keeps what it wrote, even if it ended early; `more` goes into the
        rows. `environment` gives way to what the options say. Returns what went wrong, nothing if
        all is well."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "figures.json"
            command = [str(workshop.path(program)), *arguments]
            command += ["--json", str(path), "--limit", str(limit)]
            full = workshop.environment(program, environment or {})
            try:
                failure = Job(command, full).finish(limit + 15)
            except OSError as error:
                return str(error)
            for part in sorted(Path(folder).glob("figures.json*")):  # one of each PE
                with contextlib.suppress(ValueError):  # it was ended while it wrote
                    self._collect(json.loads(part.read_text()), more)
        return failure

    def _collect(self, results: dict, more: dict) -> None:
        library = results["library"]
        self.facts[library] = {k: v for k, v in results.items() if k not in ("library", "figures")}
        for figure in results["figures"]:
            start = {"library": library, **more, "name": figure["name"], "unit": figure["unit"]}
            row = self._rows.setdefault(
                tuple(start.values()), {**start, "median": 0.0, "values": [], "samples": []}
            )
            row["values"].append(statistics.median(figure["values"]))
            row["samples"].append(figure["values"])
            row["median"] = statistics.median(row["values"])


def to_json(results: dict) -> str:
    """A line for each figure."""
    head = json.dumps({**results, "figures": []}, indent=1)
    lines = ",\n".join("  " + json.dumps(figure) for figure in results["figures"])
    return head.replace('"figures": []', f'"figures": [\n{lines}\n ]') + "\n"
