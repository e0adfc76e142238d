"""Allocations against linear programs, and what must hold for every budget."""

from __future__ import annotations

import itertools

import highspy
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from joulery.cluster import (
    POLICIES,
    Allocator,
    Budget,
    Cap,
    ClusterJob,
    Fleet,
    PowerCurve,
    aggregate,
    allocate,
)
from joulery.errors import InfeasibleError

seeds = st.integers(0, 2**32 - 1)


def watts_for(curve, performance):
    """The least power of one GPU that gives a performance."""
    return float(np.interp(performance, curve.performance, curve.watts))


def random_jobs(rng, count, nodes=("",)):
    """Jobs with random concave curves, weights, floors and limits."""
    jobs = []
    for number in range(count):
        knots = int(rng.integers(1, 7))
        watts = np.cumsum(rng.uniform(20, 120, knots))
        rates = np.cumsum(np.sort(rng.uniform(0.01, 1, knots))[::-1])
        curve = PowerCurve.from_points(zip(watts, rates, strict=True))
        floor = float(rng.choice([0.0, 0.5, 0.75, 0.9]))
        limit = None
        if rng.random() < 0.2:
            limit = float(rng.uniform(watts_for(curve, floor) + 1e-6, 1.5 * curve.most_watts))
        jobs.append(
            ClusterJob(
                f"j{number}",
                curve,
                gpus=int(rng.integers(1, 9)),
                weight=float(rng.choice([1.0, 2.0, rng.uniform(0.1, 5)])),
                floor=floor,
                limit_watts=limit,
                node=str(rng.choice(nodes)),
            )
        )
    return jobs


def random_tree(rng, depth=3, width=3):
    """A tree of caps below a root, infinite for now."""
    caps, level = [Cap("root")], ["root"]
    for _ in range(depth):
        children = [
            Cap(f"{parent}.{n}", parent=parent)
            for parent in level
            for n in range(rng.integers(1, width + 1))
        ]
        caps += children
        level = [cap.name for cap in children]
    return caps


def subtree(caps, name):
    """Names of a part and of everything in it."""
    inside = {name}
    for cap in caps:
        if cap.parent in inside:
            inside.add(cap.name)
    return inside


def with_random_caps(rng, caps, jobs):
    """Caps between what the jobs in each part need at least and a little beyond the most."""
    found = []
    for cap in caps:
        inside = [job for job in jobs if job.node in subtree(caps, cap.name)]
        least = sum(
            job.gpus * watts_for(job.curve, max(job.floor, job.curve.performance[0]))
            for job in inside
        )
        most = sum(job.gpus * job.curve.most_watts for job in inside)
        is_capped = cap.parent is None or rng.random() < 0.6
        watts = least + (most - least) * rng.uniform(0, 1.2) if is_capped else np.inf
        found.append(Cap(cap.name, watts + 1e-6, cap.parent))
    return Budget(tuple(found))


def solve_program(jobs, budget, *, floors=None, is_max_min=False):
    """Best weighted performance, or best common level, by HiGHS."""
    solver = highspy.Highs()
    solver.setOptionValue("output_flag", False)  # noqa: FBT003 - the solver's own signature
    solver.setOptionValue("primal_feasibility_tolerance", 1e-10)
    solver.setOptionValue("dual_feasibility_tolerance", 1e-10)
    level = solver.addVariable(0.0, 1.0, 1.0 if is_max_min else 0.0)
    watts, rates = [], []
    for number, job in enumerate(jobs):
        curve = job.curve
        most = min(curve.most_watts, job.limit_watts or np.inf)
        x = solver.addVariable(curve.least_watts * job.gpus, most * job.gpus)
        low = max(job.floor, curve.performance[0])
        if floors is not None:
            low = max(low, floors[number])
        p = solver.addVariable(min(low, 1.0), 1.0, 0.0 if is_max_min else job.weight)
        knots = list(zip(curve.watts, curve.performance, strict=True))
        for (x0, y0), (x1, y1) in itertools.pairwise(knots):
            slope = (y1 - y0) / (x1 - x0)
            solver.addConstr(p - slope / job.gpus * x <= y0 - slope * x0)
        if is_max_min:
            solver.addConstr(p - level >= 0)
        watts.append(x)
        rates.append(p)
    for cap in budget.caps:
        inside = [
            x
            for x, job in zip(watts, jobs, strict=True)
            if (job.node or budget.caps[0].name) in subtree(budget.caps, cap.name)
        ]
        if np.isfinite(cap.watts) and inside:
            solver.addConstr(sum(inside[1:], 1.0 * inside[0]) <= cap.watts)
    solver.changeObjectiveSense(highspy.ObjSense.kMaximize)
    solver.run()
    assert solver.getModelStatus() == highspy.HighsModelStatus.kOptimal
    return solver.getObjectiveValue()


def flat(rng, jobs):
    """A random feasible flat budget."""
    return with_random_caps(
        rng,
        [Cap("root")],
        [ClusterJob(j.id, j.curve, j.gpus, j.weight, j.floor, j.limit_watts, "root") for j in jobs],
    )


@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_throughput_equals_the_linear_program(seed):
    """A flat budget is not split for the highest weighted performance."""
    rng = np.random.default_rng(seed)
    jobs = random_jobs(rng, int(rng.integers(1, 25)))
    budget = flat(rng, jobs)
    found = allocate(jobs, policy="throughput", budget=budget)
    best = solve_program(jobs, budget)
    assert found.weight @ found.performance == pytest.approx(best, rel=1e-9)
    assert found.used_watts <= budget.caps[0].watts * (1 + 1e-12)


@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_max_min_equals_the_linear_program(seed):
    """The slowest job could be faster under the same budget."""
    rng = np.random.default_rng(seed)
    jobs = [ClusterJob(j.id, j.curve, j.gpus) for j in random_jobs(rng, int(rng.integers(1, 25)))]
    budget = flat(rng, jobs)
    found = allocate(jobs, policy="max-min", budget=budget)
    best = solve_program(jobs, budget, is_max_min=True)
    assert found.worst_performance == pytest.approx(best, rel=1e-9)


@settings(max_examples=40, deadline=None)
@given(seed=seeds)
def test_fair_is_throughput_above_a_share_of_max_min(seed):
    """The default policy loses throughput above its floors, or breaks them."""
    rng = np.random.default_rng(seed)
    jobs = random_jobs(rng, int(rng.integers(1, 25)))
    budget = flat(rng, jobs)
    found = allocate(jobs, policy="fair", budget=budget)
    level = allocate(jobs, policy="max-min", budget=budget).performance
    best = solve_program(jobs, budget, floors=0.95 * level)
    assert (found.performance >= 0.95 * level - 1e-9).all()
    assert found.weight @ found.performance == pytest.approx(best, rel=1e-8)


@settings(max_examples=60, deadline=None)
@given(seed=seeds)
def test_a_tree_equals_the_linear_program(seed):
    """Nested caps are broken or not used in full, by throughput or by max-min."""
    rng = np.random.default_rng(seed)
    caps = random_tree(rng)
    jobs = random_jobs(rng, int(rng.integers(1, 40)), [cap.name for cap in caps])
    budget = with_random_caps(rng, caps, jobs)
    found = allocate(jobs, policy="throughput", budget=budget)
    assert found.weight @ found.performance == pytest.approx(solve_program(jobs, budget), rel=1e-6)
    level = allocate(jobs, policy="max-min", budget=budget)
    plain = [ClusterJob(j.id, j.curve, j.gpus, node=j.node) for j in jobs]
    best = solve_program(plain, budget, is_max_min=True)
    found = allocate(plain, policy="max-min", budget=budget)
    assert found.worst_performance == pytest.approx(best, rel=1e-6)
    for shares in (level, found, allocate(jobs, policy="fair", budget=budget)):
        for cap in budget.caps:
            inside = subtree(caps, cap.name)
            used = sum(w for w, job in zip(shares.watts, jobs, strict=True) if job.node in inside)
            assert used <= cap.watts * (1 + 1e-9) + 1e-6


@settings(max_examples=30, deadline=None)
@given(seed=seeds, policy=st.sampled_from(POLICIES), share=st.floats(0.0, 1.0))
def test_a_new_budget_gives_what_a_new_allocator_would(seed, policy, share):
    """What an allocator keeps from one budget to the next changes the result."""
    rng = np.random.default_rng(seed)
    caps = random_tree(rng)
    jobs = random_jobs(rng, 20, [cap.name for cap in caps])
    budget = with_random_caps(rng, caps, jobs)
    fleet = Fleet.from_jobs(jobs, budget.names)
    used = Allocator(fleet, budget, policy).solve().used_watts
    least = float(fleet.watts[0] @ fleet.count)
    allocator = Allocator(fleet, budget, policy)
    allocator.solve(used * 2)
    watts = share * used + (1 - share) * least
    try:
        again = allocator.solve(watts)
    except InfeasibleError:
        return
    assert again.watts == pytest.approx(Allocator(fleet, budget, policy).solve(watts).watts)
    assert again.used_watts <= watts * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, alpha=st.sampled_from([0.1, 0.5, 1.0, 2.0, 8.0]))
def test_alpha_fair_meets_its_optimality_condition(seed, alpha):
    """A watt moved between two jobs would raise the alpha-fair utility."""
    rng = np.random.default_rng(seed)
    jobs = [ClusterJob(j.id, j.curve, j.gpus, j.weight) for j in random_jobs(rng, 12)]
    budget = flat(rng, jobs)
    found = allocate(jobs, policy="alpha-fair", budget=budget, alpha=alpha)
    full = sum(job.gpus * job.curve.most_watts for job in jobs)
    assert found.used_watts == pytest.approx(min(budget.caps[0].watts, full), rel=1e-9)

    def marginal(number, step):
        job, watts = jobs[number], found.watts[number] / jobs[number].gpus
        change = (job.curve.at(watts + step) - job.curve.at(watts)) / step
        return job.weight * job.curve.at(watts) ** -alpha * change / job.gpus

    up = [
        marginal(n, 1e-3)
        for n in range(len(jobs))
        if found.watts[n] < jobs[n].gpus * jobs[n].curve.most_watts - 1e-2
    ]
    down = [
        marginal(n, -1e-3)
        for n in range(len(jobs))
        if found.watts[n] > jobs[n].gpus * jobs[n].curve.least_watts + 1e-2
    ]
    if up and down:
        assert max(up) <= min(down) * (1 + 1e-3)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, policy=st.sampled_from(POLICIES))
def test_more_budget_never_hurts_the_level_policies(seed, policy):
    """A policy overspends, breaks a floor, or gives a job less from a larger budget."""
    rng = np.random.default_rng(seed)
    jobs = random_jobs(rng, 15)
    fleet = Fleet.from_jobs(jobs)
    budget = flat(rng, jobs)
    allocator = Allocator(fleet, Budget.flat(budget.caps[0].watts), policy)
    small, large = allocator.solve(), allocator.solve(budget.caps[0].watts * 1.05)
    for found in (small, large):
        assert found.used_watts <= found.budget_watts * (1 + 1e-9)
        assert all(
            p >= min(j.floor, 1) - 1e-9 or j.limit_watts
            for p, j in zip(found.performance, jobs, strict=True)
        )
    if policy != "fair":
        assert (large.performance >= small.performance - 1e-9).all()


@settings(max_examples=30, deadline=None)
@given(seed=seeds, points=st.integers(2, 64))
def test_an_aggregate_is_attainable_and_as_good_as_it_says(seed, points):
    """A site promises what its jobs cannot do, or understates it by more than its error."""
    rng = np.random.default_rng(seed)
    jobs = random_jobs(rng, 30)
    site, error = aggregate(jobs, points=points)
    assert len(site.curve.watts) <= points
    for watts in np.linspace(site.curve.least_watts, site.curve.most_watts, 9):
        shares = allocate(jobs, float(watts), "throughput")
        best = float(shares.weight @ shares.performance)
        promised = site.weight * site.curve.at(watts)
        assert promised <= best * (1 + 1e-9)
        assert promised >= best * (1 - error - 1e-9)


@settings(max_examples=40, deadline=None)
@given(seed=seeds, share=st.floats(0.05, 0.99))
def test_pausing_keeps_the_budget_and_every_running_floor(seed, share):
    """Where floors do not fit, the budget is broken or a running job falls below its floor."""
    rng = np.random.default_rng(seed)
    jobs = random_jobs(rng, 12)
    least = sum(j.gpus * watts_for(j.curve, max(j.floor, j.curve.performance[0])) for j in jobs)
    budget = share * least
    try:
        found = allocate(jobs, budget, may_pause=True)
    except InfeasibleError:
        assert budget < min(j.gpus * watts_for(j.curve, j.floor) for j in jobs)
        return
    assert found.used_watts <= budget * (1 + 1e-9)
    assert found.paused.any()
    for reached, is_paused, job in zip(found.performance, found.paused, jobs, strict=True):
        assert (reached == 0) == is_paused
        assert is_paused or reached >= job.floor - 1e-9
