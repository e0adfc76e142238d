"""How long a job stays slow once a straggler has recovered, by simulated iterations."""

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


def late_iterations(pipelines, slow, stages, iterations):
    """Iterations after the recovery that take longer than without a straggler."""
    plan, plans, _ = pipeline()
    policy = StragglerPolicy(plans, pipelines)
    running = [plans.ranks()] * pipelines
    coming = [[] for _ in running]
    late = 0
    end = BEGIN + iterations

    def assign(assignment):
        coming[assignment.pipeline].append(
            (assignment.from_iteration, assignment.plans.ranks(assignment.factor))
        )

    for number in range(end + AFTER):
        ran = []
        for which, queue in enumerate(coming):
            while queue and queue[0][0] <= number:
                running[which] = queue.pop(0)[1]
            now = which == 0 and BEGIN <= number < end
            factors = [slow if now and stage in stages else 1.0 for stage in range(STAGES)]
            ran.append(run(running[which], factors.__getitem__))
        longest = max(seconds for seconds, _, _ in ran)
        late += number >= end and longest > 1.01 * plan.fastest_seconds
        for which, (_, ends, ratios) in enumerate(ran):
            for rank, seconds in enumerate(ends):
                planned = running[which][0].seconds
                policy.report(which, rank, IterationTimes(number, seconds, planned, ratios[rank]))
                for assignment in policy.decide():
                    assign(assignment)
            drifted = policy.drifted(which)
            if drifted:
                old = policy.plans_of(which)
                assign(policy.replace_plans(which, old.rescaled(drifted)))
    return late


@pytest.mark.parametrize("pipelines", [1, 2, 3])
@pytest.mark.parametrize(
    ("slow", "stages", "iterations"),
    [(1.05, (3,), 20), (1.2, (0, 1, 2, 3), 6), (1.2, (3,), 3), (1.4, (3,), 8), (1.2, (2,), 20)],
)
def test_a_recovered_straggler_costs_two_iterations_at_most(pipelines, slow, stages, iterations):
    """If it fails a whole job stays slow for a pipeline that is well again."""
    assert late_iterations(pipelines, slow, stages, iterations) <= 2
