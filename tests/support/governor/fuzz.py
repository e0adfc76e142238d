"""Lines that no honest caller sends."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

from joulery.files import encode_line
from joulery.governor._server import LeaseSession
from support.governor.bench import Bench, at_once

if TYPE_CHECKING:
    from joulery.governor._peer import Peer

_VALID = (
    {"op": "hello", "versions": [1]},
    {"op": "acquire", "device": "plain:0", "watts": 200, "ttl_seconds": 5},
    {"op": "acquire", "device": "plain:1", "hertz": 1.2e9, "ttl_seconds": 5},
    {"op": "set", "lease": 1, "watts": 150},
    {"op": "set", "lease": 1, "watts": None},
    {"op": "renew", "lease": 1},
    {"op": "release", "lease": 1},
    {"op": "may", "device": "plain:0"},
    {"op": "status"},
)
# As JSON text, since some of them are none.
_POISON = (
    "NaN",
    "-Infinity",
    "1e999",
    "-1",
    "0",
    "true",
    "null",
    '""',
    "[]",
    "{}",
    "9" * 400,
    "9" * 5000,
    '"\\ud800"',
    '"../../etc/passwd"',
    "[" * 3000 + "]" * 3000,
    '{"a":' * 500 + "1" + "}" * 500,
    '"' + "x" * 5000 + '"',
)


def lines(chance: random.Random) -> bytes:
    """A line or two, wrong in some way or just about right."""
    message = dict(chance.choice(_VALID))
    body = json.dumps(message)
    kind = chance.randrange(7)
    if kind == 0:  # one value replaced
        key = chance.choice(list(message))
        rest = json.dumps({name: value for name, value in message.items() if name != key})
        comma = "," if len(message) > 1 else ""
        body = f'{{"{key}":{chance.choice(_POISON)}{comma}{rest[1:]}'
    elif kind == 1:  # a value that is no object
        body = chance.choice(_POISON)
    data = body.encode(errors="replace")
    if kind == 2:  # bits flipped
        changed = bytearray(data)
        for _ in range(chance.randrange(1, 4)):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        data = bytes(changed)
    elif kind == 3:  # noise
        data = chance.randbytes(chance.randrange(200))
    elif kind == 4:  # cut short
        data = data[: chance.randrange(len(data))]
    elif kind == 5:  # lines run together, or one torn in two
        place = chance.randrange(len(data))
        data = chance.choice([data + data, data[:place] + b"\n" + data[place:]])
    return data + b"\n"


def fuzz(count: int, seed: int = 0) -> tuple[int, int]:
    """Give ``count`` such lines to sessions; how many were answered, and how many sessions it took.

    Whatever they say, no limit may end above the administrator's, and everything comes back.
    """
    chance, bench = random.Random(seed), Bench()  # noqa: S311 - no secret
    peer = bench.callers[0].session.peer
    session, answered, sessions = _greeted(bench, peer), 0, 1
    for _ in range(count):
        told = 0
        for line in lines(chance).splitlines(keepends=True):
            if not session.closing:
                told += len(at_once(session.answer(line)))
        answered += bool(told)
        assert told < 4 * 1024 * 1024
        if session.closing or chance.random() < 0.02:
            session.end("it was misunderstood")
            session, sessions = _greeted(bench, peer), sessions + 1
        assert all(board.watts <= 400.0 for board in bench.boards)
    session.end("done")
    assert all(board.watts == 400.0 and board.locked_hertz is None for board in bench.boards)
    return answered, sessions


def _greeted(bench: Bench, peer: Peer) -> LeaseSession:
    session = LeaseSession(bench.table, peer)
    at_once(session.answer(encode_line(_VALID[0])))
    return session
