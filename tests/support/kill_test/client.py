"""A client that decides and reports without end, logs its calls, and goes on after being killed.

Every process reads the log of the processes before it: requests without an answer are made again
under their keys, decisions without a report are reported on, and some requests are simply repeated.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from joulery.errors import StoreError
from joulery.jobs import Decision, Measured, Outcome, Request
from joulery.jobs.policies import ActionKind, RunEnd
from support.history_file import Call

if TYPE_CHECKING:
    import random
    from collections.abc import Sequence

    from joulery.jobs import DecisionLease, Receipt
    from joulery.storage import Document
    from support.history_file import Recorder

_LONGEST_SECONDS = 50.0  # that a run claims to have taken; the service tolerates a minute


class DecisionService(Protocol):
    """The part of :class:`joulery.client._backend.DecisionBackend` that is used."""

    def decide(self, job: int, request: Request) -> Decision:
        """What to run next."""
        ...

    def heartbeat(self, decision: Decision, progress: Outcome | None = None) -> DecisionLease:
        """Prolong the lease of a decision."""
        ...

    def report(self, decision: Decision, outcome: Outcome, key: str) -> Receipt:
        """Report how a decision ended."""
        ...


class Client:
    """One process of a client.

    Args:
        name: Name of the process; part of its keys.
        backend: Backend that it calls.
        recorder: Log of its calls.
        jobs: Numbers of the jobs that it works for.
        rng: Random generator of what it does.
        pause_seconds: Pause after a call without an answer.
    """

    def __init__(
        self,
        name: str,
        backend: DecisionService,
        recorder: Recorder,
        jobs: Sequence[int],
        rng: random.Random,
        pause_seconds: float = 0.01,
    ) -> None:
        self._pause_seconds = pause_seconds
        self._name = name
        self._backend = backend
        self._recorder = recorder
        self._jobs = jobs
        self._rng = rng
        self._count = 0
        self._unreported: list[Decision] = []

    def resume(self, earlier: Sequence[Call]) -> None:
        """Go on where the processes before were killed."""
        answers = {(call.operation, call.key): call.answer for call in earlier if not call.open}
        reported = {call.sent["decision"] for call in earlier if call.operation == "report"}
        names: set[tuple[str, str]] = set()
        for call in reversed(earlier):
            name = call.operation, call.key
            if name in names:
                continue
            names.add(name)
            if name not in answers or self._rng.random() < 0.05:
                decision = self._again(call, earlier)
            else:
                document = answers[name] if call.operation == "decide" else None
                decision = Decision.from_document(document) if document else None
            if decision is not None and decision.id not in reported:
                self._unreported.append(decision)

    def _again(self, call: Call, earlier: Sequence[Call]) -> Decision | None:
        """Make a request again; the decision, if it was for one."""
        if call.operation == "decide":
            return self._decide(call.job, call.key, call.sent)
        for decided in earlier:
            document = decided.answer if decided.operation == "decide" else None
            if document and document["id"] == call.sent["decision"]:
                self._report(Decision.from_document(document), call.sent["outcome"], call.key)
                break
        return None

    def step(self) -> None:
        """One decision, and mostly a report."""
        if self._unreported and self._rng.random() < 0.3:
            self._end(self._unreported.pop(self._rng.randrange(len(self._unreported))))
            return
        self._count += 1
        job, key = self._rng.choice(self._jobs), f"{self._name}.{self._count}"
        before = [decision for decision in self._unreported if decision.id.startswith(f"{job}.")]
        after = before[-1].id if before and self._rng.random() < 0.3 else None
        request: Document = {"after": after, "probing": self._rng.random() < 0.7}
        decision = self._decide(job, key, request)
        if decision is None:
            return
        if self._rng.random() < 0.2:
            self._beat(decision)
        if self._rng.random() < 0.15:
            self._unreported.append(decision)
        else:
            self._end(decision)

    def _decide(self, job: int, key: str, request: Document) -> Decision | None:
        def ask() -> Document:
            decision = self._backend.decide(job, Request(key, request["after"], request["probing"]))
            return decision.to_document()

        answer = self._recorder.carry_out(Call("decide", job, key, request), ask)
        if answer is None:
            time.sleep(self._pause_seconds)
            return None
        return Decision.from_document(answer)

    def _beat(self, decision: Decision) -> None:
        seconds = self._rng.uniform(0.1, 1.0)
        try:
            progress = Outcome(RunEnd.ABANDONED, 0.0, seconds, 100.0 * seconds)
            self._backend.heartbeat(decision, progress)
        except StoreError:  # nothing was promised
            time.sleep(self._pause_seconds)

    def _end(self, decision: Decision) -> None:
        outcome = made_up_outcome(decision, self._rng).to_document()
        key = f"{self._name}.{decision.id}"
        self._report(decision, outcome, key)
        if self._rng.random() < 0.1:
            self._report(decision, outcome, key)

    def _report(self, decision: Decision, outcome: Document, key: str) -> None:
        job = int(decision.id.partition(".")[0])
        report_document: Document = {"decision": decision.id, "outcome": outcome}

        def ask() -> Document:
            report = self._backend.report(decision, Outcome.from_document(outcome), key)
            return report.to_document()

        if self._recorder.carry_out(Call("report", job, key, report_document), ask) is None:
            time.sleep(self._pause_seconds)


def made_up_outcome(decision: Decision, rng: random.Random) -> Outcome:
    """How a run of a decision might have ended; no two have the same figures."""
    seconds = rng.uniform(1.0, _LONGEST_SECONDS)
    joules = seconds * rng.uniform(50.0, 90.0)
    limits = decision.probe_limits_watts or (decision.power_limit_watts,)
    watts = rng.choice(limits)
    if decision.kind == ActionKind.PROBE:
        measured = (Measured(watts, seconds, joules, 0.01),)
        return Outcome(RunEnd.PROBED, 0.0, seconds, joules, None, measured)
    epochs = float(rng.randint(5, 20))
    end = rng.choices((RunEnd.REACHED, RunEnd.STOPPED, RunEnd.EXHAUSTED), (8, 1, 1))[0]
    measured = (Measured(watts, seconds / epochs, joules / epochs, 0.01),)
    return Outcome(end, epochs, seconds, joules, watts, measured)
