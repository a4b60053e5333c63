#!/usr/bin/env python3
"""Records what a PyTorch program allocates, and replays it on a symmetric heap.

    benchmarks/torch_trace.py record tests/data/digits_cnn.trace
    mori run -n 2 python benchmarks/torch_trace.py replay tests/data/digits_cnn.trace

A trace is text: `a ID BYTES` for an allocation, `f ID` for its end, in the order of the program.
The program trains a small convolutional network on the handwritten digits of scikit-learn, with
batches of several sizes. The replay prints peak, fragmentation and time; PE 0 speaks for all, whose
heaps are alike.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import tempfile
import time
from typing import Any


def train() -> None:
    import torch
    from sklearn.datasets import load_digits
    from torch import nn

    torch.manual_seed(1)
    images, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(images, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    targets = torch.tensor(labels)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(512, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )
    optimizer = torch.optim.Adam(model.parameters())
    start = 0
    for step in range(24):
        size = (64, 200, 31, 128)[step % 4]
        batch, wanted = inputs[start : start + size], targets[start : start + size]
        start = (start + size) % 1500
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(batch), wanted).backward()
        optimizer.step()
    with torch.no_grad():
        print(f"accuracy {(model(inputs).argmax(1) == targets).float().mean():.3f}")


def memory_events() -> list[dict[str, Any]]:
    """The allocations and frees of `train()`, as the profiler of PyTorch tells them."""
    import torch

    with torch.profiler.profile(profile_memory=True) as profile:
        train()
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "trace.json"
        profile.export_chrome_trace(str(path))
        events = json.loads(path.read_text())["traceEvents"]
    memory = [event for event in events if event.get("name") == "[memory]"]
    return sorted(memory, key=lambda event: float(event["ts"]))


def record(path: pathlib.Path) -> None:
    lines = []
    live: dict[int, int] = {}
    for event in memory_events():
        address, size = event["args"]["Addr"], event["args"]["Bytes"]
        if size > 0:
            live[address] = len(lines)
            lines.append(f"a {len(lines)} {size}")
        elif address in live:
            lines.append(f"f {live.pop(address)}")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    print(f"{path}: {len(lines)} events, {len(live)} blocks live at the end")


def replay(path: pathlib.Path) -> None:
    from mori import shmem

    shmem.shmem_init()
    blocks: dict[str, tuple[int, int]] = {}
    base = live = peak = reach = 0
    start = time.perf_counter()
    events = [line.split() for line in path.read_text().splitlines()]
    for event in events:
        if event[0] == "a":
            size = int(event[2])
            ptr = shmem.shmem_malloc(size)
            base = base or ptr  # the first block lies at the start of the heap
            blocks[event[1]] = (ptr, size)
            live += size
            peak, reach = max(peak, live), max(reach, ptr - base + size)
        else:
            ptr, size = blocks.pop(event[1])
            shmem.shmem_free(ptr)
            live -= size
    seconds = time.perf_counter() - start
    if shmem.shmem_mype() == 0:
        print(
            f"{len(events)} events, peak {peak:,} bytes, heap reached {reach:,} bytes"
            f" ({reach / peak:.3f} x the peak), {seconds / len(events) * 1e6:.1f} us an event"
        )
    for ptr, _ in blocks.values():
        shmem.shmem_free(ptr)
    shmem.shmem_finalize()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("record", "replay"))
    parser.add_argument("path", type=pathlib.Path)
    options = parser.parse_args()
    (record if options.action == "record" else replay)(options.path)


if __name__ == "__main__":
    main()
