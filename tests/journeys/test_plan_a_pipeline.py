"""Journey: profile a pipeline, plan its clocks, and train at the planned clocks."""

import csv
from collections import Counter, defaultdict

import pytest

from joulery.clock import VirtualClock
from joulery.hardware import SimulatedGpu, Workload
from joulery.pipeline import ClockController, ClockSetter, load_plan, load_rank_plan

MOMENT = 0.001


class VirtualPipeline:
    """Iterations on virtual boards, one per rank, instruction by instruction.

    Args:
        board: Constants of the boards.
        works: Work of an instruction, by stage and kind.
        problem: Instructions and what each waits for.
        plans: Plan of each rank; None for full clocks.
    """

    def __init__(self, board, works, problem, plans=None):
        self.works, self.problem, self.clock = works, problem, VirtualClock()
        self.boards = [SimulatedGpu(board, self.clock, index=n) for n in range(problem.ranks)]
        self.controllers = [
            ClockController(plan, ClockSetter([gpu], clock=self.clock), clock=self.clock)
            for plan, gpu in zip(plans or (), self.boards, strict=False)
        ]
        self.followers = defaultdict(list)
        for first, then in zip(problem.edge_from.tolist(), problem.edge_to.tolist(), strict=True):
            self.followers[first].append(then)

    def iterate(self):
        """True seconds and joules of an iteration."""
        start, joules = self.clock.now(), self.joules()
        self.missing = Counter(then for later in self.followers.values() for then in later)
        self.running = len(self.problem)
        for controller in self.controllers:
            controller.begin_iteration()
        for number in range(len(self.problem)):
            if not self.missing[number]:
                self.begin(number)
        while self.running:
            self.clock.sleep(MOMENT)
        return self.end_seconds - start, self.end_joules - joules

    def joules(self):
        """True energy of all boards since they were made."""
        return sum(board.true_joules() for board in self.boards)

    def begin(self, number):
        """Load the board of an instruction."""
        item = self.problem.instructions[number]
        if self.controllers:
            self.controllers[item.rank].before(item.stage, item.kind, item.microbatch)
        self.boards[item.rank].set_load(self.works[item.stage, item.kind])
        self.work(number, 1.0)

    def work(self, number, share):
        """Work for a moment, as fast as the clock of the board allows."""
        item = self.problem.instructions[number]
        if share <= 1e-12:
            self.finish(number, item)
            return
        seconds = self.boards[item.rank].steady().seconds
        moment = min(MOMENT, share * seconds)
        self.clock.call_at(
            self.clock.now() + moment, lambda: self.work(number, share - moment / seconds)
        )

    def finish(self, number, item):
        """Free the board, and begin what waited for the instruction."""
        self.boards[item.rank].set_load(None)
        if self.controllers:
            self.controllers[item.rank].after(item.stage, item.kind, item.microbatch)
        self.running -= 1
        self.end_seconds, self.end_joules = self.clock.now(), self.joules()
        for then in self.followers[number]:
            self.missing[then] -= 1
            if not self.missing[then]:
                self.begin(then)


def measured_rows(board, works):
    """Profile of each kind of instruction at each clock, measured on a board."""
    gpu = SimulatedGpu(board, VirtualClock())
    clocks = [hertz for hertz in board.clocks() if hertz >= 0.6 * max(board.clocks())][::-3]
    for (stage, kind), work in works.items():
        for hertz in clocks:
            gpu.lock_clock(hertz)
            gpu.run(work)  # the board draws the power of the new clock only after a moment
            joules, seconds = gpu.true_joules(), gpu.clock.now()
            gpu.run(work)
            yield {
                "stage": stage,
                "instruction": kind,
                "frequency": hertz / 1e6,
                "time": gpu.clock.now() - seconds,
                "energy": gpu.true_joules() - joules,
            }


@pytest.mark.slow
def test_a_planned_pipeline_saves_what_was_promised(world):
    """Savings of a plan exist on paper only, or its iterations take longer."""
    stages, microbatches = world.draw.randrange(2, 5), world.draw.randrange(4, 9)
    sizes = [world.draw.uniform(0.8, 1.25) for _ in range(stages)]
    works = {
        (stage, kind): Workload(kind, 0.10 * size, 0.04 * size, 0.0, 0.45).scaled(factor)
        for stage, size in enumerate(sizes)
        for kind, factor in (("forward", 1.0), ("backward", 2.0))
    }
    rows = list(measured_rows(world.board, works))
    with (world.folder / "stages.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    document = world.joulery(
        *("plan", "pipeline", "--profile", "stages.csv", "--out", "plan.json"),
        *("--microbatches", str(microbatches), "--blocking-power", f"{world.board.idle_watts}W"),
    )
    path = world.folder / "plan.json"
    problem = load_plan(path).problem
    plans = [load_rank_plan(path, rank) for rank in range(stages)]
    full = VirtualPipeline(world.board, works, problem)
    planned = VirtualPipeline(world.board, works, problem, plans)
    for pipeline in (full, planned):
        pipeline.iterate()  # the first iteration also sets clocks for the first time
    full_seconds, full_joules = full.iterate()
    seconds, joules = planned.iterate()
    (promise,) = document["plans"]
    assert not [c.failure for c in planned.controllers if c.failure]
    assert seconds <= 1.005 * full_seconds  # the times of a profile are smoothed
    assert 1 - joules / full_joules == pytest.approx(promise["saved"], abs=0.03)
    assert joules < full_joules
