"""Tasks: what a step trains, as words."""

from dataclasses import replace

import pytest

from joulery.errors import InvalidValueError
from joulery.prediction import (
    Calibration,
    MeasuredStep,
    Plan,
    Task,
    plan_memory,
    prediction,
    transformer,
)

MODEL = transformer(
    {
        "layers": 16,
        "hidden": 2048,
        "heads": 16,
        "feedforward": 8192,
        "vocabulary": 32000,
        "sequence": 4096,
    }
)
PLAN = Plan(data=8, batch_size=64)


def seconds(text):
    """Seconds of a step of a task."""
    return prediction(MODEL, "h100", replace(PLAN, task=Task.parse(text))).points[-1].seconds


@pytest.mark.parametrize("text", ["sft", "lora", "qlora64", "dpo-lora", "grpo512", "sft-packed700"])
def test_a_task_reads_back_from_its_text(text):
    """A recommendation's plan says something else than what was asked for."""
    assert str(Task.parse(text)) == text
    plan = replace(PLAN, task=Task.parse(text))
    assert Plan.parse(str(plan), 64) == plan


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rlhf", "not understood"),
        ("lora-x", "not understood"),
        ("sft7b", "not understood"),
        ("lora0", "asks for none"),
        ("sft512", "does not take"),
        ("lora-qlora", "contradicts"),
        ("packed700-padded700", "contradicts"),
    ],
)
def test_unknown_words_are_refused(text, words):
    """A typing error trains something else."""
    with pytest.raises(InvalidValueError, match=words):
        Task.parse(text)


def test_packed_examples_see_only_themselves():
    """Packed short examples cost as much attention as one long sequence."""
    assert seconds("sft-packed256") < 0.97 * seconds("sft")
    assert Task.parse("padded1024").useful_share(4096) == pytest.approx(0.25)
    assert Task.parse("packed1024").useful_share(4096) == 1.0


def test_a_reference_model_takes_memory_unless_adapters_make_it():
    """DPO with adapters would be refused for a copy that nobody holds."""
    held = plan_memory(MODEL, replace(PLAN, task=Task.parse("dpo"))).parameters
    plain = plan_memory(MODEL, PLAN).parameters
    assert held == pytest.approx(2 * plain)
    adapters = plan_memory(MODEL, replace(PLAN, task=Task.parse("dpo-lora"))).parameters
    assert plain < adapters < 1.1 * plain


def test_longer_answers_cost_rollouts():
    """Rollouts of GRPO are free."""
    assert seconds("grpo2048") < seconds("grpo512")


def test_what_is_decoded_is_as_uncertain_as_rollouts_are():
    """Decoding would make a step of GRPO surer than a served request."""
    grpo, sft = (
        prediction(MODEL, "h100", replace(PLAN, task=Task.parse(text))) for text in ("grpo", "sft")
    )
    assert grpo.deviation > 2 * sft.deviation
    assert "answers of unequal length" in grpo.to_dict()["left_out"][0]
    assert not sft.left_out
    measured = MeasuredStep(MODEL, "h100", grpo.plan, 2 * grpo.points[-1].seconds)
    evidence = Calibration((measured,))
    assert prediction(MODEL, "h100", grpo.plan, calibration=evidence).deviation < sft.deviation


@pytest.mark.parametrize(
    ("text", "changes", "words"),
    [("grpo4096", {}, "no room"), ("grpo", {"causal": False}, "does not decode")],
)
def test_rollouts_that_cannot_be_are_refused(text, changes, words):
    """Prompts longer than a sequence would be predicted with answers of one token."""
    with pytest.raises(InvalidValueError, match=words):
        replace(PLAN, task=Task.parse(text)).check(replace(MODEL, **changes))
