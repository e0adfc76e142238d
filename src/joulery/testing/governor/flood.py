"""Callers who ask too much. Run as a module with a socket and a way of being a nuisance."""

from __future__ import annotations

import contextlib
import os
import socket
import statistics
import subprocess
import sys
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

from joulery.clock import REAL_CLOCK
from joulery.governor.client import Connection
from joulery.governor.frames import VERSION, encode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from joulery.testing.governor.node import GovernedNode

NOBODY = 65534
NUISANCES = ("ask", "connect", "never read", "half a frame")


def nuisance(path: str, kind: str) -> None:
    """Be one until killed, as another user where that is possible."""
    if os.geteuid() == 0:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    hello = encode({"op": "hello", "versions": [VERSION]})
    many = encode({"op": "status"}) * 500
    channels: list[socket.socket] = []
    while True:
        with contextlib.suppress(OSError):
            channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            channel.settimeout(0.2)
            channel.connect(path)
            if kind == "connect":
                channel.close()
                continue
            channels = [*channels[-100:], channel]
            channel.sendall(hello if kind != "half a frame" else hello[:7])
            while kind == "ask":
                channel.sendall(many)
                channel.recv(1 << 16)
            while kind == "never read":
                channel.sendall(many)


def round_trips(governed: GovernedNode, count: int) -> list[float]:
    """How long a holder waits for each change, in seconds."""
    times = []
    with closing(Connection(governed.socket)) as connection:
        device = governed.devices[0]
        lease = connection.ask("acquire", device=device, ttl_seconds=30)["lease"]
        for number in range(count):
            began = REAL_CLOCK.now()
            connection.ask("set", lease=lease, watts=150 + number % 100)
            times.append(REAL_CLOCK.now() - began)
            REAL_CLOCK.sleep(0.011)  # within what a user may ask
    return times


def under_flood(governed: GovernedNode, count: int) -> tuple[float, float]:
    """The 99th percentile of an honest holder's waits: with the flood elsewhere, and with it here.

    Elsewhere is another governor on the same machine, so that both see the same load.
    """
    waits: dict[Path, list[float]] = {governed.decoy(): [], governed.socket: []}
    for _ in range(4):  # in turns, since the machine's other work changes over time
        for target, times in waits.items():
            with _nuisances(governed, target):
                times.extend(round_trips(governed, count // 4))
    quiet, crowded = (statistics.quantiles(times, n=100)[98] for times in waits.values())
    return quiet, crowded


@contextmanager
def _nuisances(governed: GovernedNode, target: Path) -> Iterator[None]:
    with ExitStack() as stack:
        for kind in NUISANCES:
            process = subprocess.Popen(
                [sys.executable, "-m", "joulery.testing.governor.flood", target, kind],
                env=governed.env,
            )
            stack.callback(process.wait)
            stack.callback(process.kill)
        REAL_CLOCK.sleep(0.5)
        yield


if __name__ == "__main__":
    nuisance(sys.argv[1], sys.argv[2])
