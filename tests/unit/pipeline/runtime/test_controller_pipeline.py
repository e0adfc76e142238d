"""Whole pipelines of simulated boards under controllers: what plans promise is what happens."""

from collections import defaultdict

import pytest

from joulery.clock import VirtualClock
from joulery.hardware import SimulatedGpu, Workload, catalog
from joulery.hardware.simulated._physics import steady_at
from joulery.pipeline import (
    ClockController,
    ClockSetter,
    PipelineConfig,
    PipelinePlan,
    PlanCache,
    RankPlan,
    RankStep,
    build_problem,
    make_schedule,
    profiles_from_rows,
)

STAGES, MICROBATCHES, LATENCY, MOMENT = 3, 5, 0.01, 0.001
BOARD = catalog.board("A100")
CLOCKS = [hertz for hertz in BOARD.clocks() if hertz >= 0.8e9][::3]


def work(stage, kind):
    """Unequal stages, light enough to stay below the power limit at every clock."""
    size = (1.0, 1.25, 0.9)[stage] * (1.0 if kind == "forward" else 2.0)
    return Workload(kind, 0.05 * size, 0.02 * size, 0.0, 0.45)


class SlowToSet(SimulatedGpu):
    """A board whose clock changes some time after the command."""

    def lock_clock(self, hertz):
        """Later."""
        self.clock.call_at(self.clock.now() + LATENCY, lambda: self._late(hertz))

    def unlock_clock(self):
        """Later."""
        self.clock.call_at(self.clock.now() + LATENCY, lambda: self._late(None))

    def _late(self, hertz):
        if hertz is None:
            super().unlock_clock()
        else:
            super().lock_clock(hertz)


@pytest.fixture(scope="module")
def cache():
    """Plans from the boards' true figures."""
    rows = []
    for stage in range(STAGES):
        for kind in ("forward", "backward"):
            for hertz in CLOCKS:
                state = steady_at(BOARD, work(stage, kind), hertz)
                rows.append(
                    {
                        "stage": stage,
                        "instruction": kind,
                        "frequency": hertz / 1e6,
                        "time": state.seconds,
                        "energy": state.seconds * state.watts,
                    }
                )
    config = PipelineConfig(blocking_watts=BOARD.idle_watts)
    order = make_schedule("1f1b", STAGES, MICROBATCHES)
    problem = build_problem(order, profiles_from_rows(rows, smooth=False), config)
    return PlanCache(PipelinePlan(problem), 3 * LATENCY)


class Pipeline:
    """Runs iterations on simulated boards, instruction by instruction, as edges allow."""

    def __init__(self, problem, plans):
        self.problem, self.clock = problem, VirtualClock()
        self.boards = [SlowToSet(BOARD, self.clock, index=rank) for rank in range(STAGES)]
        self.controllers = [
            ClockController(plan, ClockSetter([board], clock=self.clock), clock=self.clock)
            for plan, board in zip(plans, self.boards, strict=True)
        ]
        self.after = defaultdict(list)
        edges = zip(problem.edge_from.tolist(), problem.edge_to.tolist(), strict=True)
        for first, then in edges:
            self.after[first].append(then)

    def iteration(self):
        """Seconds and joules of one, from its start to its end."""
        begin, joules = self.clock.now(), self.joules()
        self.missing = dict.fromkeys(range(len(self.problem)), 0)
        for followers in self.after.values():
            for then in followers:
                self.missing[then] += 1
        self.left = len(self.problem)
        for controller in self.controllers:
            controller.begin_iteration(microbatches=self.problem.microbatches)
        for i, missing in list(self.missing.items()):
            if not missing:
                self.start(i)
        while self.left:
            self.clock.sleep(MOMENT)
        return self.ended - begin, self.joules_at_end - joules

    def joules(self):
        """Of all boards so far."""
        return sum(board.true_joules() for board in self.boards)

    def start(self, i):
        """Load the board, and work on as fast as its clock allows at each moment."""
        item = self.problem.instructions[i]
        self.controllers[item.rank].before(item.stage, item.kind, item.microbatch)
        self.boards[item.rank].set_load(work(item.stage, item.kind))
        self.advance(i, 1.0)

    def advance(self, i, remaining):
        """A moment of work."""
        item = self.problem.instructions[i]
        if remaining <= 1e-12:
            self.end(i, item)
            return
        seconds = self.boards[item.rank].steady().seconds
        moment = min(MOMENT, remaining * seconds)
        remainder = remaining - moment / seconds
        self.clock.call_at(self.clock.now() + moment, lambda: self.advance(i, remainder))

    def end(self, i, item):
        """Free the board, and start what waited for this."""
        self.boards[item.rank].set_load(None)
        self.controllers[item.rank].after(item.stage, item.kind, item.microbatch)
        self.left -= 1
        self.ended, self.joules_at_end = self.clock.now(), self.joules()
        for then in self.after[i]:
            self.missing[then] -= 1
            if not self.missing[then]:
                self.start(then)


def at_full_clocks(plans):
    """The same steps, all at the highest clock."""
    return [
        RankPlan(
            plan.rank,
            plan.seconds,
            tuple(RankStep(step.instruction, CLOCKS[-1], step.seconds) for step in plan.steps),
        )
        for plan in plans
    ]


@pytest.fixture(scope="module")
def full(cache):
    """Seconds and joules of an iteration at full clocks."""
    pipeline = Pipeline(cache.problem, at_full_clocks(cache.ranks()))
    pipeline.iteration()
    return pipeline.iteration()


@pytest.mark.parametrize("factor", [1.0, 1.1])
def test_boards_take_the_time_and_energy_that_was_promised(cache, full, factor):
    """If it fails savings exist on paper only: setting clocks costs time, or comes too late."""
    promised = cache.held(factor).plan
    pipeline = Pipeline(cache.problem, cache.ranks(factor))
    pipeline.iteration()
    seconds, joules = pipeline.iteration()
    assert all(controller.failure is None for controller in pipeline.controllers)
    assert seconds <= promised.deadline_seconds * (1 + 1e-6)
    assert joules == pytest.approx(promised.joules, rel=0.03)
    pace = max(seconds, full[0] * factor)
    idle = STAGES * BOARD.idle_watts
    saved = 1 - (joules + idle * (pace - seconds)) / (full[1] + idle * (pace - full[0]))
    assert saved > 0.05


def test_full_clocks_take_the_time_that_the_planner_thinks(cache, full):
    """If it fails these boards are not what the plans are for."""
    assert full[0] == pytest.approx(cache.fastest_seconds, rel=1e-3)
