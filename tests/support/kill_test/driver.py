"""A kill test: processes are killed at random moments, and their logs show what became of it.

Runs as a program of its own, since it forks: ``python -m support.kill_test.driver --help``, with
``tests`` on the path.
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

from joulery.jobs import Definition, JobService
from joulery.storage import EVERY_TEAM, Permission, Store, TokenRecord, add_token
from joulery.testing.workloads import made_up_workload
from support.history import check_store
from support.history_file import read_calls
from support.kill_test import processes, slots
from support.kill_test.roles import TEAM, import_all
from support.postgresql import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from support.kill_test.slots import Site, Slot

_POLICIES = ("joulery", "zeus")
_LOWEST_PORT, _HIGHEST_PORT = 20_000, 30_000  # below those that the system gives to clients
_SHOWN = 5
_PATIENCE_SECONDS = 60.0
_FEW, _FEW_ANSWERS = 2, 10  # clients, and answers that they get once the kills are over


@dataclass(frozen=True, slots=True)
class KillPlan:
    """The plan of a kill test.

    Attributes:
        database: ``sqlite`` or ``postgresql``.
        kills: Number of kills, at least.
        round_kills: Kills after which the store is checked, and new jobs are begun.
        pause_seconds: Mean time between kills.
        servers: Number of servers at the same time.
        clients: Number of clients at the same time.
        writers: Number of processes that work on the store without a server.
        crash_every: Kills after which the database crashes as well (PostgreSQL only).
        seed: Seed of all that is random.
    """

    database: str = "sqlite"
    kills: int = 100
    round_kills: int = 250
    pause_seconds: float = 0.04
    servers: int = 2
    clients: int = 10
    writers: int = 2
    crash_every: int = 100
    seed: int = 1


_PLAN = KillPlan()


@dataclass(slots=True)
class KillResult:
    """The result of a kill test.

    Attributes:
        killed: Number of kills by kind of process.
        counts: Numbers of what was checked afterwards.
        violations: Promises that were broken, in words.
        seconds: Duration of the test.
    """

    killed: Counter[str] = field(default_factory=Counter)
    counts: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def kills(self) -> int:
        """Number of processes that were killed; crashes of the database not included."""
        return sum(many for kind, many in self.killed.items() if kind != "database")

    def to_document(self) -> dict[str, Any]:
        """The result as JSON."""
        return {
            "kills": self.kills,
            "killed": dict(self.killed),
            "counts": dict(self.counts),
            "violations": self.violations,
            "seconds": round(self.seconds, 1),
        }


class KillTest:
    """One kill test of one database, within its ``with`` block.

    Args:
        plan: Plan of the test.
        progress: Function that is called after every round.
    """

    def __init__(
        self, plan: KillPlan, progress: Callable[[KillResult], None] = lambda _: None
    ) -> None:
        self._plan = plan
        self._progress = progress
        self._rng = random.Random(plan.seed)  # noqa: S311 - no secrets
        self._closing = ExitStack()
        self._cluster: Cluster | None = None
        self._folder = Path()
        self._location = ""
        self._result = KillResult()

    def __enter__(self) -> Self:
        import_all()
        folder = tempfile.mkdtemp(prefix="joulery-kill-test-")
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
        """Remove everything, unless there is something to look into."""
        if not self._result.violations:
            shutil.rmtree(folder, ignore_errors=True)

    def run(self, until_seconds: float = float("inf")) -> KillResult:
        """Kill until the number or the time is reached."""
        began, number = time.monotonic(), 0
        while self._result.kills < self._plan.kills and not self._result.violations:
            number += 1
            self._round(number)
            self._result.seconds = time.monotonic() - began
            self._progress(self._result)
            if self._result.seconds > until_seconds:
                break
        return self._result

    def _round(self, number: int) -> None:
        site = self._begin(f"r{number}")
        occupied = self._slots(site, number)
        weights = [weight for _, weight in occupied]
        target = min(self._plan.kills, self._result.kills + self._plan.round_kills)
        for slot, _ in occupied:
            slot.fill()
        for port in site.ports:
            await_server(port)
        try:
            while self._result.kills < target:
                time.sleep(self._rng.expovariate(1.0 / self._plan.pause_seconds))
                victim = self._rng.choices([slot for slot, _ in occupied], weights)[0]
                self._look(occupied)
                self._result.killed[victim.kill_and_restart()] += 1
                self._maybe_crash()
            self._awaitanswers(site)
            self._look(occupied)
        finally:
            for slot, _ in occupied:
                slot.clear()
        self._check(site)

    def _awaitanswers(self, site: Site) -> None:
        """Wait until all clients are served again."""
        histories = [self._folder / f"{site.name}-client-{client}.jsonl" for client in range(_FEW)]
        deadline = time.monotonic() + _PATIENCE_SECONDS
        before = answers(histories)
        while answers(histories) < before + _FEW_ANSWERS:
            if time.monotonic() > deadline:
                self._result.violations.append("stuck: clients get no answers after the kills")
                return
            time.sleep(0.05)

    def _slots(self, site: Site, number: int) -> list[tuple[Slot, float]]:
        """Slots for processes, and the relative frequency at which each is killed."""
        plan, seed = self._plan, self._plan.seed * 1000 + number
        slots_made: list[tuple[Slot, float]] = []
        slots_made += [(slots.server(site, port), 0.5) for port in site.ports]
        slots_made += [(slots.client(site, client, seed), 1.0) for client in range(plan.clients)]
        slots_made += [(slots.writer(site, writer, seed), 0.6) for writer in range(plan.writers)]
        return slots_made

    def _look(self, occupied: Sequence[tuple[Slot, float]]) -> None:
        """Check that no process has ended without being killed."""
        for slot, _ in occupied:
            if slot.died():
                log = (self._folder / "log").read_text(encoding="utf-8", errors="replace")
                errors = [line for line in log.splitlines() if "Error" in line and line[:1] != "{"]
                self._result.violations.append(f"a process ended by itself: {errors[-5:]}")

    def _maybe_crash(self) -> None:
        if self._cluster is not None and self._result.kills % self._plan.crash_every == 0:
            self._cluster.stop(signal.SIGQUIT)
            self._cluster.start()
            self._result.killed["database"] += 1

    def _begin(self, name: str) -> Site:
        """Define new jobs, in a process that ends before others begin."""
        location, file = self._location, self._folder / "begun"

        def work() -> None:
            with Store.open(location) as store:
                service, load = JobService(store), made_up_workload()
                jobs = [
                    service.for_team(TEAM).define(Definition(load.job(), policy=policy)).id
                    for policy in _POLICIES
                ]
                now = time.time()
                record = TokenRecord(EVERY_TEAM, Permission.WORK, "kill test", now + 86_400.0)
                token, _ = store.write(lambda transaction: add_token(transaction, record, now))
            file.write_text(json.dumps([jobs, token]), encoding="ascii")

        self._do(work)
        jobs, token = json.loads(file.read_text(encoding="ascii"))
        ports = self._rng.sample(range(_LOWEST_PORT, _HIGHEST_PORT), self._plan.servers)
        return slots.Site(self._location, self._folder, ports, token, jobs, name)

    def _check(self, site: Site) -> None:
        file = self._folder / "found"
        histories = sorted(self._folder.glob(f"{site.name}-*.jsonl"))

        def work() -> None:
            with Store.open(site.location) as store:
                calls = read_calls(histories)
                findings = check_store(store, calls, site.jobs)
            over_http = read_calls(history for history in histories if "-client-" in history.name)
            findings.counts["acknowledged over HTTP"] += sum(
                bool(call.answer) for call in over_http
            )
            texts = [f"{violation.fault}: {violation.about}" for violation in findings.violations]
            file.write_text(json.dumps([findings.counts, texts]), encoding="ascii")

        self._do(work)
        counts, violations = json.loads(file.read_text(encoding="ascii"))
        self._result.counts += Counter(counts)
        self._result.violations += [f"{violation} (see {self._folder})" for violation in violations]
        if not violations:
            for history in histories:
                history.unlink()

    def _do(self, work: Callable[[], None]) -> None:
        """Do work in a process of its own, so that this one has no threads when it forks."""
        process = processes.fork(work, self._folder / "log")
        _, status = os.waitpid(process, 0)
        log = self._folder / "log"
        assert status == 0, log.read_text(encoding="utf-8", errors="replace")[-2000:]


def answers(histories: Sequence[Path]) -> int:
    """Number of calls that were answered, by the logs of clients."""
    return sum(history.read_bytes().count(b'"answer"') for history in histories if history.exists())


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
    """Run a kill test and print its result as JSON; 0 if no promise was broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", choices=("sqlite", "postgresql"), default="sqlite")
    parser.add_argument("--kills", type=int, default=_PLAN.kills)
    parser.add_argument("--round-kills", type=int, default=_PLAN.round_kills)
    parser.add_argument("--pause-seconds", type=float, default=_PLAN.pause_seconds)
    parser.add_argument("--crash-every", type=int, default=_PLAN.crash_every)
    parser.add_argument("--servers", type=int, default=_PLAN.servers)
    parser.add_argument("--clients", type=int, default=_PLAN.clients)
    parser.add_argument("--writers", type=int, default=_PLAN.writers)
    parser.add_argument("--seed", type=int, default=_PLAN.seed)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    options = vars(parser.parse_args(arguments))
    until = options.pop("seconds")
    with KillTest(KillPlan(**options), _progress) as test:
        result = test.run(until)
    sys.stdout.write(json.dumps(result.to_document()) + "\n")
    for violation in result.violations[:_SHOWN]:
        sys.stderr.write(violation + "\n")
    return int(bool(result.violations))


def _progress(result: KillResult) -> None:
    sys.stderr.write(
        f"{result.kills} kills {dict(result.killed)}, {len(result.violations)} broken, "
        f"{result.seconds:.0f} s, {result.counts['events']} events\n"
    )


if __name__ == "__main__":
    sys.exit(main())
