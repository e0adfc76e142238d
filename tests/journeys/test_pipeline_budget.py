"""Journey: a power budget falls by a quarter, and the pipelines of a job slow down as one."""

import re
import signal
import time
from contextlib import ExitStack

import pytest

from joulery.clock import VirtualClock
from joulery.cluster import (
    Agent,
    AgentSettings,
    EngineJob,
    NodeClient,
    PowerCurve,
    announce,
    withdraw,
)
from joulery.grid import GridEvent
from joulery.hardware import Throttle
from joulery.pipeline import (
    CoordinatorClient,
    PipelinePlan,
    hold_pace,
    load_plan,
    load_rank_plan,
)
from support.governor.emulated import EmulatedGovernor
from support.virtual_pipelines import VirtualPipeline, iterate_all, stage_works, write_measured

PIPELINES, STAGES = 2, 4


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A busy machine is not taken for nodes that do not answer."""
    for name in ("_agent._ENGINE", "_pool._NODE", "_pool._LOST_NODE"):
        monkeypatch.setattr(f"joulery.cluster.{name}_SECONDS", None)


class Job:
    """Two pipelines whose ranks are connected to the coordinator of a command."""

    def __init__(self, world, stack):
        works = stage_works(world.draw, STAGES, 0.42)
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
        path, self.clock = world.folder / "plan.json", VirtualClock()
        plans = [load_rank_plan(path, rank) for rank in range(STAGES)]
        self.plan, self.peak_watts = load_plan(path), PIPELINES * sum(p.peak_watts for p in plans)
        self.pipelines = [
            VirtualPipeline(world.board, works, self.plan.problem, plans, self.clock, number)
            for number in range(0, PIPELINES * STAGES, STAGES)
        ]
        self.boards = [board for pipeline in self.pipelines for board in pipeline.boards]
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
        end = time.monotonic() + 60
        while not true(state := hold_pace(self.address, self.token, change=False)):
            assert time.monotonic() < end, state
            time.sleep(0.005)

    def iterate(self, watch=lambda: None):
        """True seconds of each pipeline, and mean watts of all boards, in the next iteration."""
        ran = iterate_all(self.pipelines, watch)
        number, self.iterations = self.iterations, self.iterations + 1
        if number:  # the first one is compared with the plan, and not reported
            self.wait(lambda state: state.iteration == number)
        seconds = [seconds for seconds, _ in ran]
        # A pipeline that is done first waits for the other.
        idle = sum(board.board.idle_watts for board in self.pipelines[0].boards)
        waiting = idle * sum(max(seconds) - each for each in seconds)
        return seconds, (sum(joules for _, joules in ran) + waiting) / max(seconds)


class Site:
    """An agent over the boards of a job, and what it and they do."""

    def __init__(self, world, job):
        folder, most_watts = world.folder, world.board.default_limit_watts
        token = folder / "agent.token"
        token.touch(mode=0o600)
        token.write_text("a secret of the agent")
        governor = EmulatedGovernor(job.boards, token, most_watts, job.clock, shared=True)
        for pipeline in job.pipelines:
            pipeline.lease = governor.lease
        self.job, boards = job, PIPELINES * STAGES
        profiles = job.plan.problem.profiles
        peak = max(point.watts for choices in profiles for point in choices.points) / PIPELINES
        limits = [peak * share / 10 for share in range(4, 11)]
        paces = [
            1 / PipelinePlan(job.plan.problem.limited(limit)).fastest_seconds for limit in limits
        ]
        # What a board draws under its limit is not known at first: the last point leaves room.
        curve = PowerCurve.from_points(
            zip([*limits, 1.2 * peak], [*paces, 1.001 * max(paces)], strict=True)
        )
        # Boards that are not known yet may draw a tenth more than their least caps.
        least_watts = job.boards[0].power_limits().min_watts
        self.budget = max(0.75 * job.peak_watts, 1.15 * boards * least_watts)
        settings = AgentSettings(
            boards * most_watts, {"n1": "x:1"}, folder / "agent", frontiers={"gpt": curve}
        )
        self.agent = Agent(settings, self, {"n1": NodeClient(governor.connect)}, job.clock)
        self.state, self.status, self.last_tick = settings.state, {}, -1.0
        self.joules = self.true_joules()
        self.watts, self.throttled = [], 0

    def jobs(self):
        """The job, as the workload manager knows it."""
        return [EngineJob("1", "gpt", gpus={"n1": tuple(range(PIPELINES * STAGES))})]

    def true_joules(self):
        """Energy of all boards."""
        return sum(board.true_joules() for board in self.job.boards)

    def watch(self):
        """Let the agent decide every second, and note the power and whether a cap throttles."""
        now = self.job.clock.now()
        if now < self.last_tick + 1.0:
            return
        before, self.joules = self.joules, self.true_joules()
        self.watts.append((self.joules - before) / (now - self.last_tick))
        states = [board.telemetry().throttles for board in self.job.boards]
        self.throttled += any(Throttle.POWER_CAP in throttles for throttles in states)
        self.status, self.last_tick = self.agent.tick(), now


def check_agent(job, site, fastest_seconds):
    """Have the agent's budget fall a quarter below the job's hungriest second, and rise again."""
    share = 1.02 * site.budget / len(job.boards)
    event = GridEvent("peak", job.clock.wall(), job.clock.wall() + 3600, target_watts=site.budget)
    announce(site.state, event, job.clock)
    for _ in range(2):
        job.iterate(site.watch)
    assert not site.status["jobs"][0]["follows"], "caps hold until the job does"
    job.wait(lambda state: state.share_watts is not None and state.share_watts < share)
    for _ in range(8):
        site.throttled = 0
        slow, _ = job.iterate(site.watch)
        if not site.throttled:
            break
    assert not site.throttled, "a rank that its cap throttles makes the others wait"
    assert site.status["jobs"][0]["follows"]
    assert max(site.watts[1:]) <= site.budget
    assert max(slow) == pytest.approx(min(slow), rel=0.01)
    assert max(slow) > 1.02 * fastest_seconds
    withdraw(site.state, "peak")
    for _ in range(6):
        job.iterate(site.watch)
    job.wait(lambda state: state.share_watts > share)
    for _ in range(3):
        after, _ = job.iterate(site.watch)
    assert max(after) == pytest.approx(fastest_seconds, rel=0.01)


@pytest.mark.slow
def test_a_budget_is_kept_by_all_pipelines_as_one(world):
    """A budget that falls is broken, slows ranks one by one, or slows the job for good."""
    with ExitStack() as stack:
        job = Job(world, stack)
        site = Site(world, job)
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
        check_agent(job, site, max(after))
        controllers = [c for pipeline in job.pipelines for c in pipeline.controllers]
        assert not [c.failure or c.mismatch for c in controllers if c.failure or c.mismatch]
        job.command.send_signal(signal.SIGTERM)
        job.command.communicate(timeout=60)
        assert job.command.returncode == 0
