"""A storm: processes are killed at random moments, and a history tells what became of their work.

Run as a program of its own, since it forks: ``python -m joulery.testing.storm.driver --help``.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from joulery.jobs.requests import Definition
from joulery.jobs.service import JobService
from joulery.storage.store import Store
from joulery.storage.tokens import EVERY_TEAM, NewToken, Permission, add_token
from joulery.testing.history import check_store
from joulery.testing.history_file import read_calls
from joulery.testing.postgresql import Cluster
from joulery.testing.storm import processes, slots
from joulery.testing.storm.roles import TEAM, import_all
from joulery.testing.workloads import made_up_workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulery.testing.storm.slots import Place, Slot

_POLICIES = ("joulery", "zeus")
_LOWEST_PORT, _HIGHEST_PORT = 20_000, 30_000  # below those that the system gives to clients
_SHOWN = 5
_PATIENCE_SECONDS = 60.0
_FEW, _FEW_ANSWERS = 2, 10  # clients, and answers that they get once the storm is over


@dataclass(frozen=True, slots=True)
class Plan:
    """What a storm is like.

    Attributes:
        database: ``sqlite`` or ``postgresql``.
        kills: How many, at least.
        round_kills: After so many the store is checked, and new jobs are begun.
        pause_seconds: Between kills, on average.
        servers: At once, each a process of its own.
        clients: At once.
        writers: Processes at once that work on the store without a server.
        supervised: Whether a real ``joulery serve --workers 2`` takes the place of the servers.
        crash_every: After so many kills the database crashes as well (PostgreSQL only).
        seed: Of all that is random.
    """

    database: str = "sqlite"
    kills: int = 100
    round_kills: int = 250
    pause_seconds: float = 0.04
    servers: int = 2
    clients: int = 10
    writers: int = 2
    supervised: bool = False
    crash_every: int = 100
    seed: int = 1


_PLAN = Plan()


@dataclass(slots=True)
class Toll:
    """What a storm did.

    Attributes:
        killed: By kind.
        counts: What was looked at afterwards.
        violations: Promises that were broken, in words.
        seconds: That it took.
    """

    killed: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def kills(self) -> int:
        """Of processes by SIGKILL; crashes of the database are besides."""
        return sum(many for kind, many in self.killed.items() if kind != "database")

    def to_document(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "kills": self.kills,
            "killed": dict(self.killed),
            "counts": dict(self.counts),
            "violations": self.violations,
            "seconds": round(self.seconds, 1),
        }


class Storm:
    """One storm over one database, within its ``with`` block.

    Args:
        plan: What it is like.
        tell: Called after every round.
    """

    def __init__(self, plan: Plan, tell: Callable[[Toll], None] = lambda _: None) -> None:
        self._plan = plan
        self._tell = tell
        self._luck = random.Random(plan.seed)  # noqa: S311 - moments to kill at, no secrets
        self._closing = ExitStack()
        self._cluster: Cluster | None = None
        self._folder = Path()
        self._location = ""
        self._toll = Toll()

    def __enter__(self) -> Self:
        import_all()
        folder = tempfile.mkdtemp(prefix="joulery-storm-")
        self._closing.callback(self._clean, folder)
        self._folder = Path(folder)
        if self._plan.database == "postgresql":
            self._cluster = self._closing.enter_context(Cluster())
            self._location = self._cluster.new_database()
        else:
            self._location = str(self._folder / "store.sqlite")
        return self

    def __exit__(self, *_: object) -> None:
        self._closing.close()

    def _clean(self, folder: str) -> None:
        """Remove everything, unless somebody will want to look at it."""
        if not self._toll.violations:
            shutil.rmtree(folder, ignore_errors=True)

    def run(self, until_seconds: float = float("inf")) -> Toll:
        """Kill until there were enough, or the time is over."""
        began, number = time.monotonic(), 0
        while self._toll.kills < self._plan.kills and not self._toll.violations:
            number += 1
            self._round(number)
            self._toll.seconds = time.monotonic() - began
            self._tell(self._toll)
            if self._toll.seconds > until_seconds:
                break
        return self._toll

    def _round(self, number: int) -> None:
        place = self._begin(f"r{number}")
        occupied = self._slots(place, number)
        weights = [weight for _, weight in occupied]
        target = min(self._plan.kills, self._toll.kills + self._plan.round_kills)
        for slot, _ in occupied:
            slot.fill()
        for port in place.ports:
            await_server(port)
        try:
            while self._toll.kills < target:
                time.sleep(self._luck.expovariate(1.0 / self._plan.pause_seconds))
                victim = self._luck.choices([slot for slot, _ in occupied], weights)[0]
                self._look(occupied)
                self._toll.killed[victim.strike(self._luck)] += 1
                self._maybe_crash()
            self._await_answers(place)
            self._look(occupied)
        finally:
            for slot, _ in occupied:
                slot.clear()
                if isinstance(slot, slots.Supervised):
                    self._toll.counts["restarts refused"] += slot.refused
        self._check(place)

    def _await_answers(self, place: Place) -> None:
        """Once nobody is killed any more, everybody is served again."""
        histories = [self._folder / f"{place.name}-client-{one}.jsonl" for one in range(_FEW)]
        deadline = time.monotonic() + _PATIENCE_SECONDS
        before = _answers(histories)
        while _answers(histories) < before + _FEW_ANSWERS:
            if time.monotonic() > deadline:
                self._toll.violations.append("stuck: clients get no answers after the storm")
                return
            time.sleep(0.05)

    def _slots(self, place: Place, number: int) -> list[tuple[Slot, float]]:
        """Places, and how often each is struck."""
        plan, seed = self._plan, self._plan.seed * 1000 + number
        made: list[tuple[Slot, float]] = []
        if plan.supervised:
            made.append((slots.Supervised(place, place.ports[0]), 0.3))
        else:
            made += [(slots.server(place, port), 0.5) for port in place.ports]
        made += [(slots.client(place, one, seed), 1.0) for one in range(plan.clients)]
        made += [(slots.writer(place, one, seed), 0.6) for one in range(plan.writers)]
        return made

    def _look(self, occupied: Sequence[tuple[Slot, float]]) -> None:
        """Nobody may end who was not killed."""
        for slot, _ in occupied:
            if slot.died():
                log = (self._folder / "log").read_text(encoding="utf-8", errors="replace")
                self._toll.violations.append(f"a process ended by itself: {log[-2000:]}")

    def _maybe_crash(self) -> None:
        if self._cluster is not None and self._toll.kills % self._plan.crash_every == 0:
            self._cluster.stop(signal.SIGQUIT)
            self._cluster.start()
            self._toll.killed["database"] += 1

    def _begin(self, name: str) -> Place:
        """New jobs, made by a process that ends before others begin."""
        location, file = self._location, self._folder / "begun"

        def work() -> None:
            with Store.open(location) as store:
                desk, load = JobService(store), made_up_workload()
                jobs = [
                    desk.define(TEAM, Definition(load.job(), policy=policy)).id
                    for policy in _POLICIES
                ]
                now = time.time()
                wanted = NewToken(EVERY_TEAM, Permission.WORK, "storm", now + 86_400.0)
                token, _ = store.write(lambda ledger: add_token(ledger, wanted, now))
            file.write_text(json.dumps([jobs, token]), encoding="ascii")

        self._do(work)
        jobs, token = json.loads(file.read_text(encoding="ascii"))
        many = 1 if self._plan.supervised else self._plan.servers
        ports = self._luck.sample(range(_LOWEST_PORT, _HIGHEST_PORT), many)
        return slots.Place(self._location, self._folder, ports, token, jobs, name)

    def _check(self, place: Place) -> None:
        file = self._folder / "found"
        histories = sorted(self._folder.glob(f"{place.name}-*.jsonl"))

        def work() -> None:
            with Store.open(place.location) as store:
                calls = read_calls(histories)
                found = check_store(store, calls, place.jobs)
            over_http = read_calls(one for one in histories if "-client-" in one.name)
            found.counts["acknowledged over HTTP"] += sum(bool(one.answer) for one in over_http)
            said = [f"{one.fault}: {one.about}" for one in found.violations]
            file.write_text(json.dumps([found.counts, said]), encoding="ascii")

        self._do(work)
        counts, violations = json.loads(file.read_text(encoding="ascii"))
        self._toll.counts += Counter(counts)
        self._toll.violations += [f"{one} (see {self._folder})" for one in violations]
        if not violations:
            for history in histories:
                history.unlink()

    def _do(self, work: Callable[[], None]) -> None:
        """In a process of its own, so that this one stays as simple as forking needs."""
        process = processes.fork(work, self._folder / "log")
        _, status = os.waitpid(process, 0)
        log = self._folder / "log"
        assert status == 0, log.read_text(encoding="utf-8", errors="replace")[-2000:]


def _answers(histories: Sequence[Path]) -> int:
    return sum(one.read_bytes().count(b'"answer"') for one in histories if one.exists())


def await_server(port: int) -> None:
    """Wait until a server answers."""
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while time.monotonic() < deadline:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_SECONDS)
        with suppress(OSError, http.client.HTTPException), closing(connection):
            connection.request("GET", "/health/ready")
            if connection.getresponse().status == HTTPStatus.OK:
                return
        time.sleep(0.02)
    raise AssertionError("a server does not get ready")


def main(arguments: Sequence[str] | None = None) -> int:
    """Make a storm and print its toll as JSON; 0 if no promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--kills", type=int, default=_PLAN.kills)
    parser.add_argument("--round-kills", type=int, default=_PLAN.round_kills)
    parser.add_argument("--pause-seconds", type=float, default=_PLAN.pause_seconds)
    parser.add_argument("--crash-every", type=int, default=_PLAN.crash_every)
    parser.add_argument("--servers", type=int, default=_PLAN.servers)
    parser.add_argument("--clients", type=int, default=_PLAN.clients)
    parser.add_argument("--writers", type=int, default=_PLAN.writers)
    parser.add_argument("--supervised", action="store_true", help="joulery serve --workers 2")
    parser.add_argument("--seed", type=int, default=_PLAN.seed)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    given = vars(parser.parse_args(arguments))
    until = given.pop("seconds")
    with Storm(Plan(**given), _progress) as storm:
        toll = storm.run(until)
    sys.stdout.write(json.dumps(toll.to_document()) + "\n")
    for violation in toll.violations[:_SHOWN]:
        sys.stderr.write(violation + "\n")
    return int(bool(toll.violations))


def _progress(toll: Toll) -> None:
    sys.stderr.write(
        f"{toll.kills} kills {dict(toll.killed)}, {len(toll.violations)} broken, "
        f"{toll.seconds:.0f} s, {toll.counts['events']} events\n"
    )


if __name__ == "__main__":
    sys.exit(main())
