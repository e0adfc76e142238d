"""A client for trainings: it answers within a bounded time, never raises, and loses no report.

Where no backend answers, the default is run. Reports wait in the outbox until they can be
delivered; a run that was made without a decision is then decided and reported afterwards, so that
the policy learns from it, too.
"""

from __future__ import annotations

import logging
import math
import os
import threading
from contextlib import closing, suppress
from typing import TYPE_CHECKING, TypeVar

from joulery.client._backend import DEFAULT_TEAM, STORE_VARIABLE, is_server, open_backend, team_of
from joulery.client._outbox import PendingReport, PendingRun, deliver_waiting, outboxes
from joulery.clock import REAL_CLOCK
from joulery.errors import FileError, JouleryError, StoreBusyError, StoreError
from joulery.jobs import LONGEST_BEFORE_SECONDS, Decision, Request
from joulery.jobs.policies import ActionKind, RunEnd

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from joulery.client._backend import DecisionBackend
    from joulery.client._outbox import RunMeasurements
    from joulery.clock import Clock
    from joulery.jobs import Definition, JobEntry, LiveState, Outcome, RunEntry


T = TypeVar("T")

_log = logging.getLogger("joulery")

# A backend that did not answer is left alone for this long, unless a decision is needed.
_QUIET_SECONDS = 15.0  # by hand: a dozen steps of a training


class ResilientClient:
    """Decisions and reports for one job, as the module describes.

    Args:
        open_backend: Function that opens the backend; called when it is first needed.
        location: Location of the store or server, as people write it; names the outbox.
        seconds: Longest time that a training waits for an answer.
        definition: Job that decisions are needed for.
        team: Team that owns it.
        clock: Real or virtual clock.

    Attributes:
        trouble: Reason why the last call failed; None if it succeeded.
        watched: Whether a server decides, which shows runs under way to people.
        defined: The job as the backend has it, once it was asked.
    """

    def __init__(
        self,
        open_backend: Callable[[], DecisionBackend],
        location: str,
        seconds: float,
        definition: Definition,
        *,
        team: str = DEFAULT_TEAM,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self.trouble: str | None = None
        self.watched = is_server(location)
        self.defined: JobEntry | None = None
        self._open_backend = open_backend
        self._backend: DecisionBackend | None = None
        self._opening = threading.Lock()
        self._seconds = seconds
        self._definition = definition
        self._team = team
        self._clock = clock
        self._quiet_until = -math.inf
        self._progress_refused = False
        self._asked: tuple[Request, float] | None = None  # the latest request, and when it was made
        self._delivering: threading.Thread | None = None
        self._location = location
        self._outbox, _ = outboxes(location)

    def decide(self, request: Request) -> Decision:
        """The next decision; the default without an answer."""
        self._asked = request, self._clock.now()
        try:
            decision = self._bounded(lambda backend: self._decide(backend, request))
        except JouleryError as error:
            if isinstance(error, StoreError):
                self._quiet()
            else:
                # What the job's owner or the store refuses is not to be asked for later either.
                self._asked = None
            return self._fallback(error, request.only)
        self.trouble = None
        self._answered()
        return decision

    def heartbeat(
        self, decision: Decision, progress: Outcome, live: LiveState | None = None
    ) -> None:
        """Prolong the lease of a decision, and say how the run stands."""
        if not decision.id:
            return
        try:
            self._unless_quiet(lambda backend: backend.heartbeat(decision, progress, live))
        except StoreError as error:
            _log.debug("joulery: no heartbeat: %s", error)  # the next one says as much and more
        except JouleryError as error:
            # Said once: the next is refused for the same reason, and what counts is the report.
            level = logging.DEBUG if self._progress_refused else logging.WARNING
            self._progress_refused = True
            _log.log(level, "joulery: the server refuses the progress of this run: %s", error)
        else:
            self._answered()

    def report(
        self,
        decision: Decision,
        outcome: Outcome,
        key: str,
        measure: Callable[[], RunMeasurements] | None = None,
    ) -> None:
        """Report how a decision ended, now or later.

        What was measured besides is in the outbox before this returns, and is delivered in the
        background, so that it is kept even if the process ends at once.
        """
        entry = self._entry(decision, outcome, key, measure)
        if entry is None:
            return
        try:
            remainder = self._unless_quiet(entry.report)
        except StoreError as error:
            self._keep(entry)
            _log.warning("joulery: this run is reported later, by another run: %s", error)
        except JouleryError as error:
            _log.warning("joulery: the report of this run was refused: %s", error)
        else:
            if remainder.measurements is not None:
                self._keep(remainder)
            self._answered()

    def _entry(
        self,
        decision: Decision,
        outcome: Outcome,
        key: str,
        measure: Callable[[], RunMeasurements] | None,
    ) -> PendingReport | None:
        """The entry to report; None where the policy would learn nothing from it."""
        if self._asked is None:
            return None
        request, began = self._asked
        if not decision.id:
            if outcome.end not in (RunEnd.REACHED, RunEnd.EXHAUSTED) and not outcome.measured:
                return None
            # The request may have been served, and only its answer lost; so it gets another key.
            request = Request(
                f"{request.key}-instead",
                request.after,
                only=decision.batch_size,
                ran_seconds=min(self._clock.now() - began, LONGEST_BEFORE_SECONDS),
            )
        return PendingReport(
            self._team,
            self._definition,
            request,
            decision if decision.id else None,
            outcome,
            key,
            _measured(measure),
        )

    def close(self) -> None:
        """Deliver what waits and close the backend, each within the bound."""
        end = REAL_CLOCK.now() + self._seconds
        for again in (True, False):
            if self._delivering is not None:
                self._delivering.join(max(0.0, end - REAL_CLOCK.now()))
                if again and self._outbox.waiting:  # what came too late for that delivery
                    self._deliver_soon()
        backend, self._backend = self._backend, None
        if backend is not None:
            try:
                within(self._seconds, backend.close)
            except JouleryError as error:
                _log.debug("joulery: closing the store: %s", error)

    def _decide(self, backend: DecisionBackend, request: Request) -> Decision:
        if self.defined is None:
            self.defined = backend.define(self._definition)
        return backend.decide(self.defined.id, request)

    def _fallback(self, error: JouleryError, only: int | None) -> Decision:
        """The decision where no backend answers, or the job is paused or refused."""
        batch_size = self._definition.job.default if only is None else only
        source = "the default" if only is None else "the one of the request"
        reason = f"no backend answers: {source}"
        self.trouble = str(error)
        _log.warning("joulery: batch size %d, %s: %s", batch_size, reason, error)
        return Decision(
            id="",
            recurrence=0,
            kind=ActionKind.TRAIN,
            batch_size=batch_size,
            power_limit_watts=None,
            probe_limits_watts=(),
            cost_ceiling_joules=math.inf,
            reason=reason,
            expires_wall_seconds=math.inf,
        )

    def _unless_quiet(self, call: Callable[[DecisionBackend], T]) -> T:
        if self._clock.now() < self._quiet_until:
            raise StoreError(self.trouble or "the store did not answer", remedy="it is tried again")
        try:
            answer = self._bounded(call)
        except StoreError as error:
            self.trouble = str(error)
            self._quiet()
            raise
        self.trouble = None
        return answer

    def _bounded(self, call: Callable[[DecisionBackend], T]) -> T:
        def ask() -> T:
            with self._opening:
                backend = self._backend = self._backend or self._open_backend()
            return call(backend)

        return within(self._seconds, ask)

    def _quiet(self) -> None:
        self._quiet_until = self._clock.now() + _QUIET_SECONDS

    def _keep(self, entry: PendingReport) -> None:
        try:
            self._outbox.append(entry)
        except FileError as error:
            _log.warning("joulery: %s", error)

    def _answered(self) -> None:
        """Deliver what waits, since the backend answers."""
        self._quiet_until = -math.inf
        if self._outbox.waiting:
            self._deliver_soon()

    def _deliver_soon(self) -> None:
        if self._delivering is not None and self._delivering.is_alive():
            return
        self._delivering = threading.Thread(
            target=self._deliver, name="joulery-outbox", daemon=True
        )
        try:
            self._delivering.start()
        except RuntimeError:  # no more threads; the next process delivers
            self._delivering = None

    def _deliver(self) -> None:
        backend = self._backend
        if backend is not None:
            deliver_waiting(backend, self._location, self._team)


def _measured(measure: Callable[[], RunMeasurements] | None) -> RunMeasurements | None:
    """Measurements of a run besides its outcome, which has the totals in any case."""
    try:
        return None if measure is None else measure()
    except Exception as error:  # noqa: BLE001 - the fail-open guard
        _log.debug("joulery: the measurements of this run are lost: %r", error)
        return None


def within(seconds: float, function: Callable[[], T]) -> T:
    """``function()``; after ``seconds`` it is left to continue in the background.

    Raises:
        StoreBusyError: It took longer.
    """
    answers: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            answers.append(function())
        except BaseException as error:  # noqa: BLE001 - raised again in the thread that waits
            errors.append(error)

    thread = threading.Thread(target=work, name="joulery-client", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads, as at the end of the interpreter
        return function()
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not answers:
        raise StoreBusyError(
            f"the store did not answer within {seconds:g} s", remedy="make the same request again"
        )
    return answers[0]


_DELIVERY_SECONDS = 5.0  # by hand: what waits after a night without a server takes less


def put_run(
    run: RunEntry,
    location: str | Path | None = None,
    team: str | None = None,
    token: str | None = None,
    *,
    clock: Clock = REAL_CLOCK,
) -> None:
    """Store a run of any kind, and what earlier runs could not deliver to the same store.

    Args:
        run: Run to store.
        location: Location of the store or server, as of ``open_backend``.
        team: Team of the run.
        token: Token for a server.
        clock: Real or virtual clock.

    Raises:
        StoreError: No store answers; a run that has ended is kept for a later one.
        JouleryError: The store refuses the run.
    """
    location, team = str(location or os.environ.get(STORE_VARIABLE) or ""), team_of(team)
    try:
        backend = open_backend(location or None, team, token, clock=clock)
        with closing(backend):
            backend.put_run(run)
            if any(outbox.waiting for outbox in outboxes(location)):
                with suppress(StoreBusyError):  # the next run delivers what is left
                    within(_DELIVERY_SECONDS, lambda: deliver_waiting(backend, location, team))
    except StoreError:
        if run.ended:
            outboxes(location)[1].append(PendingRun(team, run))
        raise
