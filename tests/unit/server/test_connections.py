"""Connections of a server, by address and in time."""

import asyncio
import json
from functools import partial

import pytest
import uvicorn
from uvicorn.server import ServerState

from joulery.server._config import Limits
from joulery.server._connections import ConnectionGate, HttpConnection


class Fake:
    """A connection that notes whether it was closed."""

    closed = False

    def abort(self):
        """Note it."""
        self.closed = True


def test_connections_without_a_token_lock_nobody_out():
    """Thousands of silent connections would keep all clients away."""
    gate = ConnectionGate(Limits(address_connections=50), most_connections=100)
    known = Fake()
    gate.enter(("10.0.0.1", 1), known)
    gate.trust(("10.0.0.1", 1))
    flood = [Fake() for _ in range(8000)]
    for number, one in enumerate(flood):
        gate.enter((f"10.0.1.{number % 5}", number), one)
    late = Fake()
    gate.enter(("10.0.0.2", 1), late)
    assert not known.closed
    assert not late.closed
    assert len(gate) == 100
    assert sum(one.closed for one in flood) == 8000 - 98


def test_an_address_has_so_many_without_a_token():
    """One machine would use up the connections of all."""
    gate = ConnectionGate(Limits(address_connections=3), most_connections=100)
    own = [Fake() for _ in range(5)]
    for number, one in enumerate(own):
        gate.enter(("10.0.0.1", number), one)
    assert [one.closed for one in own] == [True, True, False, False, False]
    for number in range(5):
        gate.leave(("10.0.0.1", number))
    assert len(gate) == 0
    assert gate._tokenless == {}


async def answered(sent, head_seconds):
    """What a server sends on a connection until it closes it."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    gate = ConnectionGate(Limits(), most_connections=10)
    config = uvicorn.Config(app, lifespan="off", log_config=None, ws="none")
    config.load()
    protocol = partial(HttpConnection, gate=gate, limits=Limits(head_seconds=head_seconds))
    state = ServerState()
    loop = asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: protocol(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(sent)
        received = await reader.read()
        writer.close()
        await writer.wait_closed()
    assert len(gate) == 0
    return received


@pytest.mark.parametrize("begun", [b"", b"GET /health/live HT", b"GET / HTTP/1.1\r\nHost: a\r\n"])
def test_a_head_that_does_not_arrive_ends_the_connection(begun):
    """Connections that send a byte now and then would stay for ever."""
    assert asyncio.run(answered(begun, head_seconds=0.1)) == b""


def test_the_next_head_has_to_arrive_in_time_too():
    """A client would answer once and then stay for ever."""
    first = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
    received = asyncio.run(answered(first + b"GET", head_seconds=0.1))
    assert received.startswith(b"HTTP/1.1 204")


def test_what_is_not_http_gets_a_problem_document():
    """Clients would have to understand two kinds of errors."""
    received = asyncio.run(answered(b"\x16\x03\x01 hello\r\n\r\n", head_seconds=10.0))
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"400" in head.splitlines()[0]
    assert b"application/problem+json" in head
    assert json.loads(body)["remedy"]


@pytest.mark.parametrize("ended", [b"", b"\r\n\r\n"])
def test_a_head_has_so_many_bytes(ended):
    """Heads without end would fill the memory."""
    head = b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 20_000 + ended
    assert asyncio.run(answered(head, head_seconds=10.0)).startswith(b"HTTP/1.1 400")


def test_a_body_is_no_part_of_the_head():
    """Large requests that arrive at once would be refused."""
    head = b"PUT / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 40000\r\n\r\n"
    assert asyncio.run(answered(head + b"x" * 40_000, head_seconds=10.0)).startswith(
        b"HTTP/1.1 204"
    )
