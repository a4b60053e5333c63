#!/usr/bin/env python3
"""Runs clang-tidy over this project's sources, where something changed.

Usage: clang_tidy.py <build folder> [file...]. A source is looked at again when it, a header of this
project that it reaches, .clang-tidy, the compile command or clang-tidy itself is another than when
it last passed. Exits with 1 if clang-tidy complains.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from check_includes import includes, resolve

ROOT = Path(__file__).resolve().parent.parent
OWN = ("src/", "tools/", "examples/")
JOBS = os.cpu_count() or 2


def reached(path: str, seen: set[str]) -> set[str]:
    """The file and every header of this project that it includes, directly or not."""
    if path not in seen:
        seen.add(path)
        for _, _, name in includes(ROOT / path):
            header = resolve(ROOT, path, name)
            if header is not None:
                reached(header, seen)
    return seen


def fingerprint(path: str, command: str, version: str) -> str:
    digest = hashlib.sha256(f"{version}\n{command}\n".encode())
    digest.update((ROOT / ".clang-tidy").read_bytes())
    for name in sorted(reached(path, set())):
        digest.update(f"{name}\n".encode())
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def own_commands(build: Path) -> dict[str, str]:
    """Compile command of each source of this project in the build."""
    entries = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
    commands = {}
    for entry in entries:
        file = Path(entry["file"])
        if not file.is_relative_to(ROOT):
            continue
        path = file.relative_to(ROOT).as_posix()
        if path.startswith(OWN):
            commands[path] = entry["command"]
    return commands


def tidy(build: Path, path: str, stamp: Path) -> bool:
    """Whether clang-tidy has nothing to say; leaves `stamp` if so."""
    result = subprocess.run(
        ["clang-tidy", "--quiet", "-p", str(build), path],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode == 0:
        stamp.touch()
        return True
    print(f"clang-tidy: {path}\n{result.stdout}{errors_of(result.stderr)}", flush=True)
    return False


def errors_of(stderr: str) -> str:
    """What clang-tidy says on its error stream, without the count of warnings it left out."""
    return "".join(line for line in stderr.splitlines(True) if "warnings generated" not in line)


def main() -> int:
    build = Path(sys.argv[1]).resolve()
    version = subprocess.run(
        ["clang-tidy", "--version"], capture_output=True, text=True, check=True
    ).stdout
    stamps = build / "clang-tidy"
    stamps.mkdir(exist_ok=True)
    commands = own_commands(build)
    pending = []
    for path in sys.argv[2:] or sorted(commands):
        stamp = stamps / fingerprint(path, commands[path], version)
        if not stamp.exists():
            pending.append((path, stamp))
    with ThreadPoolExecutor(JOBS) as pool:
        passed = list(pool.map(lambda job: tidy(build, *job), pending))
    print(f"clang-tidy: {len(passed)} of {len(commands)} sources looked at again")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
