"""A fuzzer of the server: malformed requests, and the answers that are allowed."""

from __future__ import annotations

import json
import random
import socket
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery.jobs.policies import policy_names
from support.server_process import JOB, OUTCOME, ServerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator

_PATIENCE_SECONDS = 30.0
_RAW_SECONDS = 0.5
_REMEMBERED = 50
# What tells of our insides: none of it may be in any answer.
_INTERNALS = (
    *(b"Traceback", b"sqlite", b"sqlalchemy", b"psycopg", b"postgres", b".py", b"SELECT "),
    *(b"INSERT ", b"UPDATE ", b"numpy", b"Exception", b"site-packages", b"/tmp/", b"/work/"),
    *(b"KeyError", b"TypeError", b"IndexError", b"AttributeError", b"OverflowError"),
)
_TEXTS = (
    *(
        "",
        "a",
        "\\u0000",
        "\\ud800",
        "\\udfff\\ud800",
        "ü",
        "😀",
        "\\n",
        "%s%n",
        "../..",
        "x" * 201,
    ),
    *("' OR 1=1 --", "${jndi:x}", "<script>", "NaN", "null", "1.1", "٣", "\\u202e", "inf"),
)
_FRAGMENTS = (
    *("NaN", "Infinity", "-Infinity", "1e400", "-1e400", "1e-400", "5e-324", "1.7e308", "-0.0"),
    *(str(2**70), str(-(2**70)), str(2**63), str(2**63 - 1), str(2**31), "0", "-1", "1.5", "1e3"),
    *("9" * 5000, "null", "true", "false", "[]", "{}", "[[]]", '{"a":1,"a":2}', "01", "+1", "0x1"),
    *(
        "[" * 2000 + "]" * 2000,
        '{"a":' * 500 + "1" + "}" * 500,
        "1e",
        "tru",
        "'a'",
        "1e15",
        "1e-12",
    ),
    *(f'"{text}"' for text in _TEXTS),
)
_SEGMENTS = (
    *("..", ".", "", "%2e%2e", "%2E%2E%2f", "%00", "%2F", "%5c", "%ff", "%", "%zz", "%c0%af", "~"),
    *("-1", "0", "1", "1.1", "1.2", "1.0", "0.1", "999999999999999999", str(2**63), str(2**70)),
    *("1e3", "%D9%A3", "+1", "x" * 300, "vision", "other", "*", "{job}", "{}", "nightly", "a b"),
    *("1;a=b", "1%20", "jobs", "%F0%9F%98%80", "%ED%A0%80", "1.1.1", ".1", "1."),
)
_QUERIES = (
    *("", "", "?", "?after=0", "?limit=1", "?after=-1", "?limit=0", "?limit=1001", "?limit=1e2"),
    *("?after=" + "9" * 30, "?after=0&after=1", "?x=1", "?device=", "?device=%00", "?device=%ff"),
    *("?" + "&".join("after=1" for _ in range(100)), "?limit=%D9%A3", "?device=" + "x" * 3000),
)
_METHODS = ("GET", "POST", "PUT", "DELETE", "PATCH", "HEAD", "OPTIONS", "TRACE")
_TYPES = (
    "application/json",
    "application/json; charset=utf-8",
    "text/plain",
    "",
    "APPLICATION/JSON",
)
# Whole requests that are hardly HTTP.
_RAW = (
    b"GET / HTTP/9.9\r\n\r\n",
    b"GET\r\n\r\n",
    b"\r\n\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET /health/live HTTP/1.1\r\nhost: a\r\nx: " + b"a" * 20_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET /health/live HTTP/1.1\r\n" + b"x: y\r\n" * 4000 + b"\r\n",
    b"POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: -5\r\n\r\n",
    b"POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nabcde",
    b"POST /v1/x HTTP/1.1\r\nhost: a\r\ncontent-length: 99999999999999999999999\r\n\r\n",
    b"POST /v1/x HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    b"POST /v1/x HTTP/1.1\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\n0\r\n\r\n",
    b"GET http://evil/health/live HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET //health/live HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET /health/../health/live HTTP/1.1\r\nhost: a\r\n\r\n",
    b"OPTIONS * HTTP/1.1\r\nhost: a\r\n\r\n",
    b"CONNECT a:443 HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET /\xff\xfe HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET /\x00 HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET /health/live HTTP/1.1\r\nhost: a\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n",
    b"GET /health/live HTTP/1.1\r\nauthorization: Bearer \xff\xff\r\n\r\n",
    b"GET /health/live HTTP/1.0\r\n\r\n",
    b"GET /health/live HTTP/1.1\nhost: a\n\n",
    b"GET /health/live HTTP/1.1\r\n folded: header\r\n\r\n",
    b"GET /health/live?" + b"%" * 100 + b" HTTP/1.1\r\nhost: a\r\n\r\n",
    b"GET /health/live HTTP/1.1\r\nhost: a\r\n\r\n" * 50,
)


# The answer of uvicorn, before a request reaches the application.
_NOT_HTTP = b"Invalid HTTP request received."


class Raw(str):
    """A piece of JSON to be written as it is."""

    __slots__ = ()


def rendered(document: Any) -> str:
    """JSON, with pieces that need not be."""
    if isinstance(document, Raw):
        return str(document)
    if isinstance(document, dict):
        inner = (f"{json.dumps(name)}:{rendered(value)}" for name, value in document.items())
        return "{" + ",".join(inner) + "}"
    if isinstance(document, list):
        return "[" + ",".join(map(rendered, document)) + "]"
    return json.dumps(document)


def bodies(job: int, decision: str, key: str) -> dict[str, tuple[str, Any]]:
    """Documents that make sense, by the addresses that take them."""
    measured = {"limit_watts": 100.0, "epoch_seconds": 2.0, "epoch_joules": 200.0}
    outcome = OUTCOME | {"limit_watts": None, "measured": [measured | {"relative_error": 0.1}]}
    frontier = {"points": [{"seconds": 1.0, "joules": 2.0, "setting": {"power_limit_watts": 9.0}}]}
    energy = {"decision": None, "device": "a", "seconds": 1.0, "joules": 1.0, "origin": "measured"}
    objective = "money:price=0.3,rent=1.0"
    changes = {"name": "fuzzed", "objective": objective, "limits_watts": [100.0, 200.0]}
    definition = {"job": JOB | changes, "device": "A40"}
    return {
        "/v1/teams/vision/jobs": (
            "POST",
            definition | {"policy": "joulery", "parameters": {"beta": 2.0}},
        ),
        f"/v1/jobs/{job}/decisions": ("POST", {"key": key, "after": None, "probing": True}),
        f"/v1/jobs/{job}": ("PATCH", {"paused": False}),
        f"/v1/jobs/{job}/profiles": (
            "PUT",
            {"batch_size": 64, "device": "a", "frontier": frontier},
        ),
        f"/v1/jobs/{job}/energy": ("POST", energy),
        f"/v1/decisions/{decision}/heartbeat": ("POST", {"progress": outcome}),
        f"/v1/decisions/{decision}/outcome": ("PUT", {"key": key, "outcome": outcome}),
    }


@dataclass
class Target:
    """What is known about a server, to get past its door.

    Attributes:
        port: On this machine.
        token: Of an administrator.
        decisions: Ids and tokens of decisions.
    """

    port: int
    token: str
    decisions: list[tuple[str, str]]


@contextmanager
def serve_target() -> Iterator[tuple[ServerProcess, Target]]:
    """A server with jobs of every policy and open decisions, on which nothing may fail."""
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerProcess(Path(folder, "store.sqlite")) as server,
    ):
        decisions = []
        for policy in policy_names():
            job = server.define(name=policy, policy=policy)
            for number in range(3):
                decision = server.decide(job, f"first {number}")
                decisions.append((decision["id"], decision["token"]))
        yield server, Target(server.port, server.admin_token, decisions)
        assert '"event":"failed"' not in server.log


class Grammar:
    """Makes requests, the same for the same seed.

    Args:
        target: Whom to ask.
        seed: Of the random choices.
    """

    def __init__(self, target: Target, seed: int) -> None:
        self._target = target
        self._random = random.Random(seed)  # noqa: S311 - not for secrets
        self._decisions = list(target.decisions)
        self._jobs = sorted({int(decision.partition(".")[0]) for decision, _ in self._decisions})

    def request(self) -> bytes:
        """The next one, ready to be sent."""
        choice = self._random.random()
        if choice < 0.02:
            return self._random.choice(_RAW)
        if choice < 0.2:
            return self._strange_address()
        return self._strange_body()

    def learn(self, answer: bytes) -> None:
        """Take up what a server has made, however strange: it can be asked about."""
        body = answer.partition(b"\r\n\r\n")[2]
        if body.startswith(b'{"id":"'):
            document = json.loads(body)
            self._decisions.append((document["id"], document["token"]))
            del self._decisions[:-_REMEMBERED]
        elif body.startswith(b'{"id":') and b'"definition"' in body:
            self._jobs.append(json.loads(body)["id"])
            del self._jobs[:-_REMEMBERED]

    def _strange_address(self) -> bytes:
        pick = self._random
        start = pick.choice(("/v1/teams", "/v1/jobs", "/v1/decisions", "/v1", ""))
        segments = [pick.choice(_SEGMENTS) for _ in range(pick.randrange(4))]
        ends = ("", "/jobs", "/decisions", "/outcome", "/energy", "/profiles", "/")
        path = "/".join([start, *segments]) + pick.choice(ends) + pick.choice(_QUERIES)
        method = pick.choice(_METHODS)
        return self._made(method, path or "/", b"{}", self._target.token)

    def _strange_body(self) -> bytes:
        pick = self._random
        decision, token = pick.choice(self._decisions)
        key = pick.choice(("k", f"k{pick.randrange(10**6)}"))
        requests = bodies(pick.choice(self._jobs), decision, key)
        path, (method, document) = pick.choice(list(requests.items()))
        content = rendered(self._changed(document)).encode("utf-8", "surrogatepass")
        if pick.random() < 0.1:
            content = content[: pick.randrange(len(content) + 1)]
        if pick.random() < 0.05:
            position = pick.randrange(len(content) + 1)
            content = content[:position] + pick.randbytes(3) + content[position:]
        if pick.random() < 0.003:
            content += b" " * 1_100_000
        return self._made(
            method, path, content, token if "/decisions/" in path else self._target.token
        )

    def _changed(self, document: Any) -> Any:
        pick = self._random
        copy = json.loads(json.dumps(document))
        for _ in range(pick.choice((0, 0, 1, 1, 1, 2, 4))):
            positions = list(_places(copy))
            if not positions:
                break
            holder, name = pick.choice(positions)
            change = pick.random()
            if change < 0.1 and isinstance(holder, dict):
                holder[pick.choice(("colour", "__proto__", "kind", "\\", "token"))] = 1
            elif change < 0.2:
                del holder[name]
            elif change < 0.3 and isinstance(holder, list):
                holder.extend(holder * pick.choice((1, 3, 100)))
            else:
                holder[name] = Raw(pick.choice(_FRAGMENTS))
        return copy

    def _made(self, method: str, path: str, body: bytes, token: str) -> bytes:
        pick = self._random
        media = _TYPES[0] if pick.random() < 0.97 else pick.choice(_TYPES)
        bearer = token if pick.random() < 0.97 else pick.choice((token[:-1], "", "a b", "x" * 300))
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: a\r\nauthorization: Bearer {bearer}\r\n"
            f"content-type: {media}\r\ncontent-length: {len(body)}\r\n\r\n"
        )
        return head.encode("utf-8", "surrogatepass") + body


def _places(document: Any) -> Iterator[tuple[Any, Any]]:
    inner = document.items() if isinstance(document, dict) else enumerate(document)
    for name, value in list(inner):
        yield document, name
        if isinstance(value, (dict, list)) and value:
            yield from _places(value)


@dataclass
class Findings:
    """What came back.

    Attributes:
        statuses: How often each; 0 for a connection that was closed without an answer.
        faults: Requests with answers that may not be.
    """

    statuses: Counter[int] = field(default_factory=Counter)
    faults: list[tuple[bytes, bytes]] = field(default_factory=list)


def fuzz(grammar: Grammar, port: int, count: int) -> Findings:
    """Send requests one after another over connections that stay open."""
    findings = Findings()
    connection: socket.socket | None = None
    for _ in range(count):
        request = grammar.request()
        if connection is None:
            connection = socket.create_connection(("127.0.0.1", port))
        try:
            connection.settimeout(_RAW_SECONDS if request in _RAW else _PATIENCE_SECONDS)
            connection.sendall(request)
            answer = _answer(connection, head_only=request.startswith(b"HEAD "))
        except (BrokenPipeError, ConnectionResetError):
            answer = b""
        except TimeoutError:
            answer = b""
            if request not in _RAW:  # of those, some wait for more
                findings.faults.append((request[:3000], b"no answer"))
        status = int(answer[9:12]) if answer else 0
        findings.statuses[status] += 1
        if status == 200:
            grammar.learn(answer)
        if not _allowed(status, answer):
            findings.faults.append((request[:3000], answer[:2000]))
        # What was hardly HTTP may have more answers, or none, on their way.
        if request in _RAW or not answer or b"connection: close" in answer.lower():
            connection.close()
            connection = None
    if connection is not None:
        connection.close()
    return findings


def _allowed(status: int, answer: bytes) -> bool:
    if status >= 500:
        return False
    body = answer.partition(b"\r\n\r\n")[2]
    if status == 400 and _NOT_HTTP in body:
        return True
    if status >= 400 and body and b"application/problem+json" not in answer:
        return False
    return status < 400 or not any(mark.lower() in body.lower() for mark in _INTERNALS)


def _answer(connection: socket.socket, *, head_only: bool) -> bytes:
    content = b""
    while b"\r\n\r\n" not in content:
        chunk = connection.recv(65536)
        if not chunk:
            return content
        content += chunk
    head, _, body = content.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0] or 0)
    while len(body) < length and not head_only:
        chunk = connection.recv(65536)
        if not chunk:
            break
        body += chunk
    return head + b"\r\n\r\n" + body
