"""The closed loop on an emulated plant, stops, worst cases, epochs and the audit."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

from joulery.cluster import (
    Agent,
    AgentSettings,
    Budget,
    Cap,
    ClusterJob,
    EngineJob,
    MeterReading,
    PowerCurve,
    Slurm,
    allocate,
    announce,
    job_records,
    metrics_text,
    read_status,
    record_energy,
)
from joulery.cluster._draws import BoardDraws, Correction
from joulery.cluster._nodes import DeviceState
from joulery.cluster._settings import AccountShare
from joulery.cluster._slurm import ALL_BOARDS, EngineError
from joulery.cluster._stops import JobStops
from joulery.cluster._subsets import choose_subset
from joulery.errors import InvalidValueError, NotPossibleHereError
from joulery.files import lock
from joulery.grid import GridEvent, Signal
from support.plant import Plant
from unit.cluster.test_agent import Bench, job


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    """A busy machine is not taken for nodes that do not answer."""
    for name in ("_agent._ENGINE", "_pool._NODE", "_pool._LOST_NODE", "_meters._PATIENCE"):
        monkeypatch.setattr(f"joulery.cluster.{name}_SECONDS", None)


def full_plant(tmp_path, seed, **options):
    """A plant with a job on every node."""
    plant = Plant(tmp_path, seed, nodes=4, tick_seconds=4.0, **options)
    for name in plant.parts:
        plant.submit("compute", {name: (0, 1, 2, 3)}, 1e9)
    return plant


@pytest.mark.parametrize("metered", [True, False])
def test_boards_that_draw_more_than_their_caps_are_trimmed(tmp_path, metered):
    """Boards 10 % above their caps exceed the budget for ever."""
    plant = full_plant(tmp_path, 3, metered=metered)
    for node in plant.parts.values():
        for board in node.boards:
            board.share = 1.1
    plant.run(240, churn=False)
    assert plant.over_share(since=20) == 0
    caps = sum(b.cap_watts for node in plant.parts.values() for b in node.boards)
    assert plant.power() > 0.93 * plant.budget_watts
    assert caps < 0.97 * (plant.budget_watts - 4 * 300)


def test_a_silent_meter_gives_nothing_back_and_is_said(tmp_path):
    """A meter that froze lets the agent hand out watts that are drawn."""
    plant = full_plant(tmp_path, 4)
    plant.run(120, churn=False)
    frozen = plant.read()
    plant.read = lambda: frozen
    plant.run(80, churn=False)
    report = plant.agent.tick()
    assert any("no new readings" in message for message in report["messages"])
    assert not report["is_metered"]
    assert report["correction"] >= 0


def test_an_alarm_is_raised_audited_and_ended(tmp_path):
    """Power above the budget for a minute is not noticed."""
    plant = full_plant(tmp_path, 5, options={"alarm_seconds": 10.0})
    plant.run(40, churn=False)
    honest = plant.read
    plant.read = lambda: replace(honest(), watts=2 * plant.budget_watts + plant.power())
    reports = [plant.agent.tick() for _ in range(5) if plant.move(4.0) is None]
    assert reports[-1]["is_alarmed"]
    assert any("ALARM" in message for message in reports[-1]["messages"])
    assert "joulery_cluster_is_alarmed 1\n" in metrics_text(reports[-1])
    plant.read = honest
    plant.run(40, churn=False)
    lines = (tmp_path / "audit.jsonl").read_text().splitlines()
    said = [json.loads(line)["what"] for line in lines]
    assert [what for what in said if "alarm" in what] == ["alarm", "alarm over"]


def test_a_node_that_never_answered_counts_at_its_worst(tmp_path):
    """The watts of a node that nobody has seen are handed to others."""
    bench = Bench(tmp_path, budget=1400)
    bench.governors["n2"].is_cut = True
    bench.engine.held = [job(1, {"n1": (0, 1)})]
    report = bench.tick()
    assert sum(gpu.cap_watts for gpu in bench.gpus["n1"]) <= 1400 - 800 + 1e-6
    assert any("n2 never answered: counted as drawing 800 W" in m for m in report["messages"])
    assert report["power_watts"] >= 800
    bench.governors["n2"].is_cut = False
    bench.tick()
    assert bench.caps()[:2] == [400, 400]


def test_a_clock_that_steps_neither_deletes_nor_lifts_an_event(tmp_path):
    """NTP or an administrator ends a demand-response event."""
    bench = Bench(tmp_path)
    bench.engine.held = [job(1, {"n1": (0, 1), "n2": (0, 1)})]
    bench.tick()
    now = bench.clock.wall()
    announce(tmp_path, GridEvent("cut", now, now + 600, target_watts=1000), bench.clock)
    for step in (7200.0, -14400.0):
        assert bench.tick()["budget_watts"] == 1000
        bench.clock.step_wall(step)
        report = bench.tick()
        assert report["budget_watts"] == 1000
        assert any("clock stepped" in message for message in report["messages"])
    assert list((tmp_path / "events").glob("*.json"))


def test_a_series_that_ended_counts_at_its_lowest(tmp_path):
    """Full power returns because a series of budgets was not renewed."""
    bench = Bench(tmp_path, budget_series=Signal(1.7e9, 60.0, (1200.0, 900.0, 1100.0)))
    bench.clock.sleep(200)
    report = bench.tick()
    assert report["budget_watts"] == 900
    assert any("has ended" in message for message in report["messages"])


def test_ramps_are_kept_both_ways(tmp_path):
    """The cluster jumps when an event begins or ends."""
    ramps = {"ramp_up_watts_per_second": 50.0, "ramp_down_watts_per_second": 25.0}
    bench = Bench(tmp_path, **ramps)
    bench.engine.held = [job(1, {"n1": (0, 1), "n2": (0, 1)})]
    for _ in range(30):
        bench.tick()
    now, totals = bench.clock.wall(), []
    announce(tmp_path, GridEvent("cut", now + 20, now + 40, target_watts=1200), bench.clock)
    for _ in range(60):
        bench.tick()
        totals.append(sum(bench.caps()))
    steps = [later - earlier for earlier, later in itertools.pairwise(totals)]
    assert max(steps) <= 50 * 1.01
    assert min(steps) >= -25 * 1.05
    assert totals[19] <= 1200 * 1.002, "down when it starts"
    assert totals[-1] >= 1590


def test_a_reduction_is_of_the_mean_before(tmp_path):
    """One sample decides what a quarter less means."""
    bench = Bench(tmp_path, baseline_seconds=20.0)
    bench.engine.held = [job(1, {"n1": (0, 1), "n2": (0, 1)})]
    for second in range(40):
        for gpus in bench.gpus.values():
            for gpu in gpus:
                gpu.demand_watts = 200.0 if second % 2 else 400.0
        bench.tick()
    now = bench.clock.wall()
    announce(tmp_path, GridEvent("cut", now, now + 60, reduction=0.25), bench.clock)
    assert bench.tick()["budget_watts"] == pytest.approx(0.75 * 1200, rel=0.05)
    stated = GridEvent("cut", now, now + 60, reduction=0.25, baseline_watts=1000.0)
    announce(tmp_path, stated, bench.clock)
    assert bench.tick()["budget_watts"] == 750


def test_a_shadow_sets_nothing(tmp_path):
    """An agent on trial changes a cap, stops a job or hides the one that leads."""
    bench = Bench(tmp_path, budget=350)
    bench.engine.held = [job(n, {"n1": (n,)}) for n in (0, 1)]
    before = bench.caps()
    agent = Agent(bench.settings, bench.engine, bench.nodes, bench.clock, is_shadow=True)
    for _ in range(3):
        agent.tick()
    assert bench.caps() == before
    assert bench.engine.calls == []
    assert read_status(tmp_path / "shadow").paused
    assert not (tmp_path / "status.json").exists()
    assert not (tmp_path / "no-watts").exists()


def second_agent(bench, folder):
    """Another agent of the same nodes on another state."""
    from joulery.cluster import NodeClient

    nodes = {name: NodeClient(g.connect, name) for name, g in bench.governors.items()}
    agent = Agent(replace(bench.settings, state=folder), bench.engine, nodes, bench.clock)
    agent._history.draws.shares = dict(bench.agent._history.draws.shares)
    return agent


def test_an_older_agent_is_refused_by_the_nodes(tmp_path):
    """Two agents undo each other's caps in silence."""
    for name in ("first", "second", "third"):  # one job after the other
        (tmp_path / name).mkdir()
    bench = Bench(tmp_path / "first", budget=1000)
    bench.engine.held = [job(1, {"n1": (0, 1), "n2": (0, 1)})]
    other = second_agent(bench, tmp_path / "second")
    bench.agent.run(1)
    with pytest.raises(NotPossibleHereError, match="another agent leads"):
        other.run(1)
    bench.clock.sleep(30)
    other.run(1)
    with pytest.raises(NotPossibleHereError, match="newer agent"):
        bench.agent.run(1)
    caps = bench.caps()
    bench.clock.sleep(1)
    other.run(1)
    assert bench.caps() == pytest.approx(caps, rel=0.01), "the new one goes on"


def test_a_standby_takes_over_when_the_leader_is_silent(tmp_path):
    """The caps of a cluster lapse although a second agent waits."""
    for name in ("first", "second", "third"):  # one job after the other
        (tmp_path / name).mkdir()
    bench = Bench(tmp_path / "first", budget=1000)
    bench.engine.held = [job(1, {"n1": (0, 1), "n2": (0, 1)})]
    bench.agent.run(1)
    other, since = second_agent(bench, tmp_path / "second"), bench.clock.now()
    other.run(1, is_standby=True)
    assert 9 <= bench.clock.now() - since <= 13
    assert sum(bench.caps()) == pytest.approx(1000, rel=0.01)
    bench.restart()
    with pytest.raises(NotPossibleHereError, match="another agent leads"):
        bench.agent.run(1)


def test_a_standby_on_the_same_state_waits_and_knows_who_is_stopped(tmp_path):
    """A standby is refused beside its leader, or leaves jobs stopped that the leader stopped."""
    bench = Bench(tmp_path, budget=350)
    bench.engine.held = [job(n, {"n1": (n,)}) for n in (0, 1)]
    bench.agent.run(1)
    stopped = set(bench.engine.suspended)
    assert stopped
    other, since = second_agent(bench, tmp_path), bench.clock.now()
    with (tmp_path / "lock").open("w") as file:
        lock(file.fileno())
        bench.clock.call_at(since + 30, file.close)
        other.run(1, is_standby=True)
    assert bench.clock.now() - since >= 30
    assert other._stops.since.keys() >= stopped


def test_a_job_takes_the_place_of_another_once_that_has_come_to_rest():
    """Two jobs draw at once while one takes the other's place, or a third takes a turn too soon."""
    curve = PowerCurve.from_points([(100, 1), (400, 2)], idle_watts=50)
    jobs = [ClusterJob(name, curve) for name in "abc"]
    stops = JobStops(20.0, 20.0, 60.0)
    for name, at in (("b", 0.0), ("c", 40.0)):
        stops.stop(name, at)
    chosen = [stops.choose(jobs, Budget.flat(200.0), 61.0)]
    stops.stop("a", 61.0)
    chosen += [stops.choose(jobs, Budget.flat(200.0), now) for now in (62.0, 64.5)]
    assert chosen == [{"a", "b", "c"}, {"a", "b", "c"}, {"a", "c"}]


def test_nodes_whose_boards_have_the_same_ids_are_told_apart(tmp_path):
    """Caps and draws of one node's board are taken for those of another's."""
    bench = Bench(tmp_path, budget=1000, ids="GPU-{index}")
    bench.engine.held = [job(1, {"n1": (0, 1)}), job(2, {"n2": (0, 1)}, comment="joulery floor=1")]
    reports = [bench.tick() for _ in range(3)]
    assert [report["messages"] for report in reports] == [[]] * 3
    assert bench.caps() == pytest.approx([100, 100, 400, 400], rel=1e-2)


def test_no_job_is_stopped_for_boards_that_come_to_rest():
    """The power of a job that has just been stopped is taken for its power at rest."""
    draws, board = BoardDraws(), DeviceState("a", 100.0, 400.0, 100.0, 52.0)
    draws.note([board], set(), 1.0)
    draws.note([replace(board, watts=110.0)], {"a"}, 1.0)
    resting = replace(board, watts=95.0)
    draws.note([resting], set(), 1.0)
    assert draws.rest_watts(resting) == 95.0, "it counts as it draws"
    assert draws.usual_rest_watts(resting) == 52.0
    assert draws.usual_rest_watts(replace(board, id="b")) is None


def test_a_short_event_keeps_no_job_and_no_new_one_from_its_watts(tmp_path):
    """Jobs that a short event stopped rest for minutes, and the prolog refuses all others."""
    bench = Bench(tmp_path, budget=800)
    bench.engine.held = [job(n, {"n1": (n,)}) for n in (0, 1)]
    for gpu in bench.gpus["n2"]:
        gpu.demand_watts = 50.0

    def run(seconds):
        for _ in range(seconds):
            report = bench.tick()
            for number, gpu in enumerate(bench.gpus["n1"]):
                gpu.demand_watts = 50.0 if str(number) in bench.engine.suspended else 1000.0
        return report

    for name in ("first", "second", "third"):  # one job after the other
        run(30)
        assert not bench.engine.suspended
        now = bench.clock.wall()
        announce(tmp_path, GridEvent(name, now, now + 20, target_watts=280), bench.clock)
        run(15)
        assert len(bench.engine.suspended) == 1
    report = run(30)
    assert len(bench.engine.suspended) == 1, "a second time within a rotation is thrashing"
    assert not report["is_short"]
    assert not (tmp_path / "no-watts").exists()


def test_stops_are_few_and_rotate_over_hours():
    """Jobs are stopped and continued every second, or always the same ones."""
    curve = PowerCurve((100.0, 400.0), (0.3, 1.0), idle_watts=50.0)
    jobs = [ClusterJob(str(n), curve) for n in range(4)]
    stops, switches, rested = JobStops(600.0, 600.0, 3600.0), 0, dict.fromkeys("0123", 0)
    chance = np.random.default_rng(0)
    for minute in range(24 * 60):
        now, budget = 60.0 * minute, Budget.flat(330.0 + chance.uniform(-3, 3))
        chosen = stops.choose(jobs, budget, now)
        for name in chosen - stops.since.keys():
            stops.stop(name, now)
            switches += 1
        for name in stops.since.keys() - chosen:
            stops.go_on(name, now)
        for name in chosen:
            rested[name] += 1
        assert 400 - 50 * len(chosen) <= 333
    assert switches <= 2 * 24 + 2
    assert max(rested.values()) <= 1.3 * min(rested.values())


def test_the_subset_is_the_best_one():
    """A greedy choice leaves most of the throughput unused."""
    chance = np.random.default_rng(1)
    for _ in range(60):
        jobs = int(chance.integers(2, 11))
        values, needs = chance.uniform(0.1, 5, jobs), chance.uniform(1, 20, (jobs, 2))
        room = needs.sum(axis=0) * chance.uniform(0.2, 0.9, 2)
        chosen = choose_subset(values, needs, room)
        assert (needs[chosen].sum(axis=0) <= room * (1 + 1e-9)).all()
        members = np.array(list(itertools.product([0, 1], repeat=jobs)))
        fits = (members @ needs <= room).all(axis=1)
        assert values[chosen].sum() >= (members @ values)[fits].max() - 1e-9
    values, needs = chance.uniform(0.1, 5, 200), chance.uniform(1, 20, (200, 1))
    room = needs.sum(axis=0) * 0.4
    order = np.argsort(-values / needs[:, 0])
    bound = np.interp(room[0], np.cumsum(needs[order, 0]), np.cumsum(values[order]))
    assert values[choose_subset(values, needs, room)].sum() >= 0.995 * bound


def test_pausing_runs_the_best_jobs():
    """One large job runs where five small ones of five times its worth would fit."""
    small, large = (PowerCurve((w, 2 * w), (0.9, 1.0), 0.0) for w in (100.0, 500.0))
    jobs = [ClusterJob("large", large, weight=1.1)]
    jobs += [ClusterJob(str(n), small) for n in range(5)]
    shares = allocate(jobs, 520, may_pause=True)
    assert shares.paused_ids == ["large"]


def test_a_board_is_known_by_what_it_draws():
    """A sensor that is stale, a job that loads or a board at rest teaches a wrong share."""
    draws = BoardDraws()
    state = DeviceState("a", 100.0, 400.0, 300.0, 291.0)
    for _ in range(600):
        draws.note([replace(state, watts=80.0)], {"a"}, 1.0)
    assert draws.share(state) == 1.1, "it may draw more once the job has loaded"
    for watts in (270.0, 285.0):
        draws.note([replace(state, watts=watts)], {"a"}, 1.0)
    assert draws.share(state) == 1.1, "a job that loads has not shown what it draws"
    for _ in range(2):
        draws.note([state], {"a"}, 1.0)
    assert draws.share(state) == 0.97
    draws.note([replace(state, watts=600.0, is_stale=True)], {"a"}, 1.0)
    assert draws.share(state) == 0.97
    for _ in range(60):
        draws.note([replace(state, cap_watts=100.0, watts=55.0)], set(), 1.0)
    assert draws.share(state) == 0.97
    assert draws.rest_watts(state) == pytest.approx(55, abs=0.5)


def test_boards_begin_where_a_tenth_more_than_their_caps_holds(tmp_path):
    """The first seconds exceed the budget, and again with each new agent."""
    bench = Bench(tmp_path, budget=1200, are_known=False)
    bench.engine.held = [job(1, {"n1": (0, 1), "n2": (0, 1)})]
    bench.tick()
    assert sum(bench.caps()) == pytest.approx(1200 / 1.1)
    for _ in range(4):
        bench.tick()
    assert sum(bench.caps()) == pytest.approx(1200, rel=0.01)
    bench.restart()
    bench.tick()
    assert sum(bench.caps()) == pytest.approx(1200, rel=0.01)


def test_a_new_agent_knows_what_the_last_one_stopped_though_it_was_older(tmp_path):
    """Jobs stay stopped for ever after an upgrade."""
    bench = Bench(tmp_path, budget=350)
    bench.engine.held = [job(n, {"n1": (n,)}) for n in (0, 1)]
    bench.tick()
    document = json.loads((tmp_path / "agent.json").read_text())
    assert document["stopped"]
    for name in ("draws", "corrections"):
        del document[name]
    (tmp_path / "agent.json").write_text(json.dumps(document))
    bench.restart()
    assert sorted(bench.agent._stops.since) == document["stopped"]


def test_a_board_that_cannot_draw_its_least_cap_counts_so_there_only():
    """Watts are unused for minutes under higher caps, which the board keeps."""
    draws, state = BoardDraws(), DeviceState("a", 100.0, 400.0, 100.0, 120.0)
    for _ in range(5):  # power may follow a cap within 3 s
        draws.note([state], {"a"}, 1.0)
    higher = replace(state, cap_watts=300.0, watts=300.0)
    assert draws.watts(higher) == 360.0, "not seen under higher caps"
    for _ in range(5):
        draws.note([higher], {"a"}, 1.0)
    assert draws.watts(higher) == 300.0
    assert draws.watts(state) == 120.0


def test_a_correction_rises_at_once_and_falls_slowly():
    """A dip of the power hands out watts that the next second draws."""
    correction = Correction(0.1)
    for second in range(300):
        correction.expect(second, 1000.0, 1000.0)
        correction.note(second, 950.0, 1.0)
    assert correction.watts() == pytest.approx(-50, abs=1)
    correction.note(299, 1040.0, 1.0)
    assert correction.watts() >= 40
    correction.note(299, 400.0, 1.0)
    assert correction.watts() >= 30
    assert correction.watts(is_stale=True) >= 0


def test_a_correction_learns_nothing_of_what_is_not_known():
    """Boards that follow their caps, or a lost node, are taken for hosts that draw more or less."""
    correction = Correction(0.1)
    for second in range(100):
        least = 1000.0 if second < 50 else 600.0
        correction.expect(second, least, 1000.0)
        correction.note(second, 1020.0 if second < 50 else 800.0, 1.0)
    assert correction.watts() == pytest.approx(20, abs=1)


def test_a_value_that_a_meter_repeats_is_no_reading(tmp_path):
    """What Prometheus repeats between scrapes is taken for power beyond the boards' own."""
    plant = full_plant(tmp_path, 6)
    plant.run(120, churn=False)
    before = plant.agent.tick()["correction"]
    honest, frozen = plant.read, plant.read()
    plant.read = lambda: replace(frozen, at=plant.clock.wall())
    now = plant.clock.wall()
    cut = GridEvent("cut", now, now + 60, target_watts=0.7 * plant.budget_watts)
    announce(tmp_path, cut, plant.clock)
    plant.run(40, churn=False)
    assert plant.agent.tick()["correction"] <= before + 0.005
    plant.read = honest


def listed(number, detail, **more):
    """A job as squeue lists it."""
    entry = {"job_id": number, "name": "a", "job_state": ["RUNNING"], "nodes": "n1"}
    return entry | {"gres_detail": [detail]} | more


def test_jobs_that_share_a_board_are_one():
    """Shards, MPS and slices are invisible, or their cap hits another board."""
    entries = [
        listed(1, "shard:2(1/4,0/4,1/4,0/4)"),
        listed(2, "shard:1(0/4,0/4,1/4,0/4)", name="b"),
        listed(3, "mps:50(IDX:1)"),
        listed(4, "gpu:a100:1(IDX:3)", account="vision"),
        listed(5, "gpu:a100_3g.20gb:1(IDX:4)", nodes="n2"),
        listed(6, "gpu:a100_1g.5gb:2(IDX:0-1)", nodes="n2"),
        listed(8, "gpu:1(IDX:0)", het_job_id=7, nodes="n3"),
        listed(7, "gpu:1(IDX:0)", het_job_id={"set": True, "number": 7}, nodes="n4"),
        listed(9, "", gres_detail=[]),
    ]
    jobs = {j.id: j for j in Slurm(lambda _: json.dumps({"jobs": entries})).jobs()}
    assert jobs.keys() == {"1,2", "3", "4", "5,6", "7"}
    assert jobs["1,2"].gpus == {"n1": (0, 2)}
    assert jobs["1,2"].name == "shared"
    assert jobs["3"].gpus == {"n1": (1,)}
    assert jobs["4"].account == "vision"
    assert jobs["5,6"].gpus == {"n2": (ALL_BOARDS,)}
    assert jobs["7"].gpus == {"n3": (0,), "n4": (0,)}


def test_a_sliced_node_gets_one_cap_for_all_its_boards(tmp_path):
    """The index of a slice is taken for that of a board."""
    bench = Bench(tmp_path, budget=1000)
    bench.engine.held = [EngineJob("5,6", "known", "", {"n2": (ALL_BOARDS,)})]
    bench.tick()
    assert bench.caps() == pytest.approx([100, 100, 400, 400])


def test_an_account_has_its_floor_and_users_cannot_raise_it(tmp_path):
    """``floor=1`` in a comment takes the watts of others."""
    accounts = {"vision": AccountShare(floor=0.85), "speech": AccountShare()}
    bench = Bench(tmp_path, budget=1000, policy="throughput", accounts=accounts)
    wishes = "joulery floor=1 weight=99"
    bench.engine.held = [
        replace(job(1, {"n1": (0, 1)}), account="vision"),
        replace(job(2, {"n2": (0, 1)}, comment=wishes), account="speech"),
    ]
    report = bench.tick()
    performance = {j["id"]: j["performance"] for j in report["jobs"]}
    assert performance["1"] == pytest.approx(0.85)
    assert performance["2"] < 0.65
    with pytest.raises(InvalidValueError, match="floor"):
        AccountShare(floor=1.5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"meters": {"rack-9": "prometheus+http://x/?query=y"}}, "no part 'rack-9'"),
        ({"most_trim": 0.9}, "most_trim"),
        ({"ramp_down_watts_per_second": 0.0}, "ramps"),
        ({"tree": Budget.flat(500.0)}, "contradict|above the tree"),
        ({"rotation_seconds": -1.0}, "rotation_seconds"),
    ],
)
def test_settings_that_cannot_be_are_refused(tmp_path, options, said):
    """A misspelt part or an impossible share is found out during an event."""
    with pytest.raises(InvalidValueError, match=said):
        AgentSettings(1000.0, {"n1": "127.0.0.1:1"}, tmp_path, **options)


def test_a_meter_of_a_rack_trims_the_rack(tmp_path):
    """A hot rack that draws more than its boards say exceeds its cap."""
    tree = Budget((Cap("hall"), Cap("n1", 500.0, "hall"), Cap("n2", parent="hall")))

    class RackMeter:
        """Reads 10 % more than the boards."""

        def read(self):
            """The rack's power."""
            drawn = sum(gpu.read_power() for gpu in bench.gpus["n1"])
            return MeterReading(1.1 * drawn, bench.clock.wall())

    bench = Bench(tmp_path, tree=tree, meters={"n1": "x:y"})
    meters = {"n1": RackMeter()}
    bench.agent = Agent(bench.settings, bench.engine, bench.nodes, bench.clock, meters=meters)
    bench.engine.held = [job(1, {"n1": (0, 1)}), job(2, {"n2": (0, 1)})]
    for _ in range(10):
        bench.tick()
    assert sum(bench.caps()[:2]) == pytest.approx(500 / 1.1, rel=0.02)
    assert sum(bench.caps()[2:]) == pytest.approx(800)


def test_joules_of_jobs_are_kept_in_their_comments():
    """A second figure is added to the first, or a user's preferences are lost."""
    comments, calls = {"7": "joulery tier=flex-2"}, []

    def run(words):
        calls.append(words)
        if words[:2] == ["scontrol", "show"]:
            if words[3] not in comments:
                raise EngineError("Invalid job id", remedy="")
            return f"JobId=7 JobName=a\n   Account=b\n   Comment={comments[words[3]]}\n"
        if words[0] == "sacct":
            return "8|x|vision|joulery-joules=50.0 joulery-seconds=5\n9|y|vision|\n"
        comments["7"] = words[3].removeprefix("Comment=")
        return ""

    for joules in (1200.0, 1500.0):
        record_energy(run, "7", joules, 60.0)
    assert comments["7"] == "joulery tier=flex-2 joulery-joules=1500.0 joulery-seconds=60"
    assert EngineJob("7", "a", comments["7"]).preferences["tier"] == "flex-2"
    (record,) = job_records(run, job="7")
    assert (record.joules, record.account) == (1500.0, "b")
    (record,) = job_records(run, account="vision", window=("2026-10-01", "2026-11-01"))
    assert (record.id, record.joules) == ("8", 50.0)
    assert "--starttime=2026-10-01" in calls[-1]
    assert job_records(run, job="8")[0].id == "8"
    with pytest.raises(InvalidValueError, match="not a job"):
        record_energy(run, "7; rm", 1.0, 1.0)


def test_joules_of_an_array_are_those_of_each_task():
    """The energy of one task is written over those of all others, or only one is reported."""
    tasks = {"7_1": "", "7_2": ""}
    numbers = {"7_1": "8", "7_2": "7"}

    def run(words):
        if words[1] == "show":
            chosen = [t for t in tasks if words[3] in (numbers[t], "7")]
            return "\n\n".join(
                f"JobId={numbers[t]} ArrayJobId=7 ArrayTaskId={t[2]} JobName=a\n"
                f"   Comment={tasks[t]}"
                for t in chosen
            )
        tasks[words[2].removeprefix("JobId=")] = words[3].removeprefix("Comment=")
        return ""

    for number, joules in (("8", 10.0), ("7", 20.0)):
        record_energy(run, number, joules, 1.0)
    assert {r.id: r.joules for r in job_records(run, job="7")} == {"7_1": 10.0, "7_2": 20.0}


def test_a_job_that_an_administrator_resumes_has_its_least_caps_kept(tmp_path):
    """The budget is exceeded for a tick whenever somebody resumes a job."""
    bench = Bench(tmp_path, budget=1000)
    held = [job(1, {"n1": (0, 1)}), job(2, {"n2": (0, 1)})]
    bench.engine.held = [held[0], replace(held[1], is_suspended=True)]
    bench.engine.jobs = lambda: list(bench.engine.held)
    for gpu in bench.gpus["n2"]:
        gpu.demand_watts = 50.0
    for _ in range(5):
        bench.tick()
    assert sum(bench.caps()[:2]) <= 1000 - 2 * 100 + 1e-6
