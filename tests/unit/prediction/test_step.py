"""Whole predictions: frontiers, advice, and calibration by measured steps."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from joulery.errors import InfeasibleError, InvalidValueError
from joulery.frontier import Origin
from joulery.prediction import (
    Graph,
    Operator,
    Plan,
    Task,
    accelerator,
    predict,
    prediction,
    total,
)
from joulery.prediction._step import _advice
from joulery.prediction.models import Load

LLAMA = {
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "feedforward": 14336,
    "vocabulary": 128256,
    "sequence": 8192,
    "name": "llama-8b",
}
PLAN = Plan(data=8, batch_size=64, shard=3)


def test_a_prediction_is_a_frontier_over_power_limits():
    """Every optimizer of the package takes frontiers and nothing else."""
    step = predict(LLAMA, "h100", plan=PLAN)
    assert len(step) > 3
    assert step.fastest.setting.power_limit_watts == 700
    assert step.fastest.setting.devices == 8
    assert step.fastest.provenance.origin is Origin.PREDICTED
    assert 0.05 < step.fastest.provenance.relative_error < 0.5


def test_what_does_not_fit_is_refused_with_what_helps():
    """A plan that runs out of memory must never be predicted as if it ran."""
    with pytest.raises(InfeasibleError, match="needs"):
        predict(LLAMA, "l4", batch_size=1)


def test_a_refusal_names_copies_that_fit():
    """The advice would be to split matrices, where twice the copies fit."""
    large = {**LLAMA, "layers": 80, "hidden": 8192, "heads": 64, "feedforward": 28672}
    large |= {"vocabulary": 32000, "sequence": 4096}
    with pytest.raises(InfeasibleError) as refused:
        predict(large, "h100", plan="dp16-mb1-zero3-full-recompute", batch_size=16)
    plans = re.findall(r"give (\S+), which fits", refused.value.remedy)
    assert plans == [
        "dp16-mb1-zero3-full-recompute-offload",
        "dp32-mb1-zero3-full-recompute",
    ]
    for plan in plans:
        assert predict(large, "h100", plan=plan, batch_size=32).prediction.verdict == "fits"


def test_a_plan_that_does_not_fit_is_not_replaced_without_a_word():
    """A notebook would show time and energy of another plan than the one asked for."""
    experts = LLAMA | {"sequence": 4096, "vocabulary": 32000, "experts": 8, "experts_per_token": 2}
    with pytest.raises(InfeasibleError, match=r"121.2 GB, H100 has 85.5") as refused:
        predict(experts, "h100", plan="dp16-ep8-mb1-zero1", batch_size=256)
    assert 'plan="dp16-ep8-mb1-full-recompute", which needs 84.4 GB (tight)' in refused.value.remedy


def test_memory_and_intervals_are_on_the_result():
    """Python would know less than the command line prints."""
    step = predict(LLAMA, "h100", plan=PLAN)
    assert step.prediction == prediction(LLAMA, "h100", PLAN)
    assert step.prediction.verdict == "fits"
    assert f"of {85.5} GB: fits" in str(step)
    within, row = step.prediction.seconds(step.fastest), step.rows()[0]
    assert (row["seconds_low"], row["seconds_high"]) == tuple(within)
    assert row["joules_low"] < step.fastest.joules < row["joules_high"]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"batch_size": "8"}, "batch size must be a positive whole number, not '8'"),
        ({"batch_size": -1}, "batch size must be a positive whole number, not -1"),
        ({"limits": 500}, "limits=500 is not a list"),
        ({"limits": "500,700"}, "limits='500,700' is not a list"),
        ({"limits": ["500"]}, "limits must be a number"),
        ({"clocks": 1e9}, "clocks=1000000000.0 is not a list"),
        ({"device": None}, "None is no device type"),
        ({"device": ["h100"]}, "is no device type"),
    ],
)
def test_arguments_of_another_type_are_named(wrong, words):
    """A notebook would show a TypeError from the middle of the model."""
    with pytest.raises(InvalidValueError, match=re.escape(words)):
        predict(LLAMA, **{"device": "h100", "plan": "dp8-mb1-zero3", "batch_size": 64} | wrong)


def test_limits_outside_the_board_are_refused():
    """The driver would refuse them later."""
    with pytest.raises(InvalidValueError, match="power limit"):
        prediction(LLAMA, "h100", PLAN, limits=[100.0])


def test_advice_says_when_no_limit_binds():
    """A memory-bound step on a board with a high lowest limit needs a clock instead."""
    b200 = accelerator("b200")
    assert "lock a clock" in _advice(Load(1.0, 0.0, 3.0, 0.3), b200)
    assert "change nothing" in _advice(Load(1.0, 0.0, 3.0, 0.7), b200)
    assert "slows" in _advice(Load(1.0, 0.0, 0.1, 1.2), b200)


def test_a_step_without_a_binding_limit_is_offered_clocks():
    """A user whose limits do nothing needs the knob that does."""
    board = replace(accelerator("h100"), min_limit_watts=695.0)
    step = prediction(LLAMA, board, PLAN)
    clocks = [point for point in step.points if point.setting.clock_hertz]
    assert "lock a clock" in step.advice
    assert len(clocks) > 5
    assert step.frontier().least_energy.setting.clock_hertz
    assert not any(point.setting.clock_hertz for point in prediction(LLAMA, "h100", PLAN).points)


def test_clocks_that_are_asked_for_are_predicted():
    """Lower clocks take longer and less power, never more than the limit allows."""
    step = prediction(LLAMA, "h100", PLAN, limits=[700.0], clocks=[800e6, 1200e6, 1980e6])
    limited, *locked = step.points
    assert [point.setting.clock_hertz for point in locked] == [800e6, 1200e6, 1980e6]
    assert locked[0].seconds > locked[1].seconds > locked[2].seconds >= limited.seconds
    assert locked[0].watts < locked[1].watts < locked[2].watts <= limited.watts * 1.001
    with pytest.raises(InvalidValueError, match="lock"):
        prediction(LLAMA, "h100", PLAN, clocks=[3e9])


def test_the_error_of_a_training_is_not_averaged_away():
    """Ten thousand steps with the same bias are as wrong as one."""
    step = prediction(LLAMA, "h100", PLAN)
    point = step.points[-1]
    single, many = step.seconds(point), step.seconds(point, 10_000)
    assert many.high / many.low == pytest.approx(single.high / single.low, rel=0.1)
    assert many.high / many.low < single.high / single.low
    assert many.low < 10_000 * point.seconds < many.high


def test_phases_add_up_with_what_their_errors_share():
    """A training in two plans is surer than either, but not as if they were independent."""
    first = prediction(LLAMA, "h100", PLAN).points[-1]
    second = prediction(LLAMA, "h100", replace(PLAN, batch_size=128)).points[-1]
    step = total([(first, 1000), (second, 500)])
    alone = first.provenance.relative_error
    assert step.seconds == pytest.approx(1000 * first.seconds + 500 * second.seconds)
    assert alone / 2**0.5 < step.provenance.relative_error <= alone
    phase = total([(first, 1000)])
    assert phase.provenance.relative_error == pytest.approx(alone)
    with pytest.raises(InvalidValueError):
        total([])


def test_memory_is_told_per_stage():
    """The first stage holds the most micro-batches, and all must fit."""
    step = prediction(LLAMA, "h100", Plan(pipeline=8, batch_size=8))
    assert len(step.memory) == 8
    assert step.memory[1].activations > step.memory[6].activations
    document = step.to_dict()
    assert document["memory_reserved_bytes"] == max(document["memory_reserved_bytes_by_stage"])


def test_a_graph_of_operators_is_predicted_too():
    """Models from a framework come as graphs."""
    product = Operator(
        "mm", "matmul", "forward", (1, 4096, 4096, 4096), 2 * 4096.0**3, 3 * 4096.0**2 * 2, "bf16"
    )
    update = Operator("adamw", "stream", "optimizer", (0, 0, 0, 0), 0.0, 1e9, "fp32")
    graph = Graph("tiny", (product, update), 1, 1e6, 2e6, 1e6, 2e6)
    step = predict(graph, "a100").fastest
    bytes_only = 1e9 / accelerator("a100").bytes_per_second
    assert bytes_only < step.seconds < 4 * bytes_only + 0.01  # launches of a loop in Python
    assert predict(graph, "h100").fastest.seconds < step.seconds
    assert np.isfinite(step.joules)
    with pytest.raises(InvalidValueError):
        Graph("empty", (), 0, 0, 0, 0, 0)


def test_copies_of_a_captured_step_pay_for_gradients_and_share_state():
    """A captured model would be predicted for one device only."""
    product = Operator(
        "mm", "matmul", "forward", (1, 4096, 4096, 4096), 2 * 4096.0**3, 3 * 4096.0**2 * 2, "bf16"
    )
    graph = Graph("wide", (replace(product, count=64),), int(1e9), 2e9, 4e9, 1e9, 3e9)
    alone = prediction(graph, "h100", Plan(framework="eager", shard=0))
    copies = Plan(data=16, batch_size=16, framework="eager", shard=0)
    ddp = prediction(graph, "h100", copies)
    fsdp = prediction(graph, "h100", replace(copies, shard=3))
    assert alone.points[-1].seconds < ddp.points[-1].seconds < 2 * alone.points[-1].seconds
    assert fsdp.memory[0].reserved < 0.8 * ddp.memory[0].reserved
    assert ddp.points[-1].joules > 15 * alone.points[-1].joules
    for changes in ({"data": 8, "tensor": 2}, {"micro_batch": 4}, {"recompute": "full"}):
        with pytest.raises(InvalidValueError, match="changes what a captured step computes"):
            prediction(graph, "h100", replace(copies, **changes))
    with pytest.raises(InvalidValueError, match="do not divide among 3 copies"):
        prediction(graph, "h100", replace(copies, data=3))
    narrow = predict(graph, "h100", plan=replace(copies, precision="fp8"))
    assert narrow.fastest.joules < 0.9 * ddp.points[-1].joules


def test_the_room_can_be_called():
    """`joulery.predict(model, device=...)` is what people are told to type."""
    import joulery

    step = joulery.predict(LLAMA, device="h100", plan=PLAN)
    assert step == predict(LLAMA, "h100", plan=PLAN)
    assert joulery.predict is joulery.prediction.predict


def test_convolutions_in_tf32_are_uncertain():
    """A network of convolutions would be off by a factor of two with a bar of 17 %."""
    shape = (1, 256 * 56 * 56, 64, 576)

    def deviation(name, precision, device="a100"):
        work = 2.0 * math.prod(shape)
        layer = Operator(name, "matmul", "forward", shape, work, 1e9, precision)
        graph = Graph("net", (layer,), 1000, 4e3, 8e3, 1e9, 1e9)
        return predict(graph, device).prediction.deviation

    assert deviation("convolution", "fp32") > 1.4 * deviation("mm", "fp32")
    assert deviation("convolution", "fp32", "v100") == deviation("mm", "fp32", "v100")


def test_the_default_precision_is_one_that_the_device_has():
    """A V100 would be timed in BF16, or refused with a plan that names no precision."""
    small = {**LLAMA, "layers": 2}
    for plan in (None, "dp1-mb1", Plan(batch_size=2)):
        assert predict(small, "v100", plan=plan).prediction.plan.precision == "fp16"
        assert predict(small, "a100", plan=plan).prediction.plan.precision == "bf16"
    with pytest.raises(InvalidValueError, match="V100 does not compute in bf16"):
        predict(small, "v100", precision="bf16")


def test_a_task_is_given_by_name_or_within_the_plan():
    """The option of the command would be a TypeError in Python."""
    within = predict(LLAMA, "h100", plan="dp1-mb1-lora64").prediction
    assert predict(LLAMA, "h100", plan="dp1-mb1", task="lora64").prediction == within
    assert predict(LLAMA, "h100", task=Task.parse("lora64")).prediction == within
    with pytest.raises(InvalidValueError, match="task 'lara' is not understood"):
        predict(LLAMA, "h100", task="lara")
    product = Operator("mm", "matmul", "forward", (1.0, 64.0, 64.0, 64.0), 5e5, 2e4, "bf16")
    graph = Graph("product", (product,), 1, 1e6, 2e6, 1e6, 2e6)
    with pytest.raises(InvalidValueError, match="changes what a captured step computes"):
        predict(graph, "h100", task="lora")
