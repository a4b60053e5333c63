#!/usr/bin/env python3
"""Runs the examples of a documentation page that need a GPU, as they are written there.

    tests/gpu/run_docs.py docs/device.md

A fenced block is followed by comments: `<!-- gpu file: NAME -->` says what its file is called, each
`<!-- gpu: COMMAND -->` is run in the folder with that file, and must end with 0. Prints a line for
each command; `mori`, `python`, `nvcc` and `pkg-config` are found as in a shell.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import tempfile

BLOCK = re.compile(
    r"^```(?:cpp|python)\n(?P<code>.*?)^```$\n\n<!-- gpu file: (?P<name>\S+) -->\n"
    r"(?P<commands>(?:<!-- gpu: [^\n]* -->\n)+)",
    re.MULTILINE | re.DOTALL,
)
SECONDS = 180


def run(page: pathlib.Path) -> int:
    failed = 0
    blocks = list(BLOCK.finditer(page.read_text()))
    if not blocks:
        raise SystemExit(f"{page} has no example that needs a GPU")
    with tempfile.TemporaryDirectory() as folder:
        for block in blocks:
            (pathlib.Path(folder) / block["name"]).write_text(block["code"])
            for command in re.findall(r"<!-- gpu: (.*) -->", block["commands"]):
                done = subprocess.run(
                    ["bash", "-c", command],
                    cwd=folder,
                    capture_output=True,
                    text=True,
                    timeout=SECONDS,
                    check=False,
                )
                print(f"[{'OK' if done.returncode == 0 else 'FAILED'}] {page.name}: {command}")
                print("".join(f"    {line}\n" for line in done.stdout.splitlines()[-6:]), end="")
                if done.returncode != 0:
                    failed += 1
                    print(done.stderr[-3000:])
    return failed


if __name__ == "__main__":
    sys.exit(1 if sum(run(pathlib.Path(page)) for page in sys.argv[1:]) else 0)
