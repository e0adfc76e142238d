"""Slots for processes, each filled again as soon as its process is killed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from support.kill_test import processes, roles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Site:
    """Store, servers and files of one round.

    Attributes:
        location: Location of the store.
        folder: Folder of logs.
        ports: Ports of the servers.
        token: Token for clients.
        jobs: Numbers of the jobs that are worked for.
        name: Name of the round.
    """

    location: str
    folder: Path
    ports: Sequence[int]
    token: str
    jobs: Sequence[int]
    name: str

    @property
    def log(self) -> Path:
        """File of the errors of all processes."""
        return self.folder / "log"


class Slot(Protocol):
    """A slot for a process."""

    def fill(self) -> None:
        """Start a process."""
        ...

    def kill_and_restart(self) -> str:
        """Kill the process and start another; the kind of process."""
        ...

    def clear(self) -> None:
        """Kill the process, for good."""
        ...

    def died(self) -> bool:
        """Whether the process has ended by itself; if so, another is started."""
        ...


class Forked:
    """A slot for a forked process.

    Args:
        kind: Kind of process, in a word.
        work: Function that the process runs, given the number of the process.
        log: File of its errors.
    """

    def __init__(self, kind: str, work: Callable[[int], None], log: Path) -> None:
        self._kind = kind
        self._work = work
        self._log = log
        self._life = 0
        self._process = 0

    def fill(self) -> None:
        """Start a process."""
        self._life += 1
        life = self._life
        self._process = processes.fork(lambda: self._work(life), self._log)

    def kill_and_restart(self) -> str:
        """Kill the process and start another; the kind of process."""
        self.clear()
        self.fill()
        return self._kind

    def clear(self) -> None:
        """Kill the process."""
        processes.kill(self._process)

    def died(self) -> bool:
        """Whether the process has ended by itself."""
        if processes.ended(self._process) is None:
            return False
        self.fill()
        return True


def server(site: Site, port: int) -> Forked:
    """A slot for a server."""

    def work(_: int) -> None:
        os.environ["XDG_DATA_HOME"] = str(site.folder)
        reader, ready = os.pipe()
        roles.serve(site.location, port, ready)
        os.close(reader)

    return Forked("server", work, site.log)


def client(site: Site, number: int, seed: int) -> Forked:
    """A slot for a client over HTTP."""
    history = site.folder / f"{site.name}-client-{number}.jsonl"

    def work(life: int) -> None:
        name = f"{site.name}c{number}.{life}"
        url = f"http://127.0.0.1:{site.ports[(number + life) % len(site.ports)]}"
        task = roles.Task(name, history, site.jobs, seed * 10**6 + number * 10**4 + life)
        roles.ask_server(url, site.token, task)

    return Forked("client", work, site.log)


def writer(site: Site, number: int, seed: int) -> Forked:
    """A slot for a process that decides and reports on the store itself."""
    history = site.folder / f"{site.name}-writer-{number}.jsonl"

    def work(life: int) -> None:
        name = f"{site.name}w{number}.{life}"
        task = roles.Task(name, history, site.jobs, -seed * 10**6 - number * 10**4 - life)
        roles.write_directly(site.location, task)

    return Forked("writer", work, site.log)
