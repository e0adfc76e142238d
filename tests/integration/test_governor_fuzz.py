"""Callers who send rubbish, or too much of it."""

import os
import random
import resource
import signal
import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from joulery.files import encode_line
from joulery.governor import Connection, ConnectionLimits
from joulery.testing.emulator import build
from support.governor.flood import nuisances, round_trips
from support.governor.fuzz import fuzz, lines
from support.governor.node import GovernedNode


@pytest.fixture
def start():
    """Start a governor with some bounds."""
    if build.compiler() is None and os.environ.get("CI") != "true":
        pytest.skip("no C compiler: the emulated NVML cannot be built")
    with ExitStack() as stack:
        yield lambda **bounds: stack.enter_context(GovernedNode(**bounds))


def _resident_kilobytes(pid):
    rows = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(row.split()[1]) for row in rows if row.startswith("VmRSS"))


def test_rubbish_does_no_harm():
    """A malformed line would crash the daemon, leak memory or move a limit."""
    fuzz(2000, seed=1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    answered, sessions = fuzz(20_000, seed=2)
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert answered > 10_000
    assert sessions > 1000
    assert grown < 8 * 1024


def test_daemon_outlives_rubbish(start):
    """Rubbish over the real socket would end the daemon for everybody."""
    governed = start()
    chance = random.Random(3)  # noqa: S311 - no secret
    before = _resident_kilobytes(governed.pid)
    for _ in range(300):
        with socket.socket(socket.AF_UNIX) as channel, suppress(OSError):
            channel.connect(str(governed.socket))
            channel.sendall(encode_line({"op": "hello", "versions": [1]}))
            for _ in range(5):
                channel.sendall(lines(chance))
    assert governed.status()[0]["watts"] == 400.0
    assert _resident_kilobytes(governed.pid) - before < 4096


@pytest.mark.skipif(os.geteuid() != 0, reason="a flood by another user needs root to start it")
def test_an_honest_holder_is_served_in_a_flood(start):
    """One user's runaway script would keep every other user's tuner from its answers.

    How long they take is for scripts/stress_governor.py; how many others come first is judged
    without a clock in the server's own tests.
    """
    governed = start(requests_per_second=ConnectionLimits().requests_per_second)
    with nuisances(governed):
        assert len(round_trips(governed, 40)) == 40


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as several users")
def test_silent_connections_of_four_users_lock_nobody_out(start):
    """Four users with 128 silent connections each kept everyone out, root included."""
    governed, children = start(), []
    done, wait = os.pipe()
    for user in range(2000, 2004):
        child = os.fork()
        if child == 0:
            os.close(wait)
            _be_silent(governed.socket, user, done)
        children.append(child)
    os.close(done)
    try:
        for child in children:
            os.waitpid(child, os.WUNTRACED)  # stopped: all are connected
        assert governed.status()[0]["watts"] == 400.0
    finally:
        os.close(wait)
        for child in children:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _be_silent(path, user, done):
    """Hold as many connections as one user may, as a child process."""
    try:
        os.setgid(user)
        os.setuid(user)
        channels = []
        for _ in range(128):
            channels.append(socket.socket(socket.AF_UNIX))
            channels[-1].connect(str(path))
            channels[-1].sendall(encode_line({"op": "hello", "versions": [1]}))
            channels[-1].sendall(encode_line({"op": "status"}))
        os.kill(os.getpid(), signal.SIGSTOP)
        os.read(done, 1)
    finally:
        os._exit(0)


def test_callers_beyond_the_cap_are_turned_away(start):
    """One user could use up every descriptor of the daemon."""
    governed = start(connections_per_user=10)
    with ExitStack() as crowd:
        channels = [crowd.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(20)]
        for channel in channels:
            channel.connect(str(governed.socket))
            channel.settimeout(0.1)
        turned_away = 0
        for channel in channels:
            with suppress(TimeoutError):
                turned_away += channel.recv(1) == b""
        assert turned_away == 10
    assert governed.status()[0]["held"] is False


def test_who_never_greets_is_dropped(start):
    """Silent connections would pile up."""
    governed = start(stall_seconds=0.3)
    with socket.socket(socket.AF_UNIX) as channel:
        channel.settimeout(10)
        channel.connect(str(governed.socket))
        assert channel.recv(1) == b""


def test_requests_beyond_the_share_wait(start):
    """Without a bound one user's requests would take all of the daemon's time."""
    governed = start(requests_per_second=100.0, burst=200.0)
    connection = Connection(governed.socket)
    began = time.monotonic()
    for _ in range(300):
        connection.ask("may", device=governed.devices[0])
    assert time.monotonic() - began > 0.5
    connection.close()
