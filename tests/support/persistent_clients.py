"""Clients that repeat every failed request, and checks of what the server then has."""

from __future__ import annotations

import threading
import time
from http.client import HTTPException
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from support.server_process import Answered, ServerProcess

Found = TypeVar("Found")
_PATIENCE_SECONDS = 60.0
_PAUSE_SECONDS = 0.02


def until(condition: Callable[[], Found]) -> Found:
    """Wait until ``condition`` gives something true, and return it."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline
        time.sleep(_PAUSE_SECONDS)
    return value


class Clients:
    """Threads that decide and report within the ``with`` block, repeating what fails.

    Args:
        server: Server that they call.
        job: Number of the job that they work for.
        name: Prefix of their keys.
        count: Number of threads.

    Attributes:
        acknowledged: Keys of reports that were acknowledged.
        statuses: Status codes of all answers.
    """

    def __init__(self, server: ServerProcess, job: int, name: str = "", count: int = 4) -> None:
        self._server = server
        self._job = job
        self._name = name
        self._stopping = threading.Event()
        self._threads = [
            threading.Thread(target=self._work, args=(number,)) for number in range(count)
        ]
        self.acknowledged: list[str] = []
        self.statuses: list[int] = []

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join(_PATIENCE_SECONDS)

    def _work(self, number: int) -> None:
        turn = 0
        while not self._stopping.is_set():
            key = f"{self._name}{number}.{turn}"
            turn += 1
            decision = self._persist(self._decide, key)
            if decision is None:
                return
            if self._persist(self._server.report, decision.document, key) is not None:
                self.acknowledged.append(key)

    def _decide(self, key: str) -> Answered:
        return self._server.ask("POST", f"/v1/jobs/{self._job}/decisions", {"key": key})

    def _persist(self, call: Callable[..., Answered], *arguments: Any) -> Answered | None:
        """The same request again until it is answered; None where the server is gone at the end."""
        while True:
            try:
                answer = call(*arguments)
            except (OSError, HTTPException):  # also one cut short in the middle of an answer
                if self._stopping.is_set():
                    return None
            else:
                self.statuses.append(answer.status)
                if answer.status == 200:
                    return answer
                assert answer.status == 503, answer.body
                assert int(answer.headers["retry-after"]) >= 1
            time.sleep(_PAUSE_SECONDS)


def reported_keys(server: ServerProcess, job: int) -> list[str]:
    """Keys of all decisions that have an outcome."""
    keys: list[str] = []
    after: int | None = 0
    while after is not None:
        path = f"/v1/jobs/{job}/decisions?limit=1000&after={after}"
        page = server.ask("GET", path).document
        keys += [entry["key"] for entry in page["decisions"] if entry["state"] == "reported"]
        after = page["next"]
    return keys


def assert_nothing_lost_or_doubled(
    server: ServerProcess, job: int, acknowledged: Sequence[str]
) -> None:
    """Check that every acknowledged report is stored, once."""
    keys = reported_keys(server, job)
    assert len(keys) == len(set(keys))
    assert set(acknowledged) <= set(keys)
