"""A wire that delays, loses and reorders packets, for hosts of hosts_support.py.

    wire.py DELAY LOSS REORDER SEED NAME...

Makes interfaces host-NAME and to-NAME for each name, in the network namespace in which it runs, and
carries frames from one to the other: those from to-NAME at once, those from host-NAME as told. All
of those wait for DELAY seconds. Packets of TCP are lost with the probability LOSS, or held back for
another HELD_SECONDS with the probability REORDER, so that later ones overtake them.

It says `ready`, then answers each line of its standard input with what it did with packets of TCP
so far: `CARRIED LOST OVERTAKEN`. It ends with its standard input. No packet scheduler of the kernel
does this everywhere: netem is missing on many a machine.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import os
import random
import select
import struct
import sys
import time

HELD_SECONDS = 0.002
FRAME_BYTES = 1 << 16
# From linux/if_tun.h: a device of whole Ethernet frames, without a header of its own.
TUNSETIFF = 0x400454CA
TAP_WITHOUT_HEADER = 0x1002
ETHERNET_BYTES = 14
TCP = 6


def open_interface(name: str) -> int:
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, TUNSETIFF, struct.pack("16sH", name.encode(), TAP_WITHOUT_HEADER))
    return device


def is_tcp(frame: bytes) -> bool:
    """Whether a frame holds TCP, by IPv4 or IPv6. Others, such as ARP, are too slow to miss."""
    if len(frame) <= ETHERNET_BYTES + 9:
        return False
    kind = frame[12:14]
    return (kind == b"\x08\x00" and frame[ETHERNET_BYTES + 9] == TCP) or (
        kind == b"\x86\xdd" and frame[ETHERNET_BYTES + 6] == TCP
    )


def write(device: int, frame: bytes) -> None:
    """As to a cable: nobody hears of a frame for which there is no room, or no link."""
    with contextlib.suppress(OSError):
        os.write(device, frame)


class Forwarder:
    def __init__(self, delay: float, loss: float, reorder: float, seed: int) -> None:
        self._delay, self._loss, self._reorder = delay, loss, reorder
        self._random = random.Random(seed)
        self._far_ends: dict[int, int] = {}  # of each interface, the one where its frames go
        self._hosts: set[int] = set()
        self._on_the_way: list[tuple[float, int, int, bytes]] = []  # due, number, to, frame
        self._number = 0
        self._highest_due: dict[int, float] = {}  # of those on the way to an interface
        self.carried = self.lost = self.overtaken = 0

    def add(self, name: str) -> None:
        host, switch = open_interface(f"host-{name}"), open_interface(f"to-{name}")
        self._far_ends |= {host: switch, switch: host}
        self._hosts.add(host)

    def run(self) -> None:
        """Until the end of standard input."""
        while True:
            wait = self._on_the_way[0][0] - time.monotonic() if self._on_the_way else None
            ready, _, _ = select.select(
                [0, *self._far_ends], [], [], None if wait is None else max(0.0, wait)
            )
            if 0 in ready and not self._answer():
                return
            for device in ready:
                if device != 0:
                    self._take(device)
            self._deliver()

    def _answer(self) -> bool:
        if not os.read(0, 1):
            return False
        print(self.carried, self.lost, self.overtaken, flush=True)
        return True

    def _take(self, device: int) -> None:
        """All frames that are there, but for a flood, which must not hold the others up."""
        for _ in range(64):
            try:
                frame = os.read(device, FRAME_BYTES)
            except BlockingIOError:
                return
            except OSError:
                del self._far_ends[device]  # somebody removed the interface
                return
            if device in self._hosts:
                self._send(self._far_ends[device], frame)
            else:
                write(self._far_ends[device], frame)

    def _send(self, to: int, frame: bytes) -> None:
        due = time.monotonic() + self._delay
        if is_tcp(frame):
            self.carried += 1
            if self._random.random() < self._loss:
                self.lost += 1
                return
            if self._random.random() < self._reorder:
                due += HELD_SECONDS
            elif due < self._highest_due.get(to, 0):
                self.overtaken += 1
            self._highest_due[to] = max(due, self._highest_due.get(to, 0))
        self._number += 1
        heapq.heappush(self._on_the_way, (due, self._number, to, frame))

    def _deliver(self) -> None:
        while self._on_the_way and self._on_the_way[0][0] <= time.monotonic():
            _, _, to, frame = heapq.heappop(self._on_the_way)
            write(to, frame)


def main() -> None:
    delay, loss, reorder = map(float, sys.argv[1:4])
    forwarder = Forwarder(delay, loss, reorder, int(sys.argv[4]))
    for name in sys.argv[5:]:
        forwarder.add(name)
    print("ready", flush=True)
    forwarder.run()


if __name__ == "__main__":
    main()
