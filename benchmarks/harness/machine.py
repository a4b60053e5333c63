"""This machine: what it is, and whether it is quiet."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from pathlib import Path


def _first_line(*command: str) -> str:
    """First line that a command prints, "" if it cannot be run."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return ""
    lines = (done.stdout or done.stderr).strip().splitlines()
    return lines[0] if lines else ""


def _field(path: str, pattern: str) -> str:
    found = re.search(pattern, Path(path).read_text(), re.MULTILINE)
    return found.group(1).strip() if found else ""


def _caches() -> dict[str, str]:
    caches = {}
    for entry in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level = (entry / "level").read_text().strip()
        kind = (entry / "type").read_text().strip()
        caches[f"L{level} {kind.lower()}"] = (entry / "size").read_text().strip()
    return caches


def describe() -> dict[str, object]:
    """Facts that a reader needs to compare figures with those of another machine."""
    memory_kib = int(_field("/proc/meminfo", r"^MemTotal:\s+(\d+)") or 0)
    return {
        "cpu": _field("/proc/cpuinfo", r"^model name\s*:\s*(.*)$"),
        "cpu_family_model": "/".join(
            _field("/proc/cpuinfo", rf"^{key}\s*:\s*(\d+)$") for key in ("cpu family", "model")
        ),
        "cpus": os.cpu_count(),
        "is_virtual": "hypervisor" in _field("/proc/cpuinfo", r"^flags\s*:\s*(.*)$"),
        "caches": _caches(),
        "memory_gib": round(memory_kib / 2**20, 1),
        "kernel": platform.release(),
        "system": _field("/etc/os-release", r'^PRETTY_NAME="?([^"\n]*)'),
        "c_library": " ".join(platform.libc_ver()),
        "compiler": _first_line("c++", "--version"),
        "peer": _first_line("oshmem_info", "--version") or _first_line("ompi_info", "--version"),
        "transparent_huge_pages_shmem": _selected(
            "/sys/kernel/mm/transparent_hugepage/shmem_enabled"
        ),
    }


def _selected(path: str) -> str:
    try:
        return _field(path, r"\[(\w+)\]")
    except OSError:
        return "none"


def _cpu_times() -> tuple[int, int, int]:
    fields = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return sum(fields), fields[3] + fields[4], fields[7]


def busy_share(seconds: float = 0.4) -> float:
    """Share of CPU time that others use or the hypervisor takes, 0 to 1."""
    before = _cpu_times()
    time.sleep(seconds)
    after = _cpu_times()
    total = max(1, after[0] - before[0])
    return 1 - (after[1] - before[1]) / total


def load() -> float:
    """Load average of the last minute."""
    return os.getloadavg()[0]


def wait_until_quiet(patience_s: float, max_load: float | None = None) -> float:
    """Waits until the CPUs are idle and the load is low, at most `patience_s`.

    Returns the busy share at the end.
    """
    give_up = time.monotonic() + patience_s
    while True:
        busy = busy_share()
        quiet = busy < 0.08 and (max_load is None or load() < max_load)
        if quiet or time.monotonic() > give_up:
            return busy
        time.sleep(2)
