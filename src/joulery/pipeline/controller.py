"""Set each instruction's clock ahead of time, off the training thread.

The training thread only says what begins and what ends, which costs about a microsecond. A thread
in the background turns the knobs. A higher clock is ordered early by the time that a change takes,
a lower one when the instruction before has ended, so that no instruction runs slower than planned.
Between iterations clocks are full. Whatever goes wrong, clocks are given back, one line on stderr
says so, and training goes on.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

from joulery.clock import REAL_CLOCK, VirtualClock
from joulery.errors import DeviceError, DeviceLostError, InvalidValueError, JouleryError
from joulery.pipeline.iteration_times import Times
from joulery.pipeline.marks import FULL_CLOCKS, ITERATION, Follow, Mark, rate

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Self

    from joulery.clock import Clock
    from joulery.pipeline.clock_setter import ClockSetter
    from joulery.pipeline.iteration_times import IterationTimes
    from joulery.pipeline.marks import Reached
    from joulery.pipeline.rank_plan import RankPlan, Step


_log = logging.getLogger("joulery")

_STOP = object()
_CLOSE_SECONDS = 2.0
# Marks that nobody collected, as while a driver hangs; the oldest go first.
_MOST_MARKS = 65_536


class ClockController:
    """Runs a rank at the clocks of its plan.

    Args:
        plan: What to do in every iteration, until :meth:`follow` says otherwise.
        setter: Turns the knobs.
        clock: Real or virtual; on a virtual one everything happens at once, without a thread.
        retry_seconds: After a driver's or governor's failure, how long to leave things alone.
        on_iteration: Told, in the background, how each iteration went.

    Attributes:
        failure: What went wrong last; None while all is well.
        iteration: The number of the present iteration, from 0; -1 before the first.
        on_iteration: Told, in the background, how each iteration went.

    Example:
        >>> with ClockController(plan, ClockSetter([gpu])) as clocks:    # doctest: +SKIP
        ...     for batch in loader:
        ...         clocks.begin_iteration()
        ...         clocks.before(0, "forward", 0)
        ...         forward(batch)
        ...         clocks.after(0, "forward", 0)
    """

    def __init__(
        self,
        plan: RankPlan,
        setter: ClockSetter,
        *,
        clock: Clock = REAL_CLOCK,
        retry_seconds: float = 60.0,
        on_iteration: Callable[[IterationTimes], None] | None = None,
    ) -> None:
        self.failure: Exception | None = None
        self.iteration = -1
        self._base = plan
        self._follow = Follow(plan)
        self._next: deque[tuple[int, Follow]] = deque()
        self._setter = setter
        self._clock = clock
        self._now = clock.now
        self._retry_seconds = retry_seconds
        self.on_iteration = on_iteration
        self._off = False
        self._retry_at = math.inf
        self._marks: deque[Mark] = deque(maxlen=_MOST_MARKS)
        self._signals: queue.SimpleQueue[object] = queue.SimpleQueue()
        self._virtual = clock if isinstance(clock, VirtualClock) else None
        self._thread: threading.Thread | None = None
        self._closed = False
        # Only the background thread touches these.
        self._in_force: Step | None = None
        self._target: Step | None = None
        self._later: tuple[float, Step] | None = None
        self._times = Times()

    def begin_iteration(self, reached: Reached | None = None) -> None:
        """Say that an iteration begins; ``reached`` as for :meth:`before`. Never raises."""
        self.iteration = number = self.iteration + 1
        if self._off and not self._tries_again():
            return
        coming = self._next
        while coming and coming[0][0] <= number:
            self._follow = coming.popleft()[1]
        self._note(ITERATION, reached, began=True, wake=True)

    def before(
        self, stage: int, kind: str, microbatch: int, reached: Reached | None = None
    ) -> None:
        """Say that an instruction begins. Never raises.

        Args:
            stage: The pipeline stage.
            kind: ``forward``, ``backward`` and so on.
            microbatch: Its number; -1 where there is none.
            reached: Where work is queued for the device: waits until the device gets there.
        """
        if self._off:
            return
        follow = self._follow
        index = follow.index.get((stage, kind, microbatch))
        if index is None:
            self._unplanned(stage, kind, microbatch)
            return
        self._note(index, reached, began=True, wake=follow.acts_at_begin[index])

    def after(self, stage: int, kind: str, microbatch: int, reached: Reached | None = None) -> None:
        """Say that an instruction has ended. Never raises."""
        if self._off:
            return
        follow = self._follow
        index = follow.index.get((stage, kind, microbatch))
        if index is not None:
            self._note(index, reached, began=False, wake=follow.changes[index])

    def follow(self, plan: RankPlan, from_iteration: int = 0) -> bool:
        """Change the plan, from an iteration on; from any thread.

        Returns:
            Whether that iteration is still to come. If not, the next one is the first.
        """
        self._next.append((from_iteration, Follow(plan)))
        return self.iteration < from_iteration

    def follow_first_plan(self) -> None:
        """Back to the plan it was made with, from the next iteration on."""
        self._next.clear()
        self._next.append((0, Follow(self._base)))

    def close(self) -> None:
        """Give everything back. May be called twice, and waits two seconds at most."""
        if self._closed:
            return
        self._closed = self._off = True
        if self._thread is None:
            self._release()
            return
        self._signals.put(_STOP)
        self._thread.join(_CLOSE_SECONDS)
        if self._thread.is_alive():
            _log.warning("pipeline clocks: the governor does not answer; it gives back by itself")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _note(self, index: int, reached: Reached | None, *, began: bool, wake: bool) -> None:
        mark = Mark(self._follow, self.iteration, index, began, self._now(), reached)
        self._marks.append(mark)
        if wake or reached is not None:
            if self._virtual is not None:
                self._work()
                return
            if self._thread is None:
                self._start()
            self._signals.put(None)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="joulery-clocks", daemon=True)
        self._thread.start()

    def _tries_again(self) -> bool:
        if self._closed or self._now() < self._retry_at:
            return False
        self._retry_at = math.inf
        self._off = False
        return True

    def _unplanned(self, stage: int, kind: str, microbatch: int) -> None:
        error = InvalidValueError(
            f"the plan has no {kind} of microbatch {microbatch} on stage {stage}",
            remedy="plan the schedule that runs; see schedule_of()",
        )
        self._off = True
        if self._virtual is not None or self._thread is None:
            self._fail(error)
        else:
            self._signals.put(error)

    def _run(self) -> None:
        """In the background: wait for news or for the moment to act."""
        while True:
            later = self._later
            patience = None if later is None else max(0.0, later[0] - self._now())
            try:
                news = self._signals.get(timeout=patience)
            except queue.Empty:
                news = None
            if news is _STOP:
                self._release()
                return
            if isinstance(news, Exception):
                self._fail(news)
            else:
                self._work()

    def _work(self) -> None:
        # The edge to somebody's training: whatever goes wrong in here must not end it.
        try:
            while self._marks and not self._off:
                self._take(self._marks.popleft())
            self._act()
        except Exception as error:  # noqa: BLE001 - the fail-open guard
            self._fail(error)

    def _take(self, mark: Mark) -> None:
        now = mark.seconds
        if mark.reached is not None:
            mark.reached()
            now = self._now()
        follow, index = mark.follow, mark.step
        steps = follow.steps
        done = self._times.add(mark, now, self._setter.set_seconds)
        self._later = None
        if mark.began and index != ITERATION:
            self._target = steps[index]
            if follow.rises[index]:
                # What comes next is known: be there when it begins.
                early = now + steps[index].seconds - self._setter.set_seconds
                self._plan_for(early, steps[index + 1])
        else:
            # Nothing runs until the next step begins, so its clock may come at once.
            self._target = steps[index + 1] if index + 1 < len(steps) else FULL_CLOCKS
        # A device that is there by now must not wait for what it only reaches later.
        if mark.reached is not None:
            self._act()
        if done is not None and self.on_iteration is not None:
            self.on_iteration(done)

    def _plan_for(self, when: float, step: Step) -> None:
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

    def _set(self, step: Step) -> None:
        if self._in_force is not None and rate(step) == rate(self._in_force):
            return
        if step is FULL_CLOCKS:
            self._setter.reset()
        else:
            self._setter.set(step, watch=self._virtual is None)
        self._in_force = step

    def _fail(self, error: Exception) -> None:
        self._off = True
        first = self.failure is None or str(self.failure) != str(error)
        self.failure = error
        self._release()
        self._marks.clear()
        passing = isinstance(error, DeviceError) and not isinstance(error, DeviceLostError)
        self._retry_at = self._now() + self._retry_seconds if passing else math.inf
        if first:
            _log.warning("pipeline clocks off, training goes on at full clocks: %s", error)

    def _release(self) -> None:
        self._target = self._later = self._in_force = None
        for give_back in (self._setter.reset, self._setter.release):
            # A governor that is gone gives back by itself.
            with suppress(JouleryError, OSError):
                give_back()
