"""The server among clients that ask for too much; every client is a task of one event loop."""

import asyncio
import itertools
import os
import socket
from contextlib import ExitStack, suppress

import pytest

from joulery.clock import VirtualClock
from joulery.files import encode_line
from joulery.governor import ConnectionLimits
from joulery.governor._peer import Peer
from joulery.governor._protocol import MAX_REQUEST_BYTES, decode
from joulery.governor._server import LeaseSession, Server
from support.governor.bench import Bench

HELLO = encode_line({"op": "hello", "versions": [1]})
STATUS = encode_line({"op": "status"})
SMALL = {"connections": 32, "connections_per_user": 8, "reserved": 2}
HONEST, FLOOD, ROOT = 1000, 2000, 0
_NUMBERS = itertools.count()
_OPEN = ExitStack()


@pytest.fixture(autouse=True)
def users(monkeypatch):
    """Clients of this process count as users by the names of their sockets."""

    def peer(channel):
        uid = int(channel.getpeername().split(b"/")[1])
        return Peer(uid, frozenset({uid}), os.getpid())

    monkeypatch.setattr(Peer, "of", staticmethod(peer))


@pytest.fixture
def answered(monkeypatch):
    """Users whose requests were answered, in order."""
    order, answer = [], LeaseSession.answer

    async def recorded(session, line):
        order.append(session.peer.uid)
        return await answer(session, line)

    monkeypatch.setattr(LeaseSession, "answer", recorded)
    return order


class Client:
    """A client's end of a connection."""

    def __init__(self, address, user):
        self.channel = _OPEN.enter_context(socket.socket(socket.AF_UNIX))
        self.channel.bind(f"\0joulery-{os.getpid()}-{next(_NUMBERS)}/{user}")
        self.channel.settimeout(0)
        self._address, self._received = address, b""

    async def connect(self):
        """Connect, and wait in the kernel's queue while it is full."""
        while True:
            with suppress(BlockingIOError):
                self.channel.connect(self._address)
                return self
            await asyncio.sleep(0)

    async def send(self, data):
        """Send bytes."""
        await asyncio.get_running_loop().sock_sendall(self.channel, data)

    async def receive(self):
        """The next answer; None at the end."""
        while b"\n" not in self._received:
            data = b""
            with suppress(ConnectionResetError):  # the end, if the server had more to read
                data = await asyncio.get_running_loop().sock_recv(self.channel, 1 << 16)
            if not data:
                return None
            self._received += data
        line, _, self._received = self._received.partition(b"\n")
        return decode(line)

    async def ask(self, operation, **details):
        """The answer to a request, the first one after a greeting."""
        await self.send(encode_line({"op": operation, **details}))
        return await self.receive()

    async def greet(self):
        """Connect and greet."""
        await self.connect()
        assert (await self.ask("hello", versions=[1]))["ok"]
        return self


def serve(scenario, **limits):
    """Run a scenario, given an address and a bench, while a server serves."""

    async def run():
        bench = Bench()
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind("")
            listener.listen(128)
            bounds = ConnectionLimits(**limits)
            server = Server([(listener, None)], bench.table, VirtualClock(1e6), bounds)
            serving = asyncio.create_task(server.run())
            try:
                async with asyncio.timeout(60):
                    return await scenario(listener.getsockname(), bench)
            finally:
                _OPEN.close()
                serving.cancel()
                with suppress(asyncio.CancelledError):
                    await serving

    return asyncio.run(run())


@pytest.mark.parametrize("words", [b"", HELLO[:5], HELLO, HELLO + STATUS], ids=len)
def test_silent_users_lock_nobody_out(words):
    """Four users' silent connections would keep everyone out, root included."""

    async def scenario(address, _):
        crowd = [await Client(address, 2000 + n % 4).connect() for n in range(32)]
        for client in crowd:
            await client.send(words)
        for user in (HONEST, ROOT, 1001, ROOT, HONEST):
            client = await Client(address, user).greet()
            crowd.append(client)
            assert (await client.ask("status"))["ok"]

    serve(scenario, **SMALL)


def test_root_connects_though_leases_fill_every_place():
    """Root could not find out who holds the devices."""

    async def scenario(address, bench):
        crowd = [await Client(address, HONEST + n % 2).greet() for n in range(8)]
        for client in crowd:
            reply = await client.ask("acquire", device="plain:1", watts=300, ttl_seconds=60)
            assert reply["ok"], reply
        turned_away = await Client(address, 3000).connect()
        assert await turned_away.receive() is None
        root = await Client(address, ROOT).greet()
        assert (await root.ask("status"))["devices"][1]["watts"] == 300.0
        assert len(bench.table.devices["plain:1"].leases) == 8

    serve(scenario, connections=8, connections_per_user=8, reserved=1)


def test_holders_keep_their_connection_when_others_need_room():
    """A crowd of connections would end the lease of another user, or one's own."""

    async def scenario(address, bench):
        holder = await Client(address, HONEST).greet()
        lease = (await holder.ask("acquire", device="plain:0", watts=200, ttl_seconds=60))["lease"]
        crowd = [await Client(address, HONEST).greet() for _ in range(7)]
        crowd += [await Client(address, FLOOD + n).greet() for n in range(15)]
        assert (await holder.ask("set", lease=lease, watts=150))["watts"] == 150.0
        assert bench.boards[0].watts == 150.0

    serve(scenario, connections=16, connections_per_user=8, reserved=0)


@pytest.mark.parametrize("words", [b"", HELLO[:5], HELLO], ids=["silent", "half", "greeting"])
def test_a_first_request_must_come_soon(words):
    """Connections that never ask for anything would pile up."""

    async def scenario(address, _):
        loop = asyncio.get_running_loop()
        client = await Client(address, HONEST).connect()
        await client.send(words)
        if words == HELLO:
            assert (await client.receive())["ok"]
        end = asyncio.create_task(client.receive())
        start = seconds = loop.time()
        loop.time = lambda: seconds  # passes by turns of the loop, on a busy machine as well
        while not end.done():
            seconds += 0.1
            await asyncio.sleep(0)
        assert await end is None
        assert 4.0 < seconds - start < 10.0

    serve(scenario, stall_seconds=5.0)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_a_line_that_is_too_long_ends_the_connection(end):
    """A caller could make the daemon buffer gigabytes."""

    async def scenario(address, _):
        client = await Client(address, HONEST).greet()
        with suppress(OSError):
            for _ in range(64):
                await client.send(b"x" * MAX_REQUEST_BYTES)
            await client.send(end)
        assert await client.receive() is None

    serve(scenario)


async def _flood(address, kind):
    """Be a nuisance until cancelled."""
    channels = []
    while True:
        client = await Client(address, FLOOD).connect()
        channels = [*channels[-6:], client]
        with suppress(OSError):
            if kind == "connect":
                client.channel.close()
            elif kind == "half a line":
                await client.send(HELLO[:7])
            else:
                await client.send(HELLO)
            while kind in ("ask", "never read"):
                await client.send(STATUS * 500)
                if kind == "ask":
                    assert await client.receive()
        await asyncio.sleep(0)


@pytest.mark.parametrize("bounded", [True, False])
def test_a_flood_is_served_no_more_than_its_share(answered, bounded):
    """One user's runaway script would stall every other user's tuner.

    What counts is how many requests of the flood are answered before those of an honest holder,
    which does not depend on how fast the machine is: time stands still for the daemon.
    """
    burst = 100

    async def scenario(address, _):
        honest = await Client(address, HONEST).greet()
        lease = (await honest.ask("acquire", device="plain:0", ttl_seconds=60))["lease"]
        kinds = ("ask", "ask", "connect", "never read", "half a line")
        floods = [asyncio.create_task(_flood(address, kind)) for kind in kinds]
        while not answered.count(FLOOD):  # noqa: ASYNC110 - the server knows of no event
            await asyncio.sleep(0)
        between = []
        for number in range(90):
            before = answered.count(FLOOD)
            reply = await honest.ask("set", lease=lease, watts=150 + number)
            assert reply["watts"] == 150.0 + number
            between.append(answered.count(FLOOD) - before)
        for task in floods:
            task.cancel()
        await asyncio.gather(*floods, return_exceptions=True)
        return between

    rate = 10.0 if bounded else 1e9
    between = serve(scenario, connections_per_user=8, burst=burst, requests_per_second=rate)
    # At most one request of each of the flood's connections in each turn of the loop.
    assert max(between) <= 8 * 6
    if bounded:
        assert sum(between) <= burst
        assert between[-30:].count(0) >= 25
    else:
        assert sum(between) > burst  # else the flood was none
