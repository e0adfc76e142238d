"""Places for processes: filled again as soon as what was in them is killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from support.process_tree import children, family
from joulery.testing.storm import processes, roles

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence
    from pathlib import Path

_WRONG_USE = 2  # exit code; a port that is taken is one


@dataclass(frozen=True, slots=True)
class Place:
    """Where a storm takes place.

    Attributes:
        location: Of the store.
        folder: For histories and logs.
        ports: Of the servers.
        token: For clients.
        jobs: That are worked for.
        name: Of the round.
    """

    location: str
    folder: Path
    ports: Sequence[int]
    token: str
    jobs: Sequence[int]
    name: str

    @property
    def log(self) -> Path:
        """Where all processes complain."""
        return self.folder / "log"


class Slot(Protocol):
    """A place for a process."""

    def fill(self) -> None:
        """Start one."""
        ...

    def strike(self, luck: random.Random) -> str:
        """Kill what is there, or a part of it; what was killed. Fill it again."""
        ...

    def clear(self) -> None:
        """Kill what is there, for good."""
        ...

    def died(self) -> bool:
        """Whether it has ended by itself; if so it is filled again."""
        ...


class Forked:
    """A slot for a forked process.

    Args:
        kind: What is in it, in a word.
        work: What to do, given the number of the life.
        log: Where it complains.
    """

    def __init__(self, kind: str, work: Callable[[int], None], log: Path) -> None:
        self._kind = kind
        self._work = work
        self._log = log
        self._life = 0
        self._process = 0

    def fill(self) -> None:
        """Start one."""
        self._life += 1
        life = self._life
        self._process = processes.fork(lambda: self._work(life), self._log)

    def strike(self, luck: random.Random) -> str:
        """Kill it and start another; or only the desk of a server, which does that itself."""
        desks = children(self._process)
        if desks and luck.random() < 0.3:
            with contextlib.suppress(ProcessLookupError):
                os.kill(desks[0], signal.SIGKILL)
            return "desk"
        self.clear()
        self.fill()
        return self._kind

    def clear(self) -> None:
        """Kill it."""
        processes.kill(self._process)

    def died(self) -> bool:
        """Whether it has ended by itself."""
        if processes.ended(self._process) is None:
            return False
        self.fill()
        return True


class Supervised:
    """A slot for ``joulery serve --workers 2``, with processes of its own.

    Args:
        place: Where it serves.
        port: To listen on.

    Attributes:
        refused: How often it could not start at once, since a worker that it had left behind was
            still at its port; whoever keeps servers running tries again.
    """

    def __init__(self, place: Place, port: int) -> None:
        self.refused = 0
        self._command = [sys.executable, "-m", "joulery", "serve", "--store", place.location]
        self._command += ["--workers", "2", "--port", str(port), "--json"]
        self._environment = os.environ | {"XDG_DATA_HOME": str(place.folder)}
        self._log = place.log
        self._process: subprocess.Popen[bytes] | None = None

    def fill(self) -> None:
        """Start it."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=subprocess.DEVNULL, stderr=log, env=self._environment
            )

    def strike(self, luck: random.Random) -> str:
        """Kill a worker or its desk, or now and then the one that watches over them."""
        assert self._process is not None
        started = family(self._process.pid)[1:]
        if started and luck.random() < 0.85:
            chosen = luck.choice(started)
            kind = "worker" if chosen in children(self._process.pid) else "desk"
            with contextlib.suppress(ProcessLookupError):
                os.kill(chosen, signal.SIGKILL)
            return kind
        self._process.kill()
        self._process.wait()
        self.fill()
        return "supervisor"

    def clear(self) -> None:
        """Kill it with its workers."""
        assert self._process is not None
        started = family(self._process.pid)[1:]
        self._process.kill()
        self._process.wait()
        for process in started:
            with contextlib.suppress(ProcessLookupError):  # it knew, and has ended
                os.kill(process, signal.SIGKILL)

    def died(self) -> bool:
        """Whether it has ended by itself, and not for want of its port."""
        assert self._process is not None
        code = self._process.poll()
        if code is None:
            return False
        self.fill()
        self.refused += code == _WRONG_USE
        return code != _WRONG_USE


def server(place: Place, port: int) -> Forked:
    """A slot for a server with one worker."""

    def work(_: int) -> None:
        os.environ["XDG_DATA_HOME"] = str(place.folder)
        nobody_listens, ready = os.pipe()
        roles.serve(place.location, port, ready)
        os.close(nobody_listens)

    return Forked("server", work, place.log)


def client(place: Place, number: int, seed: int) -> Forked:
    """A slot for a client over HTTP."""
    history = place.folder / f"{place.name}-client-{number}.jsonl"

    def work(life: int) -> None:
        name = f"{place.name}c{number}.{life}"
        url = f"http://127.0.0.1:{place.ports[(number + life) % len(place.ports)]}"
        task = roles.Task(name, history, place.jobs, seed * 10**6 + number * 10**4 + life)
        roles.ask_server(url, place.token, task)

    return Forked("client", work, place.log)


def writer(place: Place, number: int, seed: int) -> Forked:
    """A slot for a process that decides and reports on the store itself."""
    history = place.folder / f"{place.name}-writer-{number}.jsonl"

    def work(life: int) -> None:
        name = f"{place.name}w{number}.{life}"
        task = roles.Task(name, history, place.jobs, -seed * 10**6 - number * 10**4 - life)
        roles.write_directly(place.location, task)

    return Forked("writer", work, place.log)
