#!/usr/bin/env python3
"""How init and barrier grow to 100,000 PEs: a simulation of their messages with measured costs.

    benchmarks/simulate_growth.py docs/results/cpu-2026-01-31.json

Every process, message and lock step of the exchange is an event that takes its measured time on a
CPU of its node (docs/architecture.md says what is exchanged):

- Rendezvous: each rank connects to one process, proves itself, says hello; when all have come, each
  is told its parent in the tree. The server's time per rank is measured over the number of ranks.
- Tree of eight children a node: each rank connects to its parent, then messages are gathered up
  and the table is sent down, twice in an init: once with what a PE says of itself, once empty.
- Node: the first PE collects a descriptor from each and sends all of them to each; each maps all.
- Barrier: one counter inside a node; between nodes the first PEs pass a message up and down a tree.

Costs are those of this machine: TCP over loopback stands for the network. Two worlds are simulated:
this machine, with all PEs on its CPUs, beside what was measured there; and nodes with a CPU for
every PE. For the second the server is simulated twice: as it is, and with a cost per rank that does
not grow with the number of connections.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from harness import plots
from harness.figures import Figures

FAN_OUT = 8
GATHERS = 2


@dataclass(frozen=True)
class Costs:
    """All in microseconds."""

    one_way: float  #: a small message from process to process
    message: float  #: CPU time of sending or receiving a message
    byte: float  #: the same per byte of a long one
    server: float  #: rendezvous, per rank
    server_growth: float  #: rendezvous, per rank and rank
    caller: float  #: CPU time of connecting and proving
    start: float  #: CPU time of starting a process until it calls init
    setup: float  #: CPU time of init beside all that is modelled
    descriptor: float  #: passing and mapping one heap
    add: float  #: locked add on a contended line
    line: float  #: a cache line from one CPU to another
    switch: float  #: from one waiting process to the next on a CPU
    info_bytes: int = 400  #: what a PE says of itself


@dataclass(frozen=True)
class World:
    pes: int
    pes_per_node: int
    cpus_per_node: int

    @property
    def nodes(self) -> int:
        return -(-self.pes // self.pes_per_node)


class Cpus:
    """CPUs of one node: work starts on the one that is free first."""

    def __init__(self, count: int):
        self.free_at = [0.0] * count

    def work(self, ready_at: float, duration: float) -> float:
        """Time at which work that could start at `ready_at` is done."""
        start = max(ready_at, heapq.heappop(self.free_at))
        heapq.heappush(self.free_at, start + duration)
        return start + duration


class Machines:
    """The CPUs of all nodes, and one more for the process that serves the rendezvous."""

    def __init__(self, world: World):
        self.world = world
        self.nodes = [Cpus(world.cpus_per_node) for _ in range(world.nodes)]

    def of(self, pe: int) -> Cpus:
        return self.nodes[pe // self.world.pes_per_node]


def simulate_init(world: World, costs: Costs) -> float:
    """Milliseconds from the start of the processes until the last PE has initialised."""
    machines = Machines(world)
    welcome = rendezvous(world, costs, machines)
    ready = join_tree(world, costs, machines, welcome)
    for payload in (costs.info_bytes, 0):
        ready = gather(world, costs, machines, ready, payload)
        if payload:
            ready = share_memory(world, costs, machines, ready)
    done = [machines.of(pe).work(ready[pe], costs.setup) for pe in range(world.pes)]
    return max(done) / 1e3


def rendezvous(world: World, costs: Costs, machines: Machines) -> list[float]:
    """When each rank is told its parent."""
    on_node = machines.nodes[0] if world.nodes == 1 else Cpus(1)  # the server shares a lone node
    calls = []
    for pe in range(world.pes):
        started = machines.of(pe).work(0.0, costs.start)
        calls.append((machines.of(pe).work(started, costs.caller) + costs.one_way, pe))
    served = 0.0
    for count, (arrival, _) in enumerate(sorted(calls), start=1):
        share = costs.server + costs.server_growth * count
        served = on_node.work(max(arrival, served), share)
    welcome = [0.0] * world.pes
    for pe in range(world.pes):
        served = on_node.work(served, costs.message)
        welcome[pe] = machines.of(pe).work(served + costs.one_way, costs.message)
    return welcome


def join_tree(world: World, costs: Costs, machines: Machines, welcome: list[float]) -> list[float]:
    """When each rank has its parent and its children."""
    ready = list(welcome)
    for pe in range(1, world.pes):
        parent = (pe - 1) // FAN_OUT
        called = machines.of(pe).work(welcome[pe], costs.caller) + 3 * costs.one_way
        answered = machines.of(parent).work(max(called, welcome[parent]), costs.server)
        ready[parent] = max(ready[parent], answered)
        ready[pe] = max(ready[pe], answered + costs.one_way)
    return ready


def gather(
    world: World, costs: Costs, machines: Machines, ready: list[float], payload: int
) -> list[float]:
    """When each rank has the table, which holds `payload` bytes of every rank."""
    up = list(ready)
    subtree = [1] * world.pes
    for pe in range(world.pes - 1, 0, -1):
        parent = (pe - 1) // FAN_OUT
        subtree[parent] += subtree[pe]
        duration = costs.message + costs.byte * payload * subtree[pe]
        sent = machines.of(pe).work(up[pe], duration)
        received = machines.of(parent).work(sent + costs.one_way, duration)
        up[parent] = max(up[parent], received)
    down = list(up)
    duration = costs.message + costs.byte * payload * world.pes
    sender_free = list(up)
    for pe in range(1, world.pes):
        parent = (pe - 1) // FAN_OUT
        if parent and sender_free[parent] < down[parent]:
            sender_free[parent] = down[parent]
        sender_free[parent] = machines.of(parent).work(sender_free[parent], duration)
        down[pe] = machines.of(pe).work(sender_free[parent] + costs.one_way, duration)
    return down


def share_memory(world: World, costs: Costs, machines: Machines, ready: list[float]) -> list[float]:
    """When each PE has mapped the heaps of its node."""
    done = list(ready)
    for first in range(0, world.pes, world.pes_per_node):
        members = range(first, min(first + world.pes_per_node, world.pes))
        cpus = machines.of(first)
        collected = max(ready[pe] for pe in members)
        for _ in members:
            collected = cpus.work(collected, costs.message)
        for pe in members:
            collected = cpus.work(collected, costs.message)
            done[pe] = cpus.work(collected, costs.descriptor * len(members))
    return done


def simulate_barrier(world: World, costs: Costs) -> float:
    """Microseconds of one barrier."""
    members = min(world.pes, world.pes_per_node)
    if members > world.cpus_per_node:
        inside = members / world.cpus_per_node * costs.switch
    else:
        inside = members * costs.add + costs.line
    if world.nodes == 1:
        return inside
    up = [inside] * world.nodes
    for node in range(world.nodes - 1, 0, -1):
        parent = (node - 1) // FAN_OUT
        up[parent] = max(up[parent], up[node] + costs.one_way) + costs.message
    down = [up[0]] * world.nodes
    for node in range(1, world.nodes):
        place = (node - 1) % FAN_OUT + 1
        down[node] = down[(node - 1) // FAN_OUT] + place * costs.message + costs.one_way
    return max(down) + costs.line


def value(figures: Figures, library: str, metric: str, **match: object) -> float:
    series = figures.find(library, metric, **match)
    if series is None:
        sys.exit(f"the results hold no {metric} ({library} {match}): run benchmarks/run.py")
    return series.median


def fit_server(figures: Figures) -> tuple[float, float]:
    """Cost per rank when there are none, and what each further rank adds on average to each."""
    points = sorted(
        (key.pes, series.median)
        for key, series in figures.select("mori", "rendezvous_server_cpu").items()
    )
    if len(points) < 2:
        sys.exit("the results hold no rendezvous_server_cpu: run benchmarks/run.py")
    counts, times = np.array(points).T
    growth, least = np.polyfit(counts, times, 1, w=1 / times)
    # a rank meets half of the others on average, so the k-th costs least + 2 growth k
    return max(least, times.min() / 2), max(2 * growth, 0.0)


def costs_from(figures: Figures, cpus: int) -> Costs:
    server, server_growth = fit_server(figures)
    long_message = 1 << 20
    costs = Costs(
        one_way=value(figures, "machine", "tcp_one_way"),
        message=value(figures, "machine", "tcp_message", bytes=64),
        byte=value(figures, "machine", "tcp_message", bytes=long_message) / long_message,
        server=server,
        server_growth=server_growth,
        caller=value(figures, "mori", "rendezvous_caller_cpu", pes=64),
        start=value(figures, "mori", "launch_alone", pes=64) * 1e3 * cpus / 64,
        setup=0.0,
        descriptor=0.0,
        add=value(figures, "machine", "bare_xadd_contended") / 1e3,
        line=value(figures, "machine", "bare_signal") / 1e3,
        switch=value(figures, "mori", "bare_barrier_yield", pes=16) / 16 * cpus,
    )
    return calibrate(figures, costs, cpus)


def calibrate(figures: Figures, costs: Costs, cpus: int) -> Costs:
    """The two costs that no program measures alone, from init of few PEs and of many."""
    few, many = 4, 64

    def missing(pes: int, costs: Costs) -> float:
        world = World(pes, pes, cpus)
        measured = value(figures, "mori", "init", pes=pes)
        return max(0.0, (measured - simulate_init(world, costs)) * 1e3 * cpus / pes)

    costs = replace(costs, setup=missing(few, costs))
    return replace(costs, descriptor=missing(many, costs) / many)


def measured(figures: Figures, metric: str) -> tuple[list[int], list[float]]:
    points = sorted((k.pes, s.median) for k, s in figures.select("mori", metric).items())
    return [n for n, _ in points], [time for _, time in points]


def draw(figures: Figures, costs: Costs, cpus: int, per_node: int, path: Path) -> dict:
    """Plots both panels; returns what the curves say."""
    plots.style()
    figure, (left, right) = plt.subplots(1, 2)
    here = [n for n in (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if n > cpus]
    many = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 100_000]
    worlds = {n: World(n, per_node, per_node) for n in many}
    flat = replace(costs, server_growth=0.0)
    curves = {
        "init_here_ms": [simulate_init(World(n, n, cpus), costs) for n in here],
        "init_nodes_ms": [simulate_init(worlds[n], costs) for n in many],
        "init_nodes_flat_server_ms": [simulate_init(worlds[n], flat) for n in many],
        "barrier_here_us": [simulate_barrier(World(n, n, cpus), costs) for n in here],
        "barrier_nodes_us": [simulate_barrier(worlds[n], costs) for n in many],
    }
    at_node = f"simulated, {per_node} PEs a node, a CPU each"
    at_here = f"simulated, all on {cpus} CPUs"
    left.plot(*measured(figures, "init"), "o", color=plots.OURS, label=f"measured, {cpus} CPUs")
    left.plot(here, curves["init_here_ms"], color=plots.OURS, label=at_here)
    left.plot(many, curves["init_nodes_ms"], color=plots.PEERS, label=at_node)
    left.plot(
        many,
        curves["init_nodes_flat_server_ms"],
        "--",
        color=plots.PEERS,
        label="the same, server cost flat",
    )
    left.set_title("init")
    left.set_ylabel("ms")
    right.plot(*measured(figures, "barrier"), "o", color=plots.OURS, label=f"measured, {cpus} CPUs")
    right.plot(here, curves["barrier_here_us"], color=plots.OURS, label=at_here)
    right.plot(many, curves["barrier_nodes_us"], color=plots.PEERS, label=at_node)
    right.set_title("barrier")
    right.set_ylabel("µs")
    for axes in (left, right):
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("PEs")
        axes.legend(fontsize=8)
    plots.save(figure, path)
    return {"pes_here": here, "pes_nodes": many, **curves}


def write(results: Path, output: Path, per_node: int = 64) -> dict:
    """Simulates with the costs in a file of results; writes growth.svg and growth.json."""
    data = json.loads(results.read_text())
    figures = Figures.from_json(data["figures"])
    cpus = data["machine"]["cpus"]
    costs = costs_from(figures, cpus)
    curves = draw(figures, costs, cpus, per_node, output / "growth.svg")
    growth = {"from": results.name, "costs_us": vars(costs), **curves}
    (output / "growth.json").write_text(json.dumps(growth, indent=1) + "\n")
    return growth


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="JSON of a benchmark run")
    parser.add_argument("--output", type=Path, help="folder for growth.svg and growth.json")
    parser.add_argument("--pes-per-node", type=int, default=64)
    options = parser.parse_args()
    output = options.output or options.results.parent
    growth = write(options.results, output, options.pes_per_node)
    for name in ("init_nodes_ms", "init_nodes_flat_server_ms", "barrier_nodes_us"):
        print(f"{name} at {growth['pes_nodes'][-1]:,} PEs: {growth[name][-1]:,.3g}")


if __name__ == "__main__":
    main()
