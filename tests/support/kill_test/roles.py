"""What the processes of a kill test do until they are killed."""

from __future__ import annotations

import importlib
import os
import random
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.client._http import HttpBackend
from joulery.errors import StoreError
from joulery.jobs import JobService
from joulery.server import ServerConfig, serve as run
from joulery.storage import Store
from support.history_file import Recorder, read_calls
from support.kill_test.client import Client

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


TEAM = "kill test"
_PAUSE_SECONDS = 0.02
_ANSWER_SECONDS = 5.0
# Decisions of writers that die come back soon, so that there are late reports.
_LEASE_SECONDS = 0.5


_NEEDED = (
    "alembic.command",
    "joulery.jobs.policies.bayesian._policy",
    "joulery.jobs.policies._zeus",
    "joulery.server._main",
    "psycopg",
    "uvicorn.lifespan.off",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
)


def import_all() -> None:
    """Import what servers and clients would import in their first moments."""
    for name in _NEEDED:
        importlib.import_module(name)


@dataclass(frozen=True, slots=True)
class Task:
    """The task of a client or writer.

    Attributes:
        name: Name of the process.
        history: Log of this client, over all its processes.
        jobs: Numbers of the jobs to work for.
        seed: Seed of what it does.
    """

    name: str
    history: Path
    jobs: Sequence[int]
    seed: int


def serve(location: str, port: int, ready: int) -> None:
    """What ``joulery serve`` does, once its packages are imported.

    Args:
        location: Location of the store.
        port: Port to listen on.
        ready: File descriptor to close once requests are answered.
    """
    config = ServerConfig(store=location, port=port, expire_seconds=0.5)
    while True:
        try:
            run(config, lambda _: os.close(ready))
        except StoreError as error:  # its database is restarting; a supervisor would try again
            sys.stderr.write(f"server: {error}\n")
            time.sleep(_PAUSE_SECONDS)


def ask_server(url: str, token: str, task: Task) -> None:
    """A client over HTTP."""
    _work(HttpBackend(url, TEAM, token, _ANSWER_SECONDS), task)


def write_directly(location: str, task: Task) -> None:
    """A client without a server, on the same store."""
    while True:
        try:
            store = Store.open(location)
        except StoreError as error:
            sys.stderr.write(f"writer: {error}\n")
            time.sleep(_PAUSE_SECONDS)
        else:
            _work(JobService(store, lease_seconds=_LEASE_SECONDS), task)


def _work(backend: HttpBackend | JobService, task: Task) -> None:
    earlier = read_calls([task.history])
    rng = random.Random(task.seed)  # noqa: S311 - no secret
    client = Client(task.name, backend, Recorder(task.history), task.jobs, rng)
    client.resume(earlier)
    while True:
        client.step()
