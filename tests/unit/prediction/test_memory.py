"""Memory: precision, recomputation, state and the three verdicts."""

from dataclasses import replace

import pytest

from joulery.errors import InfeasibleError, InvalidValueError
from joulery.prediction import (
    Calibration,
    MeasuredStep,
    Plan,
    accelerator,
    memory_verdict,
    plan_memory,
    prediction,
    transformer,
)

LLAMA = transformer(
    {
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 8,
        "feedforward": 14336,
        "vocabulary": 128256,
        "sequence": 8192,
    }
)
PLAN = Plan(data=8, batch_size=64, shard=3)


def memory(**changes):
    """Memory of the plan with changes."""
    return plan_memory(LLAMA, replace(PLAN, **changes))


def test_narrow_products_keep_narrow_activations():
    """FP8 plans would be refused as if they were BF16."""
    kept = [memory(precision=name).activations for name in ("bf16", "fp8", "nvfp4")]
    assert kept[0] > 1.15 * kept[1] > 1.15 * kept[2]


def test_recomputation_saves_activations_but_needs_a_layer_to_work_in():
    """A recommended plan would run out of memory while a layer is recomputed."""
    none, some, full = (
        memory(recompute=word).activations for word in ("none", "selective", "full")
    )
    boundaries = 32 * 8192 * 4096 * 2
    assert none > some > full > boundaries


@pytest.mark.parametrize(
    ("changes", "ratio"),
    [({"state_bits": 8}, 0.5), ({"state_bits": 16}, 1 / 3), ({"offload": True}, 0.0)],
)
def test_the_optimizers_state_shrinks_as_its_bits_say(changes, ratio):
    """8-bit Adam or offload change nothing."""
    assert memory(**changes).optimizer == pytest.approx(ratio * memory().optimizer)


def test_chunked_logits_take_no_memory():
    """Large vocabularies would be refused though the loss is computed in parts."""
    logits = 4.0 * 8192 * 128256
    assert memory().temporaries - memory(chunked_loss=True).temporaries == pytest.approx(logits)


@pytest.mark.parametrize(
    ("plan", "word"),
    [
        (Plan(shard=3), "does not fit"),
        (Plan(data=4, batch_size=4, shard=3), "tight"),
        (PLAN, "fits"),
    ],
)
def test_there_are_three_verdicts(plan, word):
    """A plan between certainly fitting and certainly not would be called one of them."""
    need, verdict = memory_verdict(LLAMA, plan, accelerator("h100"))
    assert verdict == word
    assert (need.allocated > 1.013 * accelerator("h100").memory_bytes) == (word == "does not fit")


def test_tensors_beyond_the_memory_are_not_called_tight():
    """A plan that reserves 22 % more than the device has would be said to fit, perhaps."""
    shape = {"layers": 126, "hidden": 16384, "heads": 128, "kv_heads": 8, "feedforward": 53248}
    model = transformer({**shape, "vocabulary": 128256, "sequence": 8192})
    plan = Plan.parse("dp128-tp8-pp16-mb1-vp8", 2048)
    need, verdict = memory_verdict(model, plan, accelerator("h100"))
    assert need.reserved > 1.2 * accelerator("h100").memory_bytes
    assert verdict == "does not fit"
    # With the sharding of the published training, which ran, it is.
    ran = replace(plan, data=64, shard=2)
    assert memory_verdict(model, ran, accelerator("h100"))[1] == "tight"


def test_a_plan_that_only_a_variant_of_fits_is_not_called_tight():
    """Five times the memory would be tight, at the time of a step that cannot run."""
    asked = replace(PLAN, micro_batch=8)
    step = prediction(LLAMA, "h100", asked)
    lean = replace(asked, recompute="full", chunked_loss=step.variant.chunked_loss)
    assert (step.verdict, step.plan, step.variant) == ("does not fit", asked, lean)
    document = step.to_dict()
    assert document["memory_reserved_bytes"] > 2 * document["memory_bytes"]
    assert document["variant_memory_reserved_bytes"] < document["memory_bytes"]
    assert document["variant"] == step.points[0].setting.parallel == str(lean)
    direct = prediction(LLAMA, "h100", lean)
    assert direct.points == step.points
    assert direct.variant is None
    assert direct.verdict == "fits"


def test_a_measured_peak_moves_the_verdict():
    """Somebody's framework needs a third more, which every prediction forgets."""
    assert prediction(LLAMA, "h100", PLAN).verdict == "fits"
    lean = replace(PLAN, recompute="full")
    peak = 1.5 * plan_memory(LLAMA, lean).reserved
    evidence = Calibration((MeasuredStep(LLAMA, "h100", lean, 6.0, peak_bytes=peak),))
    assert prediction(LLAMA, "h100", PLAN, calibration=evidence).verdict == "does not fit"
    same = prediction(LLAMA, "h100", lean, calibration=evidence)
    assert same.verdict == "fits"
    assert same.to_dict()["memory_reserved_bytes"] == pytest.approx(peak, rel=0.03)


@pytest.mark.parametrize(
    ("text", "batch", "words", "absent"),
    [
        ("cp8-mb1-zero3-full-recompute", 1, ["more cp"], ["zero3", "full-recompute", "micro"]),
        ("dp1-mb2", 2, ["zero3", "full-recompute", "smaller micro-batches"], ["more cp"]),
    ],
)
def test_a_plan_that_does_not_fit_is_advised_what_it_lacks(text, batch, words, absent):
    """The remedy would name what the plan does already."""
    with pytest.raises(InfeasibleError) as refused:
        prediction(replace(LLAMA, layers=512), "t4", Plan.parse(text, batch, "fp16"))
    assert all(word in refused.value.remedy for word in words)
    assert not any(word in refused.value.remedy for word in absent)


@pytest.mark.parametrize("reading", [{"peak_bytes": 61}, {"peak_bytes": 95e9}, {"watts": 0.65}])
def test_readings_that_no_device_gives_are_refused(reading: dict[str, float]):
    """Gigabytes, kilowatts and another board's peak would move every later prediction."""
    with pytest.raises(InvalidValueError, match="cannot have taken"):
        MeasuredStep(LLAMA, "h100", PLAN, 6.0, **reading)


def test_pure_16_bit_training_fits_where_its_publisher_ran_it():
    """Llama 3.1 8B with paged 8-bit moments takes 18.9 GiB (torchtune's README), not 50."""
    words = "adam8-no-master-fused-backward-offload-full-recompute-chunked-loss-compile"
    plan = Plan.parse(f"dp1-mb2-{words}", 2)
    assert Plan.parse(str(plan), 2) == plan
    model = replace(LLAMA, sequence=2048)
    assert plan_memory(model, plan).allocated == pytest.approx(18.9 * 2**30, rel=0.06)
    with pytest.raises(InvalidValueError, match="several micro-batches"):
        replace(plan, batch_size=4)
