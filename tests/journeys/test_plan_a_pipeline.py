"""Journey: profile a pipeline, plan its clocks, and train at the planned clocks."""

import pytest

from joulery.pipeline import load_plan, load_rank_plan
from support.virtual_pipelines import VirtualPipeline, stage_works, write_measured


@pytest.mark.slow
def test_a_planned_pipeline_saves_what_was_promised(world):
    """Savings of a plan exist on paper only, or its iterations take longer."""
    stages, microbatches = world.draw.randrange(2, 5), world.draw.randrange(4, 9)
    works = stage_works(world.draw, stages)
    write_measured(world.folder / "stages.csv", world.board, works)
    document = world.joulery(
        *("plan", "pipeline", "--profile", "stages.csv", "--out", "plan.json"),
        *("--microbatches", str(microbatches), "--blocking-power", f"{world.board.idle_watts}W"),
    )
    path = world.folder / "plan.json"
    problem = load_plan(path).problem
    plans = [load_rank_plan(path, rank) for rank in range(stages)]
    full = VirtualPipeline(world.board, works, problem)
    planned = VirtualPipeline(world.board, works, problem, plans)
    for pipeline in (full, planned):
        pipeline.iterate()  # the first iteration also sets clocks for the first time
    full_seconds, full_joules = full.iterate()
    seconds, joules = planned.iterate()
    (promise,) = document["plans"]
    assert not [c.failure for c in planned.controllers if c.failure]
    assert seconds <= 1.005 * full_seconds  # the times of a profile are smoothed
    assert 1 - joules / full_joules == pytest.approx(promise["saved"], abs=0.03)
    assert joules < full_joules
