"""Set each instruction's clock ahead of time, off the training thread.

The training thread only notes what begins and what ends, which costs about a microsecond. A
background thread sets the clocks. A higher clock is ordered early by the time that a change takes,
a lower one when the instruction before has ended, so that no instruction runs slower than planned.
Between iterations clocks are full.

A plan is followed only while the iteration before ran exactly its instructions, and the one that
begins has as many microbatches: the first iteration runs at full clocks and is compared with the
plan, and so is every later one. Whatever else goes wrong, clocks are restored, one line on stderr
says so, and training goes on.
"""

from __future__ import annotations

import itertools
import logging
import math
import queue
import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from joulery.clock import REAL_CLOCK, VirtualClock
from joulery.errors import DeviceError, DeviceLostError
from joulery.pipeline._instructions import OPTIMIZER, REDUCE, Instruction
from joulery.pipeline.planning._rank_plan import RankStep

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Self

    from joulery.clock import Clock
    from joulery.pipeline.planning._rank_plan import RankPlan
    from joulery.pipeline.runtime._clock_setter import ClockSetter

    # Returns once the device has got as far as the training thread had when it was made.
    Reached = Callable[[], object]
    # Stage, kind and microbatch of an instruction.
    Key = tuple[int, str, int]

_log = logging.getLogger("joulery")

_STOP = object()
# Longest wait for the driver at the end; by hand.
_CLOSE_SECONDS = 2.0
# Pause after a failure of the driver or governor; by hand.
_RETRY_SECONDS = 60.0
# Marks that wait, as while a driver hangs; the oldest are dropped first; by hand.
_MAX_MARKS = 65_536
# Steps of marks that stand for the start of an iteration, and for its end before that of its plan.
_ITERATION, _CUT_SHORT = -1, -2
# What is in force between iterations.
_FULL_CLOCKS = RankStep(Instruction(-1, -1, "between iterations", -1), None, 0.0)
# A change this much shorter than a step hardly alters the step's time; by hand.
_SHORT_CHANGE = 0.15
# Numbers listed one by one in a message; by hand.
_LISTED = 4
# Work that a framework may do although the plan has none of it.
_ENDINGS = (REDUCE, OPTIMIZER)


@dataclass(frozen=True, slots=True)
class IterationTimes:
    """Times of an iteration on one rank.

    Attributes:
        iteration: Number of the iteration, from 0.
        seconds: Time from its start to the end of the rank's last instruction.
        planned_seconds: Planned time until the pipeline's last instruction.
        ratios: Measured over planned seconds of instructions whose clock was in force throughout,
            by stage and kind.
        share_watts: Lowest power that others, such as a cluster's agent, leave one of the rank's
            devices; None without.
    """

    iteration: int
    seconds: float
    planned_seconds: float
    ratios: dict[tuple[int, str], tuple[float, ...]]
    share_watts: float | None = None


class ClockController:
    """Runs a rank at the clocks of its plan.

    Args:
        plan: Plan of every iteration, until ``follow`` changes it.
        setter: Sets the clocks.
        clock: Real or virtual clock; with a virtual one everything happens at once, without a
            thread.

    Attributes:
        failure: Last error; None while all is well.
        mismatch: Reason why the plan is not followed: what the last iteration ran instead; empty
            while it is.
        iteration: Number of the present iteration, from 0; -1 before the first.
        on_iteration: Callback, in the background, with how each iteration went.

    Examples:
        >>> with ClockController(plan, ClockSetter([gpu])) as clocks:    # doctest: +SKIP
        ...     for batch in loader:
        ...         clocks.begin_iteration(microbatches=1)
        ...         clocks.before(0, "forward", 0)
        ...         forward(batch)
        ...         clocks.after(0, "forward", 0)
        ...         clocks.end_iteration()
    """

    def __init__(
        self,
        plan: RankPlan,
        setter: ClockSetter,
        *,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self.failure: Exception | None = None
        self.mismatch = ""
        self.iteration = -1
        self.on_iteration: Callable[[IterationTimes], None] | None = None
        self._first = plan
        self._active = _ActivePlan(plan)
        self._next: deque[tuple[int, _ActivePlan]] = deque()
        self._setter = setter
        self._shares = False
        self._promise: float | None = None
        self._now = clock.now
        self._virtual = clock if isinstance(clock, VirtualClock) else None
        self._retry_at = math.inf
        self._off = False
        self._closed = False
        # Instructions of this iteration, and those of the last that was complete.
        self._calls: list[Key] | None = None
        self._ran: tuple[Key, ...] = ()
        self._follows = False
        self._reasons: set[str] = set()
        self._marks: deque[_Mark] = deque(maxlen=_MAX_MARKS)
        self._signals: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        # Only the background thread touches these.
        self._lag = setter.set_seconds
        self._in_force: RankStep | None = None
        self._target: RankStep | None = None
        self._later: tuple[float, RankStep] | None = None
        self._times = _TimesCollector()
        self._promised: float | None = None

    def begin_iteration(
        self, reached: Reached | None = None, *, microbatches: int | None = None
    ) -> None:
        """Note that an iteration begins. Never raises.

        Args:
            reached: As for ``before``.
            microbatches: Number of microbatches that it will have. One with another number than
                planned, or with an unknown one, runs at full clocks.
        """
        self._judge()
        self.iteration = number = self.iteration + 1
        coming = self._next
        while coming and coming[0][0] <= number:
            self._active = coming.popleft()[1]
        active = self._active
        self._calls = [] if microbatches == active.microbatches else None
        if microbatches is None:
            self._say_mismatch(
                "nobody says how many microbatches it has; pass begin_iteration(microbatches=…)"
            )
        elif self._calls is None:
            self._say_mismatch(
                f"it has {microbatches} of {active.microbatches} planned microbatches; "
                "plan as many as most iterations have"
            )
        if self._off and not self._resumes():
            return
        self._follows = self._calls is not None and self._ran == active.keys
        self._promise = active.plan.peak_watts if self._follows and self._shares else None
        if self._follows:
            self._note(_ITERATION, reached, began=True, wake=True)
        elif self._promised is not None:
            self._wake()

    def before(
        self, stage: int, kind: str, microbatch: int, reached: Reached | None = None
    ) -> None:
        """Note that an instruction begins. Never raises.

        Args:
            stage: Pipeline stage.
            kind: ``forward``, ``backward`` and so on.
            microbatch: Number of the microbatch; -1 where there is none.
            reached: Callable that waits until the device gets there, where work is queued.
        """
        calls = self._calls
        if calls is None:
            return
        active, key = self._active, (stage, kind, microbatch)
        index = active.index.get(key)
        if index is None and kind in _ENDINGS:
            return  # the plan leaves these alone
        calls.append(key)
        if not self._follows or self._off:
            return
        if index == len(calls) - 1:
            wake = active.acts_at_begin[index] or active.raises_within(index, self._lag)
            self._note(index, reached, began=True, wake=wake)
        else:
            self._cut_short()

    def after(self, stage: int, kind: str, microbatch: int, reached: Reached | None = None) -> None:
        """Note that an instruction has ended. Never raises."""
        if self._off or not self._follows:
            return
        active = self._active
        index = active.index.get((stage, kind, microbatch))
        if index is not None:
            self._note(index, reached, began=False, wake=active.changes[index])
            self._follows = index + 1 < len(active.steps)

    def end_iteration(self, reached: Reached | None = None) -> None:
        """Note that the step of the schedule has ended, with all of its plan or not. Never raises.

        Planned optimizer steps may still come, as they do after a step of torch's schedules.
        """
        calls, active = self._calls, self._active
        rest = () if calls is None else active.keys[len(calls) :]
        if rest and active.endings.issuperset(rest):
            return
        self._judge(reached)

    def follow(self, plan: RankPlan, from_iteration: int = 0) -> bool:
        """Change the plan, from an iteration on; from any thread.

        Returns:
            Whether that iteration is still to come. If not, the next one is the first.
        """
        self._next.append((from_iteration, _ActivePlan(plan)))
        return self.iteration < from_iteration

    def follow_first_plan(self) -> None:
        """Return to the plan it was made with, from the next iteration on."""
        self._next.clear()
        self._next.append((0, _ActivePlan(self._first)))

    def follow_shares(self) -> None:
        """Promise others the power of the plan, and tell ``on_iteration`` what they leave it."""
        self._shares = True

    def close(self) -> None:
        """Restore all clocks. May be called twice, and waits two seconds at most."""
        if self._closed:
            return
        self._closed = self._off = True
        if self._thread is None:
            self._release()
            return
        self._signals.put(_STOP)
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            _log.warning("pipeline clocks: the governor does not answer; it restores by itself")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _note(self, index: int, reached: Reached | None, *, began: bool, wake: bool) -> None:
        mark = _Mark(self._active, self.iteration, index, began, self._now(), reached)
        self._marks.append(mark)
        if wake or reached is not None:
            self._wake()

    def _wake(self) -> None:
        """Have the background thread act on what was noted."""
        if self._virtual is not None:
            self._work()
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="joulery-clocks", daemon=True)
            self._thread.start()
        self._signals.put(None)

    def _resumes(self) -> bool:
        """Whether the pause after a failure is over."""
        if self._closed or self._now() < self._retry_at:
            return False
        self._retry_at = math.inf
        self._off = False
        return True

    def _cut_short(self, reached: Reached | None = None) -> None:
        """Return to full clocks until an iteration is as planned again."""
        self._follows = False
        self._note(_CUT_SHORT, reached, began=False, wake=True)

    def _judge(self, reached: Reached | None = None) -> None:
        """Compare what the iteration ran with the plan, once it is over; clocks are full then."""
        if self._follows and not self._off:
            self._cut_short(reached)
        calls, self._calls, self._follows = self._calls, None, False
        if calls is None:
            return
        keys = self._active.keys
        self._ran = keys if len(calls) == len(keys) and tuple(calls) == keys else tuple(calls)
        if self._ran is keys:
            self.mismatch = ""
        else:
            self._say_mismatch(_difference(self._active.plan, calls))

    def _say_mismatch(self, reason: str) -> None:
        self.mismatch = reason
        if reason not in self._reasons and not self._closed:
            self._reasons.add(reason)
            _log.warning(
                "pipeline clocks stay full, since the iteration is not as planned: %s", reason
            )

    def _run(self) -> None:
        """Wait for marks or for the moment to act, in the background."""
        while True:
            later = self._later
            timeout = None if later is None else max(0.0, later[0] - self._now())
            try:
                signal = self._signals.get(timeout=timeout)
            except queue.Empty:
                signal = None
            if signal is _STOP:
                self._release()
                return
            self._work()

    def _work(self) -> None:
        # The edge to a user's training: whatever goes wrong in here must not end it.
        try:
            while self._marks and not self._off:
                self._take(self._marks.popleft())
            self._act()
            if self._promise != self._promised and not self._off:
                self._promised = self._promise
                self._setter.promise(self._promised)
        except Exception as error:  # noqa: BLE001 - the fail-open guard
            self._fail(error)

    def _take(self, mark: _Mark) -> None:
        now = mark.seconds
        if mark.reached is not None:
            mark.reached()
            now = self._now()
        active, index = mark.active, mark.step
        steps = active.steps
        times = self._times.add(mark, now, self._lag)
        self._later = None
        if index == _CUT_SHORT or (not mark.began and index + 1 == len(steps)):
            self._target = _FULL_CLOCKS
        elif mark.began and index != _ITERATION:
            self._target, later = active.ahead(index, self._lag)
            if later is not None:
                self._set_later(now + later[0], later[1])
        else:
            # Nothing runs until the next step begins, so its clock may come at once.
            self._target, _ = active.ahead(index + 1, self._lag)
        # A device that is there by now must not wait for what it only reaches later.
        if mark.reached is not None:
            self._act()
        if times is not None and self.on_iteration is not None:
            if self._shares:
                times = replace(times, share_watts=self._setter.share_watts())
            self.on_iteration(times)

    def _set_later(self, when: float, step: RankStep) -> None:
        self._later = (when, step)
        if self._virtual is not None and when > self._now():
            self._virtual.call_at(when, self._work)

    def _act(self) -> None:
        if self._off:
            return
        target, self._target = self._target, None
        if self._later is not None and self._later[0] <= self._now():
            target, self._later = self._later[1], None
        if target is not None:
            self._set(target)

    def _set(self, step: RankStep) -> None:
        if self._in_force is not None and _clock(step) == _clock(self._in_force):
            return
        if step is _FULL_CLOCKS:
            self._setter.reset()
        else:
            self._setter.set(
                step.hertz, step.watts, watch=self._has_time if self._virtual is None else None
            )
            self._lag = self._setter.set_seconds
        self._in_force = step

    def _has_time(self) -> bool:
        """Whether nothing is to be done at this moment."""
        later = self._later
        return self._signals.empty() and (later is None or later[0] > self._now())

    def _fail(self, error: Exception) -> None:
        self._off = True
        first = self.failure is None or str(self.failure) != str(error)
        self.failure = error
        self._release()
        self._marks.clear()
        passing = isinstance(error, DeviceError) and not isinstance(error, DeviceLostError)
        self._retry_at = self._now() + _RETRY_SECONDS if passing else math.inf
        if first:
            _log.warning("pipeline clocks off, training goes on at full clocks: %s", error)

    def _release(self) -> None:
        self._target = self._later = self._in_force = self._promised = None
        self._setter.release()


class _ActivePlan:
    """A plan made ready for the training thread."""

    def __init__(self, plan: RankPlan) -> None:
        self.plan = plan
        self.steps = steps = plan.steps
        self.keys = tuple(step.instruction.key for step in steps)
        self.index = {key: position for position, key in enumerate(self.keys)}
        self.endings = {key for key in self.keys if key[1] in _ENDINGS}
        self.microbatches = 1 + max((key[2] for key in self.keys), default=-1)
        self.clocks = clocks = [_clock(step) for step in steps]
        pairs = list(itertools.pairwise(clocks))
        # Steps whose begin or end needs an action; the others need not wake the thread.
        self.changes = (*(before != after for before, after in pairs), True)
        self.acts_at_begin = (True, *self.changes[:-1])
        # Seconds from the begin of each step until a clock is higher than that of the step before.
        self.until_rise = [math.inf] * len(steps)
        for index in reversed(range(len(pairs))):
            rises = clocks[index + 1] > clocks[index]
            after = 0.0 if rises else self.until_rise[index + 1]
            self.until_rise[index] = steps[index].seconds + after

    def raises_within(self, index: int, lag: float) -> bool:
        """Whether a higher clock must be ordered before a step ends, if changes take ``lag``."""
        return self.until_rise[index] - lag < self.steps[index].seconds

    def ahead(self, index: int, lag: float) -> tuple[RankStep, tuple[float, RankStep] | None]:
        """The step whose clock is ordered as a step begins, if changes take ``lag`` seconds.

        A clock that is higher must be there when its step begins, however short the steps before.

        Returns:
            Also the step whose clock is ordered later within it, and how many seconds later.
        """
        best, until = index, self.steps[index].seconds
        for later in range(index + 1, len(self.steps)):
            if until - lag >= self.steps[index].seconds:
                break
            if self.clocks[later] > self.clocks[best]:
                if until > lag:
                    return self.steps[best], (until - lag, self.steps[later])
                best = later
            until += self.steps[later].seconds
        return self.steps[best], None


class _Mark(NamedTuple):
    """A mark of the training thread; ``reached`` is None where the device is there already."""

    active: _ActivePlan
    iteration: int
    step: int
    began: bool
    seconds: float
    reached: Reached | None


class _TimesCollector:
    """Collects how long instructions took, for one iteration after the other."""

    def __init__(self) -> None:
        self._began = math.nan
        self._step: tuple[int, float] | None = None
        self._ratios: dict[tuple[int, str], list[float]] = {}

    def add(self, mark: _Mark, now: float, set_seconds: float) -> IterationTimes | None:
        """Add a mark at its true time; the times of the iteration if it was its last mark."""
        if mark.step in (_ITERATION, _CUT_SHORT):
            self._began, self._ratios = now if mark.step == _ITERATION else math.nan, {}
            return None
        if mark.began:
            self._step = (mark.step, now)
            return None
        steps = mark.active.steps
        step = steps[mark.step]
        begin, self._step = self._step, None
        if begin is not None and begin[0] == mark.step and _ran_as_planned(mark, set_seconds):
            key = (step.instruction.stage, step.instruction.kind)
            self._ratios.setdefault(key, []).append((now - begin[1]) / step.seconds)
        if mark.step + 1 < len(steps) or math.isnan(self._began):
            return None
        return IterationTimes(
            mark.iteration,
            now - self._began,
            mark.active.plan.seconds,
            {key: tuple(ratios) for key, ratios in self._ratios.items()},
        )


def _ran_as_planned(mark: _Mark, set_seconds: float) -> bool:
    """Whether the step's own clock was in force for about all of it."""
    active, index = mark.active, mark.step
    is_steady = index > 0 and not (
        active.changes[index - 1] or active.raises_within(index, set_seconds)
    )
    return is_steady or set_seconds < _SHORT_CHANGE * active.steps[index].seconds


def _clock(step: RankStep) -> float:
    """The clock of a step for comparisons, full clocks being the highest."""
    return math.inf if step.hertz is None else step.hertz


def _difference(plan: RankPlan, calls: Sequence[Key]) -> str:
    """What an iteration ran instead of a rank's plan, with a remedy."""
    keys = [step.instruction.key for step in plan.steps]
    for position, noun, remedy in (
        (0, "stages", "load the plan of this pipeline rank, not the global, for as many chunks"),
        (1, "kinds of work", "plan the schedule that runs; see schedule_of()"),
        (2, "microbatches", "plan as many microbatches as run"),
    ):
        of_plan, of_schedule = ({key[position] for key in group} for group in (keys, calls))
        if of_plan != of_schedule:
            return (
                f"the plan of rank {plan.rank} has the {noun} {_list(of_plan)}, "
                f"the schedule runs {_list(of_schedule)}; {remedy}"
            )
    pairs = itertools.zip_longest(keys, calls)
    number, (key, call) = next((n, pair) for n, pair in enumerate(pairs, 1) if pair[0] != pair[1])
    return (
        f"instruction {number} of rank {plan.rank} is {_name(key)} in the plan, but "
        f"{_name(call)} runs; plan the schedule that runs, see schedule_of()"
    )


def _list(values: set[Any]) -> str:
    """Values for people; many numbers by how many there are and the last."""
    if not values:
        return "none"
    if len(values) > _LISTED:
        return f"{min(values)} to {max(values)}"
    return ", ".join(map(str, sorted(values)))


def _name(key: Key | None) -> str:
    return "none" if key is None else str(Instruction(key[0], -1, key[1], key[2]))
