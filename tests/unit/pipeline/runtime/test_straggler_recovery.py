"""How long a job stays slow once a straggler has recovered, by simulated iterations."""

import itertools
import random
from functools import cache

import pytest

from joulery.pipeline import (
    IterationTimes,
    PipelineConfig,
    PlanCache,
    StragglerPolicy,
    plan_pipeline,
    profiles_from_rows,
)
from support.pipelines import random_rows, replay

STAGES = 4
BEGIN, AFTER = 10, 12


@cache
def pipeline():
    """Plans without a minimum hold time, and the seconds of every instruction at every clock."""
    profiles = profiles_from_rows(random_rows(STAGES, 1))
    config = PipelineConfig(blocking_watts=70.0)
    plan = plan_pipeline(profiles, microbatches=6, config=config)
    seconds = {
        (*work, point.setting.clock_hertz): point.seconds
        for work, profile in profiles.instructions.items()
        for point in profile.points
    }
    return plan, PlanCache(plan, 0.0), seconds


def run(ranks, slowdown):
    """When the iteration and each rank end, and measured over planned times."""
    plan, _, seconds = pipeline()
    steps = {step.instruction.key: step for rank in ranks for step in rank.steps}
    lasts, ratios = [], [{} for _ in ranks]
    for item in plan.problem.instructions:
        step = steps[item.key]
        lasts.append(seconds[item.stage, item.kind, step.hertz] * slowdown(item.stage))
        measured = ratios[item.rank].setdefault((item.stage, item.kind), [])
        measured.append(lasts[-1] / step.seconds)
    ran = replay(plan.problem, lasts, lasts)
    ends = [0.0] * len(ranks)
    for item, start, last in zip(plan.problem.instructions, ran.starts, lasts, strict=True):
        ends[item.rank] = max(ends[item.rank], start + last)
    return ran.seconds, ends, ratios


def simulate(pipelines, events, iterations):
    """Seconds of each iteration, and those of first plans alone, which need not wait for anything.

    Args:
        pipelines: Number of pipelines.
        events: Slowdowns as (pipeline, first iteration, end, factor, stages).
        iterations: Number of iterations.
    """
    _, plans, _ = pipeline()
    policy = StragglerPolicy(plans, pipelines)
    running = [plans.ranks()] * pipelines
    coming = [[] for _ in running]
    took, alone = [], []

    def assign(assignments):
        for a in assignments:
            ranks = a.plans.ranks(a.factor, waits=a.waits)
            coming[a.pipeline].append((a.from_iteration, ranks))

    for number in range(iterations):
        ran, first = [], []
        for which, queue in enumerate(coming):
            while queue and queue[0][0] <= number:
                running[which] = queue.pop(0)[1]
            factors = [1.0] * STAGES
            for _, _, _, slow, stages in (
                e for e in events if e[0] == which and e[1] <= number < e[2]
            ):
                factors = [f * slow if s in stages else f for s, f in enumerate(factors)]
            ran.append(run(running[which], factors.__getitem__))
            first.append(run(plans.ranks(), factors.__getitem__)[0])
        took.append(max(seconds for seconds, _, _ in ran))
        alone.append(max(first))
        for which, (_, ends, ratios) in enumerate(ran):
            for rank, seconds in enumerate(ends):
                planned = running[which][0].seconds
                policy.report(which, rank, IterationTimes(number, seconds, planned, ratios[rank]))
                assign(policy.decide())
            if drifted := policy.drifted(which):
                slower = policy.plans_of(which).rescaled(drifted)
                assign([policy.replace_plans(which, slower), *policy.decide()])
    return took, alone


@pytest.mark.parametrize("pipelines", [1, 2, 3])
@pytest.mark.parametrize(
    ("slow", "stages", "iterations"),
    [(1.05, (3,), 20), (1.2, (0, 1, 2, 3), 6), (1.2, (3,), 3), (1.4, (3,), 8), (1.2, (2,), 20)],
)
def test_a_recovered_straggler_costs_two_iterations_at_most(pipelines, slow, stages, iterations):
    """If it fails a whole job stays slow for a pipeline that is well again."""
    end = BEGIN + iterations
    took, _ = simulate(pipelines, [(0, BEGIN, end, slow, stages)], end + AFTER)
    fastest = pipeline()[0].fastest_seconds
    assert sum(seconds > 1.01 * fastest for seconds in took[end:]) <= 2


@pytest.mark.parametrize("seed", range(8))
def test_stragglers_that_come_and_go_cost_two_iterations_each(seed):
    """If it fails pipelines that are slow in turn keep a job at a pace that none of them has."""
    draw = random.Random(seed)  # noqa: S311 - not for secrets
    pipelines, begin, events = draw.randrange(2, 5), BEGIN, []
    for _ in range(3):
        # The next one comes before or after the last has gone, but not within its recovery.
        begin += draw.randrange(4, 12)
        slow, stages = draw.choice((1.05, 1.1, 1.2, 1.4)), draw.choice(((0, 1, 2, 3), (3,), (0,)))
        lasts = draw.choice((3, 8, 20))
        events.append((draw.randrange(pipelines), begin, begin + lasts, slow, stages))
    took, alone = simulate(pipelines, events, begin + 40)
    ends = sorted({e[2] for e in events} | {e[1] for e in events})
    late = [n for n, (s, a) in enumerate(zip(took, alone, strict=True)) if s > 1.015 * a]
    for moment, later in itertools.pairwise([*ends, begin + 40]):
        assert sum(moment <= number < later for number in late) <= 3, (events, late)
    assert not [number for number in late if number < ends[0] or number >= ends[-1] + 2]


def test_a_pipeline_that_is_slow_throughout_is_planned_as_a_whole():
    """If it fails ranks that report first are planned as if the others were still fast."""
    took, _ = simulate(2, [(0, BEGIN, 60, 1.25, (0, 1, 2, 3))], 60)
    fastest = pipeline()[0].fastest_seconds
    assert max(took) <= 1.26 * fastest
