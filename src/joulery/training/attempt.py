"""One decision being run: what it has spent, what was measured on the way, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.jobs.models import Measured, Outcome
from joulery.jobs.policies.base import ActionKind, RunEnd
from joulery.power.messages import State
from joulery.training.energy_account import NOTHING, EnergyAccount, Usage, together
from joulery.training.used import used_by, used_together

if TYPE_CHECKING:
    from collections.abc import Iterable

    from joulery.jobs.job import Job
    from joulery.jobs.models import Decision
    from joulery.metering.measurement import Measurement
    from joulery.metering.meter import Meter
    from joulery.power.tuner import PowerTuner
    from joulery.training.environment import Ranks
    from joulery.training.limit_plan import ListedKnob
    from joulery.training.used import DeviceUse

_SAME_WATTS = 0.5
# Seconds of steps tell an epoch no better than this: it has its stalls, and they were left out.
_SLICE_ERROR = 0.01
_LARGEST_ERROR = 1.0  # what is known less well than this is not worth telling


@dataclass(slots=True)
class AttemptPower:
    """What tunes the power of an attempt, if anything does.

    Attributes:
        tuner: Turns the knob.
        knob: Knows what was measured.
        found_watts: The limit that was found; None where there is none.
    """

    tuner: PowerTuner | None = None
    knob: ListedKnob | None = None
    found_watts: float | None = None

    @property
    def holding_watts(self) -> float | None:
        """The limit in force, unless it is being changed."""
        tuner, knob = self.tuner, self.knob
        if tuner is None or knob is None or tuner.state is State.STOPPED:
            return self.found_watts
        return knob.watts if tuner.state is State.HOLDING else None


class Attempt:
    """One decision being run.

    Args:
        decision: What is run.
        job: Whose.
        meter: Of all its devices here.
        ranks: The other processes, where there are any.
        epochs: That were trained before under a probe.

    Attributes:
        epochs: Whole epochs trained.
        power: What tunes it.
        steps_per_epoch: As far as it is known.
        in_epoch: Whether one is under way.
        is_cut: Whether its last epoch was left before its end.
    """

    def __init__(
        self, decision: Decision, job: Job, meter: Meter, ranks: Ranks | None, epochs: int = 0
    ) -> None:
        self.decision = decision
        self.epochs = epochs
        self.power = AttemptPower()
        self.steps_per_epoch: int | None = None
        self.in_epoch = False
        self.is_cut = False
        self._job = job
        self._ranks = ranks
        self._spending = EnergyAccount(meter)
        self._held_since: float | None = None
        self._steps = self._whole_steps = 0
        self._marked: Measurement | None = None
        self._counted = self._spending.measurement()
        self._total = NOTHING  # over all ranks, at the end of the last epoch

    def begin_epoch(self) -> None:
        """An epoch begins."""
        self.in_epoch = True
        self._spending.begin_epoch()
        self._held_since = self.power.holding_watts

    def begin_training(self, length: int | None) -> None:
        """Steps of training follow; how many, if that is known."""
        self._spending.begin_training()
        if length:
            self.steps_per_epoch = length

    def end_training(self, steps: int) -> None:
        """They have ended; how many there were."""
        self._spending.end_training(steps)
        self._steps += steps

    def cut(self) -> None:
        """The epoch is left before its end: it counts, but not as a whole one."""
        self.is_cut = True
        self.steps_per_epoch = self._whole_steps or self.steps_per_epoch

    def end_epoch(self) -> None:
        """An epoch has ended."""
        if self.is_cut:
            self.in_epoch = False
            return
        held = self.power.holding_watts
        # What follows the target in its epoch, such as a last test, is none of it.
        until = None if self._marked is None else Usage.of(self._marked)
        self._spending.end_epoch(held if held == self._held_since else None, self._ranks, until)
        self.in_epoch = False
        if self._marked is None:
            self.epochs += 1
        if self._steps:
            self.steps_per_epoch = self._whole_steps = self._steps
            self._steps = 0

    def mark(self) -> None:
        """The target is reached: what comes after does not count."""
        self._marked = self._spending.measurement()
        if self.in_epoch:
            self.epochs += 1  # the loop may be left without coming to its end

    def give_up(self) -> None:
        """It has diverged, and would not get there in any number of epochs: all count as tried."""
        self.epochs = self._job.max_epochs

    def spent(self) -> Usage:
        """All so far, over all ranks; every rank has to ask."""
        self._counted = self._marked or self._spending.measurement()
        self._total = together(Usage.of(self._counted), self._ranks)
        return self._total

    def used(self) -> tuple[DeviceUse, ...]:
        """The same by device, as it was last asked for; every rank has to ask."""
        return used_together(used_by(self._counted), self._ranks)

    def cost(self) -> float:
        """All so far, by the job's cost; NaN where it is unknown."""
        return float(self._job.cost.of(*self.spent()))

    def cost_here(self) -> float:
        """As :meth:`cost`, of this process, from any thread."""
        return float(self._job.cost.of(*self._spending.now()))

    def last_epoch_cost(self) -> float:
        """What the last epoch cost; 0 before the first."""
        epochs = self._spending.epochs
        return self._job.cost.of(*epochs[-1].whole) if epochs else 0.0

    @property
    def besides(self) -> Usage | None:
        """What an epoch takes besides training; None before the first."""
        return self._spending.besides()

    def progress(self) -> Outcome | None:
        """What there is to tell if nothing more is ever heard; None where nothing is known."""
        spent = self._total if self._ranks is not None else self._spending.now()
        if not spent.known:
            return None
        return Outcome(RunEnd.ABANDONED, self._told_epochs(RunEnd.ABANDONED), *spent)

    def outcome(self, end: RunEnd, besides: Usage) -> Outcome:
        """How it ended; nothing is counted from here on. Every rank has to ask.

        Args:
            end: How.
            besides: What an epoch takes besides training, if this attempt had no whole one.
        """
        spent = self.spent()
        self._spending.end()
        if not spent.known:
            # Nothing is claimed of what was not measured.
            kind = RunEnd.PROBED if self.decision.kind == ActionKind.PROBE else RunEnd.ABANDONED
            return Outcome(kind, 0.0, 0.0, 0.0)
        limit = self._limit()
        return Outcome(
            end, self._told_epochs(end), *spent, limit, self._measured(self.besides or besides)
        )

    def _told_epochs(self, end: RunEnd) -> float:
        if self.decision.kind == ActionKind.PROBE or end == RunEnd.PROBED:
            return 0.0
        return float(min(self.epochs, self._job.max_epochs))

    def _limit(self) -> float | None:
        if not self._job.limits_watts:
            return None
        watts = self.power.holding_watts
        return self.power.found_watts if watts is None else watts

    def _measured(self, besides: Usage) -> tuple[Measured, ...]:
        if not self._job.limits_watts:
            figures = self._spending.held(None)
            return () if figures is None else (Measured(None, *figures),)
        found = {one.limit_watts: one for one in self._slices(besides)}
        for epoch in self._spending.epochs:
            watts = self._listed(epoch.limit_watts)
            figures = None if watts is None else self._spending.held(epoch.limit_watts)
            if watts is None or figures is None:
                continue
            known = found.get(watts)
            if known is None or figures.relative_error <= known.relative_error:
                found[watts] = Measured(watts, *figures)
        return tuple(found.values())

    def _slices(self, besides: Usage) -> Iterable[Measured]:
        """What steps under each limit tell about epochs."""
        knob, steps = self.power.knob, self.steps_per_epoch
        if knob is None or not steps:
            return
        for at, seen in knob.estimates().items():
            watts = self._listed(at)
            error = max(seen.seconds_error, seen.watts_error, _SLICE_ERROR)
            seconds = steps * seen.seconds
            joules = seconds * seen.watts
            if watts is not None and error <= _LARGEST_ERROR and joules > 0:
                yield Measured(watts, seconds + besides.seconds, joules + besides.joules, error)

    def _listed(self, watts: float | None) -> float | None:
        """A limit as the job lists it; None where it does not."""
        near = (one for one in self._job.limits_watts if watts and abs(one - watts) <= _SAME_WATTS)
        return next(near, None)
