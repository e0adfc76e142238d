"""Trainings go on while their server dies and comes back, over and over.

Runs as a program of its own, since it forks: ``python -m support.kill_test.soak --help``, with
``tests`` on the path.

Every call of a training's client must return in time and raise nothing, and every report that was
handed over must be in the store in the end, once, even if the training is killed right after.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from typing import TYPE_CHECKING, TypeVar

from joulery.client import ResilientClient
from joulery.client._http import HttpBackend
from joulery.client._outbox import file_stem
from joulery.errors import StoreBusyError
from joulery.jobs import Definition, Request
from joulery.testing.workloads import made_up_workload
from support.history_file import Call, Recorder
from support.kill_test import slots
from support.kill_test.client import made_up_outcome
from support.kill_test.driver import KillPlan, KillResult, KillTest, answers, await_server
from support.kill_test.roles import TEAM

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from joulery.jobs import Decision
    from joulery.storage import Document
    from support.kill_test.slots import Site

T = TypeVar("T")

_POLICY = "zeus"  # the newer of the two that a kill test defines
_CALL_SECONDS = 0.5  # longest time of a call
_MARGIN_SECONDS = 1.0  # for an outbox that others write to, on a busy machine
_PATIENCE_SECONDS = 60.0
_TRAININGS = 4


class Training:
    """Runs one recurrence after the other, whatever happens to its server.

    Args:
        site: Store, servers and files.
        name: Name of the process.
        history: Log of this training, over all its processes.
    """

    def __init__(self, site: Site, name: str, history: Path) -> None:
        url = f"http://127.0.0.1:{site.ports[0]}"
        os.environ["XDG_STATE_HOME"] = str(site.folder)
        self._client = ResilientClient(
            lambda: HttpBackend(url, TEAM, site.token, _CALL_SECONDS),
            url,
            _CALL_SECONDS,
            Definition(made_up_workload().job(), policy=_POLICY),
        )
        self._job = site.jobs[-1]
        self._name = name
        self._slow = site.folder / "slow"
        self._kept = site.folder / "kept"
        self._recorder = Recorder(history)
        self._rng = random.Random(name)  # noqa: S311 - made-up figures
        self._count = 0

    def step(self) -> bool:
        """One run; whether there was a decision."""
        self._count += 1
        key = f"{self._name}.{self._count}"
        request: Document = {"after": None, "probing": False}
        decisions: list[Decision] = []

        def ask() -> Document:
            decisions.append(self._timed(lambda: self._client.decide(Request(key))))
            if not decisions[0].id:
                raise StoreBusyError(decisions[0].reason, remedy="it runs all the same")
            return decisions[0].to_document()

        answer = self._recorder.carry_out(Call("decide", self._job, key, request), ask)
        decision = decisions[0]
        outcome = made_up_outcome(decision, self._rng)
        self._timed(lambda: self._client.heartbeat(decision, outcome))
        if answer is not None:
            report: Document = {"decision": decision.id, "outcome": outcome.to_document()}
            call = Call("report", self._job, key, report)

            def promise() -> Document:
                self._timed(lambda: self._client.report(decision, outcome, key))
                if self._client.trouble is not None:
                    _note(self._kept, key)
                return {}

            self._recorder.carry_out(call, promise)
        return answer is not None

    def _timed(self, call: Callable[[], T]) -> T:
        began = time.monotonic()
        answer = call()
        took = time.monotonic() - began
        if took > _CALL_SECONDS + _MARGIN_SECONDS:
            _note(self._slow, f"{took:.2f}")
        return answer


def _note(file: Path, line: str) -> None:
    with file.open("a", encoding="ascii") as stream:
        stream.write(line + "\n")


def _outbox(site: Site) -> Path:
    url = f"http://127.0.0.1:{site.ports[0]}"
    return site.folder / "joulery" / "undelivered" / f"{file_stem(url)}.jsonl"


class Soak(KillTest):
    """A kill test of trainings and their server.

    Args:
        seconds: Duration, at least.
        reports: Number of answers to wait for, at least, as long as it takes.
        database: ``sqlite`` or ``postgresql``.
        seed: Seed of the moments.
    """

    def __init__(
        self, seconds: float, reports: int = 0, database: str = "sqlite", seed: int = 1
    ) -> None:
        super().__init__(KillPlan(database=database, servers=1, seed=seed))
        self._seconds = seconds
        self._reports = reports

    def run(self, until_seconds: float = float("inf")) -> KillResult:
        """Kill until the time is over, then let everything be delivered, and check."""
        began = time.monotonic()
        site = self._begin("soak")
        server = slots.server(site, site.ports[0])
        trainings = [_slot(site, number) for number in range(_TRAININGS)]
        occupied: list[tuple[slots.Slot, float]] = [(server, 2.0)]
        occupied += [(slot, 0.3) for slot in trainings]
        server.fill()
        await_server(site.ports[0])
        for slot in trainings:
            slot.fill()
        try:
            self._kill(site, occupied, began + min(self._seconds, until_seconds))
            for slot in trainings:
                slot.clear()
            self._deliver(site, server)
        finally:
            server.clear()
        self._check(site)
        self._result.counts["reports by way of the outbox"] = len(_lines(site.folder / "kept"))
        slow = _lines(site.folder / "slow")
        self._result.violations += [f"slow: a call took {seconds} s" for seconds in slow]
        self._result.seconds = time.monotonic() - began
        return self._result

    def _kill(self, site: Site, occupied: list[tuple[slots.Slot, float]], until: float) -> None:
        weights = [weight for _, weight in occupied]
        histories = [_history(site, number) for number in range(_TRAININGS)]
        while not self._result.violations:
            if time.monotonic() >= until and answers(histories) >= self._reports:
                return
            time.sleep(self._rng.uniform(0.2, 1.5))  # long enough to come back, mostly
            self._look(occupied)
            victim = self._rng.choices([slot for slot, _ in occupied], weights)[0]
            self._result.killed[victim.kill_and_restart()] += 1

    def _deliver(self, site: Site, server: slots.Forked) -> None:
        """As the next training does."""
        server.kill_and_restart()
        await_server(site.ports[0])

        def work() -> None:
            training = Training(site, "last", site.folder / f"{site.name}-client-last.jsonl")
            deadline = time.monotonic() + _PATIENCE_SECONDS
            outbox = _outbox(site)
            while time.monotonic() < deadline:
                if training.step() and not (outbox.exists() and outbox.stat().st_size):
                    return
                time.sleep(0.1)
            raise AssertionError("what waited was not delivered")

        waiting = _outbox(site).read_bytes().count(b"\n") if _outbox(site).exists() else 0
        self._result.counts["undelivered at the end"] = waiting
        self._do(work)


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="ascii").split() if file.exists() else []


def _history(site: Site, number: int) -> Path:
    return site.folder / f"{site.name}-client-{number}.jsonl"


def _slot(site: Site, number: int) -> slots.Forked:
    def work(life: int) -> None:
        training = Training(site, f"t{number}.{life}", _history(site, number))
        while True:
            training.step()

    return slots.Forked("training", work, site.log)


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak, and print the toll as JSON; 0 if no promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--reports", type=int, default=0, help="answers to wait for")
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--seed", type=int, default=1)
    with Soak(**vars(parser.parse_args(arguments))) as soak:
        result = soak.run()
    sys.stdout.write(json.dumps(result.to_document()) + "\n")
    return int(bool(result.violations))


if __name__ == "__main__":
    sys.exit(main())
