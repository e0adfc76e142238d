"""A worker's line to its desk, with a desk that does as it is told."""

import asyncio
import contextlib
import socket
import subprocess
import threading

import pytest

from joulery.errors import ConflictError, StoreBusyError, StoreError
from joulery.server import desk_line, desk_start
from joulery.server.desk_line import DeskLine
from joulery.server.desk_start import Started
from joulery.server.frames import READY, Frames, frame_of
from support.kill_test.processes import fork


class Silent:
    """A log that nobody reads."""

    def __init__(self):
        self.said = []

    def say(self, event, **members):
        """Note it."""
        self.said.append(event)


class Thread:
    """A desk that is a thread; it answers what an errand gives."""

    def __init__(self, line, work):
        self._line = line
        self._thread = threading.Thread(target=self._serve, args=(work,))
        self._thread.start()

    def _serve(self, work):
        with self._line, contextlib.suppress(OSError):
            work(self._line)

    def wait(self, timeout=None):
        """Its end."""
        self._thread.join(timeout)
        return 0

    def kill(self):
        """End it."""
        self._line.close()


def answering(line):
    """Answer everything."""
    frames = Frames()
    line.sendall(frame_of([(READY, None, None)]))
    first = True
    while piece := line.recv(65536):
        for value in frames.feed(piece):
            if first:
                first = False
                continue
            number, errand, arguments = value
            try:
                line.sendall(frame_of([(number, errand(*arguments), None)]))
            except ConflictError as error:
                line.sendall(frame_of([(number, None, error)]))


def started(work=answering):
    """A desk in a thread."""
    here, there = socket.socketpair()
    return Started(Thread(there, work), here)


def refusing():
    """Contradict."""
    raise ConflictError("no", remedy="ask for less")


def run(work, desk=None):
    """Run something with a line."""

    async def main():
        log = Silent()
        async with DeskLine(desk or started(), None, 0, log) as line:
            return await work(line), log

    return asyncio.run(main())


def test_answers_and_errors_come_back():
    """Handlers would get another's answer, or none."""

    async def work(line):
        numbers = await asyncio.gather(*(line.ask(abs, -number) for number in range(100)))
        with pytest.raises(ConflictError, match="no") as error:
            await line.ask(refusing)
        return numbers, error.value.remedy, line.waiting

    found, _ = run(work)
    assert found == (list(range(100)), "ask for less", 0)


def test_a_desk_that_ends_is_started_again(monkeypatch):
    """Requests would wait for ever, or fail for ever."""
    monkeypatch.setattr(desk_line, "spawn_desk", lambda _: started())

    def ending(line):
        line.sendall(frame_of([(READY, None, None)]))
        frames, heard = Frames(), []
        while len(heard) < 2:  # the store and an errand
            heard += frames.feed(line.recv(65536))

    async def work(line):
        with pytest.raises(StoreBusyError):
            await line.ask(abs, -1)
        while True:
            with contextlib.suppress(StoreBusyError):
                return await line.ask(abs, -2)
            await asyncio.sleep(0.01)

    found, log = run(work, started(ending))
    assert found == 2
    assert log.said == ["desk ended", "desk started"]


def test_a_desk_that_cannot_start_is_told_of():
    """A server would serve without a store."""

    async def work(_):
        pytest.fail("it has begun")

    with pytest.raises(StoreError, match="does not start"):
        run(work, started(lambda line: line.recv(1)))


def test_no_more_errands_wait_than_fit(monkeypatch):
    """Memory would grow with what waits for a database that hangs."""
    monkeypatch.setattr(desk_line, "_CAPACITY", 3)

    def deaf(line):
        line.sendall(frame_of([(READY, None, None)]))
        while line.recv(65536):
            pass

    async def work(line):
        waiting = [line.ask(abs, -1) for _ in range(3)]
        with pytest.raises(StoreBusyError, match="3 operations"):
            line.ask(abs, -1)
        return waiting

    asked, _ = run(work, started(deaf))
    assert len(asked) == 3


def test_a_forked_process_is_waited_for(tmp_path):
    """A server would leave a desk behind, or wait for ever for one that hangs."""
    child = desk_start._Forked(fork(lambda: threading.Event().wait(), tmp_path / "log"))
    with pytest.raises(subprocess.TimeoutExpired):
        child.wait(0.01)
    child.kill()
    assert child.wait(10.0) == -9
