"""Growth of a server's memory with the number of requests that it answers."""

from __future__ import annotations

import json
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from support.server_process import ServerProcess

_SAMPLES = 60
_WARM_SHARE = 0.3  # of the samples, while caches fill
_POLICIES = ("joulery", "zeus")
_OUTCOME = {"end": "reached", "epochs": 20, "joules": 300.0}


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory of a server over its requests.

    Attributes:
        requests: Number of requests that were answered.
        refused: Number of them that were answered with an error.
        first_bytes: Memory after the warm-up.
        last_bytes: Memory at the end.
        per_request_bytes: Slope of the straight line through all samples after the warm-up.
    """

    requests: int
    refused: int
    first_bytes: float
    last_bytes: float
    per_request_bytes: float


class Volley:
    """Connections that send their requests at the same time, so that the server commits in groups.

    Args:
        port: Port of the server on this machine.
        connections: Number of connections.
    """

    def __init__(self, port: int, connections: int) -> None:
        self._sockets = [
            socket.create_connection(("127.0.0.1", port), timeout=60.0) for _ in range(connections)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._sockets:
            connection.close()

    def ask(self, requests: Sequence[bytes]) -> list[tuple[int, Any]]:
        """Status and document of every answer; one request for each connection at most."""
        connections = self._sockets[: len(requests)]
        for connection, request in zip(connections, requests, strict=True):
            connection.sendall(request)
        return [_answer(connection) for connection in connections]


def request(method: str, path: str, token: str, document: Any) -> bytes:
    """A request as bytes."""
    body = json.dumps(document).encode()
    head = (
        f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {token}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    return head.encode() + body


def _answer(source: socket.socket) -> tuple[int, Any]:
    content = b""
    while b"\r\n\r\n" not in content:
        content += _more(source)
    head, _, body = content.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
    while len(body) < length:
        body += _more(source)
    return int(head.split(b" ", 2)[1]), json.loads(body)


def _more(source: socket.socket) -> bytes:
    part = source.recv(65_536)
    if not part:
        raise ConnectionError
    return part


def memory_growth(
    server: ServerProcess,
    requests: int,
    connections: int = 64,
    tell: Callable[[int, int], None] = lambda _done, _bytes: None,
) -> Growth:
    """Decisions and reports until there were so many requests.

    Args:
        server: Server to measure.
        requests: Number of requests.
        connections: Number of connections; each works for a job that it shares with a few others.
        tell: Function that is called at every sample, with the requests so far and the bytes.
    """
    jobs = [
        server.define(name=f"memory {policy} {number}", policy=policy)
        for policy in _POLICIES
        for number in range(8)
    ]
    samples: list[tuple[int, int]] = []
    done = refused = round_ = 0
    with Volley(server.port, connections) as volley:
        while done < requests:
            round_ += 1
            keys = [f"{round_}.{number}" for number in range(connections)]
            decided = volley.ask(
                [
                    request(
                        "POST",
                        f"/v1/jobs/{jobs[number % len(jobs)]}/decisions",
                        server.admin_token,
                        {"key": key},
                    )
                    for number, key in enumerate(keys)
                ]
            )
            decisions = [
                (key, answer)
                for key, (status, answer) in zip(keys, decided, strict=True)
                if status == 200
            ]
            reported = volley.ask([_report(key, decision, round_) for key, decision in decisions])
            done += len(decided) + len(reported)
            refused += len(decided) - len(decisions) + sum(status != 200 for status, _ in reported)
            if done >= requests * (len(samples) + 1) / _SAMPLES:
                samples.append((done, resident_bytes(server.pid)))
                tell(*samples[-1])
    warm = np.array(samples[int(_WARM_SHARE * len(samples)) :], dtype=float)
    slope = float(np.polyfit(warm[:, 0], warm[:, 1], 1)[0])
    return Growth(done, refused, float(warm[0, 1]), float(warm[-1, 1]), slope)


def _report(key: str, decision: Any, number: int) -> bytes:
    outcome = _OUTCOME | {"seconds": 2.0 + number % 7}
    path = f"/v1/decisions/{decision['id']}/outcome"
    return request("PUT", path, decision["token"], {"key": key, "outcome": outcome})


def resident_bytes(process: int) -> int:
    """Resident memory of a process."""
    return 4096 * int(Path(f"/proc/{process}/statm").read_text(encoding="ascii").split()[1])
