#!/usr/bin/env python3
"""Our device API beside NVSHMEM and the bare GPU: builds all three, runs them in turns.

Prints one table, and writes figures and plots into the output folder. Needs nvcc, an NVIDIA driver,
CMake and ninja, and NVSHMEM as a Python package (torch brings it); for plots, matplotlib.

    benchmarks/gpu/run.py                        two PEs, on two GPUs where there are two
    benchmarks/gpu/run.py --gpus 1               both on one GPU, under a daemon of MPS of its own
    benchmarks/gpu/run.py --library build/cuda/src/libmori_shmem.so --repeats 1
    benchmarks/gpu/run.py --only words,barrier   words, put, get, bandwidth, signal, barrier,
                                                 malloc, collectives
    benchmarks/gpu/run.py --show docs/results/gpu1-2026-01-31.json
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import report

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=3, help="rounds over the programs [3]")
    parser.add_argument("--pes", type=int, default=2)
    parser.add_argument("--gpus", type=int, help="how many to use [all, at most one a PE]")
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
    return parser.parse_args()


def lines_of(*command: str) -> list[str]:
    """What a command prints, no lines if it cannot be run."""
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
        )
    except OSError:
        return []
    return done.stdout.strip().splitlines() if done.returncode == 0 else []


def find_nvcc() -> str:
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    found = shutil.which("nvcc") or shutil.which("nvcc", path=f"{home}/bin")
    if not found:
        sys.exit("no nvcc")
    return found


def find_nvshmem() -> Path | None:
    try:
        spec = importlib.util.find_spec("nvidia.nvshmem")
    except ModuleNotFoundError:
        return None
    places = list(spec.submodule_search_locations or []) if spec else []
    return Path(places[0]) if places else None


@dataclass
class Programs:
    """What is started, and how it is built."""

    options: argparse.Namespace
    nvshmem: Path | None
    compute_capability: str = "90"
    nvcc: str = field(default_factory=find_nvcc)

    @property
    def folder(self) -> Path:
        return self.options.build_dir / "programs"

    @property
    def library(self) -> Path:
        default = self.options.build_dir / "src" / "libmori_shmem.so"
        return (self.options.library or default).resolve()

    def names(self) -> list[str]:
        return ["ours", *(["nvshmem"] if self.nvshmem else []), "bare"]

    def build(self) -> None:
        if not self.options.library:
            self._build_library()
        (self.folder / "lib").mkdir(parents=True, exist_ok=True)
        started = {name: self._start_compiler(name) for name in self.names()}
        for name, process in started.items():
            text, _ = process.communicate()
            if process.returncode != 0:
                sys.exit(f"{name}: {' '.join(process.args)}\n{text}")

    def _build_library(self) -> None:
        build = str(self.options.build_dir)
        configure = ["cmake", "-S", str(ROOT), "-B", build, "-G", "Ninja"]
        configure += ["-DCMAKE_BUILD_TYPE=Release", "-DMORI_BUILD_TESTS=OFF"]
        configure += ["-DMORI_BUILD_EXAMPLES=OFF", "-DMORI_BUILD_TOOLS=OFF"]
        configure += [f"-DMORI_CUDA_ARCHITECTURES={self.compute_capability}"]
        for command in (configure, ["cmake", "--build", build, "--target", "mori_shmem"]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode != 0:
                sys.exit(f"{' '.join(command)}\n{done.stdout[-4000:]}{done.stderr[-4000:]}")

    def _start_compiler(self, name: str) -> subprocess.Popen:
        command = [self.nvcc, "-std=c++17", "-O3", f"-arch=sm_{self.compute_capability}"]
        command += [str(HERE / f"{name}.cu"), "-o", str(self.folder / name)]
        if name == "ours":
            folder = self.library.parent
            command += [f"-I{ROOT / 'include'}", f"-L{folder}", "-lmori_shmem"]
            command += ["-Xlinker", f"-rpath={folder}"]
        if name == "nvshmem":
            lib = self.nvshmem / "lib"
            link = self.folder / "lib" / "libnvshmem_host.so"
            link.unlink(missing_ok=True)
            link.symlink_to(next(iter(sorted(lib.glob("libnvshmem_host.so*")))))
            command += ["-rdc=true", f"-I{self.nvshmem / 'include'}", f"-L{lib}"]
            command += [f"-L{link.parent}", "-lnvshmem_device", "-lnvshmem_host", "-lcuda"]
            command += ["-Xlinker", f"-rpath={lib}"]
            stubs = Path(self.nvcc).resolve().parents[1] / "lib64" / "stubs"
            command += [f"-L{stubs}"]
        return subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def environment(self, name: str) -> dict[str, str]:
        environment = {key: v for key, v in os.environ.items() if not key.startswith("MORI_")}
        if name == "nvshmem":
            lib = str(self.nvshmem / "lib")
            paths = [lib, environment.get("LD_LIBRARY_PATH", "")]
            environment["LD_LIBRARY_PATH"] = ":".join(path for path in paths if path)
            environment["NVSHMEM_DISABLE_NVLS"] = "1"
            environment |= dict(pair.split("=", 1) for pair in self.options.nvshmem_env)
        return environment


class Mps:
    """A daemon of our own: kernels of two processes run side by side on one GPU under it only."""

    def __init__(self) -> None:
        self.folder = ""

    def start(self) -> None:
        self.folder = tempfile.mkdtemp(prefix="mori-mps-")
        os.environ["CUDA_MPS_PIPE_DIRECTORY"] = self.folder
        os.environ["CUDA_MPS_LOG_DIRECTORY"] = self.folder
        subprocess.run(
            ["nvidia-cuda-mps-control", "-d"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=60,
            check=True,
        )

    def end(self) -> None:
        if not self.folder:
            return
        pid_file = Path(self.folder) / "nvidia-cuda-mps-control.pid"
        pid = pid_file.read_text().strip() if pid_file.exists() else ""
        try:
            subprocess.run(
                ["nvidia-cuda-mps-control"],
                input="quit\n",
                text=True,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                timeout=30,
                check=False,
            )
        except subprocess.TimeoutExpired:
            if pid.isdigit():
                os.kill(int(pid), signal.SIGKILL)
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder = ""


class Turns:
    """Rounds over the programs, so that a slow minute of the machine meets all of them."""

    def __init__(self, programs: Programs, mps: Mps | None):
        self.programs = programs
        self.mps = mps
        self.figures: dict[tuple[str, str], dict] = {}
        self.facts: dict[str, dict] = {}
        self.failures: list[str] = []

    def go(self, repeats: int) -> None:
        for repeat in range(repeats):
            for name in self.programs.names():
                print(f"{repeat + 1}/{repeats} {name}", file=sys.stderr, flush=True)
                failure = self._run(name)
                if failure:
                    self.failures.append(f"{name}: {failure}")
                    print(f"   {failure}", file=sys.stderr, flush=True)
                    if self.mps:  # it may not be well either
                        self.mps.end()
                        self.mps.start()

    def _run(self, name: str) -> str:
        options = self.programs.options
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "figures.json"
            command = [str(self.programs.folder / name), "--pes", str(options.pes)]
            command += ["--json", str(path), "--limit", str(options.limit)]
            if options.only:
                command += ["--only", options.only]
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                env=self.programs.environment(name),
                start_new_session=True,
            )
            try:
                text, _ = process.communicate(timeout=options.limit + 15)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                text, _ = process.communicate()
            if path.exists():
                self._collect(json.loads(path.read_text()))
        if process.returncode == 0:
            return ""
        lines = [line for line in text.splitlines() if line.strip()]
        return f"status {process.returncode}: {' | '.join(lines[-4:])[:800]}"

    def _collect(self, results: dict) -> None:
        library = results["library"]
        self.facts[library] = {k: v for k, v in results.items() if k not in ("library", "figures")}
        for figure in results["figures"]:
            key = (library, figure["name"])
            series = self.figures.setdefault(
                key,
                {
                    "library": library,
                    "name": figure["name"],
                    "unit": figure["unit"],
                    "median": 0.0,
                    "values": [],
                    "samples": [],
                },
            )
            series["values"].append(statistics.median(figure["values"]))
            series["samples"].append(figure["values"])
            series["median"] = statistics.median(series["values"])


def describe(programs: Programs, turns: Turns) -> dict[str, str]:
    gpus = lines_of("nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
    name, _, driver = (gpus or ["unknown, unknown"])[0].partition(", ")
    version = [line for line in lines_of(programs.nvcc, "--version") if "release" in line]
    return {
        "gpu": name,
        "driver": driver,
        "nvcc": version[0].strip() if version else "unknown",
        "nvshmem": turns.facts.get("nvshmem", {}).get("version", "not measured"),
        "mori": turns.facts.get("mori", {}).get("version", "not measured"),
    }


def gpus_to_use(options: argparse.Namespace) -> int:
    """How many; makes only those visible."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    count = len(lines_of("nvidia-smi", "-L"))
    names = visible.split(",") if visible else [str(gpu) for gpu in range(count)]
    if not names:
        sys.exit("no GPU")
    used = names[: min(options.gpus or options.pes, options.pes)]
    if used != names:
        os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(used)
    return len(used)


def measure(options: argparse.Namespace) -> dict:
    gpus = gpus_to_use(options)
    capability = lines_of("nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader")
    programs = Programs(
        options,
        options.nvshmem or find_nvshmem(),
        capability[0].strip().replace(".", "") if capability else "90",
    )
    if not programs.nvshmem:
        print("no NVSHMEM here (pip: nvidia-nvshmem-cu13): without it", file=sys.stderr)
    if not options.no_build:
        print("building", file=sys.stderr, flush=True)
        programs.build()
    mps = Mps() if gpus < options.pes else None
    turns = Turns(programs, mps)
    try:
        if mps:
            mps.start()
        turns.go(options.repeats)
    finally:
        if mps:
            mps.end()
    commit = options.commit or (lines_of("git", "rev-parse", "--short", "HEAD") or ["unknown"])[0]
    return {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit,
        "command": " ".join(["benchmarks/gpu/run.py", *sys.argv[1:]]),
        "pes": options.pes,
        "gpus": gpus,
        "mps": mps is not None,
        "repeats": options.repeats,
        "nvshmem_environment": options.nvshmem_env,
        "machine": describe(programs, turns),
        "failures": turns.failures,
        "figures": list(turns.figures.values()),
    }


def to_json(results: dict) -> str:
    """A line for each figure."""
    head = json.dumps({**results, "figures": []}, indent=1)
    lines = ",\n".join("  " + json.dumps(figure) for figure in results["figures"])
    return head.replace('"figures": []', f'"figures": [\n{lines}\n ]') + "\n"


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends the daemon
    options = parse_arguments()
    results = json.loads(options.show.read_text()) if options.show else measure(options)
    name = options.show.stem if options.show else f"gpu{results['gpus']}-{results['date'][:10]}"
    options.output.mkdir(parents=True, exist_ok=True)
    if not options.show:
        path = options.output / f"{name}.json"
        path.write_text(to_json(results))
    text = report.table(results)
    print(text)
    (options.output / f"{name}.txt").write_text(text + "\n")
    print(report.draw(results, options.output / f"gpu{results['gpus']}-put.svg"))
    return 1 if results["failures"] else 0


if __name__ == "__main__":
    sys.exit(main())
