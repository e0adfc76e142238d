"""Predicted stages for the planner of pipelines."""

import pytest

from joulery.errors import InvalidValueError
from joulery.pipeline import PipelineConfig, plan_pipeline, profiles_from_rows
from joulery.prediction import (
    Plan,
    prediction,
    stage_rows,
    transformer,
)
from joulery.prediction._memory import plan_memory, stage_memories

MODEL = transformer(
    {
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "feedforward": 11008,
        "vocabulary": 32000,
        "sequence": 4096,
    }
)
PLAN = Plan(pipeline=4, batch_size=16)


@pytest.mark.parametrize(
    ("text", "schedule"),
    [
        ("pp4-mb1-full-recompute", "1f1b"),
        ("pp2-tp2-dp2-mb1", "1f1b"),
        ("pp4-vp2-mb1", "interleaved"),
    ],
)
def test_plan_and_prediction_agree(text, schedule):
    """If it fails savings are of another total than the prediction before them."""
    parallel = Plan.parse(text, 32, "bf16")
    step = prediction(MODEL, "a100", parallel).points[-1]
    config = PipelineConfig(devices_per_rank=parallel.tensor, replicas=parallel.data)
    plan = plan_pipeline(
        profiles_from_rows(stage_rows(MODEL, "a100", parallel)),
        schedule=schedule,
        microbatches=parallel.micro_batches,
        ranks=parallel.pipeline,
        config=config,
    )
    assert plan.full_clocks.seconds == pytest.approx(step.seconds, rel=0.01)
    assert plan.full_clocks.joules == pytest.approx(step.joules, rel=0.02)
    assert plan.at(1.05 * plan.fastest_seconds).joules < plan.at(plan.fastest_seconds).joules


def test_lower_clocks_take_longer_and_the_last_stage_has_the_head():
    """A planner given the wrong order would slow down the wrong stage."""
    rows = stage_rows(MODEL, "a100", PLAN, clocks=[0.8e9, 1.41e9])
    time = {(row["stage"], row["instruction"], row["frequency"]): row["time"] for row in rows}
    assert time[0, "forward", 800] > time[0, "forward", 1410]
    assert time[3, "forward", 1410] > time[0, "forward", 1410]
    assert time[0, "backward", 1410] == pytest.approx(2 * time[0, "forward", 1410], rel=0.1)


def test_recomputation_is_part_of_the_backward_pass():
    """It runs there, and costs a forward."""
    plain = stage_rows(MODEL, "a100", PLAN, clocks=[1.41e9])
    again = stage_rows(
        MODEL, "a100", Plan(pipeline=4, batch_size=16, recompute="full"), clocks=[1.41e9]
    )
    assert again[1]["time"] == pytest.approx(plain[1]["time"] + plain[0]["time"], rel=0.02)


def test_a_plan_without_a_pipeline_is_refused():
    """There is nothing to plan."""
    with pytest.raises(InvalidValueError, match="no 1F1B pipeline"):
        stage_rows(MODEL, "a100", Plan(batch_size=16))


@pytest.mark.parametrize("dense", [0, 2, 9])
def test_the_memory_of_a_plan_is_that_of_its_fullest_stage(dense):
    """A recommended plan must not run out of memory on any stage."""
    experts = {"experts": 16, "experts_per_token": 2, "expert_feedforward": 11008}
    model = transformer(
        {
            "layers": 32,
            "hidden": 1024,
            "heads": 16,
            "feedforward": 512,
            "vocabulary": 32000,
            "sequence": 512,
            "dense_layers": dense,
            **experts,
        }
    )
    for chunks in (1, 4):
        plan = Plan(pipeline=8, chunks=chunks, batch_size=64, expert=1)
        fullest = max(memory.reserved for memory in stage_memories(model, plan))
        assert plan_memory(model, plan).reserved == pytest.approx(fullest)
