#!/usr/bin/env python3
"""Says where an #include points the wrong way.

Usage: check_includes.py [root]. Prints one line per wrong include and exits with 1 if there is any.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

# Who may include whom: layers of src/ upwards, then the surfaces around it. Every module may also
# include itself. Tests may include anything.
_BASE = {"types", "base"}
_SEAMS = _BASE | {"bootstrap", "runtime", "topology"}
_PARTS = _SEAMS | {"node", "transport", "heap"}
_PUBLIC = {"types", "device", "shmem_api", "host_ops", "api"}
MAY_INCLUDE = {
    "types": {"device"},
    "device": {"types"},
    "shmem_api": {"types"},
    "host_ops": {"types"},
    "api": _PUBLIC,
    "base": _BASE,
    "bootstrap": _BASE,
    "runtime": _BASE,
    "topology": _BASE,
    # The pause of a spinning wait is written once, in the public header.
    "node": _SEAMS | {"host_ops"},
    "transport": _SEAMS | {"node"},
    "heap": _SEAMS | {"node", "transport"},
    "shmem": _PARTS | _PUBLIC,
    "kernels": _PUBLIC,
    "pybind": _PUBLIC,
    "examples": _PUBLIC,
    # These two link the library's objects: the mori command asks inside, benchmarks measure parts.
    "tools": _PARTS | {"shmem"} | _PUBLIC,
    "benchmarks": _PARTS | _PUBLIC,
}

# Of these modules, the modules named may include these headers only.
ONLY_HEADERS = {
    ("heap", "transport"): ("src/transport/transport.hpp", "src/transport/remote.hpp"),
}

# Headers of others that belong into one place: pattern, and the paths that may include it.
CONFINED = [
    (
        r"(cuda|nv|nccl)\w*\.h$",
        ("src/runtime/cuda/", "include/mori/shmem/device/platform.hpp", "benchmarks/gpu/"),
    ),
    (r"hip/", ("src/runtime/hip/", "include/mori/shmem/device/platform.hpp")),
    (r"infiniband/", ("src/transport/rdma/",)),
    (r"rdma/", ("src/transport/ofi/", "benchmarks/")),
    (r"mpi\.h$", ("include/mori/shmem/mpi.hpp", "examples/")),
    (r"spdlog/", ("src/base/",)),
    (r"pybind11/", ("src/pybind/",)),
    (r"CLI/", ("tools/", "benchmarks/")),
]

_FOLDERS = ("include", "src", "benchmarks", "examples", "tools", "tests")
_SUFFIXES = {".hpp", ".h", ".cpp", ".cu", ".hip"}
_INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]')


def module_of(path: str) -> str | None:
    """Module of a path below the root; None where everything may be included."""
    parts = path.split("/")
    if parts[0] == "include":
        if "device" in parts:
            return "device"
        name = parts[-1].removesuffix(".hpp")
        return name if name in ("types", "shmem_api", "host_ops") else "api"
    if parts[0] == "src":
        return parts[1]
    return None if parts[0] == "tests" else parts[0]


def resolve(root: Path, path: str, name: str) -> str | None:
    """Path of the project's header that a file means by `name`, or None."""
    top = path.split("/")[0]
    folders = [(root / path).parent, root / "src", root / "include", root / top]
    for folder in folders:
        candidate = folder / name
        if candidate.is_file():
            return candidate.resolve().relative_to(root.resolve()).as_posix()
    return None


def _is_internal_part(header: str) -> bool:
    """Whether the header is in a folder of one implementation, as src/runtime/host/."""
    return header.startswith("src/") and header.count("/") > 2


def wrong_own(path: str, header: str) -> str | None:
    """Why `path` may not include the project's `header`; None if it may."""
    source, target = module_of(path), module_of(header)
    if source is None:
        return None
    if target is None:
        return "only tests include what tests share"
    if source == target:
        return None
    if source not in MAY_INCLUDE:
        return f"module {source} is not in the table of tools/check_includes.py"
    if target not in MAY_INCLUDE[source]:
        return f"{source} may not include {target}"
    only = ONLY_HEADERS.get((source, target))
    if only is not None and header not in only:
        return f"of {target}, {source} may include {' and '.join(only)} only"
    if _is_internal_part(header):
        return f"{header} is internal to {target}"
    return None


def wrong_foreign(path: str, name: str) -> str | None:
    """Why `path` may not include the foreign header `name`; None if it may."""
    if module_of(path) is None:
        return None
    for pattern, places in CONFINED:
        if re.match(pattern, name) and not path.startswith(places):
            return f"only for {' and '.join(places)}"
    return None


def includes(file: Path) -> Iterator[tuple[int, bool, str]]:
    """Line number, whether in quotes, and name of each include."""
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if match := _INCLUDE.match(line):
            yield number, match[1] == '"', match[2]


def source_files(root: Path) -> Iterator[Path]:
    for folder in _FOLDERS:
        for file in sorted((root / folder).rglob("*")):
            if file.suffix in _SUFFIXES:
                yield file


def check(root: Path) -> list[str]:
    """All wrong includes below `root`, one sentence each."""
    errors = []
    for file in source_files(root):
        path = file.relative_to(root).as_posix()
        for number, quoted, name in includes(file):
            header = resolve(root, path, name) if quoted else None
            if header is not None:
                reason = wrong_own(path, header)
            elif quoted and module_of(path) is not None:
                reason = "found neither beside the file nor in src/, include/ or its top folder"
            else:
                reason = wrong_foreign(path, name)
            if reason is not None:
                errors.append(f'{path}:{number}: includes "{name}": {reason}')
    return errors


def main() -> int:
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent
    errors = check(root)
    for error in errors:
        print(error)
    return 1 if errors else 0


if __name__ == "__main__":
    sys.exit(main())
