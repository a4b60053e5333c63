#!/usr/bin/env python3
"""Counts the tests in JUnit files of ctest and pytest: a line each, and one of all.

Usage: count_tests.py FILE... Each test that failed is named above the counts, with the end of what
it printed. Exits with 1 if a test failed, if a file has none, or, where CI=true, if one was
skipped for a reason that CI does not accept.
"""

from __future__ import annotations

import os
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

# Those of tests/python/conftest.py, and that of a test of what a machine without a GPU does.
ACCEPTED_SKIPS = (
    "no CUDA device",
    "MORI_WITHOUT_TORCH=1",
    "this machine has no /dev/net/tun",
    "there is a CUDA device",
)


def result_of(test: ElementTree.Element) -> str:
    """passed, failed, skipped; or refused, which is skipped without an accepted reason."""
    if test.find("failure") is not None or test.find("error") is not None:
        return "failed"
    skipped = test.find("skipped")
    if skipped is None:
        return "passed"
    said = " ".join([*skipped.attrib.values(), *test.itertext()])
    return "skipped" if any(reason in said for reason in ACCEPTED_SKIPS) else "refused"


def end_of_output(test: ElementTree.Element, lines: int = 12) -> str:
    """The last lines that a test printed, each with a bar in front."""
    said = "\n".join(text for text in test.itertext() if text.strip())
    return "".join(f"  | {each}\n" for each in said.strip().splitlines()[-lines:])


def line(what: str, results: Counter[str]) -> str:
    skipped = results["skipped"] + results["refused"]
    return f"{what}: {results['passed']} passed, {results['failed']} failed, {skipped} skipped"


def main() -> int:
    strict = os.environ.get("CI") == "true"
    total: Counter[str] = Counter()
    good = len(sys.argv) > 1
    counts: list[str] = []
    for name in sys.argv[1:]:
        path = Path(name)
        what = f"{path.parent.name} {path.stem}"
        if not path.exists():
            counts.append(f"{what}: did not run")
            good = False
            continue
        results: Counter[str] = Counter()
        for test in ElementTree.parse(path).iter("testcase"):
            result = result_of(test)
            results[result] += 1
            if result == "failed":
                print(f"{what}: {test.get('name')} FAILED\n{end_of_output(test)}")
            if result == "refused" and strict:
                print(f"{what}: {test.get('name')} was skipped, which is a failure in CI")
        good &= results["passed"] > 0 and not results["failed"]
        good &= not (strict and results["refused"])
        counts.append(line(what, results))
        total += results
    print("\n".join([*counts, line("all", total)]))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
