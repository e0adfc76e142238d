"""Journey: a power budget falls by a quarter, and the pipelines of a job slow down as one."""

import re
import signal
import time
from contextlib import ExitStack

import pytest

from joulery.clock import VirtualClock
from joulery.pipeline import CoordinatorClient, hold_pace, load_plan, load_rank_plan
from support.virtual_pipelines import VirtualPipeline, iterate_all, stage_works, write_measured

PIPELINES, STAGES = 2, 4


class Job:
    """Two pipelines whose ranks are connected to the coordinator of a command."""

    def __init__(self, world, stack):
        works = stage_works(world.draw, STAGES)
        write_measured(world.folder / "stages.csv", world.board, works, lowest=0.4)
        self.command = world.start(
            *("plan", "pipeline", "--profile", "stages.csv", "--out", "plan.json"),
            *("--microbatches", str(world.draw.randrange(4, 9)), "--replicas", str(PIPELINES)),
            *("--blocking-power", f"{world.board.idle_watts}W"),
            *("--coordinate", "127.0.0.1:0", "--token-file", "token"),
        )
        stack.enter_context(self.command)
        stack.callback(self.command.kill)
        port = int(re.search(r"127\.0\.0\.1:(\d+)", self.command.stderr.readline())[1])
        self.address = ("127.0.0.1", port)
        self.token = (world.folder / "token").read_text().strip()
        path, clock = world.folder / "plan.json", VirtualClock()
        plans = [load_rank_plan(path, rank) for rank in range(STAGES)]
        problem = load_plan(path).problem
        self.pipelines = [
            VirtualPipeline(world.board, works, problem, plans, clock) for _ in range(PIPELINES)
        ]
        for number, pipeline in enumerate(self.pipelines):
            for rank, controller in enumerate(pipeline.controllers):
                client = CoordinatorClient(
                    controller, self.address, self.token, pipeline=number, rank=rank, run="night"
                )
                stack.enter_context(client)
        self.iterations = 0
        self.wait(lambda state: state.connected == state.ranks)

    def wait(self, true):
        """Wait until the coordinator's state is as it should be."""
        end = time.monotonic() + 20
        while not true(state := hold_pace(self.address, self.token, change=False)):
            assert time.monotonic() < end, state
            time.sleep(0.005)

    def iterate(self):
        """True seconds of each pipeline, and mean watts of all boards, in the next iteration."""
        ran = iterate_all(self.pipelines)
        number, self.iterations = self.iterations, self.iterations + 1
        if number:  # the first one is compared with the plan, and not reported
            self.wait(lambda state: state.iteration == number)
        seconds = [seconds for seconds, _ in ran]
        # A pipeline that is done first waits for the other.
        idle = sum(board.board.idle_watts for board in self.pipelines[0].boards)
        waiting = idle * sum(max(seconds) - each for each in seconds)
        return seconds, (sum(joules for _, joules in ran) + waiting) / max(seconds)


@pytest.mark.slow
def test_a_budget_is_kept_by_all_pipelines_as_one(world):
    """A budget that falls is broken, slows ranks one by one, or slows the job for good."""
    with ExitStack() as stack:
        job = Job(world, stack)
        for _ in range(3):
            before, watts = job.iterate()
        budget = 0.75 * watts
        options = ("--coordinator", f"{job.address[0]}:{job.address[1]}", "--token-file", "token")
        state = world.joulery("plan", "pace", *options, "--budget", f"{budget}W")
        assert state["held_watts"] == pytest.approx(budget)
        for _ in range(4):
            slow, watts = job.iterate()
        assert watts <= 1.01 * budget  # the times of a profile are smoothed
        assert watts >= 0.85 * budget
        assert max(slow) == pytest.approx(min(slow), rel=0.01)
        assert max(slow) <= 1.01 * state["held_seconds"]
        assert max(slow) > max(before)
        assert world.joulery("plan", "pace", *options, "--free")["held_seconds"] is None
        for _ in range(4):
            after, _ = job.iterate()
        assert max(after) == pytest.approx(max(before), rel=0.01)
        controllers = [c for pipeline in job.pipelines for c in pipeline.controllers]
        assert not [c.failure or c.mismatch for c in controllers if c.failure or c.mismatch]
        job.command.send_signal(signal.SIGTERM)
        job.command.communicate(timeout=20)
        assert job.command.returncode == 0
