"""The agent's decisions and what it does on nodes, on a virtual clock."""

from __future__ import annotations

import itertools
import json
import threading
from contextlib import ExitStack
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer

import msgspec
import pytest

from joulery.clock import REAL_CLOCK, VirtualClock
from joulery.cluster import (
    Agent,
    AgentSettings,
    AgentStatus,
    Budget,
    Cap,
    DeviceState,
    EngineJob,
    NodeClient,
    PowerCurve,
    announce,
    mirror_events,
    read_agent_settings,
    withdraw,
)
from joulery.cluster._history import PromiseWatch
from joulery.cluster._nodes import NodeUnreachableError
from joulery.cluster._slurm import EngineError, Slurm, SlurmRest, expand_hosts
from joulery.errors import (
    DeviceError,
    FileError,
    InvalidValueError,
    NotPossibleHereError,
    StoreError,
)
from joulery.frontier import Frontier, OperatingPoint, Setting
from joulery.governor._peer import device_file
from joulery.grid import GridEvent, Signal
from joulery.hardware import Capability
from joulery.reports import agent_report
from joulery.server._cluster_page import ClusterWatch
from support.dashboard_store import AGENT_STATUS
from support.governor.emulated import EmulatedGovernor, EmulatedGpu

CURVE = PowerCurve.from_points([(100, 25), (200, 60), (300, 85), (400, 100)])


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A busy machine is not taken for nodes that do not answer."""
    for name in ("_agent._ENGINE", "_pool._NODE", "_pool._LOST_NODE", "_meters._PATIENCE"):
        monkeypatch.setattr(f"joulery.cluster.{name}_SECONDS", None)


class FakeEngine:
    """Jobs that a test sets, and what was asked of them."""

    def __init__(self):
        self.held, self.calls, self.is_down, self.suspended = [], [], False, set()

    def jobs(self):
        """Jobs that hold GPUs."""
        if self.is_down:
            raise EngineError("slurmctld is down", remedy="start it")
        return [replace(job, is_suspended=job.id in self.suspended) for job in self.held]

    def suspend(self, job):
        """Stop it."""
        self.calls.append(("suspend", job))
        self.suspended.add(job)

    def resume(self, job):
        """Let it go on."""
        self.calls.append(("resume", job))
        self.suspended.remove(job)

    def signal(self, job, name):
        """Note it."""
        self.calls.append((name, job))


class Bench:
    """Two nodes of two GPUs that have shown to draw their caps, an engine and an agent."""

    def __init__(
        self,
        tmp_path,
        budget=1600.0,
        find=lambda _: None,
        gpus=2,
        ids="{node}-{index}",
        *,
        are_known=True,
        shared=False,
        **settings,
    ):
        self.clock = VirtualClock()
        self.engine = FakeEngine()
        self.gpus = {
            n: [EmulatedGpu(ids.format(node=n, index=i), clock=self.clock) for i in range(gpus)]
            for n in ("n1", "n2")
        }
        token = tmp_path / "token"
        token.touch(mode=0o600)
        token.write_text("a secret of the agent")
        self.governors = {
            name: EmulatedGovernor(gpus, token, 150.0, self.clock, shared=shared)
            for name, gpus in self.gpus.items()
        }
        self.nodes = {
            name: NodeClient(governor.connect) for name, governor in self.governors.items()
        }
        self.settings = AgentSettings(
            budget,
            dict.fromkeys(self.nodes, "x:1"),
            tmp_path,
            frontiers={"known": CURVE},
            **settings,
        )
        self._find = find
        self.restart()
        if are_known:
            self.agent._history.draws.shares = {
                f"{name}/{gpu.info.id}": 1.0 for name, gpus in self.gpus.items() for gpu in gpus
            }

    def restart(self):
        """Go on with an agent that knows only what the last one wrote down."""
        self.agent = Agent(self.settings, self.engine, self.nodes, self.clock, self._find)

    def caps(self):
        """Caps in force on all GPUs."""
        return [gpu.cap_watts for gpus in self.gpus.values() for gpu in gpus]

    def tick_governors(self):
        """Let the nodes notice how late it is."""
        for governor in self.governors.values():
            governor.table.tick()

    def tick(self):
        """Let a second pass, and decide."""
        self.clock.sleep(1.0)
        self.tick_governors()
        return self.agent.tick()


def job(number, gpus, name="known", comment=""):
    """A job on some GPUs."""
    return EngineJob(str(number), name, comment, gpus)


def test_gpus_without_a_job_stay_low_and_their_watts_are_kept(tmp_path):
    """A job that starts between two ticks exceeds the budget."""
    bench = Bench(tmp_path, budget=800)
    bench.engine.held = [job(1, {"n1": (0,)})]
    bench.tick()
    assert bench.caps() == [400, 100, 100, 100]
    bench.engine.held.append(job(2, {"n1": (1,), "n2": (0, 1)}))
    bench.tick()
    assert sum(bench.caps()) <= 800 + 1e-6
    assert max(bench.caps()) - min(bench.caps()) < 1e-6


def test_an_event_lowers_the_caps_and_its_end_raises_them(tmp_path):
    """An announced event is not met, is over-delivered, or never ends."""
    bench = Bench(tmp_path)
    bench.engine.held = [job(1, {"n1": (0, 1), "n2": (0, 1)})]
    for _ in range(3):
        bench.tick()
    now = bench.clock.wall()
    peak = GridEvent("peak", now + 10, now + 20, reduction=0.3, baseline_watts=1600.0)
    announce(tmp_path, peak, bench.clock)
    with pytest.raises(InvalidValueError, match="ago"):
        announce(tmp_path, GridEvent("old", now - 20, now - 10, reduction=0.3), bench.clock)
    totals = {}
    for second in range(1, 25):
        bench.tick()
        totals[second] = sum(bench.caps())
    assert totals[5] == pytest.approx(1600)
    assert all(totals[s] == pytest.approx(0.7 * 1600, rel=5e-3) for s in range(10, 20))
    assert totals[22] == pytest.approx(1600, rel=5e-3)
    assert not list((tmp_path / "events").glob("*.json"))


def test_a_job_that_keeps_to_its_share_has_no_cap_until_it_breaks_its_word(tmp_path):
    """A pipeline's rank is throttled although the whole keeps its share, or a liar is believed."""
    bench = Bench(tmp_path, budget=1600, shared=True)
    bench.engine.held = [job(1, {"n1": (0, 1)}), job(2, {"n2": (0, 1)})]
    gpus = bench.gpus["n1"]
    with ExitStack() as stack:
        leases = [stack.enter_context(bench.governors["n1"].lease(gpu)) for gpu in gpus]

        def promise(watts, draw_watts):
            for lease, gpu in zip(leases, gpus, strict=True):
                lease.promise(watts)
                gpu.demand_watts = draw_watts
            for _ in range(2):
                status = bench.tick()
            return status["jobs"][0]["follows"], bench.caps()[:2]

        assert promise(380.0, 350.0) == (True, [400.0, 400.0])
        now = bench.clock.wall()
        announce(tmp_path, GridEvent("cut", now, now + 600, target_watts=1000.0), bench.clock)
        follows, caps = promise(380.0, 350.0)
        assert not follows
        assert sum(bench.caps()) <= 1000.1
        share = leases[0].share_watts
        assert share == pytest.approx(caps[0], rel=0.01)
        assert promise(share, 0.9 * share) == (True, [400.0, 400.0])
        assert sum(bench.caps()[2:]) <= 1000.1 - 2 * share
        assert leases[0].share_watts == pytest.approx(share, rel=0.01), "caps are not the share"
        for gpu in gpus:
            gpu.demand_watts = 1.5 * share
        for _ in range(8):
            status = bench.tick()
        assert not status["jobs"][0]["follows"]
        assert sum(bench.caps()) <= 1000.1
        assert sum(gpu.read_power() for gpus in bench.gpus.values() for gpu in gpus) <= 1000.1


def test_caps_of_racks_hold_whatever_a_job_promises(tmp_path):
    """The rack of a pipeline's hungry stages exceeds its cap, since the whole keeps its share."""
    tree = Budget((Cap("hall"), Cap("n1", 500.0, "hall"), Cap("n2", parent="hall")))
    bench = Bench(tmp_path, shared=True, tree=tree)
    bench.engine.held = [job(1, {"n1": (0, 1)})]
    with ExitStack() as stack:
        for gpu in bench.gpus["n1"]:
            stack.enter_context(bench.governors["n1"].lease(gpu)).promise(150.0)
            gpu.demand_watts = 140.0
        bench.tick()
        assert not bench.tick()["jobs"][0]["follows"]
        assert sum(bench.caps()[:2]) <= 500.1


def test_promises_are_broken_by_their_mean():
    """A spike of a reading ends a job's trust for good, or a job that draws more keeps it."""
    watch = PromiseWatch()

    def note(watts):
        return watch.note({"1": [DeviceState("a", 100, 400, 400, watts, promised_watts=200)]}, 1.0)

    assert not any(note(watts) for watts in [180, 180, 280, 180, 180, 180, 280, 180])
    assert [note(240) for _ in range(9)].count(["1"]) == 1
    assert watch.broken == {"1"}
    watch.note({}, 1.0)
    assert not watch.broken


def test_excursions_that_caps_cut_short_add_up():
    """A job breaks its promise again and again, since it keeps to its caps in between."""
    watch = PromiseWatch()

    def note(cap_watts, watts):
        state = DeviceState("a", 100, 400, cap_watts, watts, promised_watts=240)
        return watch.note({"1": [state]}, 0.5)

    assert not any(note(400, 230) for _ in range(20))
    excursions = [[note(400, 400), *(note(230, 225) for _ in range(30))] for _ in range(4)]
    assert excursions[0] == [[]] * 31
    assert ["1"] in [broken for excursion in excursions for broken in excursion]


def test_the_dashboard_shows_what_the_agent_writes(tmp_path):
    """The page of the cluster lacks a figure, or fails, after the agent's status has changed."""
    bench = Bench(tmp_path)
    bench.engine.held = [job(1, {"n1": (0, 1)}), job(2, {"n2": (0, 1)})]
    watch, now = ClusterWatch(tmp_path), bench.clock.wall()
    announce(tmp_path, GridEvent("peak", now, now + 60, reduction=0.3), bench.clock)
    for _ in range(3):
        status = bench.tick()
        watch.sample()
    assert AGENT_STATUS.keys() == status.keys()
    assert [at for at, _, _ in watch.history] == [now + 1, now + 2, now + 3]
    text = agent_report(watch.look(), watch.history, bench.clock.wall()).body()
    for words in ("Power over time", "peak", "30 % less", "Jain index", "2 nodes"):
        assert words in text
    assert "silent" not in text


def test_the_page_of_a_cluster_says_what_needs_attention():
    """An operator takes the last figures of a dead agent, or a lost node, for all is well."""
    status = msgspec.convert(AGENT_STATUS, AgentStatus)
    page = agent_report(status, (), status.at + 7300.0).body()
    assert '<p class="error">! The agent has been silent for 2 h: is it running?</p>' in page
    assert '<p class="error">! node3 does not answer</p>' in page
    small = agent_report(msgspec.structs.replace(status, nodes=1), (), status.at).body()
    assert "1 node, 1 of them lost" in small
    short = agent_report(msgspec.structs.replace(status, is_short=True), (), status.at).body()
    assert '<p class="error">! The budget does not cover' in short


@pytest.mark.parametrize("last_tick", range(6, 30, 3))
def test_an_announced_event_is_met_by_a_long_lead_whenever_the_agent_dies(tmp_path, last_tick):
    """An agent that dies as an event begins leaves the caps of before in force."""
    bench = Bench(tmp_path, lead_seconds=15.0, ttl_seconds=10.0)
    bench.engine.held = [job(1, {"n1": (0, 1), "n2": (0, 1)})]
    now = bench.clock.wall()
    announce(tmp_path, GridEvent("cut", now + 30, now + 90, target_watts=1000.0), bench.clock)
    for second in range(1, 60):
        if second <= last_tick:
            bench.tick()
        else:
            bench.clock.sleep(1.0)
            bench.tick_governors()
        assert second != 6 or sum(bench.caps()) == pytest.approx(1600), "there is more at first"
        assert second < 30 or sum(bench.caps()) <= 1000.1


def test_a_silent_agent_leaves_caps_that_only_fall(tmp_path):
    """Caps rise, or stay high for good, when the agent is killed."""
    bench = Bench(tmp_path, ttl_seconds=5.0)
    bench.engine.held = [job(1, {"n1": (0, 1), "n2": (0, 1)})]
    bench.tick()
    before = bench.caps()
    caps = []
    for _ in range(40):
        bench.clock.sleep(0.5)
        bench.tick_governors()
        caps.append(sum(bench.caps()))
    assert caps[7] == pytest.approx(sum(before))
    assert caps == sorted(caps, reverse=True)
    assert bench.caps() == [150] * 4


def test_a_lost_node_counts_as_drawing_its_caps(tmp_path):
    """Watts of a node that does not answer are handed to others."""
    bench = Bench(tmp_path, budget=1000)
    bench.engine.held = [job(1, {"n1": (0, 1)}), job(2, {"n2": (0, 1)})]
    bench.tick()
    lost_watts = sum(gpu.cap_watts for gpu in bench.gpus["n2"])
    bench.governors["n2"].is_cut = True
    bench.engine.held = [job(1, {"n1": (0, 1)})]
    report = bench.tick()
    assert sum(gpu.cap_watts for gpu in bench.gpus["n1"]) <= 1000 - lost_watts + 1e-6
    assert any("cut off" in message for message in report["messages"])


def test_caps_rise_only_after_the_others_fell(tmp_path):
    """One node's refusal to lower a cap lets the sum exceed the budget."""
    bench = Bench(tmp_path, budget=1000)
    bench.engine.held = [job(1, {"n1": (0, 1)})]
    bench.tick()
    bench.engine.held = [job(2, {"n2": (0, 1)})]
    answer = bench.nodes["n1"].set_caps
    bench.nodes["n1"].set_caps = lambda *_: (_ for _ in ()).throw(
        NodeUnreachableError("no", remedy="")
    )
    bench.tick()
    assert sum(bench.caps()) <= 1000 + 1e-6
    bench.nodes["n1"].set_caps = answer
    for _ in range(2):
        bench.tick()
        assert sum(bench.caps()) <= 1000 + 1e-6
    assert bench.caps() == pytest.approx([100, 100, 400, 400], rel=5e-3)


def test_an_unknown_job_gets_what_is_free(tmp_path):
    """A job without a frontier is held back although there are watts for it."""
    bench = Bench(tmp_path)
    bench.engine.held = [
        job(1, {"n1": (0,)}, name="who"),
        job(2, {"n1": (1,)}, comment="joulery tier=flex-7"),
    ]
    report = bench.tick()
    assert bench.caps()[0] == pytest.approx(400)
    assert any("no frontier" in message for message in report["messages"])
    assert any("flex-7" in message for message in report["messages"])


def test_clocks_are_locked_where_the_frontier_was_measured_so(tmp_path):
    """A job runs at another point than its frontier has, or its GPU stays locked for the next."""
    points = [
        OperatingPoint(1.0, 400.0, Setting(clock_hertz=2.0e9)),
        OperatingPoint(1.25, 250.0, Setting(clock_hertz=1.5e9)),
        OperatingPoint(2.0, 240.0, Setting(clock_hertz=1.0e9)),
    ]
    curve = PowerCurve.from_frontier(Frontier.from_points(points), gpus=1)
    bench = Bench(tmp_path, budget=600, find=lambda _: curve)
    gpus = [gpu for boards in bench.gpus.values() for gpu in boards]
    gpus[2].capabilities -= {Capability.CLOCK_LOCK}
    bench.engine.held = [job(1, {"n1": (0, 1), "n2": (0,)}, name="locked")]
    bench.tick()
    assert [gpu.locked_hertz for gpu in gpus] == [1.5e9, 1.5e9, None, None]
    assert bench.caps() == pytest.approx([500 / 3] * 3 + [100]), "also where no clock is locked"
    bench.clock.sleep(30)
    bench.tick_governors()
    assert gpus[0].locked_hertz is None, "an agent that is silent leaves caps alone"
    bench.tick()
    assert gpus[0].locked_hertz == 1.5e9
    bench.engine.held = []
    bench.tick()
    assert [gpu.locked_hertz for gpu in gpus] == [None] * 4


def test_floors_give_way_before_a_job_is_stopped(tmp_path):
    """A job is stopped although its least caps fit, or watts stay unused beside it."""
    bench = Bench(tmp_path)
    bench.engine.held = [job(n, {"n1": (n,)}, comment="joulery tier=flex-1") for n in (0, 1)]
    bench.tick()
    now = bench.clock.wall()
    announce(tmp_path, GridEvent("short", now, now + 9, target_watts=830), bench.clock)
    for _ in range(3):
        report = bench.tick()
    assert [round(j["performance"], 2) for j in report["jobs"]] == [0.87, 0.87], "2 % less each"
    assert report["messages"] == ["the jobs' floors do not fit: all are lowered, by up to 10%"]
    announce(tmp_path, GridEvent("deep", now, now + 9, target_watts=650), bench.clock)
    for _ in range(3):
        report = bench.tick()
    assert max(j["performance"] for j in report["jobs"]) >= 0.81, "one keeps most of its floor"
    assert "1 of 2 jobs run below" in report["messages"][-1]
    assert sum(bench.caps()) == pytest.approx(650, rel=0.01)
    assert bench.engine.calls == []


def test_jobs_stop_when_their_least_caps_do_not_fit_and_go_on_later(tmp_path):
    """A budget below the least caps is exceeded, or a stopped job flaps or is forgotten."""
    bench = Bench(tmp_path, least_stopped_seconds=5.0)
    bench.engine.held = [job(n, {"n1": (n,)}) for n in (0, 1)]
    bench.tick()
    now = bench.clock.wall()
    announce(tmp_path, GridEvent("deep", now, now + 60, target_watts=370), bench.clock)
    for _ in range(45):
        report = bench.tick()
        for name in bench.engine.suspended:
            bench.gpus["n1"][int(name)].demand_watts = 50.0
    assert [call for call, _ in bench.engine.calls] == ["suspend"]
    assert report["is_short"]
    assert (tmp_path / "no-watts").exists()
    assert bench.agent._power() == pytest.approx(370, rel=0.01), "what it leaves goes to the other"
    for _ in range(60):
        bench.tick()
    assert [call for call, _ in bench.engine.calls] == ["suspend", "resume"]
    assert not (tmp_path / "no-watts").exists()
    lines = (tmp_path / "audit.jsonl").read_text().splitlines()
    said = [json.loads(line)["what"] for line in lines]
    assert [what for what in said if what in ("suspend", "resume")] == ["suspend", "resume"]
    assert [what for what in said if "event" in what] == ["event began", "event ended"]


def test_a_job_may_save_a_checkpoint_before_it_is_stopped(tmp_path):
    """A stopped job that never goes on loses its work, or one that cannot save is killed."""
    bench = Bench(tmp_path, checkpoint_seconds=3.0, least_stopped_seconds=2.0)
    comments = ("joulery checkpoint=USR1", "joulery checkpoint=rm -rf")
    bench.engine.held = [job(n, {"n1": (n,)}, comment=comments[n]) for n in (0, 1)]
    bench.tick()
    now = bench.clock.wall()
    announce(tmp_path, GridEvent("deep", now, now + 20, target_watts=310), bench.clock)
    bench.tick()
    assert sorted(bench.engine.calls) == [("USR1", "0"), ("suspend", "1")]
    assert sum(bench.caps()) <= 400, "meanwhile it runs at the least cap"
    for _ in range(4):
        bench.tick()
    assert bench.engine.calls[2:] == [("suspend", "0")]
    for _ in range(20):
        bench.tick()
    assert sorted(bench.engine.calls[3:]) == [("resume", "0"), ("resume", "1")]


def test_frontiers_come_from_the_store_by_name(tmp_path, monkeypatch):
    """A recurring job that was measured long ago counts as unknown."""
    requests, gate = [], threading.Event()

    def find(name):
        requests.append(name)
        if name == "slow":
            gate.wait(60)
        if name == "broken":
            raise StoreError("no connection", remedy="start it")
        return {"nightly": PowerCurve.from_points([(100, 60), (160, 99), (250, 100)])}.get(name)

    bench = Bench(tmp_path, find=find)
    bench.engine.held = [
        job(1, {"n1": (0,)}, name="slurm-script", comment="joulery frontier=nightly"),
        job(2, {"n1": (1,)}),
        job(3, {"n2": (0,)}, name="new"),
    ]
    for _ in range(3):
        report = bench.tick()
    assert bench.caps()[:3] == [250, 400, 400]
    assert sorted(requests) == ["new", "nightly"], (
        "known jobs are not looked up, others once a minute"
    )
    bench.clock.sleep(60)
    bench.engine.held.append(job(4, {"n2": (1,)}, name="broken"))
    report = bench.tick()
    assert any("store does not answer" in message for message in report["messages"])
    assert bench.caps()[0] == 250
    bench.engine.held[-1] = job(5, {"n2": (1,)}, name="slow")
    monkeypatch.setattr("joulery.cluster._agent._ENGINE_SECONDS", 0.01)
    assert bench.tick()["jobs"], "a store that hangs is not waited for"
    gate.set()


def test_an_unknown_job_is_profiled_under_the_caps_in_force(tmp_path):
    """A job without a frontier stays at an assumed straight line for ever."""
    bench = Bench(tmp_path)
    bench.engine.held = [job(1, {"n1": (0, 1)}, name="new"), job(2, {"n2": (0,)}, name="small")]
    bench.gpus["n2"][0].demand_watts = 130.0
    caps = set()
    for _ in range(60):
        report = bench.tick()
        caps.add(round(bench.caps()[0]))
    assert {200, 300, 400} <= caps
    assert not any("no frontier" in message for message in report["messages"])
    curve = bench.agent._history.observed.curve("1")
    assert curve.watts == pytest.approx((200, 300, 400))
    assert curve.performance[0] == pytest.approx((200 / 400) ** 0.5)
    assert 1.1 * 130 <= bench.caps()[2] <= 160, "what it does not draw goes to others"
    bench.gpus["n2"][0].demand_watts = 1000.0
    for _ in range(60):
        bench.tick()
    assert bench.caps()[2] == pytest.approx(400, rel=1e-2), "it has grown"
    bench.engine.held = []
    bench.tick()
    assert bench.agent._history.observed.curve("1") is None


def test_an_unknown_job_is_profiled_while_the_budget_binds(tmp_path):
    """A job that never gets full power stays at an assumed straight line for ever."""
    bench = Bench(tmp_path, budget=900)
    bench.engine.held = [job(1, {"n1": (0, 1)}, name="new"), job(2, {"n2": (0, 1)})]
    for _ in range(90):
        report = bench.tick()
        assert sum(bench.caps()) <= 900 * 1.002
    assert not any("no frontier" in message for message in report["messages"])
    curve = bench.agent._history.observed.curve("1")
    assert curve.most_watts == pytest.approx(400), "beyond what it had"
    assert curve.performance[0] == pytest.approx((curve.watts[0] / 400) ** 0.5, rel=0.05)


def test_more_is_handed_out_than_the_budget_while_jobs_draw_less(tmp_path):
    """Watts that jobs never draw stay unused, or the budget is exceeded by more than the risk."""
    bench = Bench(tmp_path, budget=20 * 200.0, gpus=10, most_trim=0.3)
    positions = [(node, index) for node in ("n1", "n2") for index in range(10)]
    bench.engine.held = [job(n, {node: (i,)}) for n, (node, i) in enumerate(positions)]
    for gpus in bench.gpus.values():
        for gpu in gpus:
            gpu.demand_watts = 120.0
    bench.tick()
    assert sum(bench.caps()) == pytest.approx(4_000)
    for _ in range(80):
        bench.clock.sleep(4.0)
        report = bench.tick()
    assert sum(bench.caps()) > 1.2 * 4_000
    assert report["power_watts"] < 4_000
    for gpus in bench.gpus.values():
        for gpu in gpus:
            gpu.demand_watts = 1000.0
    for _ in range(3):
        report = bench.tick()
    assert bench.agent._power() <= 4_000 * 1.002
    now = bench.clock.wall()
    announce(tmp_path, GridEvent("cut", now, now + 60, target_watts=3_000), bench.clock)
    for _ in range(2):
        bench.tick()
    assert sum(bench.caps()) <= 3_000 * 1.002, "an event is met whatever jobs draw"


def test_a_restarted_agent_goes_on_where_the_killed_one_was(tmp_path):
    """After kill -9 a stopped job waits for ever, or a cut is taken of the wrong power."""
    bench = Bench(tmp_path, least_stopped_seconds=2.0)
    bench.engine.held = [job(n, {"n1": (n,)}) for n in (0, 1)]
    for _ in range(5):
        bench.tick()
    now = bench.clock.wall()
    announce(tmp_path, GridEvent("deep", now, now + 5, reduction=0.63), bench.clock)
    report = bench.tick()
    budget = report["budget_watts"]
    assert any("the mean of 5 s" in message for message in report["messages"])
    assert len(bench.engine.suspended) >= 1
    bench.engine.is_down = True
    bench.governors["n2"].is_cut = True
    bench.restart()
    report = bench.tick()
    assert report["budget_watts"] == pytest.approx(budget), "of the power before the event"
    assert report["jobs"] or report["paused"], "the jobs that the last agent knew count"
    assert report["caps_watts"] == pytest.approx(sum(bench.caps())), "with the lost node's"
    assert report["lost_nodes"] == ["n2"]
    bench.engine.is_down = bench.governors["n2"].is_cut = False
    for _ in range(9):
        bench.tick()
    assert not bench.engine.suspended
    (tmp_path / "agent.json").write_text("{")
    bench.restart()
    assert not bench.tick()["messages"]


def test_a_job_that_others_suspended_is_left_alone(tmp_path):
    """The agent resumes what an administrator stopped, or keeps watts for it."""
    bench = Bench(tmp_path, budget=1000)
    bench.engine.held = [job(1, {"n1": (0, 1)}), job(2, {"n2": (0, 1)})]
    bench.engine.suspended = {"2"}
    for _ in range(2):
        bench.tick()
    assert bench.caps() == pytest.approx([400, 400, 100, 100])
    assert bench.engine.calls == []


def test_whatever_hangs_an_event_is_met(tmp_path, monkeypatch):
    """A slurmctld or a node that does not answer delays the caps of all others."""
    bench = Bench(tmp_path)
    bench.engine.held = [job(1, {"n1": (0, 1), "n2": (0, 1)})]
    bench.tick()
    gate, hanging = threading.Event(), []
    answer, jobs = bench.nodes["n2"].status, bench.engine.jobs

    def hang():
        hanging.append("n2")
        gate.wait(60)
        hanging.clear()
        return answer()

    def wait(futures, _):
        for future in list(futures):
            while not future.done() and not (
                hanging and future is bench.agent._nodes._pending["n2"]
            ):
                REAL_CLOCK.sleep(1e-3)

    bench.nodes["n2"].status = hang
    bench.engine.jobs = lambda: gate.wait(60) and jobs()
    monkeypatch.setattr("joulery.cluster._pool.wait", wait)
    monkeypatch.setattr("joulery.cluster._agent._ENGINE_SECONDS", 0.01)
    now = bench.clock.wall()
    announce(tmp_path, GridEvent("cut", now, now + 60, target_watts=1200), bench.clock)
    report = bench.tick()
    assert bench.caps() == pytest.approx([200, 200, 400, 400]), "the lost node keeps its caps"
    assert report["lost_nodes"] == ["n2"]
    bench.clock.sleep(20)
    assert any("10 s ago" in message for message in bench.tick()["messages"])
    gate.set()
    monkeypatch.setattr("joulery.cluster._agent._ENGINE_SECONDS", None)
    for _ in range(3):
        report = bench.tick()
    assert bench.caps() == pytest.approx([300] * 4, rel=5e-3)
    door = threading.Event()
    bench.engine.jobs, bench.engine.suspend = jobs, lambda _: door.wait(60)
    monkeypatch.setattr("joulery.cluster._agent._ENGINE_SECONDS", 0.01)
    announce(tmp_path, GridEvent("less", now, now + 60, target_watts=300), bench.clock)
    bench.tick()
    assert bench.caps() == [100] * 4, "although the job cannot be suspended"
    door.set()
    assert not report["lost_nodes"]


def test_a_raise_that_is_not_confirmed_counts(tmp_path):
    """A node breaks off after it raised its caps, and others get the same watts."""
    bench = Bench(tmp_path, budget=1000)
    bench.engine.held = [job(1, {"n2": (0, 1)})]
    bench.tick()
    bench.engine.held = [job(2, {"n1": (0, 1)})]
    set_caps = bench.nodes["n1"].set_caps

    def break_off(caps, *rest):
        set_caps(caps, *rest)
        if max(caps.values()) > 100:
            bench.governors["n1"].is_cut = True
            raise NodeUnreachableError("gone", remedy="")
        return answer()

    answer, bench.nodes["n1"].set_caps = bench.nodes["n1"].status, break_off
    bench.tick()
    bench.engine.held = [job(1, {"n2": (0, 1)})]
    for _ in range(2):
        bench.tick()
        assert sum(bench.caps()) <= 1000 + 1e-6


def test_the_rest_of_a_job_goes_on_when_one_of_its_nodes_is_lost(tmp_path):
    """One node that does not answer slows down all others of its job."""
    bench = Bench(tmp_path)
    bench.engine.held = [job(1, {"n1": (0, 1), "n2": (0, 1)}), job(2, {"n1": (7,)})]
    bench.tick()
    bench.governors["n2"].is_cut = True
    report = bench.tick()
    assert bench.caps() == pytest.approx([400] * 4)
    assert any("2 of its 4" in message for message in report["messages"])


def test_users_ask_for_no_more_than_they_may(tmp_path):
    """A user takes the watts of others by a comment."""
    bench = Bench(tmp_path, budget=1000, policy="throughput", most_weight=1.0, most_floor=0.5)
    bench.engine.held = [
        job(1, {"n1": (0, 1)}, comment="joulery weight=1000 floor=1"),
        job(2, {"n2": (0, 1)}, comment="joulery weight=1"),
    ]
    bench.tick()
    assert max(bench.caps()) <= 300 + 1e-6


def test_a_second_agent_on_the_same_state_is_refused(tmp_path):
    """Two agents undo each other's caps."""
    bench = Bench(tmp_path)
    agents = []

    def start_another(_):
        with pytest.raises(NotPossibleHereError, match="another agent"):
            bench.agent.run(1)
        agents.append(True)

    bench.agent.run(1, start_another)
    bench.agent.run(1)
    assert agents


def test_a_full_disk_does_not_stop_the_agent(tmp_path, monkeypatch):
    """Caps lapse because a status cannot be written."""
    bench = Bench(tmp_path)

    def full(*_):
        raise OSError("No space left on device")

    monkeypatch.setattr("joulery.cluster._agent.write_atomic", full)
    assert any("No space" in message for message in bench.tick()["messages"])


def test_events_of_another_source_change_and_are_cancelled(tmp_path):
    """A utility's change or cancellation of an event does not reach the agent."""
    bench = Bench(tmp_path)
    bench.engine.held = [job(1, {"n1": (0, 1), "n2": (0, 1)})]
    now, mirrored = bench.clock.wall(), {}
    first = GridEvent("a#0", now, now + 600, target_watts=1200.0)
    old = GridEvent("b#0", now - 60, now - 30, target_watts=100.0)
    assert mirror_events(tmp_path, [first, old], mirrored, bench.clock) == [first]
    assert mirror_events(tmp_path, [first], mirrored, bench.clock) == []
    assert bench.tick()["budget_watts"] == 1200
    changed = replace(first, target_watts=1000.0)
    assert mirror_events(tmp_path, [changed], mirrored, bench.clock) == [changed]
    assert bench.tick()["budget_watts"] == 1000
    assert mirror_events(tmp_path, [], mirrored, bench.clock) == []
    assert bench.tick()["budget_watts"] == 1600
    with pytest.raises(FileError, match="no event"):
        withdraw(tmp_path, "a#0")


def test_the_last_jobs_count_while_the_engine_is_down(tmp_path):
    """A restart of slurmctld caps every running job at the least."""
    bench = Bench(tmp_path)
    bench.engine.held = [job(1, {"n1": (0, 1)})]
    bench.tick()
    bench.engine.is_down = True
    report = bench.tick()
    assert bench.caps()[:2] == [400, 400]
    assert any("last known jobs" in message for message in report["messages"])


def test_a_budget_below_the_idle_floor_caps_everything_at_the_least(tmp_path):
    """An impossible budget ends the agent, or raises a cap."""
    bench = Bench(tmp_path, budget=200)
    bench.engine.held = [job(1, {"n1": (0, 1)})]
    report = bench.tick()
    assert bench.caps() == [100] * 4
    assert report["is_short"]


def test_power_ramps_up_no_faster_than_allowed(tmp_path):
    """The cluster jumps to full power when an event ends."""
    bench = Bench(tmp_path, ramp_up_watts_per_second=100.0)
    bench.engine.held = [job(1, {"n1": (0, 1), "n2": (0, 1)})]
    totals = [sum(bench.caps())]
    for _ in range(12):
        bench.tick()
        totals.append(sum(bench.caps()))
    steps = [later - earlier for earlier, later in itertools.pairwise(totals)]
    assert max(steps) <= 100.1
    assert totals[-1] == pytest.approx(1600)


def test_a_gpu_that_refuses_a_lower_cap_is_made_up_for(tmp_path):
    """One broken GPU exceeds the budget, or keeps its neighbours from their caps."""
    bench = Bench(tmp_path)
    bench.engine.held = [job(1, {"n1": (0, 1), "n2": (0, 1)})]
    bench.tick()
    broken = bench.gpus["n1"][0]

    def refuse(*_):
        raise DeviceError("no answer", remedy="restart it")

    broken.set_power_limit = broken.read_power = refuse
    now = bench.clock.wall()
    announce(tmp_path, GridEvent("cut", now, now + 60, target_watts=1000), bench.clock)
    for _ in range(3):
        report = bench.tick()
    assert broken.cap_watts == 400
    assert sum(bench.caps()) <= 1000 + 1e-3
    assert any("refuses" in message for message in report["messages"])


def test_a_hot_rack_is_kept_cool(tmp_path):
    """A cap on a part of the cluster is exceeded, by a job inside it or by one that spans it."""
    tree = Budget((Cap("hall"), Cap("n1", 450.0, "hall"), Cap("n2", parent="hall")))
    bench = Bench(tmp_path, tree=tree)
    bench.engine.held = [job(1, {"n1": (0,)}), job(2, {"n1": (1,), "n2": (0, 1)})]
    bench.tick()
    caps = bench.caps()
    assert caps[0] + caps[1] <= 450 + 1e-6
    assert caps[1] == caps[2] == caps[3]
    assert caps[0] + caps[1] >= 0.99 * 450
    bench.engine.held = [job(1, {"n1": (0, 1)}), job(2, {"n2": (0, 1)})]
    bench.tick()
    assert bench.caps() == pytest.approx([225, 225, 400, 400])


def test_a_series_sets_the_budget_of_each_hour(tmp_path):
    """A budget over time is ignored."""
    clock = VirtualClock()
    series = Signal(clock.wall(), 3600.0, (1600.0, 900.0))
    bench = Bench(tmp_path, budget_series=series)
    bench.engine.held = [job(1, {"n1": (0, 1), "n2": (0, 1)})]
    assert bench.tick()["budget_watts"] == 1600
    bench.clock.sleep(3600)
    assert bench.tick()["budget_watts"] == 900
    assert sum(bench.caps()) == pytest.approx(900)


def test_gpus_are_counted_as_slurm_counts_them(tmp_path):
    """The cap of one job's GPU lands on another's, since driver and Slurm number them apart."""
    for number, (uuid, minor) in enumerate([("GPU-a", 2), ("GPU-b", 0), ("GPU-c", 1)]):
        folder = tmp_path / "driver" / "nvidia" / "gpus" / f"0000:0{number}:00.0"
        folder.mkdir(parents=True)
        text = f"Model: \t A100\nGPU UUID: \t {uuid}\nDevice Minor: \t {minor}\n"
        (folder / "information").write_text(text)
    files = [device_file(uuid, tmp_path) for uuid in ("GPU-a", "GPU-b", "GPU-c", "GPU-d")]
    assert files == ["/dev/nvidia2", "/dev/nvidia0", "/dev/nvidia1", None]

    class Told:
        """A connection that reports GPUs in the driver's order."""

        def ask(self, *_):
            """The status."""
            values = dict.fromkeys(("watts", "min_watts", "ceiling_watts"), 100.0)
            return {"devices": [{"id": file, "file": file, **values} for file in files]}

    ids = [state.id for state in NodeClient(Told).status()]
    assert ids == ["/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia2", None]


OLD = {
    "job_id": 7,
    "name": "a",
    "job_state": "RUNNING",
    "comment": "joulery tier=flex-2",
    "nodes": "n[1-2]",
}
DETAIL = ["gpu:a100:3(IDX:0-1,3)", "gpu:a100:1(IDX:2)"]


VERSIONS = {
    "v0.0.38": OLD | {"gres_detail": DETAIL},  # 22.05
    "v0.0.39": OLD
    | {
        "comment": {"administrator": "", "job": OLD["comment"], "system": ""},
        "gres_detail": DETAIL,
    },  # 23.02
    "v0.0.40": OLD
    | {
        "job_state": ["RUNNING"],
        "comment": {"job": OLD["comment"]},
        "gres_detail": DETAIL,
    },  # 23.11
    "v0.0.41": {
        "job_id": {"set": True, "infinite": False, "number": 7},
        "name": "a",
        "job_state": ["RUNNING", "POWER_UP_NODE"],
        "comment": {"job": OLD["comment"]},
        "nodes": "",
        "job_resources": {"nodes": {"count": 2, "list": "n[1-2]"}},
        "gres_detail": DETAIL,
        "something_new": {"x": []},
    },  # 24.05 and later
}
OTHERS = [
    {"job_state": "PENDING", "job_id": 8},
    {"job_state": "RUNNING", "job_id": 9, "gres_detail": []},
]


@pytest.mark.parametrize("entry", VERSIONS.values(), ids=VERSIONS)
def test_squeue_of_every_version_is_understood(entry):
    """A new version of Slurm hides all jobs from the agent."""
    (job_read,) = Slurm(lambda _: json.dumps({"jobs": [entry, *OTHERS]})).jobs()
    assert job_read.id == "7"
    assert job_read.gpus == {"n1": (0, 1, 3), "n2": (2,)}
    assert job_read.preferences == {"tier": "flex-2"}


def test_slurmrestd_of_every_version_is_understood(tmp_path):
    """An update of slurmrestd hides all jobs, or a signal goes to the wrong address."""
    requests = []

    class Handler(BaseHTTPRequestHandler):
        """What slurmrestd answers, with one more version for each description."""

        versions = 1

        def do_GET(self):
            """Describe the API, or list jobs."""
            requests.append((self.command, self.path, self.headers["X-SLURM-USER-TOKEN"]))
            served = list(VERSIONS)[: self.versions]
            body = {"paths": {f"/slurm/{version}/jobs/": {} for version in ["v0.0.9", *served]}}
            if "jobs" in self.path:
                body = {"jobs": [VERSIONS[self.path.split("/")[2]], *OTHERS]}
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(body).replace("/", "\\/").encode())

        do_DELETE = do_GET  # noqa: N815 - its name is given

        def log_message(self, *_):
            """Say nothing."""

    token = tmp_path / "token"
    token.write_text("SLURM_JWT=secret\n")
    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        for number, version in enumerate(VERSIONS, 1):
            Handler.versions = number
            service = SlurmRest(url, "root", token)
            assert [job_read.id for job_read in service.jobs()] == ["7"]
            service.suspend("7")
            assert requests[-1][0] == "DELETE"
            assert requests[-1][1] == f"/slurm/{version}/job/7?signal=SIGSTOP&flags=FULL_JOB"
        server.shutdown()
    assert {token for *_, token in requests} == {"secret"}
    with pytest.raises(EngineError, match="refused"):
        SlurmRest(url).jobs()
    with pytest.raises(InvalidValueError, match="address"):
        SlurmRest("localhost:6820")


def test_hosts_are_expanded():
    """GPUs of a job are looked for on the wrong node."""
    assert list(expand_hosts("n[1-3,07],login,r1n[08-10]x")) == [
        "n1", "n2", "n3", "n07", "login", "r1n08x", "r1n09x", "r1n10x",
    ]  # fmt: skip
    assert list(expand_hosts("")) == []


def test_an_engine_that_prints_nonsense_is_a_clear_error():
    """Broken output ends the agent with a traceback."""
    for text in ("not json", "[]", '{"jobs": 3}'):
        with pytest.raises(EngineError, match="squeue"):
            Slurm(lambda _, text=text: text).jobs()


def test_settings_are_read_from_toml(tmp_path):
    """A documented file is refused, or a misspelt option ignored."""
    (tmp_path / "curves.json").write_text(
        json.dumps({"jobs": [{"id": "a", "points": [[100, 1], [200, 2]]}]})
    )
    file = tmp_path / "agent.toml"
    text = 'budget_watts = 5000\nstate = "state"\nfrontiers = "curves.json"\n'
    text += '[nodes]\nn1 = "127.0.0.1:7"\n'
    file.write_text(text)
    settings = read_agent_settings(file)
    assert settings.state == tmp_path / "state"
    assert settings.frontiers["a"].most_watts == 200
    file.write_text("budgetwatts = 1\n" + text)
    with pytest.raises(FileError, match="budgetwatts"):
        read_agent_settings(file)
