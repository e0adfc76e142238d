"""The recurring part of a run: what is asked for, when it is stopped, and what is told of it."""

from __future__ import annotations

import logging
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from joulery.errors import JouleryError
from joulery.jobs.models import Outcome
from joulery.jobs.policies.base import ActionKind, RunEnd
from joulery.training.attempt import Attempt
from joulery.training.background import BackgroundTasks
from joulery.training.ceiling import why_no_epoch
from joulery.training.decision_session import DecisionSession
from joulery.training.ending import ending_of
from joulery.training.energy_account import NOTHING
from joulery.training.findings import findings_of
from joulery.training.limit_plan import plan_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.jobs.models import Decision
    from joulery.metering.meter import Meter
    from joulery.objectives import Objective
    from joulery.training.environment import RunEnvironment
    from joulery.training.goal import Goal
    from joulery.training.job_settings import Recurring
    from joulery.training.limit_plan import LimitPlan

_log = logging.getLogger("joulery")


class Stage(Enum):
    """Where an attempt stands."""

    WANTED = 0
    DECIDED = 1
    RUNNING = 2
    ENDED = 3


class Recurrence:
    """Asks for decisions of one recurrence, runs them one after the other, and tells how they went.

    Methods may raise; :class:`joulery.Run` keeps that from the training. With several processes,
    all of them call the same methods in the same order, and rank 0 alone asks and tells.

    Args:
        settings: The job as its owner states it.
        site: Where it runs.
        objective: What to minimise.
        goal: When a run is good enough.
        interrupt: Called, maybe from another thread, to have the loop ask :meth:`cut`.
        observe: Run the default, whatever would be chosen.

    Attributes:
        decision: What is or was run; None before it was asked for, or where nothing was decided.
        stopped: Why the last attempt ended before its target; None while it goes on.
        why_not: Why nothing is decided; None if all is well.
        trainings: How many were begun.
    """

    def __init__(
        self,
        settings: Recurring,
        site: RunEnvironment,
        objective: Objective | str,
        goal: Goal,
        *,
        interrupt: Callable[[], None],
        observe: bool = False,
    ) -> None:
        self.decision: Decision | None = None
        self.stopped: str | None = None
        self.why_not: str | None = None
        self.trainings = 0
        self.goal = goal
        self._settings = settings
        self._site = site
        self._observe = observe
        self._enquiry = DecisionSession(settings, site, objective, observe=observe)
        self._attempt: Attempt | None = None
        self._beside = BackgroundTasks(site.clock)
        self._interrupt = interrupt
        self._stage = Stage.WANTED
        self._after: str | None = None
        self._besides = NOTHING
        self._probes_tell = True
        self._last_attempt = False

    @property
    def batch_size(self) -> int:
        """Samples per step over all devices."""
        return self._enquiry.usual if self.decision is None else self.decision.batch_size

    @property
    def attempt(self) -> Attempt | None:
        """What is being run."""
        return self._attempt

    # Asking.

    def ask(self, *, probing: bool = False, last: bool = False) -> None:
        """Have the next decision made, unless one waits to be run.

        Args:
            probing: Whether the loop can be begun afresh after a probe.
            last: Whether there will be no other attempt, so that this one is not stopped.
        """
        if self._stage is not Stage.WANTED or self.why_not is not None:
            return
        enquiry = self._enquiry
        self._last_attempt = last or enquiry.only is not None
        try:
            enquiry.prepare()
            self.decision = enquiry.decide(self._after, probing=probing and self._probes_tell)
        except JouleryError as error:
            self.why_not = str(error)
            size = self.batch_size
            _log.warning("joulery: batch size %d, since nothing is decided: %s", size, error)
            return
        self._stage = Stage.DECIDED
        if self.decision.kind == ActionKind.TRAIN:
            self.trainings += 1
        self.stopped = None

    # Running.

    def begin(self, epochs: int = 0) -> None:
        """Begin to run what was decided, unless it is running.

        Args:
            epochs: That were trained before, under a probe.
        """
        if self._stage is not Stage.DECIDED:
            return
        job, meter = self._enquiry.job, self._enquiry.meter
        assert self.decision is not None  # noqa: S101 - decided
        assert job is not None  # noqa: S101 - decided for
        assert meter is not None  # noqa: S101 - prepared with the job
        self._stage = Stage.RUNNING
        self._attempt = Attempt(self.decision, job, meter, self._site.ranks, epochs)
        if self._enquiry.clerk is not None and self.decision.id:
            self._beside.tell(self, self.decision.expires_wall_seconds)
        if self._may_stop and self._site.ranks is None:  # ranks leave their loops together
            self._beside.watch(self._attempt, job, self._interrupt)

    def begin_epoch(self) -> None:
        """An epoch begins."""
        if self._attempt is not None:
            self._attempt.begin_epoch()

    def end_epoch(self) -> None:
        """An epoch has ended."""
        if self._attempt is not None:
            self._attempt.end_epoch()

    def begin_training(self, length: int | None) -> None:
        """Steps of training follow; how many, if that is known."""
        self.begin()
        if self._attempt is not None:
            self._attempt.begin_training(length)
            if self._attempt.in_epoch:  # else nobody would notice that it was left
                self._beside.begin_training()

    def end_training(self, steps: int) -> None:
        """They have ended; how many there were."""
        self._beside.end_training()
        if self._attempt is not None:
            self._attempt.end_training(steps)

    def mark(self) -> None:
        """The target is reached: what comes after does not count."""
        if self._attempt is not None:
            self._attempt.mark()

    def beat(self) -> None:
        """Say that the decision is being worked on."""
        attempt, clerk = self._attempt, self._enquiry.clerk
        progress = None if attempt is None else attempt.progress()
        if attempt is not None and clerk is not None and progress is not None:
            clerk.heartbeat(attempt.decision, progress)

    def limit_plan(self) -> LimitPlan | None:
        """What the decision asks of the power limit; None leaves it to the run itself."""
        decision, job = self.decision, self._enquiry.job
        if decision is None or job is None:
            return None
        return plan_of(decision, job, observe=self._observe)

    @property
    def meter(self) -> Meter | None:
        """Of this job's devices."""
        return self._enquiry.meter

    # Stopping.

    @property
    def _may_stop(self) -> bool:
        return self._settings.early_stop and not self._last_attempt

    def may_begin_epoch(self) -> bool:
        """Whether another epoch is to be trained; every rank has to ask, between epochs."""
        attempt, goal = self._attempt, self.goal
        if attempt is None:
            return not goal.over
        ranks = self._site.ranks
        dear = why_no_epoch(attempt)  # every rank has to ask
        why = dear if self._may_stop and not goal.over else None
        goal.agree(ranks)
        if ranks is not None:
            why = ranks.agree(why)
        if why is not None:
            self.stopped = why
        return not (goal.over or why)

    @property
    def probing(self) -> bool:
        """Whether what runs is but a probe."""
        return self._attempt is not None and self._attempt.decision.kind == ActionKind.PROBE

    def cut(self) -> bool:
        """Whether the epoch is to be left, since it has become too dear; it is over then."""
        attempt, why = self._attempt, self._beside.too_dear
        if attempt is None:
            return False
        if why is not None and not attempt.is_cut:
            attempt.cut()
            self.stopped = why
        return attempt.is_cut

    # Telling.

    def finish(self, *, abandoned: bool = False) -> None:
        """Tell how the attempt ended, once; every rank has to, unless it was abandoned."""
        attempt = self._attempt
        if attempt is None:
            return
        self._attempt, self._stage = None, Stage.ENDED
        self._beside.stop()
        if not abandoned:
            self.goal.agree(self._site.ranks)
        ending = ending_of(attempt, self.goal, self.stopped, abandoned=abandoned)
        self.stopped = ending.stopped
        self._last_attempt = self._last_attempt or ending.is_last
        if self.goal.diverged and ending.end == RunEnd.EXHAUSTED:
            attempt.give_up()
        if abandoned and self._site.ranks is not None:
            return  # the others may be gone; the lease tells the rest
        outcome = attempt.outcome(ending.end, self._besides)
        self._besides = attempt.besides or self._besides
        self._after = attempt.decision.id or self._after
        self._tell(attempt, outcome)

    def _tell(self, attempt: Attempt, outcome: Outcome) -> None:
        clerk, wanted = self._enquiry.clerk, self._enquiry.definition
        used = attempt.used()  # every rank has to
        if clerk is not None and wanted is not None:
            decision = attempt.decision
            found = partial(findings_of, decision, outcome, used, wanted)
            clerk.report(decision, outcome, self._enquiry.key, found)

    def go_on_after_probe(self) -> bool:
        """End a probe and ask what follows; whether it is the same batch size, so that it goes on.

        What was trained meanwhile then counts, and nothing has to be built again.
        """
        attempt = self._attempt
        if attempt is None or attempt.decision.kind != ActionKind.PROBE:
            return True
        steps = attempt.steps_per_epoch
        self._probes_tell = bool(steps)  # else nobody knows what an epoch takes
        self.finish()
        self.renew()
        self.ask(probing=True)
        following = self.decision
        if following is None or following.batch_size != attempt.decision.batch_size:
            return False
        self.begin(attempt.epochs)
        self.begin_epoch()
        self.begin_training(steps)
        return True

    def renew(self) -> None:
        """Make ready for another attempt, unless it was decided already."""
        if self._stage is Stage.ENDED:
            self._stage = Stage.WANTED

    def again(self) -> bool:
        """Whether another attempt should be made, once one has ended."""
        if self.why_not is not None or self.goal.reached:
            return False
        waiting = self._stage is Stage.DECIDED
        return waiting or (self.stopped is not None and not self._last_attempt)

    def close(self) -> None:
        """Tell what is known of an attempt that did not end, and let go of everything."""
        self.finish(abandoned=True)
        enquiry = self._enquiry
        decision = self.decision if self._stage is Stage.DECIDED else None
        if enquiry.clerk is not None and decision is not None:
            # It was asked for and never begun, so others need not wait for it.
            nothing = Outcome(RunEnd.ABANDONED, 0.0, 0.0, 0.0)
            enquiry.clerk.report(decision, nothing, enquiry.key)
        enquiry.close()
