"""Trainings go on while their server dies and comes back, over and over.

Run as a program of its own, since it forks: ``python -m joulery.testing.storm.soak --help``.

Every call of a training's clerk must return in time and raise nothing, and every report that was
handed over must be in the store in the end, once, even if the training is killed right after.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from typing import TYPE_CHECKING, TypeVar

from joulery.client.http import HttpBackend
from joulery.client.places import file_stem
from joulery.client.resilient import Order, ResilientClient
from joulery.errors import StoreBusyError
from joulery.jobs.requests import Definition, Request
from joulery.jobs.wire import decision_document, outcome_document
from joulery.testing.history_file import Call, Recorder
from joulery.testing.storm import slots
from joulery.testing.storm.client import made_up_outcome
from joulery.testing.storm.driver import Plan, Storm, Toll, await_server
from joulery.testing.storm.roles import TEAM
from joulery.testing.workloads import made_up_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from joulery.jobs.models import Decision
    from joulery.storage.records import Document
    from joulery.testing.storm.slots import Place

T = TypeVar("T")

_POLICY = "zeus"  # the newer of the two that a storm defines
_CALL_SECONDS = 0.5  # that the clerk is granted for a call
_MARGIN_SECONDS = 1.0  # for a journal that others write to, on a busy machine
_PATIENCE_SECONDS = 60.0
_TRAININGS = 4


class Training:
    """Runs one recurrence after the other, whatever happens to its server.

    Args:
        place: Where.
        name: Of this life.
        history: File of this training, over all its lives.
    """

    def __init__(self, place: Place, name: str, history: Path) -> None:
        url = f"http://127.0.0.1:{place.ports[0]}"
        self._clerk = ResilientClient(
            lambda: HttpBackend.open(url, TEAM, place.token, seconds=_CALL_SECONDS),
            url,
            _CALL_SECONDS,
            Order(Definition(made_up_workload().job(), policy=_POLICY)),
            folder=_state(place),
        )
        self._job = place.jobs[-1]
        self._name = name
        self._slow = place.folder / "slow"
        self._kept = place.folder / "kept"
        self._recorder = Recorder(history)
        self._luck = random.Random(name)  # noqa: S311 - made-up figures
        self._count = 0

    def step(self) -> bool:
        """One run; whether somebody told what to run."""
        self._count += 1
        key = f"{self._name}.{self._count}"
        sent: Document = {"after": None, "probing": False}
        made: list[Decision] = []

        def ask() -> Document:
            made.append(self._timed(lambda: self._clerk.decide(Request(key))))
            if not made[0].id:
                raise StoreBusyError(made[0].reason, remedy="it runs all the same")
            return decision_document(made[0])

        answered = self._recorder.carry_out(Call("decide", self._job, key, sent), ask)
        decision = made[0]
        outcome = made_up_outcome(decision, self._luck)
        self._timed(lambda: self._clerk.heartbeat(decision, outcome))
        if answered is not None:
            told: Document = {"decision": decision.id, "outcome": outcome_document(outcome)}
            call = Call("report", self._job, key, told)

            def promise() -> Document:
                self._timed(lambda: self._clerk.report(decision, outcome, key))
                if self._clerk.trouble is not None:
                    _note(self._kept, key)
                return {}

            self._recorder.carry_out(call, promise)
        return answered is not None

    def _timed(self, call: Callable[[], T]) -> T:
        began = time.monotonic()
        answer = call()
        took = time.monotonic() - began
        if took > _CALL_SECONDS + _MARGIN_SECONDS:
            _note(self._slow, f"{took:.2f}")
        return answer


def _note(file: Path, line: str) -> None:
    with file.open("a", encoding="ascii") as opened:
        opened.write(line + "\n")


def _state(place: Place) -> Path:
    return place.folder / "state"


def _journal(place: Place) -> Path:
    url = f"http://127.0.0.1:{place.ports[0]}"
    return _state(place) / "undelivered" / f"{file_stem(url)}.jsonl"


class Soak(Storm):
    """A storm over trainings.

    Args:
        seconds: That it lasts.
        database: ``sqlite`` or ``postgresql``.
        seed: Of the moments.
    """

    def __init__(self, seconds: float, database: str = "sqlite", seed: int = 1) -> None:
        super().__init__(Plan(database=database, servers=1, seed=seed))
        self._seconds = seconds

    def run(self, until_seconds: float = float("inf")) -> Toll:
        """Kill until the time is over, then let everything be delivered, and check."""
        began = time.monotonic()
        place = self._begin("soak")
        server = slots.server(place, place.ports[0])
        trainings = [_slot(place, number) for number in range(_TRAININGS)]
        occupied: list[tuple[slots.Slot, float]] = [(server, 2.0)]
        occupied += [(slot, 0.3) for slot in trainings]
        server.fill()
        await_server(place.ports[0])
        for slot in trainings:
            slot.fill()
        try:
            self._strike(occupied, began + min(self._seconds, until_seconds))
            for slot in trainings:
                slot.clear()
            self._deliver(place, server)
        finally:
            server.clear()
        self._check(place)
        self._toll.counts["reports by way of the journal"] = len(_lines(place.folder / "kept"))
        slow = _lines(place.folder / "slow")
        self._toll.violations += [f"slow: a call took {seconds} s" for seconds in slow]
        self._toll.seconds = time.monotonic() - began
        return self._toll

    def _strike(self, occupied: list[tuple[slots.Slot, float]], until: float) -> None:
        weights = [weight for _, weight in occupied]
        while time.monotonic() < until and not self._toll.violations:
            time.sleep(self._luck.uniform(0.2, 1.5))  # long enough to come back, mostly
            self._look(occupied)
            victim = self._luck.choices([slot for slot, _ in occupied], weights)[0]
            self._toll.killed[victim.strike(self._luck)] += 1

    def _deliver(self, place: Place, server: slots.Forked) -> None:
        """As the next training does."""
        server.strike(self._luck)
        await_server(place.ports[0])

        def work() -> None:
            training = Training(place, "last", place.folder / f"{place.name}-client-last.jsonl")
            deadline = time.monotonic() + _PATIENCE_SECONDS
            journal = _journal(place)
            while time.monotonic() < deadline:
                if training.step() and not (journal.exists() and journal.stat().st_size):
                    return
                time.sleep(0.1)
            raise AssertionError("what waited was not delivered")

        waiting = _journal(place).read_bytes().count(b"\n") if _journal(place).exists() else 0
        self._toll.counts["undelivered at the end"] = waiting
        self._do(work)


def _lines(file: Path) -> list[str]:
    return file.read_text(encoding="ascii").split() if file.exists() else []


def _slot(place: Place, number: int) -> slots.Forked:
    history = place.folder / f"{place.name}-client-{number}.jsonl"

    def work(life: int) -> None:
        training = Training(place, f"t{number}.{life}", history)
        while True:
            training.step()

    return slots.Forked("training", work, place.log)


def main(arguments: Sequence[str] | None = None) -> int:
    """Soak, and print the toll as JSON; 0 if no promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--seed", type=int, default=1)
    with Soak(**vars(parser.parse_args(arguments))) as soak:
        toll = soak.run()
    sys.stdout.write(json.dumps(toll.to_document()) + "\n")
    return int(bool(toll.violations))


if __name__ == "__main__":
    sys.exit(main())
