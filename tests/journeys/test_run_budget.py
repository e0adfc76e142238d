"""Journey: a power budget falls by a quarter, and a tuned training keeps to its share by itself."""

import json

import pytest

import joulery
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
from joulery.hardware import SimulatedGpu, settle
from support.governor.emulated import EmulatedGovernor


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A busy machine is not taken for nodes that do not answer."""
    for name in ("_agent._ENGINE", "_pool._NODE", "_pool._LOST_NODE"):
        monkeypatch.setattr(f"joulery.cluster.{name}_SECONDS", None)


class Site:
    """A training on one board and another job on a second one, under an agent."""

    def __init__(self, world, monkeypatch):
        self.gpu, self.step = world.virtual_board(), world.step.scaled(4)
        self.clock = self.gpu.clock
        self.other = SimulatedGpu(world.board, self.clock, index=1)
        self.other.set_load(world.step)
        self.boards, self.most_watts = (self.gpu, self.other), world.board.default_limit_watts
        token = world.folder / "agent.token"
        token.touch(mode=0o600)
        token.write_text("a secret of the agent")
        self.governor = governor = EmulatedGovernor(
            self.boards, token, self.most_watts, self.clock, shared=True
        )
        monkeypatch.setattr("joulery.governor._client.lease", governor.lease)
        limits = [world.board.min_limit_watts, 0.6 * self.most_watts, self.most_watts]
        points = [(watts, 1 / settle(world.board, world.step, watts).seconds) for watts in limits]
        settings = AgentSettings(
            2 * 1.1 * self.most_watts,
            {"n1": "x:1"},
            world.folder / "agent",
            frontiers={"net": PowerCurve.from_points(points)},
        )
        self.agent = Agent(settings, self, {"n1": NodeClient(governor.connect)}, self.clock)
        self.state = settings.state
        self.ticked_at, self.joules = -1.0, 0.0

    def jobs(self):
        """Both jobs, as the workload manager knows them."""
        return [EngineJob(str(n + 1), "net", gpus={"n1": (n,)}) for n in range(2)]

    def train(self, seconds, step=lambda: None):
        """Train for a while; the agent decides every second."""
        self.statuses, self.watts, self.limits, end = [], [], [], self.clock.now() + seconds
        while self.clock.now() < end:
            self.gpu.run(self.step)
            step()
            now = self.clock.now()
            if now >= self.ticked_at + 1.0:
                before, self.joules = self.joules, sum(b.true_joules() for b in self.boards)
                self.watts.append((self.joules - before) / (now - self.ticked_at))
                self.limits.append(self.gpu.power_limits().current_watts)
                self.statuses.append(self.agent.tick())
                self.ticked_at = now

    def cut(self, watts):
        """Announce an event that begins now."""
        now = self.clock.wall()
        announce(self.state, GridEvent("peak", now, now + 3600, target_watts=watts), self.clock)


def test_a_tuned_run_keeps_to_its_share(world, monkeypatch):
    """A run is throttled by caps that it knows nothing of, breaks the budget, or stays slow."""
    site = Site(world, monkeypatch)
    with joulery.Run(objective="least-energy:slowdown=5%", devices=[site.gpu], knob="limit") as run:
        site.train(50, run.step)
        assert site.statuses[-1]["jobs"][0]["follows"]
        chosen = run.result.chosen.setting.power_limit_watts
        budget = 0.75 * max(site.watts[-20:])
        site.cut(budget)
        site.train(15, run.step)
        assert not site.statuses[0]["jobs"][0]["follows"], "caps hold until the run does"
        status = site.statuses[-1]["jobs"][0]
        assert status["follows"]
        assert site.limits[-1] <= 1.01 * budget - site.statuses[-1]["jobs"][1]["watts"] < chosen
        assert max(site.watts[1:]) <= budget
        withdraw(site.state, "peak")
        site.train(15, run.step)
        assert site.statuses[-1]["jobs"][0]["follows"]
        assert max(site.limits[-5:]) >= 0.97 * chosen
    assert site.gpu.power_limits().current_watts == site.most_watts


def test_a_job_that_breaks_its_word_is_capped(world, monkeypatch):
    """A job that promises less than it draws takes the watts of others for ever."""
    site = Site(world, monkeypatch)
    with site.governor.lease(site.gpu) as lease:
        draw_watts = settle(world.board, site.step, site.most_watts).watts
        lease.promise(world.draw.uniform(0.8, 0.9) * draw_watts)
        site.train(2)
        assert site.statuses[-1]["jobs"][0]["follows"]
        site.train(15)
        budget = 0.75 * max(site.watts)
        site.cut(budget)
        lease.promise(0.3 * draw_watts)
        site.train(5)
    audit = (site.state / "audit.jsonl").read_text().splitlines()
    assert [json.loads(line)["job"] for line in audit if "promise broken" in line] == ["1"]
    assert not site.statuses[-1]["jobs"][0]["follows"]
    assert max(site.watts[1:]) <= budget
