"""One decision of the allocator, in cases that a person can check."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from joulery.cluster import (
    POLICIES,
    Budget,
    Cap,
    ClusterJob,
    DeficitLedger,
    FlatAllocator,
    Fleet,
    PowerCurve,
    aggregate,
    allocate,
    flexibility_floor,
    read_budget,
    read_jobs,
)
from joulery.errors import FileError, InfeasibleError, InvalidValueError
from joulery.frontier import Frontier, OperatingPoint, Setting

COMPUTE = PowerCurve.from_points([(100, 25), (200, 60), (300, 85), (400, 100)])
MEMORY = PowerCurve.from_points([(100, 60), (160, 99), (250, 100)])


def test_a_curve_is_the_concave_hull_of_its_points():
    """Noise in a sweep makes more power look worse than less."""
    curve = PowerCurve.from_points([(100, 10), (150, 11), (200, 30), (210, 29), (300, 40)])
    assert curve.watts == (100, 200, 300)
    assert curve.at(150) == pytest.approx(0.5)
    assert curve.at(99) == 0.0


def test_a_curve_above_a_least_cap_keeps_its_shape_and_clocks():
    """A GPU whose least cap lies inside a curve gets another point than the measured one."""
    locked = replace(COMPUTE, clocks_hertz=(1.0e9, 1.2e9, 1.4e9, 1.6e9))
    above = locked.above(250.0)
    assert above.watts == (250, 300, 400)
    assert above.performance == pytest.approx((0.725, 0.85, 1.0))
    assert [above.clock_for(watts) for watts in (250, 300, 301, 500)] == [
        1.4e9,
        1.4e9,
        1.6e9,
        1.6e9,
    ]
    assert locked.above(500.0) == PowerCurve((500.0,), (1.0,), clocks_hertz=(1.6e9,))
    assert locked.above(50.0) is locked
    assert COMPUTE.above(250.0).clock_for(300) is None


def test_a_frontier_becomes_the_curve_of_one_gpu():
    """The frontier of a job on several GPUs is taken for that of one."""
    points = [OperatingPoint(1.0, 800.0, Setting(devices=2)), OperatingPoint(2.0, 799.0)]
    frontier = Frontier.from_points(points)
    curve = PowerCurve.from_frontier(frontier, gpus=2)
    with pytest.raises(InvalidValueError, match="frontier of 2"):
        PowerCurve.from_frontier(frontier, gpus=1)
    assert curve.watts == pytest.approx((199.75, 400.0))
    assert curve.performance == pytest.approx((0.5, 1.0))


def test_watts_move_from_a_memory_bound_to_a_compute_bound_job():
    """Complementary jobs do not trade watts: 20 % from the one, 20 % to the other."""
    jobs = [ClusterJob("compute", COMPUTE), ClusterJob("memory", MEMORY)]
    even = allocate(jobs, 400, "equal-watts")
    fair = allocate(jobs, 400, "throughput")
    assert even.watts == pytest.approx([200, 200])
    assert fair.watts[1] <= 0.8 * even.watts[1] + 1e-9
    assert fair.watts[0] >= 1.2 * even.watts[0] - 1e-9
    assert fair.performance[1] >= 0.98 * even.performance[1]
    assert fair.performance[0] >= 1.14 * even.performance[0]


def test_max_min_slows_all_jobs_alike():
    """Some job is slower than it must be for the sake of another."""
    steep = ClusterJob("steep", COMPUTE, gpus=4)
    shares = allocate(
        [steep, ClusterJob("other", PowerCurve.from_points([(50, 10), (350, 70)]))], 1500, "max-min"
    )
    assert shares.performance[0] == pytest.approx(shares.performance[1])
    assert shares.used_watts == pytest.approx(1500)


def test_tiers_are_floors():
    """A job of tier 1 loses more than a tenth of its speed in an event."""
    jobs = [ClusterJob("a", COMPUTE, floor=flexibility_floor("Flex 1")), ClusterJob("b", COMPUTE)]
    shares = allocate(jobs, 500, "throughput")
    assert shares.performance[0] >= 0.9 - 1e-12
    with pytest.raises(InvalidValueError, match="flex-9"):
        flexibility_floor("flex-9")


def test_a_hot_rack_does_not_slow_the_others():
    """A hotspot cap on one rack is broken, or takes watts from jobs elsewhere."""
    racks = (Cap("room", 900), Cap("hot", 250, "room"), Cap("cool", parent="room"))
    jobs = [
        ClusterJob("a", COMPUTE, node="hot"),
        ClusterJob("b", COMPUTE, node="cool"),
        ClusterJob("c", COMPUTE, node="cool"),
    ]
    shares = allocate(jobs, policy="max-min", budget=Budget(racks))
    assert shares.watts == pytest.approx([250, 325, 325])


def test_overhead_is_not_handed_out():
    """Hosts and switches are forgotten and the cluster exceeds its budget."""
    shares = allocate([ClusterJob("a", COMPUTE)], budget=Budget.flat(400, overhead_watts=150))
    assert shares.watts[0] == pytest.approx(250)
    assert shares.used_watts == pytest.approx(400)


def test_a_budget_below_the_floors_is_refused_with_the_need():
    """An impossible budget is accepted, or the message does not say what would do."""
    with pytest.raises(InfeasibleError, match="need at least 200 W"):
        allocate([ClusterJob("a", COMPUTE), ClusterJob("b", COMPUTE)], 150)
    with pytest.raises(InvalidValueError, match="no jobs"):
        allocate([], 100)


def test_paused_jobs_take_turns():
    """The same job is paused again and again while others run."""
    curve = PowerCurve(COMPUTE.watts, COMPUTE.performance, idle_watts=10)
    ledger, runs = DeficitLedger(), dict.fromkeys("abc", 0)
    for _ in range(60):
        jobs = [ClusterJob(name, curve, floor=0.6, credit=ledger.credit(name)) for name in runs]
        shares = allocate(jobs, 420, may_pause=True)
        assert shares.used_watts <= 420 + 1e-9
        ledger.add(shares.ids, shares.performance, 1440)
        for name, is_paused in zip(runs, shares.paused, strict=True):
            runs[name] += not is_paused
    assert min(runs.values()) >= 35


def test_a_slowed_job_gets_its_share_back():
    """A job that a hot rack slowed for two hours never makes up for it."""
    ledger = DeficitLedger()
    hot = Budget((Cap("room", 600), Cap("hot", 150, "room")))
    jobs = [ClusterJob("a", COMPUTE, node="hot"), ClusterJob("b", COMPUTE)]
    shares = allocate(jobs, policy="max-min", budget=hot)
    ledger.add(shares.ids, shares.performance, 7200)
    owed = ledger.deficits["a"]
    assert owed > 0 > ledger.deficits["b"]
    later = [ClusterJob(name, COMPUTE, credit=ledger.credit(name)) for name in "ab"]
    shares = allocate(later, 600, "max-min")
    assert shares.performance[0] > shares.performance[1] + 0.1
    ledger.add(shares.ids, shares.performance, 7200)
    assert ledger.deficits["a"] < owed
    assert shares.used_watts == pytest.approx(600)


@pytest.mark.parametrize("policy", POLICIES)
def test_counted_classes_get_what_listed_jobs_get(policy):
    """A replay shares its budget by other rules than the agent."""
    chance = np.random.default_rng(3)
    for _ in range(10):
        jobs = [
            ClusterJob(str(n), curve, gpus=int(chance.integers(1, 9)), weight=chance.uniform(1, 3))
            for n, curve in enumerate([COMPUTE, MEMORY] * 3)
        ]
        fleet = Fleet.from_jobs(jobs)
        flat = FlatAllocator(fleet, policy)
        for row, gpus in zip(fleet.row, fleet.gpus, strict=True):
            flat.change(row, gpus)
        watts = chance.uniform(flat.least_watts(), 1.2 * flat.solve(math.inf)[1])
        performance, used_watts = flat.solve(watts)
        expected = allocate(jobs, watts, policy)
        assert performance[fleet.row] == pytest.approx(expected.performance, rel=1e-6)
        assert used_watts == pytest.approx(expected.used_watts, rel=1e-6)


def test_two_levels_reach_the_flat_optimum():
    """Sites that know only each other's aggregates lose more than 0.5 % of throughput."""
    rng = np.random.default_rng(5)
    sites = [
        [
            ClusterJob(f"{s}.{n}", rng.choice([COMPUTE, MEMORY]), gpus=int(rng.integers(1, 9)))
            for n in range(50)
        ]
        for s in range(8)
    ]
    everything = [job for site in sites for job in site]
    budget = 0.7 * sum(job.gpus * job.curve.most_watts for job in everything)
    flat = allocate(everything, budget, "throughput")
    upper = allocate(
        [aggregate(site, str(n))[0] for n, site in enumerate(sites)], budget, "throughput"
    )
    lower = [
        allocate(site, watts, "throughput") for site, watts in zip(sites, upper.watts, strict=True)
    ]
    total = sum(float(shares.weight @ shares.performance) for shares in lower)
    assert total >= 0.995 * float(flat.weight @ flat.performance)


def test_jobs_and_budgets_are_read_from_files(tmp_path):
    """A documented file is refused, or a broken one accepted."""
    file = tmp_path / "jobs.json"
    points = [[100, 0.2], [300, 1.0]]
    file.write_text(
        json.dumps({"jobs": [{"id": "a", "gpus": 2, "tier": "flex-2", "points": points}]})
    )
    (job,) = read_jobs(file)
    assert (job.gpus, job.floor) == (2, 0.75)
    for flaw in (
        {"jobs": [{"id": "a"}]},
        {"jobs": 3},
        {"jobs": [{"id": "a", "points": points}] * 2},
    ):
        file.write_text(json.dumps(flaw))
        with pytest.raises(FileError):
            read_jobs(file)
    file.write_text(
        json.dumps({"name": "room", "watts": 5000, "children": [{"name": "rack", "watts": 900}]})
    )
    assert [cap.parent for cap in read_budget(file).caps] == [None, "room"]
    file.write_text('{"watts": 5}')
    with pytest.raises(FileError):
        read_budget(file)
