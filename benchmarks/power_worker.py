"""Tuning tasks of the power benchmark: one emulated board at held time, one loop of steps.

Called by ``power.py`` with a JSON list of tasks; prints the list of answers. Zeus asks the time
module, so that is made to tell the board's time before Zeus is imported.
"""

from __future__ import annotations

import heapq
import importlib.util
import json
import logging
import math
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from power_draws import drawn

from joulery import background
from joulery.clock import VirtualClock
from joulery.frontier import OperatingPoint
from joulery.hardware import catalog, nvidia, settle
from joulery.metering import Meter
from joulery.objectives import Cost, LeastEnergy, score
from joulery.power import LimitKnob, PowerTuner, TunerState
from joulery.testing.emulator import BoardSpec, EmulatedNode

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from support.training_loop import held_here

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.hardware import Board, Workload
    from joulery.objectives import Objective

# Processor time, so that other work on the machine does not count.
REAL_TIME = time.thread_time
# What two readings of it differ by when nothing is done between them.
TIMER_SECONDS = sorted(-(REAL_TIME() - REAL_TIME()) for _ in range(1001))[500]
SLOWDOWN = 0.05
MOST_STEPS = 400_000
# After settling the loop goes on this long, so that late corrections count too.
LATER_SECONDS, LATER_STEPS = 10.0, 100


class NodeClock(VirtualClock):
    """Virtual time that an emulated node follows."""

    def __init__(self, node: EmulatedNode) -> None:
        super().__init__()
        self._node = node

    def sleep(self, seconds: float) -> None:
        """Move both on, calling everything that falls due."""
        end = self._now + seconds
        while self._due and self._due[0][0] <= end:
            due, _, callback = heapq.heappop(self._due)
            self._to(due)
            callback()
        self._to(end)

    def _to(self, moment: float) -> None:
        if moment > self._now:
            self._node.advance(moment - self._now)
            self._now = moment


CLOCK: list[NodeClock] = []
# Processor time of what the tuner does in a thread of its own, where the clock is real.
BESIDE = [0.0]


def count_beside() -> None:
    """Tell apart what the loop waits for and what is done beside it."""
    submit = background.DriverThread.submit  # on a virtual clock all is done in one thread

    def counted(thread: background.DriverThread, call: Callable[[], Any]) -> Any:
        started = REAL_TIME()
        future = submit(thread, call)
        BESIDE[0] += REAL_TIME() - started
        return future

    background.DriverThread.submit = counted  # type: ignore[method-assign]


def patch_time() -> None:
    """Let the time module tell the node's time."""
    for name in ("time", "monotonic", "perf_counter"):
        setattr(time, name, _wall)
    time.sleep = _sleep


def _wall() -> float:
    return CLOCK[0].wall()


def _sleep(seconds: float) -> None:
    CLOCK[0].sleep(seconds)


def job_of(task: dict[str, Any]) -> tuple[Board, Workload]:
    """The board and the job of a task: named, or drawn at random by its seed."""
    if task["board"] == "drawn":
        return drawn(task["seed"])
    board = catalog.board(task["board"])
    return board, catalog.workload("resnet50", board)


class Truth:
    """What every limit really costs per step."""

    def __init__(self, task: dict[str, Any]) -> None:
        board, work = job_of(task)
        self.board = board
        reference = settle(board, work, board.default_limit_watts)
        self.workload = work.scaled(task["step_seconds"] / reference.seconds)
        limits = range(math.ceil(board.min_limit_watts), math.floor(board.default_limit_watts) + 1)
        self.steady = {limit: settle(board, self.workload, limit) for limit in limits}
        self.points = {
            limit: OperatingPoint(s.seconds, s.seconds * s.watts)
            for limit, s in self.steady.items()
        }
        self.reference = self.points[limits[-1]]
        self.objective = self._objective(task["objective"])
        self.best = min(limits, key=self.score)

    def _objective(self, name: str) -> Objective:
        if name.startswith("eta"):
            return Cost(float(name.split()[1]), self.board.max_limit_watts)
        return LeastEnergy(max_slowdown=SLOWDOWN)

    def score(self, limit: int) -> float:
        """The objective's score at a limit."""
        point = self.points[limit]
        return score(self.objective, point.seconds, point.joules, self.reference)


class Loop:
    """The training loop: noisy steps on one board, with everything counted."""

    def __init__(self, task: dict[str, Any], node: EmulatedNode, clock: NodeClock) -> None:
        self.truth = Truth(task)
        self.steps = 0
        self.extra_seconds = self.extra_joules = self.loop_seconds = 0.0
        self._node, self._clock = node, clock
        self._noise = task["noise"]
        self._chance = random.Random(task["seed"])  # noqa: S311 - not a secret
        node.set_load(0, self.truth.workload)

    @property
    def limit(self) -> int:
        """The limit in force, in whole watts."""
        return round(self._node.power_limit(0))

    def run(self, at_boundary: Callable[[], None], done: Callable[[], bool]) -> None:
        """Step until ``done``; what goes beyond the best limit is extra."""
        truth, best = self.truth, self.truth.points[self.truth.best]
        while not done() and self.steps < MOST_STEPS:
            point = truth.points[self.limit]
            noise = max(0.5, 1 + self._noise * self._chance.gauss(0, 1))
            self._clock.sleep(point.seconds * noise)
            self.extra_seconds += point.seconds - best.seconds
            self.extra_joules += point.joules - best.joules
            self.steps += 1
            started, before = REAL_TIME(), BESIDE[0]
            at_boundary()
            spent = REAL_TIME() - started - (BESIDE[0] - before)
            self.loop_seconds += max(0.0, spent - TIMER_SECONDS)

    def report(self, limit: int) -> dict[str, Any]:
        """What it cost and what came of it."""
        truth = self.truth
        watts = truth.board.max_limit_watts
        best = truth.points[truth.best]
        return {
            "limit": limit,
            "best": truth.best,
            "regret": truth.score(limit) / truth.score(truth.best) - 1,
            "steps": self.steps,
            "seconds": self._clock.now(),
            "extra_seconds": self.extra_seconds,
            "extra_joules": self.extra_joules,
            # One figure for both, in seconds at the best limit: eta = 0.5.
            "extra_cost": (self.extra_joules + watts * self.extra_seconds)
            / (best.joules + watts * best.seconds)
            * best.seconds,
            "loop_seconds": self.loop_seconds,
            "beside_seconds": BESIDE[0],
        }


def ours(loop: Loop, task: dict[str, Any]) -> dict[str, Any]:
    """Tuned by Joulery, through the real NVML binding."""
    clock = CLOCK[0]
    devices = [d for d in nvidia.survey(clock).devices if d.info.parent is None]
    meter = Meter(devices, clock=clock)
    knob = LimitKnob(devices, held_here)
    with PowerTuner(devices, loop.truth.objective, knob=knob, meter=meter, clock=clock) as tuner:
        loop.run(tuner.step, lambda: tuner.state in {TunerState.HOLDING, TunerState.STOPPED})
        settled = {"settled_steps": loop.steps, "settled_seconds": clock.now()}
        assert tuner.failure is None, tuner.failure
        end = loop.steps + max(LATER_STEPS, round(LATER_SECONDS / task["step_seconds"]))
        loop.run(tuner.step, lambda: loop.steps >= end)
        report = {**loop.report(loop.limit), **settled}
    meter.close()
    return report


def zeus(loop: Loop, task: dict[str, Any]) -> dict[str, Any]:
    """Tuned by Zeus, with its own defaults or five seconds per limit."""
    if importlib.util.find_spec("zeus") is None:
        return {}
    import zeus.device.gpu as zeus_gpu
    from zeus.monitor import ZeusMonitor
    from zeus.optimizer import power_limit as zeus_limits

    logging.getLogger("zeus").setLevel(logging.ERROR)
    zeus_gpu._gpus = None  # noqa: SLF001 - it remembers the boards of the task before
    monitor = ZeusMonitor(gpu_indices=[0], cpu_indices=[])
    begin, end = monitor.begin_window, monitor.end_window
    # There is no framework here whose kernels would have to be waited for.
    monitor.begin_window = lambda key, **_: begin(key, sync_execution=False)
    monitor.end_window = lambda key, **_: end(key, sync_execution=False)
    name = task["objective"]
    if name.startswith("eta"):
        selector = zeus_limits.ZeusCost(float(name.split()[1]))
    else:
        selector = zeus_limits.MaxSlowdownConstraint(1 + SLOWDOWN)
    steps = {}
    if task["tuner"] == "zeus_5s":
        steps = {"profile_steps": max(1, round(5.0 / task["step_seconds"]))}
    # Without a framework it does not even start; one process needs neither of these.
    zeus_limits.is_distributed = lambda: False
    zeus_limits.all_reduce = lambda values, **_: values
    zeus_limits.atexit.register = lambda _: None
    optimizer = zeus_limits.GlobalPowerLimitOptimizer(monitor, selector, **steps)
    try:
        loop.run(optimizer.on_step_begin, lambda: isinstance(optimizer.state, zeus_limits.Done))
    except Exception as error:  # noqa: BLE001 - what it raises into the loop is a result too
        return {**loop.report(loop.limit), "failed": f"{type(error).__name__}: {error}"[:200]}
    return loop.report(loop.limit)


def answer(task: dict[str, Any]) -> dict[str, Any]:
    """Run one task on a fresh board."""
    board, _ = job_of(task)
    chance = random.Random(task["seed"])  # noqa: S311 - not a secret
    phase = board.counter_period_seconds * chance.random()
    spec = BoardSpec(board, noise=0.01, refresh_phase_seconds=phase)
    with EmulatedNode([spec], time_held=True) as node:
        node.hold_time(1.7e9)
        node.load_in_process()
        CLOCK[:] = [NodeClock(node)]
        BESIDE[0] = 0.0
        loop = Loop(task, node, CLOCK[0])
        return ours(loop, task) if task["tuner"] == "ours" else zeus(loop, task)


if __name__ == "__main__":
    CLOCK[:] = []
    count_beside()
    patch_time()
    answers = [answer(task) for task in json.loads(sys.argv[1])]
    sys.stdout.write("\n" + json.dumps(answers) + "\n")
