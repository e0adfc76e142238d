"""A clerk for trainings: answers within a bounded time, never raises, and loses no report.

Where nobody answers, the last run that reached its target is repeated, or else the default is
run; what there is to report waits in a journal until somebody takes it. What nobody could be asked
about is asked for then, so that it teaches, too.
"""

from __future__ import annotations

import logging
import math
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from joulery.client.background import BackgroundWorker
from joulery.client.deadline import Deadline, within
from joulery.client.findings import ProfileUploader
from joulery.client.last_good import LastGood, LastGoodSetting
from joulery.client.outbox import Outbox
from joulery.client.outbox_entries import Unasked, Undelivered
from joulery.client.places import DEFAULT_TEAM, file_stem, is_server, state_folder
from joulery.clock import REAL_CLOCK
from joulery.errors import FileError, JouleryError, NotPossibleHereError, StoreError
from joulery.jobs.models import Decision, parse_decision_id
from joulery.jobs.policies.base import ActionKind, RunEnd
from joulery.jobs.requests import Request
from joulery.jobs.validation import LONGEST_BEFORE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from joulery.client.backend import DecisionBackend, Defined
    from joulery.client.findings import RunMeasurements
    from joulery.client.outbox_entries import Entry
    from joulery.clock import Clock
    from joulery.jobs.models import Outcome
    from joulery.jobs.requests import Definition

T = TypeVar("T")

_log = logging.getLogger("joulery")

# Who did not answer is not asked again for this long, unless there is something to decide.
_QUIET_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Order:
    """Whom decisions are asked for.

    Attributes:
        definition: The job.
        team: Whose it is.
    """

    definition: Definition
    team: str = DEFAULT_TEAM


@dataclass(frozen=True, slots=True)
class _Missed:
    """A question that nobody answered.

    Attributes:
        request: That was made.
        now_seconds: When, on the monotonic clock.
    """

    request: Request
    now_seconds: float


class ResilientClient:
    """Asks a clerk for one job; see the module.

    Args:
        opened: Opens the clerk; called when it is first needed.
        location: Of the store or server, as people write it; names the files below.
        seconds: Longest time that a training waits for an answer.
        order: For whom.
        folder: Where undelivered reports are kept; the user's state folder unless given.
        clock: Real or virtual.

    Attributes:
        trouble: Why the last question was not answered; None while all is well.
        defined: The job, once it was asked for.
    """

    def __init__(
        self,
        opened: Callable[[], DecisionBackend],
        location: str,
        seconds: float,
        order: Order,
        *,
        folder: Path | None = None,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self.trouble: str | None = None
        self.defined: Defined | None = None
        self._opened = opened
        self._clerk: DecisionBackend | None = None
        self._opening = threading.Lock()
        self._seconds = seconds
        self._order = order
        self._clock = clock
        self._quiet_until = -math.inf
        self._progress_refused = False
        self._missed: _Missed | None = None
        self._replaying: threading.Thread | None = None
        self._notebook: ProfileUploader | None = None
        self._sideline = BackgroundWorker()
        state = folder or state_folder()
        self._journal = Outbox(state / "undelivered" / f"{file_stem(location)}.jsonl")
        # Of a store on this machine there is nothing to remember: it is there, or so is nobody.
        wanted = order.definition
        names = (location, wanted.job.name, wanted.device)
        memory = state / "last" / f"{file_stem(*names)}.json"
        self._remembered = LastGoodSetting(memory if is_server(location) else None)

    def decide(self, request: Request) -> Decision:
        """What to run next; of nobody who answers, what was good or else the default."""
        began = self._clock.now()
        try:
            decision = self._within(lambda clerk: self._decided(clerk, request))
        except JouleryError as error:
            # What the job's owner or the store refuses is not to be learned later either.
            known = isinstance(error, StoreError)
            self._missed = _Missed(request, began) if known else None
            return self._instead(error, request.only)
        self._missed = None
        self.trouble = None
        self._answered()
        return decision

    def heartbeat(self, decision: Decision, progress: Outcome) -> None:
        """Say that a decision is being worked on, and how far."""
        if not decision.id:
            return
        try:
            self._unless_quiet(lambda clerk: clerk.heartbeat(decision, progress))
        except StoreError:
            self._keep(Undelivered(decision, progress, None))
        except JouleryError as error:
            # Once: the next is refused for the same reason, and what counts is the report.
            level = logging.DEBUG if self._progress_refused else logging.WARNING
            self._progress_refused = True
            _log.log(level, "joulery: progress was not taken: %s", error)
        else:
            self._answered()

    def report(
        self,
        decision: Decision,
        outcome: Outcome,
        key: str,
        found: Callable[[], RunMeasurements] | None = None,
    ) -> None:
        """Tell how a decision ended, now or later.

        Args:
            decision: That was run.
            outcome: How.
            key: Of the report.
            found: Gives what else is to be kept; asked if the report is taken now.
        """
        deadline = Deadline(self._seconds)
        if outcome.end == RunEnd.REACHED and decision.kind == ActionKind.TRAIN:
            self._remembered.note(LastGood(decision.batch_size, outcome.limit_watts))
        entry = self._entry(decision, outcome, key)
        if entry is None:
            return
        try:
            self._unless_quiet(entry.tell)
        except StoreError as error:
            self._keep(entry)
            _log.warning("joulery: how this run went is told later, by another run: %s", error)
        except JouleryError as error:
            _log.warning("joulery: how this run went was not taken: %s", error)
        else:
            self._answered()
            if found is not None and decision.id:
                # In the background; if that fails, the report has told the totals.
                self._sideline.do(lambda: self._tell(decision, found(), deadline), deadline)

    def _tell(self, decision: Decision, found: RunMeasurements, deadline: Deadline) -> None:
        clerk = self._clerk
        if clerk is not None:
            if self._notebook is None:
                job, _ = parse_decision_id(decision.id)
                self._notebook = ProfileUploader(clerk, job, self._clock.wall)
            self._notebook.tell(found, lambda: deadline.check("the store"))

    def _entry(self, decision: Decision, outcome: Outcome, key: str) -> Entry | None:
        """What there is to tell; None where nobody could learn from it."""
        if decision.id:
            return Undelivered(decision, outcome, key)
        missed, self._missed = self._missed, None
        tells = outcome.end in (RunEnd.REACHED, RunEnd.EXHAUSTED) or outcome.measured
        if missed is None or not tells:
            return None
        # The question itself may have been taken, and only its answer lost; so another key.
        request = Request(
            f"{missed.request.key}-instead",
            missed.request.after,
            only=decision.batch_size,
            ran_seconds=min(self._clock.now() - missed.now_seconds, LONGEST_BEFORE_SECONDS),
        )
        return Unasked(self._order.team, self._order.definition, request, outcome, key)

    def close(self) -> None:
        """Let go of the clerk, within the bound."""
        self._sideline.wait()
        clerk, self._clerk = self._clerk, None
        replaying = self._replaying
        if replaying is not None:
            replaying.join(self._seconds)
        if clerk is not None:
            try:
                within(self._seconds, "the store", clerk.close)
            except JouleryError as error:
                _log.debug("joulery: closing the store: %s", error)

    def _decided(self, clerk: DecisionBackend, request: Request) -> Decision:
        if self.defined is None:
            self.defined = clerk.define(self._order.definition)
        return clerk.decide(self.defined.job, request)

    def _instead(self, error: JouleryError, only: int | None) -> Decision:
        """What to run without being told."""
        self._quiet(error)
        job = self._order.definition.job
        # A job that is paused, or that is refused, is to run as its owner would.
        sizes = job.batch_sizes if only is None else (only,)
        last = self._remembered.recall(sizes) if isinstance(error, StoreError) else None
        if last is None:
            last = LastGood(job.default if only is None else only, None)
            which = "the default" if last.batch_size == job.default else "the one that was wanted"
            reason = f"nobody could be asked: {which}"
        else:
            reason = "nobody could be asked: as the last run that reached its target"
        self.trouble = str(error)
        _log.warning("joulery: batch size %d, %s: %s", last.batch_size, reason, error)
        return Decision(
            id="",
            recurrence=0,
            kind=ActionKind.TRAIN,
            batch_size=last.batch_size,
            power_limit_watts=last.limit_watts,
            probe_limits_watts=(),
            cost_ceiling_joules=math.inf,
            reason=reason,
            expires_wall_seconds=math.inf,
        )

    def _unless_quiet(self, question: Callable[[DecisionBackend], T]) -> T:
        if self._clock.now() < self._quiet_until:
            raise StoreError(self.trouble or "the store did not answer", remedy="it is tried again")
        try:
            answer = self._within(question)
        except StoreError as error:
            self.trouble = str(error)
            self._quiet(error)
            raise
        self.trouble = None
        return answer

    def _within(self, question: Callable[[DecisionBackend], T]) -> T:
        def ask() -> T:
            with self._opening:
                clerk = self._clerk = self._clerk or self._opened()
            return question(clerk)

        return within(self._seconds, "the store", ask)

    def _quiet(self, error: JouleryError) -> None:
        if isinstance(error, StoreError):
            self._quiet_until = self._clock.now() + _QUIET_SECONDS

    def _keep(self, entry: Entry) -> None:
        try:
            self._journal.append(entry)
        except FileError as error:
            _log.warning("joulery: %s", error)

    def _answered(self) -> None:
        """Somebody is there: deliver what waits, in the background."""
        self._quiet_until = -math.inf
        busy = self._replaying is not None and self._replaying.is_alive()
        if busy or not self._journal.waiting:
            return
        self._replaying = threading.Thread(target=self._replay, name="joulery-replay", daemon=True)
        try:
            self._replaying.start()
        except RuntimeError:  # no more threads; the next process does it
            self._replaying = None

    def _replay(self) -> None:
        clerk = self._clerk
        if clerk is None:
            return

        def send(entry: Entry) -> None:
            if isinstance(entry, Unasked) and entry.team != self._order.team:
                raise NotPossibleHereError(
                    "a report of another team", remedy="a run of that team will deliver it"
                )
            entry.tell(clerk)

        sent = self._journal.deliver(send)
        if sent:
            _log.info("joulery: %d earlier reports were delivered", sent)
