"""Callers who ask too much. Run as a module with a socket and a way of being a nuisance."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING

from joulery.clock import REAL_CLOCK
from joulery.files import encode_line
from joulery.governor import Connection
from joulery.governor._protocol import VERSION
from support.governor.nursery import with_support

if TYPE_CHECKING:
    from collections.abc import Iterator

    from support.governor.node import GovernedNode

NOBODY = 65534
# As the kernel's struct timeval: 0.2 s.
_PATIENCE = struct.pack("ll", 0, 200_000)
NUISANCES = ("ask", "connect", "never read", "half a line")


def nuisance(path: str, kind: str) -> None:
    """Be one until killed, as another user where that is possible.

    It waits in the kernel where the daemon makes it wait. One that spins instead, on a full queue
    of callers say, takes the processor from everybody and shows nothing about the daemon.
    """
    if os.geteuid() == 0:
        os.setpriority(os.PRIO_PROCESS, 0, 0)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    hello = encode_line({"op": "hello", "versions": [VERSION]})
    many = encode_line({"op": "status"}) * 500
    channels: list[socket.socket] = []
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while True:
        with contextlib.suppress(OSError):
            channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            for option in (socket.SO_SNDTIMEO, socket.SO_RCVTIMEO):
                channel.setsockopt(socket.SOL_SOCKET, option, _PATIENCE)
            channel.connect(path)
            if kind == "connect":
                channel.close()
                continue
            channels = [*channels[-100:], channel]
            channel.sendall(hello if kind != "half a line" else hello[:7])
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


def under_flood(governed: GovernedNode, count: int) -> tuple[list[float], list[float]]:
    """An honest holder's waits in seconds, ``count`` without and as many with a flood.

    Without is the same machine with no nuisance on it at all.
    """
    quiet: list[float] = []
    crowded: list[float] = []
    for _ in range(2):  # in turns, since the machine's other work changes over time
        quiet += round_trips(governed, count // 2)
        with nuisances(governed):
            crowded += round_trips(governed, count // 2)
    return quiet, crowded


@contextmanager
def nuisances(governed: GovernedNode) -> Iterator[None]:
    """Flood the governor for a block, in each of the ways."""
    with ExitStack() as stack:
        for kind in NUISANCES:
            process = subprocess.Popen(
                [sys.executable, "-m", "support.governor.flood", governed.socket, kind],
                env=with_support(governed.env),
                stdout=subprocess.PIPE,
            )
            stack.enter_context(process)
            stack.callback(process.kill)
            if process.stdout is not None:
                process.stdout.readline()  # starting up takes the processor, which is no flood
        REAL_CLOCK.sleep(0.5)
        yield


if __name__ == "__main__":
    nuisance(sys.argv[1], sys.argv[2])
