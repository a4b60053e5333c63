"""tools/mutate.py: the list is checked, faults go in and out, and what was found is kept."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
from types import ModuleType

import pytest

if sys.version_info < (3, 11):
    pytest.skip(
        "the list of faults is TOML, which Python reads from 3.11 on", allow_module_level=True
    )

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "tools" / "mutate.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutate", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutate"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


mutate = load()

SOURCE = "int a = 1;\nint b = a + 1;\nint c = a + 1;\n"
ROW = """
tests = ["unit: A*"]
[[fault]]
file = "src/a.cpp"
text = "b = a + 1"
replacement = "b = a + 2"
why = "one too many"
"""


@pytest.fixture
def root(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.cpp").write_text(SOURCE)
    (tmp_path / "list").mkdir()
    (tmp_path / "list" / "src.toml").write_text(ROW)
    return tmp_path


def complaints(root: pathlib.Path, rows: str) -> list[str]:
    (root / "list" / "src.toml").write_text(rows)
    return mutate.read_list(root / "list", root)[1]


def test_a_row_that_fits_is_a_fault(root: pathlib.Path) -> None:
    faults, wrong = mutate.read_list(root / "list", root)
    assert wrong == []
    assert faults == [
        mutate.Fault("src/a.cpp", "b = a + 1", "b = a + 2", "one too many", ("unit: A*",))
    ]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (("b = a + 1", "a + 1"), "'a + 1' occurs 2 times, not once"),
        (("b = a + 1", "d = a"), "'d = a' occurs 0 times, not once"),
        (("src/a.cpp", "src/b.cpp"), "src/b.cpp: there is no such file"),
        (("b = a + 2", "b = a + 1"), "is replaced by itself"),
        (("why =", "reason ="), "why is missing"),
        (("why =", "because = 1\nwhy ="), "unknown key 'because'"),
        (("tests =", "test ="), "no tests"),
        (("unit: A*", "units: A*"), "'units: A*' names none of unit, "),
    ],
)
def test_a_row_that_does_not_fit_is_named(
    root: pathlib.Path, change: tuple[str, str], sentence: str
) -> None:
    wrong = complaints(root, ROW.replace(*change))
    assert any(sentence in line for line in wrong), wrong


def test_a_row_that_is_there_twice_is_named(root: pathlib.Path) -> None:
    twice = ROW + ROW.partition("\n[[")[1] + ROW.partition("\n[[")[2]
    assert any("is there twice" in line for line in complaints(root, twice))


class FakeTree(mutate.Tree):
    """Builds nothing; its tests fail, hang or pass by what the file says."""

    def __init__(self, path: pathlib.Path) -> None:
        super().__init__(path, sys.executable)
        self.tested: list[str] = []

    def compile(self, tests, limit):  # type: ignore[no-untyped-def]
        text = (self.path / "src" / "a.cpp").read_text()
        return "syntax" not in text, "a.cpp:2: error: no such thing\n"

    def test(self, test, limit):  # type: ignore[no-untyped-def]
        self.tested.append(test)
        text = (self.path / "src" / "a.cpp").read_text()
        if "hang" in text:
            return None, ""
        if "a + 2" in text:
            return 1, "[ RUN      ] A.B\n[  FAILED  ] A.B (1 ms)\n"
        return 0, ""


def fault(replacement: str, *tests: str) -> object:
    return mutate.Fault("src/a.cpp", "b = a + 1", replacement, "why", tests or ("unit: A*",))


@pytest.mark.parametrize(
    ("replacement", "verdict", "by"),
    [
        ("b = a + 2", "caught", "A.B"),
        ("b = hang", "caught", "unit tests: limit of 5 s"),
        ("b = a + 3", "survived", ""),
        ("b = syntax", "does not compile", "error: no such thing"),
    ],
)
def test_what_becomes_of_a_fault(
    root: pathlib.Path, replacement: str, verdict: str, by: str
) -> None:
    outcome = mutate.try_fault(FakeTree(root), fault(replacement), 5)
    assert (outcome.verdict, outcome.by) == (verdict, by)
    assert (root / "src" / "a.cpp").read_text() == SOURCE


def test_the_first_failing_test_ends_the_run(root: pathlib.Path) -> None:
    tree = FakeTree(root)
    mutate.try_fault(tree, fault("b = a + 2", "unit: A*", "multi_pe: B*"), 5)
    assert tree.tested == ["unit: A*"]
    tree.tested.clear()
    mutate.try_fault(tree, fault("b = a + 3", "unit: A*", "multi_pe: B*"), 5)
    assert tree.tested == ["unit: A*", "multi_pe: B*"]


def test_a_run_goes_on_where_it_was(root: pathlib.Path, capsys: pytest.CaptureFixture[str]) -> None:
    faults = [fault("b = a + 2"), fault("b = a + 3"), fault("b = syntax")]
    record = root / "record.json"
    assert not mutate.run(faults[:2], [FakeTree(root)], mutate.Record(record), 5, False)
    assert "caught 1 of 2 (50 %)\n  survived: src/a.cpp" in capsys.readouterr().out

    tree = FakeTree(root)
    mutate.run(faults, [tree], mutate.Record(record), 5, False)
    out = capsys.readouterr().out
    assert "2 of 3 faults are in the record" in out
    assert "[1/1] does not compile by error: no such thing" in out
    assert "caught 1 of 2 (50 %)" in out and "does not compile: src/a.cpp" in out
    assert tree.tested == ["unit: A*"]  # without a fault

    tree = FakeTree(root)
    mutate.run(faults, [tree], mutate.Record(record), 5, True)
    assert len(tree.tested) == 2, "the survivor again"

    (root / "src" / "a.cpp").write_text(SOURCE + "// more\n")
    mutate.run(faults[:1], [FakeTree(root)], mutate.Record(record), 5, False)
    assert "[1/1] caught by A.B" in capsys.readouterr().out


def test_faults_are_tried_side_by_side(
    root: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = root / "other"
    (other / "src").mkdir(parents=True)
    (other / "src" / "a.cpp").write_text(SOURCE)
    faults = [fault(f"b = a + {n}") for n in range(2, 12)]
    trees = [FakeTree(root), FakeTree(other)]
    assert not mutate.run(faults, trees, mutate.Record(root / "record.json"), 5, False)
    out = capsys.readouterr().out
    assert "caught 1 of 10 (10 %)" in out and "[10/10]" in out
    assert (root / "src" / "a.cpp").read_text() == (other / "src" / "a.cpp").read_text() == SOURCE


def test_tests_that_fail_without_a_fault_end_the_run(root: pathlib.Path) -> None:
    (root / "src" / "a.cpp").write_text(SOURCE.replace("c = a + 1", "c = a + 2"))
    with pytest.raises(mutate.WrongList, match=r"fails without a fault: A\.B"):
        mutate.run([fault("b = 1")], [FakeTree(root)], mutate.Record(root / "r.json"), 5, False)
    (root / "src" / "a.cpp").write_text(SOURCE.replace("c = a + 1", "c = hang"))
    with pytest.raises(mutate.WrongList, match="takes more than 5 s without a fault"):
        mutate.run([fault("b = 1")], [FakeTree(root)], mutate.Record(root / "r.json"), 5, False)


@pytest.mark.parametrize(
    ("output", "name"),
    [
        ("[  FAILED  ] A.B/0, where GetParam() = 1 (0 ms)\n[  FAILED  ] C.D (0 ms)\n", "A.B/0"),
        ("[ RUN      ] A.B\nterminated\n", "A.B (ended the program)"),
        (
            "FAILED tests/python/test_api.py::test_x - assert 1\n",
            "tests/python/test_api.py::test_x",
        ),
        ("not found\n", "the program did not run"),
    ],
)
def test_the_first_failure_is_named(output: str, name: str) -> None:
    assert mutate.first_failure(output) == name


@pytest.mark.parametrize("has_git", [True, False])
def test_a_copy_follows_the_tree(tmp_path: pathlib.Path, has_git: bool) -> None:
    root, copy = tmp_path / "root", tmp_path / "copy"
    (root / "src").mkdir(parents=True)
    if has_git:
        mutate.subprocess.run(["git", "init", "-q", str(root)], check=True)
    (root / ".gitignore").write_text("/build/\n")
    (root / "src" / "a.cpp").write_text(SOURCE)
    (root / "src" / "b.cpp").write_text("old\n")
    (root / "build").mkdir()
    (root / "build" / "made").touch()
    mutate.copy_tree(root, copy)
    assert sorted(p.name for p in copy.rglob("*") if p.is_file()) == [
        ".gitignore",
        "a.cpp",
        "b.cpp",
    ]

    times = (copy / "src" / "a.cpp").stat().st_mtime_ns
    (root / "src" / "b.cpp").unlink()
    (copy / "build").mkdir()
    (copy / "build" / "kept").touch()
    mutate.copy_tree(root, copy)
    assert (copy / "src" / "a.cpp").stat().st_mtime_ns == times
    assert not (copy / "src" / "b.cpp").exists()
    assert (copy / "build" / "kept").exists()


def test_a_program_beyond_the_limit_ends_with_what_it_started(tmp_path: pathlib.Path) -> None:
    (tmp_path / "build").mkdir()
    tree = mutate.Tree(tmp_path, sys.executable)
    status, output = tree.run(["sh", "-c", "echo begun; sleep 100 & wait"], {}, 1.0)
    assert status is None
    assert output == "begun\n"
    assert tree.run(["sh", "-c", "exit 3"], {}, 60)[0] == 3


def test_every_filter_of_the_list_names_a_test_of_its_program() -> None:
    if "MORI_BUILD_DIR" not in os.environ:
        pytest.skip("MORI_BUILD_DIR is not set: `make test` sets it")
    programs = pathlib.Path(os.environ["MORI_BUILD_DIR"]) / "tests"
    faults, wrong = mutate.read_list(mutate.ROOT / "tools" / "mutations", mutate.ROOT)
    assert wrong == []
    named = sorted({test for fault in faults for test in fault.tests if "python:" not in test})
    assert named
    without = []
    for test in named:
        program, tests = test.split(": ", 1)
        (name,) = mutate.PROGRAMS[program]
        listed = subprocess.run(
            [str(programs / name), "--gtest_list_tests", f"--gtest_filter={tests}"],
            capture_output=True,
            text=True,
            check=True,
        )
        if not any(line.startswith("  ") for line in listed.stdout.splitlines()):
            without.append(test)
    assert without == []
