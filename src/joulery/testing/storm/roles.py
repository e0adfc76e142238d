"""What the processes of a storm do until they are killed."""

from __future__ import annotations

import importlib
import os
import random
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.client.http import HttpBackend
from joulery.errors import StoreError
from joulery.jobs.job_registry import ServiceConfig
from joulery.jobs.service import JobService
from joulery.jobs.snapshot import code_fingerprint
from joulery.server.running import run
from joulery.server.settings import Settings
from joulery.storage.store import Store
from joulery.testing.history_file import Recorder, read_calls
from joulery.testing.storm.client import Client

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulery.jobs.models import Decision, DecisionLease, Outcome, Receipt
    from joulery.jobs.requests import Request

TEAM = "storm"
_PAUSE_SECONDS = 0.02
_ANSWER_SECONDS = 5.0
# Decisions of writers that die come back soon, so that there are late reports.
_TERMS = ServiceConfig(lease_seconds=0.5)


_NEEDED = (
    "alembic.command",
    "joulery.jobs.policies.bayesian.policy",
    "joulery.jobs.policies.zeus",
    "joulery.server.first_start",
    "joulery.server.serving",
    "psycopg",
    "uvicorn.lifespan.off",
    "uvicorn.loops.uvloop",
    "uvloop",
)


def import_all() -> None:
    """What servers and clients would import in their first moments."""
    for name in _NEEDED:
        importlib.import_module(name)
    code_fingerprint()


@dataclass(frozen=True, slots=True)
class Task:
    """For a client or writer.

    Attributes:
        name: Of this life.
        history: File of this client, over all its lives.
        jobs: To work for.
        seed: Of what it does.
    """

    name: str
    history: Path
    jobs: Sequence[int]
    seed: int


class ServiceBackend:
    """A desk as clients ask it.

    Args:
        store: Of the desk.
    """

    def __init__(self, store: Store) -> None:
        self._desk = JobService(store, terms=_TERMS)

    def decide(self, job: int, request: Request) -> Decision:
        """What to run next."""
        return self._desk.decide(job, request)

    def heartbeat(self, decision: Decision, progress: Outcome | None = None) -> DecisionLease:
        """Say that a decision is being worked on."""
        return self._desk.heartbeat(decision.id, progress)

    def report(self, decision: Decision, outcome: Outcome, key: str) -> Receipt:
        """Tell how a decision ended."""
        return self._desk.report(decision.id, outcome, key)


def serve(location: str, port: int, ready: int) -> None:
    """What ``joulery serve`` does, once its packages are imported.

    Args:
        location: Of the store.
        port: To listen on.
        ready: File to write to once requests are answered.
    """
    settings = Settings(store=location, port=port, expire_seconds=0.5)
    while True:
        try:
            run(settings, lambda _: os.close(ready))
        except StoreError as error:  # its database is restarting; a supervisor would try again
            sys.stderr.write(f"server: {error}\n")
            time.sleep(_PAUSE_SECONDS)


def ask_server(url: str, token: str, task: Task) -> None:
    """A client over HTTP."""
    clerk = HttpBackend.open(url, TEAM, token, seconds=_ANSWER_SECONDS)
    _work(clerk, task)


def write_directly(location: str, task: Task) -> None:
    """A client without a server, on the same store."""
    while True:
        try:
            store = Store.open(location)
        except StoreError as error:
            sys.stderr.write(f"writer: {error}\n")
            time.sleep(_PAUSE_SECONDS)
        else:
            _work(ServiceBackend(store), task)


def _work(asked: HttpBackend | ServiceBackend, task: Task) -> None:
    earlier = read_calls([task.history])
    luck = random.Random(task.seed)  # noqa: S311 - what to do, no secret
    client = Client(task.name, asked, Recorder(task.history), task.jobs, luck)
    client.resume(earlier)
    while True:
        client.step()
