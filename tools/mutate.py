#!/usr/bin/env python3
"""How well the tests see faults: puts faults into a copy of the tree, one at a time, and tests it.

The faults are rows of tools/mutations/*.toml, a file for each folder of the source:

    tests = ["unit: Backing*", "multi_pe: *Growing*"]   # what can see the folder, quick ones first

    [[fault]]
    file = "src/heap/backing.cpp"
    text = "spare_ == chunk"             # occurs once in the file
    replacement = "spare_ != chunk"
    why = "a chunk that is kept is mapped again"
    tests = ["unit: ChunkBacking*"]      # optional: in place of those of the folder

A test is a program and what to run of it: `unit:`, `cuda_host:` and `multi_pe:` take a GoogleTest
filter, with `vmm:` and `isolation:` the latter in another heap mode; `python:` takes arguments of
pytest.

For each fault the copy is built and tested until the first failure; then the fault is taken out
again. A fault is caught if a test fails or runs beyond the limit, and has survived if none does.
One that does not compile is no fault, and counts neither way. What was tried is written to the
record at once, and is not tried again while the row and its file stay as they are: an interrupted
run goes on where it was.

Exits with 0 if every fault was caught, 1 if some survived, and 2 if rows do not fit the tree.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import queue
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable

ROOT = pathlib.Path(__file__).resolve().parent.parent
MULTI_PE = ["multi_pe_tests"]
# What has to be built for each.
PROGRAMS = {
    "unit": ["unit_tests"],
    "cuda_host": ["cuda_host_tests"],
    "multi_pe": MULTI_PE,
    "vmm": MULTI_PE,
    "isolation": MULTI_PE,
    "python": ["mori", "mori_python"],
}
NOT_COPIED = (".venv/", "build/")
CAUGHT, SURVIVED, BROKEN = "caught", "survived", "does not compile"


class WrongList(Exception):
    """The list of faults does not fit the tree; one sentence a row."""


@dataclasses.dataclass(frozen=True)
class Fault:
    file: str
    text: str
    replacement: str
    why: str
    tests: tuple[str, ...]

    def key(self, source: str) -> str:
        """The same as long as the row and its file are."""
        parts = (self.file, self.text, self.replacement, *self.tests, source)
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    def apply(self, source: str) -> str:
        return source.replace(self.text, self.replacement)


@dataclasses.dataclass(frozen=True)
class Outcome:
    verdict: str
    by: str  # the test that failed, or what else ended the run
    seconds: float


# ---- the list


def read_rows(path: pathlib.Path) -> tuple[list[Fault], list[str]]:
    """The faults of one file, and what is wrong with its rows."""
    import tomllib  # Python 3.11: the checks of this tree also run on older ones

    with path.open("rb") as file:
        data = tomllib.load(file)
    wrong = [f"{path.name}: unknown key {key!r}" for key in data.keys() - {"tests", "fault"}]
    faults = []
    for number, row in enumerate(data.get("fault", []), 1):
        where = f"{path.name}, row {number}"
        tests = row.get("tests", data.get("tests", []))
        needed = ("file", "text", "replacement", "why")
        wrong += [f"{where}: {name} is missing" for name in needed if name not in row]
        wrong += [f"{where}: unknown key {key!r}" for key in row.keys() - {*needed, "tests"}]
        wrong += [
            f"{where}: {test!r} names none of {', '.join(PROGRAMS)}"
            for test in tests
            if test.partition(":")[0] not in PROGRAMS
        ]
        if not tests:
            wrong.append(f"{where}: no tests")
        if all(name in row for name in needed):
            faults.append(Fault(*(row[name] for name in needed), tuple(tests)))
    return faults, wrong


def misfit(fault: Fault, root: pathlib.Path) -> str | None:
    """Why the row cannot be put into the tree; None if it can."""
    path = root / fault.file
    if not path.is_file():
        return f"{fault.file}: there is no such file"
    count = path.read_text().count(fault.text)
    if count != 1:
        return f"{fault.file}: {fault.text!r} occurs {count} times, not once"
    if fault.text == fault.replacement:
        return f"{fault.file}: {fault.text!r} is replaced by itself"
    return None


def read_list(folder: pathlib.Path, root: pathlib.Path) -> tuple[list[Fault], list[str]]:
    """All faults that fit the tree, and a sentence for each row that does not."""
    faults, wrong = [], []
    for path in sorted(folder.glob("*.toml")):
        rows, complaints = read_rows(path)
        wrong += complaints
        for row in rows:
            reason = misfit(row, root)
            if reason is None:
                faults.append(row)
            else:
                wrong.append(f"{path.name}: {reason}")
    seen: set[tuple[str, str, str]] = set()
    for fault in faults:
        row_id = (fault.file, fault.text, fault.replacement)
        if row_id in seen:
            wrong.append(f"{fault.file}: {fault.text!r} is there twice")
        seen.add(row_id)
    return faults, wrong


# ---- a copy of the tree


def files_of(root: pathlib.Path) -> set[str]:
    """What git knows or would add; where there is no git, all but what is built."""
    if (root / ".git").exists():
        command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others"]
        listed = subprocess.run(
            [*command, "--exclude-standard"], check=True, capture_output=True, text=True
        ).stdout
        names = {name for name in listed.split("\0") if name}
    else:
        names = {path.relative_to(root).as_posix() for path in root.rglob("*")}
        names = {name for name in names if not name.startswith(NOT_COPIED)}
    return {name for name in names if (root / name).is_file()}


def copy_tree(root: pathlib.Path, copy: pathlib.Path) -> None:
    """The tree as it is now. Files that are alike keep their times, so that little is built again;
    what is no longer there goes."""
    names = files_of(root)
    for name in names:
        target = copy / name
        content = (root / name).read_bytes()
        if not target.is_file() or target.read_bytes() != content:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
            shutil.copymode(root / name, target)
    for path in copy.rglob("*"):
        name = path.relative_to(copy).as_posix()
        if path.is_file() and not name.startswith(NOT_COPIED) and name not in names:
            path.unlink()


@dataclasses.dataclass
class Tree:
    """A copy that is built and tested. What a program writes goes to a file there."""

    path: pathlib.Path
    python: str

    @property
    def build(self) -> pathlib.Path:
        return self.path / "build" / "host-debug"

    def run(
        self, command: list[str], env: dict[str, str], limit: float | None
    ) -> tuple[int | None, str]:
        """Exit status, None beyond the limit; and what it wrote."""
        output = self.path / "build" / "output"
        with output.open("wb") as file:
            process = subprocess.Popen(
                command,
                cwd=self.path,
                env={**os.environ, **env},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                status: int | None = process.wait(limit)
            except subprocess.TimeoutExpired:
                status = None
            finally:
                # A test that ended early may leave PEs behind, in the group that is its own.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        return status, output.read_text(errors="replace")

    def configure(self) -> None:
        (self.path / "build").mkdir(exist_ok=True)
        command = ["cmake", "--preset", "host-debug", "-DMORI_BUILD_PYTHON=ON"]
        # A fault may leave a variable unused; that is not what is asked here.
        command += ["-DMORI_WARNINGS_AS_ERRORS=OFF", f"-DPython_EXECUTABLE={self.python}"]
        status, output = self.run(command, {}, None)
        if status != 0:
            raise WrongList(f"the copy cannot be configured:\n{output[-3000:]}")

    def compile(self, tests: Iterable[str], limit: float | None) -> tuple[bool, str]:
        wanted = {target for test in tests for target in PROGRAMS[test.partition(":")[0]]}
        status, output = self.run(["ninja", "-C", str(self.build), *sorted(wanted)], {}, limit)
        return status == 0, output

    def test(self, test: str, limit: float) -> tuple[int | None, str]:
        program, _, what = (part.strip() for part in test.partition(":"))
        env = {"MORI_SOCKET_IFNAME": "lo"}
        if program == "python":
            env["PYTHONPATH"] = str(self.build / "python")
            env["MORI_BUILD_DIR"] = str(self.build)
            env["PYTHONDONTWRITEBYTECODE"] = "1"
            command = [self.python, "-m", "pytest", "-x", "-q", "--no-header", "-p"]
            return self.run([*command, "no:cacheprovider", *what.split()], env, limit)
        if program in ("vmm", "isolation"):
            env["MORI_SHMEM_MODE"] = program
            env["MORI_SHMEM_VMM_CHUNK_SIZE"] = "64K"
        (name,) = PROGRAMS[program]
        command = [str(self.build / "tests" / name), f"--gtest_filter={what}"]
        status, output = self.run([*command, "--gtest_fail_fast"], env, limit)
        if status == 0 and re.search(r"^\[==========\] 0 tests", output, re.MULTILINE):
            raise WrongList(f"{test!r} runs no test")
        return status, output


def first_failure(output: str) -> str:
    """The name of the first test that failed."""
    patterns = (
        r"^\[  FAILED  \] ([\w./]+)",
        r"^FAILED (\S+)",
        r"^ERROR (\S+)",
    )
    for pattern in patterns:
        found = re.search(pattern, output, re.MULTILINE)
        if found:
            return found.group(1).rstrip(",")
    running = re.findall(r"^\[ RUN      \] ([\w./]+)", output, re.MULTILINE)
    return f"{running[-1]} (ended the program)" if running else "the program did not run"


def try_fault(tree: Tree, fault: Fault, limit: float) -> Outcome:
    """Leaves the copy as it was."""
    path = tree.path / fault.file
    source = path.read_text()
    start = time.monotonic()

    def outcome(verdict: str, by: str) -> Outcome:
        return Outcome(verdict, by, round(time.monotonic() - start, 1))

    path.write_text(fault.apply(source))
    try:
        built, output = tree.compile(fault.tests, None)
        if not built:
            return outcome(BROKEN, next(iter(re.findall(r"error: .*", output)), "ninja failed"))
        end = time.monotonic() + limit
        for test in fault.tests:
            status, output = tree.test(test, max(1.0, end - time.monotonic()))
            if status is None:
                return outcome(CAUGHT, f"{test.partition(':')[0]} tests: limit of {limit:g} s")
            if status != 0:
                return outcome(CAUGHT, first_failure(output))
        return outcome(SURVIVED, "")
    finally:
        path.write_text(source)


# ---- the record


class Record:
    """What was found, by row and by the file it stands in; written after each fault."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.entries: dict[str, dict[str, object]] = {}
        if path.is_file():
            self.entries = {entry["key"]: entry for entry in json.loads(path.read_text())}

    def find(self, key: str) -> Outcome | None:
        entry = self.entries.get(key)
        if entry is None:
            return None
        return Outcome(str(entry["verdict"]), str(entry["by"]), float(str(entry["seconds"])))

    def add(self, key: str, fault: Fault, outcome: Outcome) -> None:
        self.entries[key] = {
            "key": key,
            "file": fault.file,
            "text": fault.text,
            "replacement": fault.replacement,
            "why": fault.why,
            **dataclasses.asdict(outcome),
        }
        self.write()

    def keep(self, keys: set[str]) -> None:
        """Drops what belongs to rows that are no more."""
        self.entries = {key: entry for key, entry in self.entries.items() if key in keys}
        self.write()

    def write(self) -> None:
        rows = sorted(self.entries.values(), key=lambda row: (row["file"], row["text"]))
        text = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
        partial = self.path.with_suffix(".partial")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(f"[\n{text}\n]\n")
        partial.replace(self.path)


def score(outcomes: Iterable[tuple[Fault, Outcome]]) -> tuple[str, bool]:
    """The closing lines, and whether all were caught."""
    pairs = list(outcomes)
    survivors = [fault for fault, outcome in pairs if outcome.verdict == SURVIVED]
    broken = [fault for fault, outcome in pairs if outcome.verdict == BROKEN]
    tried = len(pairs) - len(broken)
    caught = tried - len(survivors)
    share = f" ({100 * caught / tried:.0f} %)" if tried else ""
    lines = [f"caught {caught} of {tried}{share}"]
    for name, faults in (("survived", survivors), (BROKEN, broken)):
        lines += [f"  {name}: {fault.file}: {fault.text!r}: {fault.why}" for fault in faults]
    return "\n".join(lines), not survivors


# ---- the run


def baseline(tree: Tree, tests: Iterable[str], limit: float, say: Callable[[str], None]) -> None:
    """What fails without a fault says nothing about faults."""
    wanted = sorted(set(tests))
    say(f"without a fault: {len(wanted)} runs of tests")
    built, output = tree.compile(wanted, None)
    if not built:
        raise WrongList(f"the tree does not build:\n{output[-3000:]}")
    for test in wanted:
        status, output = tree.test(test, limit)
        if status is None:
            raise WrongList(f"{test!r} takes more than {limit:g} s without a fault; see --limit")
        if status != 0:
            raise WrongList(f"{test!r} fails without a fault: {first_failure(output)}")


def run(faults: list[Fault], trees: list[Tree], record: Record, limit: float, again: bool) -> bool:
    """As many faults at a time as there are copies of the tree."""

    def say(line: str) -> None:
        print(line, flush=True)

    first = trees[0]
    sources = {fault.file: (first.path / fault.file).read_text() for fault in faults}
    keys = {fault: fault.key(sources[fault.file]) for fault in faults}

    def is_open(fault: Fault) -> bool:
        known = record.find(keys[fault])
        return known is None or (again and known.verdict == SURVIVED)

    todo = [fault for fault in faults if is_open(fault)]
    if len(todo) < len(faults):
        say(f"{len(faults) - len(todo)} of {len(faults)} faults are in the record")
    if todo:
        baseline(first, (test for fault in todo for test in fault.tests), limit, say)

    idle: queue.SimpleQueue[Tree] = queue.SimpleQueue()
    for tree in trees:
        idle.put(tree)

    def attempt(fault: Fault) -> tuple[Fault, Outcome]:
        tree = idle.get()
        try:
            return fault, try_fault(tree, fault, limit)
        finally:
            idle.put(tree)

    pool = concurrent.futures.ThreadPoolExecutor(len(trees))
    try:
        attempts = [pool.submit(attempt, fault) for fault in todo]
        for number, done in enumerate(concurrent.futures.as_completed(attempts), 1):
            fault, outcome = done.result()
            record.add(keys[fault], fault, outcome)
            by = f" by {outcome.by}" if outcome.by else ""
            say(
                f"[{number}/{len(todo)}] {outcome.verdict}{by}, {outcome.seconds:g} s: "
                f"{fault.file}: {fault.why}"
            )
    finally:
        pool.shutdown(cancel_futures=True)
    pairs = ((fault, record.find(keys[fault])) for fault in faults)
    text, all_caught = score((fault, outcome) for fault, outcome in pairs if outcome is not None)
    say(text)
    return all_caught


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="*", help="only faults in files below these")
    parser.add_argument("--check", action="store_true", help="say which rows do not fit, and end")
    parser.add_argument("--skip-misfits", action="store_true", help="run the rows that fit")
    parser.add_argument("--again", action="store_true", help="try survivors of the record again")
    parser.add_argument("--limit", type=float, default=300, help="seconds of testing for a fault")
    parser.add_argument("--jobs", type=int, default=1, help="copies of the tree, side by side")
    parser.add_argument("--copy", type=pathlib.Path, default=ROOT / "build" / "mutate")
    parser.add_argument(
        "--record", type=pathlib.Path, help="default: record.json beside the copies"
    )
    parser.add_argument("--list", type=pathlib.Path, default=ROOT / "tools" / "mutations")
    parser.add_argument("--python", default=sys.executable, help="with pytest and numpy")
    options = parser.parse_args(arguments)

    faults, wrong = read_list(options.list, ROOT)
    for sentence in wrong:
        print(sentence, file=sys.stderr)
    if options.check or (wrong and not options.skip_misfits):
        print(f"{len(faults)} faults, {len(wrong)} rows that do not fit")
        return 2 if wrong else 0
    if options.folders:
        below = tuple(folder.rstrip("/") for folder in options.folders)
        faults = [
            f for f in faults if any(f.file == b or f.file.startswith(b + "/") for b in below)
        ]
    copies = [options.copy.resolve() / str(number) for number in range(options.jobs)]
    trees = [Tree(copy, options.python) for copy in copies]
    try:
        for tree in trees:
            tree.path.mkdir(parents=True, exist_ok=True)
            copy_tree(ROOT, tree.path)
            tree.configure()
        record = Record(options.record or options.copy / "record.json")
        return 0 if run(faults, trees, record, options.limit, options.again) else 1
    except WrongList as error:
        print(error, file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
