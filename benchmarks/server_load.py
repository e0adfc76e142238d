"""Load on a server: clients that get decisions and report, over connections that stay open.

Runs as a process of its own: reads one task as JSON from standard input, prints what was measured
as JSON. Every client makes its next request as soon as the last one is answered.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, cast

import uvloop

BATCH_SIZES = (32, 64, 128, 256, 512, 1024)
# Epochs to the target of each; every run scatters about them.
EPOCHS = {32: 30, 64: 24, 128: 20, 256: 22, 512: 30, 1024: 45}
MAX_WATTS = 300.0
EPOCH_SECONDS = 0.01
RNG = random.Random(1)  # noqa: S311 - of simulated runs


class Channel(asyncio.Protocol):
    """One connection; one request at a time."""

    def __init__(self) -> None:
        self._received = b""
        self._waiting: asyncio.Future[tuple[int, bytes]] | None = None
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Complete the request once its answer is complete."""
        self._received += data
        head, blank, rest = self._received.partition(b"\r\n\r\n")
        if not blank:
            return
        length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
        if len(rest) >= length and self._waiting is not None:
            self._received = rest[length:]
            self._waiting.set_result((int(head.split(b" ", 2)[1]), rest[:length]))

    def connection_lost(self, _: Exception | None) -> None:
        """Fail the request."""
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(ConnectionError())

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Status and body of the answer."""
        assert self._transport is not None
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting


def http(
    method: str, path: str, token: str, body: dict[str, Any] | None, cookie: str = ""
) -> bytes:
    """A request as bytes."""
    content = b"" if body is None else json.dumps(body).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n"
        + (f"Cookie: {cookie}\r\n" if cookie else f"Authorization: Bearer {token}\r\n")
        + f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


@dataclass(slots=True)
class Tally:
    """What was measured; ``all`` counts the start and the end, too."""

    all: int = 0
    latencies: list[float] = field(default_factory=list)
    decisions: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)


class Joulery:
    """Requests to our server."""

    def __init__(self, task: dict[str, Any], client: int) -> None:
        self._job = task["jobs"][client % len(task["jobs"])]
        self._token = task["token"]
        self._client = f"{task['run']}-{client}"
        self._count = 0

    def decide(self) -> bytes:
        """The request for a decision."""
        self._count += 1
        body = {"key": f"{self._client}-{self._count}", "after": None, "probing": False}
        return http("POST", f"/v1/jobs/{self._job}/decisions", self._token, body)

    def report(self, decision: dict[str, Any]) -> bytes:
        """The request that reports a run which reached its target."""
        epochs = _epochs(decision["batch_size"])
        seconds = _seconds(epochs)
        outcome = {
            "end": "reached",
            "epochs": epochs,
            "seconds": seconds,
            "joules": 0.6 * MAX_WATTS * seconds,
            "limit_watts": None,
            "measured": [],
        }
        body = {"key": f"{self._client}-{self._count}", "outcome": outcome}
        return http("PUT", f"/v1/decisions/{decision['id']}/outcome", decision["token"], body)


class Zeus:
    """Requests to Zeus's server."""

    def __init__(self, task: dict[str, Any], client: int) -> None:
        self._job = task["jobs"][client % len(task["jobs"])]

    def decide(self) -> bytes:
        """The request for a batch size."""
        return http("GET", f"/jobs/batch_size?job_id={self._job}", "", None)

    def report(self, decision: dict[str, Any]) -> bytes:
        """The request that reports a run which reached its target."""
        epochs = _epochs(decision["batch_size"])
        seconds = _seconds(epochs)
        body = decision | {
            "time": seconds,
            "energy": 0.6 * MAX_WATTS * seconds,
            "metric": 0.9,
            "current_epoch": epochs,
        }
        return http("POST", "/report", "", body)


def _epochs(batch_size: int) -> int:
    return max(1, round(EPOCHS[batch_size] * RNG.lognormvariate(0.0, 0.1)))


def _seconds(epochs: int) -> float:
    """Short enough for a run that is over at once, and alike from run to run."""
    return epochs * EPOCH_SECONDS * RNG.lognormvariate(0.0, 0.02)


async def client(
    task: dict[str, Any], number: int, tally: Tally, ends: tuple[float, float]
) -> None:
    """One client, until the time is over."""
    dialect = (Joulery if task["dialect"] == "joulery" else Zeus)(task, number)
    loop = asyncio.get_running_loop()
    _, channel = await loop.create_connection(Channel, "127.0.0.1", task["port"])
    await asyncio.sleep(RNG.uniform(0.0, 0.05))
    begin, end = ends

    async def timed(request: bytes, latencies: list[float]) -> tuple[int, bytes]:
        asked = time.monotonic()
        status, body = await channel.ask(request)
        answered = time.monotonic()
        tally.all += 1
        if begin <= answered <= end:
            tally.latencies.append(answered - asked)
            latencies.append(answered - asked)
            tally.statuses[status] += 1
        return status, body

    while time.monotonic() < end:
        status, body = await timed(dialect.decide(), tally.decisions)
        if status != 200:
            await asyncio.sleep(0.05)
            continue
        await timed(dialect.report(json.loads(body)), [])


async def repeat(
    task: dict[str, Any], request: bytes, tally: Tally, ends: tuple[float, float]
) -> None:
    """One client that makes the same request again and again, until the time is over."""
    loop = asyncio.get_running_loop()
    _, channel = await loop.create_connection(Channel, "127.0.0.1", task["port"])
    while time.monotonic() < ends[1]:
        asked = time.monotonic()
        status, _ = await channel.ask(request)
        tally.latencies.append(time.monotonic() - asked)
        tally.all += 1
        tally.statuses[status] += 1


async def load(task: dict[str, Any]) -> dict[str, Any]:
    """Run all clients; what was measured."""
    tally = Tally()
    begin = time.monotonic() + task["warm_seconds"]
    ends = begin, begin + task["seconds"]
    if "request" in task:
        request = http(**task["request"])
        clients = [repeat(task, request, tally, ends) for _ in range(task["clients"])]
    else:
        clients = [client(task, number, tally, ends) for number in range(task["clients"])]
    await asyncio.gather(*clients, return_exceptions=False)
    return {
        "operations": len(tally.latencies),
        "all_operations": tally.all,
        "per_second": tally.statuses[200] / task["seconds"],
        "p50_seconds": quantile(tally.latencies, 0.5),
        "p99_seconds": quantile(tally.latencies, 0.99),
        "decide_p50_seconds": quantile(tally.decisions, 0.5),
        "statuses": dict(tally.statuses),
        "own_cpu_seconds": time.process_time(),
    }


def quantile(latencies: list[float], share: float) -> float:
    """The latency that a share of the answers keep; NaN where none came in time."""
    return sorted(latencies)[int(share * len(latencies))] if latencies else math.nan


if __name__ == "__main__":
    print(json.dumps(uvloop.run(load(json.load(sys.stdin)))))
