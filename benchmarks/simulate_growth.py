#!/usr/bin/env python3
"""How init and barrier grow to 100,000 PEs: a simulation of their messages with measured costs.

    benchmarks/simulate_growth.py docs/results/cpu-2026-01-31.json
    benchmarks/simulate_growth.py docs/results/cpu-2026-01-31.json --newer bootstrap.json

Every process, message and lock step of the exchange is an event that takes its measured time on a
CPU of its node (docs/architecture.md says what is exchanged):

- Rendezvous: each rank connects to one process, proves itself, says hello; when all have come,
  each is told its place in the tree. The server's time per rank is measured over the number of
  ranks.
- Tree: the first rank of each node leads it. Leaders hang below leaders, eight children each, and
  so do the ranks of a node below their leader. Each rank connects to its parent; then messages go
  up and down three times in an init: the shape of the tree, what each PE says of itself, nothing.
- Node: the first PE collects a descriptor from each and sends all of them to each; each maps all.
- Network: each PE's address travels in an all-gather. A full mesh connects each PE to all PEs of
  other nodes, rails to those with the same place in their node. A connection costs as much as one
  of the bootstrap does.
- Barrier: one counter inside a node; between nodes the first PEs pass a message up and down a tree.

Costs are those of this machine: TCP over loopback stands for the network. Two worlds are simulated:
this machine, with all PEs on its CPUs, beside what was measured there; and nodes with a CPU for
every PE. Memory counts what a PE keeps of the others, and the largest table while it is there.
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
from harness.figures import Figures, short

FAN_OUT = 8
WIRES = ("none", "rails", "mesh")


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
    info_bytes: int = 150  #: what a PE says of itself, on its way
    node_bytes: int = 4  #: which node a rank is on, on its way
    address_bytes: int = 64  #: of a PE on the network
    kept_bytes: int = 144  #: what a PE keeps of each other PE: what it said, its place in the tree
    connection_bytes: int = 8192  #: of a connection of the network, at each end


@dataclass(frozen=True)
class World:
    pes: int
    pes_per_node: int
    cpus_per_node: int

    @property
    def nodes(self) -> int:
        return -(-self.pes // self.pes_per_node)

    def parent(self, pe: int) -> int:
        """In the tree; PEs of a node have neighbouring numbers here."""
        node, index = divmod(pe, self.pes_per_node)
        if index > 0:
            return node * self.pes_per_node + (index - 1) // FAN_OUT
        return (node - 1) // FAN_OUT * self.pes_per_node

    def down(self) -> list[int]:
        """All PEs but the first, each behind its parent, and leaders first."""
        leaders = range(self.pes_per_node, self.pes, self.pes_per_node)
        rest = (pe for pe in range(self.pes) if pe % self.pes_per_node)
        return [*leaders, *rest]

    def channels(self, wire: str) -> int:
        """Connections over the network that a PE makes or takes."""
        if wire == "none" or self.nodes == 1:
            return 0
        return self.nodes - 1 if wire == "rails" else self.pes - self.pes_per_node


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


def simulate_init(world: World, costs: Costs, wire: str = "none") -> float:
    """Milliseconds from the start of the processes until the last PE has initialised."""
    machines = Machines(world)
    welcome = rendezvous(world, costs, machines)
    ready = join_tree(world, costs, machines, welcome)
    shape = costs.node_bytes if world.nodes > 1 else 0
    ready = exchange(world, costs, machines, ready, up=0, down=shape)
    ready = exchange(world, costs, machines, ready, up=costs.info_bytes, down=costs.info_bytes)
    ready = share_memory(world, costs, machines, ready)
    if wire != "none":
        ready = connect_network(world, costs, machines, ready, wire)
    ready = exchange(world, costs, machines, ready, up=0, down=0)
    done = [machines.of(pe).work(ready[pe], costs.setup) for pe in range(world.pes)]
    return max(done) / 1e3


def connect_network(
    world: World, costs: Costs, machines: Machines, ready: list[float], wire: str
) -> list[float]:
    """When each PE has its connections. Both ends work for each."""
    address = costs.address_bytes
    ready = exchange(world, costs, machines, ready, up=address, down=address)
    duration = world.channels(wire) * costs.caller + 3 * costs.one_way
    return [machines.of(pe).work(ready[pe], duration) for pe in range(world.pes)]


def count(world: World, costs: Costs, wire: str) -> dict[str, float]:
    """What an init of this world sends and keeps."""
    edges = world.pes - 1
    crossing = world.nodes - 1
    exchanges = 3 if wire == "none" else 4
    # Three messages of a handshake, and what is said: hello, welcome and bye, or join.
    meeting = 6 * world.pes + 4 * edges
    tables = world.pes * (costs.info_bytes + costs.node_bytes)
    channels = world.channels(wire)
    addresses = 0 if wire == "none" else costs.address_bytes * world.pes
    kept = world.pes * costs.kept_bytes + addresses + channels * costs.connection_bytes
    leaders = FAN_OUT if world.nodes > 1 else 0
    return {
        "messages": meeting + 2 * exchanges * edges + 3 * channels * world.pes / 2,
        "tree_messages_between_nodes": 2 * exchanges * crossing,
        "bytes_a_node_receives": tables + addresses if world.nodes > 1 else 0,
        "most_tree_connections_of_a_pe": min(edges, 1 + FAN_OUT + leaders),
        "channels_of_a_pe": channels,
        "kept_of_a_pe_mib": kept / 2**20,
        "peak_of_a_pe_mib": (kept + 2 * max(tables, addresses)) / 2**20,
    }


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
    for pe in world.down():
        parent = world.parent(pe)
        called = machines.of(pe).work(welcome[pe], costs.caller) + 3 * costs.one_way
        answered = machines.of(parent).work(max(called, welcome[parent]), costs.server)
        ready[parent] = max(ready[parent], answered)
        ready[pe] = max(ready[pe], answered + costs.one_way)
    return ready


def exchange(
    world: World, costs: Costs, machines: Machines, ready: list[float], up: int, down: int
) -> list[float]:
    """When each rank has the table, which holds `down` bytes of every rank; `up` bytes of every
    rank below go up."""
    came = list(ready)
    below = [1] * world.pes
    for pe in reversed(world.down()):
        parent = world.parent(pe)
        duration = costs.message + costs.byte * up * below[pe]
        below[parent] += below[pe]
        sent = machines.of(pe).work(came[pe], duration)
        received = machines.of(parent).work(sent + costs.one_way, duration)
        came[parent] = max(came[parent], received)
    has = list(came)
    duration = costs.message + costs.byte * down * world.pes
    sender_free = list(came)
    for pe in world.down():
        parent = world.parent(pe)
        sender_free[parent] = max(sender_free[parent], has[parent])
        sender_free[parent] = machines.of(parent).work(sender_free[parent], duration)
        has[pe] = machines.of(pe).work(sender_free[parent] + costs.one_way, duration)
    return has


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
    """Plots the panels; returns what the curves say."""
    plots.style()
    figure, axes = plt.subplots(2, 2, figsize=(9, 7))
    (left, right), (messages, memory) = axes
    here = [n for n in (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024) if n > cpus]
    many = [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 100_000]
    worlds = {n: World(n, per_node, per_node) for n in many}
    counts = {wire: [count(worlds[n], costs, wire) for n in many] for wire in WIRES}
    curves = {
        "init_here_ms": [simulate_init(World(n, n, cpus), costs) for n in here],
        "barrier_here_us": [simulate_barrier(World(n, n, cpus), costs) for n in here],
        "barrier_nodes_us": [simulate_barrier(worlds[n], costs) for n in many],
        "counts": counts,
    }
    for wire in WIRES:
        curves[f"init_nodes_{wire}_ms"] = [simulate_init(worlds[n], costs, wire) for n in many]
    at_node = f"simulated, {per_node} PEs a node, a CPU each"
    at_here = f"simulated, all on {cpus} CPUs"
    names = {"none": "bootstrap alone", "rails": "and rails", "mesh": "and a full mesh"}
    lines = {"none": "-", "rails": "--", "mesh": ":"}
    left.plot(*measured(figures, "init"), "o", color=plots.OURS, label=f"measured, {cpus} CPUs")
    left.plot(here, curves["init_here_ms"], color=plots.OURS, label=at_here)
    for wire in WIRES:
        style = {"color": plots.PEERS, "linestyle": lines[wire]}
        init = curves[f"init_nodes_{wire}_ms"]
        left.plot(many, init, label=f"nodes of {per_node} PEs, {names[wire]}", **style)
        sent = [row["messages"] for row in counts[wire]]
        messages.plot(many, sent, label=names[wire], **style)
        kept = [row["peak_of_a_pe_mib"] for row in counts[wire]]
        memory.plot(many, kept, label=names[wire], **style)
    left.set_title("init")
    left.set_ylabel("ms")
    right.plot(*measured(figures, "barrier"), "o", color=plots.OURS, label=f"measured, {cpus} CPUs")
    right.plot(here, curves["barrier_here_us"], color=plots.OURS, label=at_here)
    right.plot(many, curves["barrier_nodes_us"], color=plots.PEERS, label=at_node)
    right.set_title("barrier")
    right.set_ylabel("µs")
    messages.set_title("messages of an init")
    memory.set_title("what a PE holds of the others, at most")
    memory.set_ylabel("MiB")
    for panel in axes.flat:
        panel.set_xscale("log")
        panel.set_yscale("log")
        panel.set_xlabel("PEs")
        panel.legend(fontsize=7)
    plots.save(figure, path)
    return {"pes_here": here, "pes_nodes": many, **curves}


def table(growth: dict) -> str:
    """A row for each number of PEs and kind of network."""
    head = (
        "PEs",
        "network",
        "init, s",
        "messages",
        "of the tree between nodes",
        "tree connections of a PE, at most",
        "channels of a PE",
        "kept of a PE, MiB",
        "at most, MiB",
    )
    rows = []
    for at, pes in enumerate(growth["pes_nodes"]):
        if pes not in (256, 1024, 8192, 100_000):
            continue
        for wire in WIRES:
            row = growth["counts"][wire][at]
            figures = (
                growth[f"init_nodes_{wire}_ms"][at] / 1e3,
                row["messages"],
                row["tree_messages_between_nodes"],
                row["most_tree_connections_of_a_pe"],
                row["channels_of_a_pe"],
                row["kept_of_a_pe_mib"],
                row["peak_of_a_pe_mib"],
            )
            rows.append((f"{pes:,}", wire, *(short(figure) for figure in figures)))
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write(results: Path, output: Path, per_node: int = 64, newer: list[Path] | None = None) -> dict:
    """Simulates with the costs in a file of results; writes growth.svg, growth.json and growth.md.

    Figures in `newer` files take the place of those of the same name."""
    data = json.loads(results.read_text())
    figures = Figures.from_json(data["figures"])
    for path in newer or []:
        for key, series in Figures.from_json(
            json.loads(path.read_text())["figures"]
        ).series.items():
            figures.series[key] = series
    cpus = data["machine"]["cpus"]
    costs = costs_from(figures, cpus)
    curves = draw(figures, costs, cpus, per_node, output / "growth.svg")
    names = [results.name, *(path.name for path in newer or [])]
    growth = {"from": names, "pes_per_node": per_node, "costs_us": vars(costs), **curves}
    (output / "growth.json").write_text(json.dumps(growth, indent=1) + "\n")
    text = f"Simulated by `benchmarks/simulate_growth.py` from {', '.join(names)}: nodes of "
    text += f"{per_node} PEs with a CPU each.\n\n{table(growth)}\n"
    (output / "growth.md").write_text(text)
    return growth


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("results", type=Path, help="JSON of a benchmark run")
    parser.add_argument("--output", type=Path, help="folder for growth.svg and growth.json")
    parser.add_argument("--pes-per-node", type=int, default=64)
    parser.add_argument(
        "--newer", type=Path, nargs="*", help="files of results that take precedence"
    )
    options = parser.parse_args()
    output = options.output or options.results.parent
    growth = write(options.results, output, options.pes_per_node, options.newer)
    print(table(growth))


if __name__ == "__main__":
    main()
