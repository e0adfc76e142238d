"""Several worker processes on one socket: started, started again, stopped together."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import mmap
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from joulery.clock import REAL_CLOCK
from joulery.errors import StoreError
from joulery.server.limits import Limits
from joulery.server.metrics import SHARED_BYTES
from joulery.server.settings import Settings

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from joulery.clock import Clock

_LOOK_SECONDS = 0.05
_PAUSE_SECONDS = 1.0  # before a worker that died is started again
_GRACE_SECONDS = 5.0
_FIRST_TRIES = 3


def to_text(settings: Settings) -> str:
    """Settings for another process."""
    return json.dumps(dataclasses.asdict(settings), default=str)


def from_text(text: str) -> Settings:
    """What :func:`to_text` was given."""
    found: dict[str, Any] = json.loads(text)
    for name in ("tls_certificate", "tls_key"):
        found[name] = None if found[name] is None else Path(found[name])
    return Settings(**(found | {"limits": Limits(**found["limits"])}))


class _Process:
    """One worker, whichever process it is at the moment."""

    def __init__(self, number: int, settings: Settings, files: tuple[int, int]) -> None:
        self._number = number
        self._settings = settings
        self._files = files
        self._process: subprocess.Popen[bytes] | None = None
        self._ready_file = -1
        self.ready = False
        self.died = 0
        self.start_after = 0.0

    def start(self) -> None:
        """Start it."""
        listener, shared = self._files
        self._ready_file, ready = os.pipe()
        os.set_blocking(self._ready_file, False)
        command = [sys.executable, "-m", "joulery.server.worker"]
        numbers = map(str, (self._number, listener, shared, ready))
        self._process = subprocess.Popen(
            [*command, *numbers],
            stdin=subprocess.PIPE,
            pass_fds=(listener, shared, ready),
            start_new_session=True,  # what a terminal tells us, we tell them
        )
        os.close(ready)
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        # Stays open: its end is how the worker learns of ours.
        with contextlib.suppress(OSError):  # it has died already; we will see
            self._process.stdin.write(to_text(self._settings).encode() + b"\n")
            self._process.stdin.flush()

    def look(self, now: float) -> None:
        """See how it is, and start it again if it is not."""
        if self._process is None:
            if now >= self.start_after:
                self.start()
            return
        if not self.ready and self._said_ready():
            self.ready, self.died = True, 0
        if self._process.poll() is not None:
            self._forget()
            self.ready = False
            self.died += 1
            self.start_after = now + _PAUSE_SECONDS

    def _said_ready(self) -> bool:
        try:
            return os.read(self._ready_file, 1) == b"1"
        except BlockingIOError:
            return False

    def stop(self) -> None:
        """Ask it to end."""
        if self._process is not None:
            self._process.terminate()

    def ended(self) -> bool:
        """Whether it has."""
        if self._process is not None and self._process.poll() is not None:
            self._forget()
        return self._process is None

    def kill(self) -> None:
        """Make it end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._forget()

    def _forget(self) -> None:
        os.close(self._ready_file)
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError):  # it did not read to the end
                self._process.stdin.close()
        self._process = None


class Supervisor:
    """Keeps workers running within its ``with`` block, and lets them finish at its end.

    Args:
        settings: How many, and how they serve.
        listener: That listens already.
        clock: For patience.
    """

    def __init__(
        self, settings: Settings, listener: socket.socket, clock: Clock = REAL_CLOCK
    ) -> None:
        self._settings = settings
        self._listener = listener
        self._clock = clock
        self._stopping = threading.Event()
        self._shared = -1
        self._workers: list[_Process] = []

    def __enter__(self) -> Self:
        for ending in (signal.SIGTERM, signal.SIGINT):
            signal.signal(ending, lambda *_: self._stopping.set())
        self._shared = os.memfd_create("joulery-metrics")
        os.ftruncate(self._shared, SHARED_BYTES)
        files = self._listener.fileno(), self._shared
        for number in range(self._settings.workers):
            self._workers.append(_Process(number, self._settings, files))
            self._workers[-1].start()
        return self

    def __exit__(self, *_: object) -> None:
        settings = self._settings
        patience_seconds = settings.drain_seconds + settings.stop_seconds + _GRACE_SECONDS
        _stop(self._workers, patience_seconds, self._clock)
        os.close(self._shared)

    def watch(self, started: Callable[[], None]) -> None:
        """Start workers again that die, until SIGTERM or SIGINT.

        Args:
            started: Called once all of them answer requests.

        Raises:
            StoreError: A worker dies again and again before all have served.
        """
        told = False
        while not self._stopping.is_set():
            for worker in self._workers:
                worker.look(self._clock.now())
            if not told and all(worker.ready for worker in self._workers):
                told = True
                started()
            if not told and any(worker.died >= _FIRST_TRIES for worker in self._workers):
                raise StoreError(
                    "a worker ends before it has served", remedy="read what it wrote to stderr"
                )
            self._stopping.wait(_LOOK_SECONDS)


def _stop(workers: list[_Process], patience_seconds: float, clock: Clock) -> None:
    for worker in workers:
        worker.stop()
    deadline = clock.now() + patience_seconds
    while any(not worker.ended() for worker in workers) and clock.now() < deadline:
        clock.sleep(_LOOK_SECONDS)
    for worker in workers:
        worker.kill()


def shared_memory(descriptor: int) -> mmap.mmap:
    """The counters of all workers."""
    return mmap.mmap(descriptor, SHARED_BYTES)
