"""Pipelines on virtual boards: their profile, and iterations under controllers of clocks."""

import csv
from collections import Counter, defaultdict

from joulery.clock import VirtualClock
from joulery.governor import lease
from joulery.hardware import SimulatedGpu, Workload
from joulery.pipeline import ClockController, ClockSetter

MOMENT = 0.001


class VirtualPipeline:
    """Iterations on virtual boards, one per rank, instruction by instruction.

    Args:
        board: Constants of the boards.
        works: Work of an instruction, by stage and kind.
        problem: Instructions and what each waits for.
        plans: Plan of each rank; None for full clocks.
        clock: Clock that data-parallel pipelines share.
        first: Number of its first board.
    """

    def __init__(self, board, works, problem, plans=None, clock=None, first=0):
        self.works, self.problem, self.clock = works, problem, clock or VirtualClock()
        numbers = range(first, first + problem.ranks)
        self.boards = [SimulatedGpu(board, self.clock, index=n) for n in numbers]
        self.lease = lease
        self.controllers = [
            ClockController(
                plan,
                ClockSetter([gpu], hold=self.hold, clock=self.clock),
                clock=self.clock,
            )
            for plan, gpu in zip(plans or (), self.boards, strict=False)
        ]
        self.followers = defaultdict(list)
        for before, then in zip(problem.edge_from.tolist(), problem.edge_to.tolist(), strict=True):
            self.followers[before].append(then)

    def hold(self, device):
        """Lease a board, of a governor that may be set later."""
        return self.lease(device)

    def iterate(self):
        """True seconds and joules of an iteration."""
        return iterate_all([self])[0]

    def joules(self):
        """True energy of all boards since they were made."""
        return sum(board.true_joules() for board in self.boards)

    def start(self):
        """Begin an iteration."""
        self.missing = Counter(then for later in self.followers.values() for then in later)
        self.running = len(self.problem)
        for controller in self.controllers:
            controller.begin_iteration(microbatches=self.problem.microbatches)
        for number in range(len(self.problem)):
            if not self.missing[number]:
                self.begin(number)

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


def iterate_all(pipelines, watch=lambda: None):
    """True seconds and joules of an iteration of each pipeline; all wait for the slowest.

    ``watch`` is called at every moment.
    """
    clock = pipelines[0].clock
    start, joules = clock.now(), [pipeline.joules() for pipeline in pipelines]
    for pipeline in pipelines:
        pipeline.start()
    while any(pipeline.running for pipeline in pipelines):
        clock.sleep(MOMENT)
        watch()
    for pipeline in pipelines:
        for controller in pipeline.controllers:
            controller.end_iteration()
    return [
        (pipeline.end_seconds - start, pipeline.end_joules - before)
        for pipeline, before in zip(pipelines, joules, strict=True)
    ]


def stage_works(draw, stages, activity=0.45):
    """Forwards and backwards of unequal stages."""
    return {
        (stage, kind): Workload(kind, 0.10 * size, 0.04 * size, 0.0, activity).scaled(factor)
        for stage, size in enumerate(draw.uniform(0.8, 1.25) for _ in range(stages))
        for kind, factor in (("forward", 1.0), ("backward", 2.0))
    }


def write_measured(path, board, works, lowest=0.6):
    """Write the profile of each kind of instruction at clocks from a share of the highest on."""
    gpu = SimulatedGpu(board, VirtualClock())
    clocks = [hertz for hertz in board.clocks() if hertz >= lowest * max(board.clocks())][::-3]
    rows = []
    for (stage, kind), work in works.items():
        for hertz in clocks:
            gpu.lock_clock(hertz)
            gpu.run(work)  # the board draws the power of the new clock only after a moment
            joules, seconds = gpu.true_joules(), gpu.clock.now()
            gpu.run(work)
            seconds, joules = gpu.clock.now() - seconds, gpu.true_joules() - joules
            rows.append([stage, kind, hertz / 1e6, seconds, joules])
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["stage", "instruction", "frequency", "time", "energy"])
        writer.writerows(rows)
