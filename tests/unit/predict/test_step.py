"""Whole predictions: frontiers, advice, and calibration by measured steps."""

import json

import numpy as np
import pytest

from joulery.errors import FileError, InfeasibleError, InvalidValueError
from joulery.frontier import Origin
from joulery.predict import (
    Graph,
    MeasuredStep,
    Operator,
    Plan,
    accelerator,
    calibrated,
    predict,
    prediction,
    read_steps,
    transformer,
)
from joulery.predict._step import Load, _advice, plan_load

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
PLAN = Plan(data=8, global_batch=64, shard=3)


def test_a_prediction_is_a_frontier_over_power_limits():
    """Every optimizer of the package takes frontiers and nothing else."""
    found = predict(LLAMA, "h100", plan=PLAN)
    assert len(found) > 3
    assert found.fastest.setting.power_limit_watts == 700
    assert found.fastest.setting.devices == 8
    assert found.fastest.provenance.origin is Origin.PREDICTED
    assert 0.05 < found.fastest.provenance.relative_error < 0.5


def test_what_does_not_fit_is_refused_with_what_helps():
    """A plan that runs out of memory must never be predicted as if it ran."""
    with pytest.raises(InfeasibleError, match="needs"):
        predict(LLAMA, "l4", batch_size=1)


def test_limits_outside_the_board_are_refused():
    """The driver would refuse them later."""
    with pytest.raises(InvalidValueError, match="lock a clock"):
        prediction(transformer(LLAMA), "h100", PLAN, limits=[100.0])


def test_advice_says_when_no_limit_binds():
    """A memory-bound step on a board with a high lowest limit needs a clock instead."""
    b200 = accelerator("b200")
    assert "lock a clock" in _advice(Load(1.0, 0.0, 3.0, 0.3), b200)
    assert "change nothing" in _advice(Load(1.0, 0.0, 3.0, 0.7), b200)
    assert "slows" in _advice(Load(1.0, 0.0, 0.1, 1.2), b200)


def test_measured_steps_pull_the_prediction_to_them():
    """What was measured must count more than what was fitted elsewhere."""
    model, board = transformer(LLAMA), accelerator("h100")
    load = plan_load(model, PLAN, board)
    slow = 1.5 * (load.busy_seconds + load.waiting_seconds)
    constants = calibrated(model, [MeasuredStep("h100", PLAN, slow)])
    after = plan_load(model, PLAN, board, constants)
    assert after.busy_seconds + after.waiting_seconds == pytest.approx(slow, rel=0.1)
    narrowed = prediction(model, "h100", PLAN, constants=constants)
    assert narrowed.relative_error < prediction(model, "h100", PLAN).relative_error


def test_measured_steps_are_read_from_a_file(tmp_path):
    """`--calibrate` takes what people write down."""
    file = tmp_path / "steps.json"
    row = {"device": "h100", "plan": "dp8-mb1-zero3", "global_batch": 64, "seconds": 9.0}
    file.write_text(json.dumps([row]))
    assert read_steps(file)[0].plan == PLAN
    for broken in ('[{"device": "h100"}]', "{", "[1]"):
        file.write_text(broken)
        with pytest.raises(FileError):
            read_steps(file)
    with pytest.raises(FileError):
        read_steps(tmp_path / "missing.json")


def test_a_graph_of_operators_is_predicted_too():
    """Models from a framework come as graphs."""
    product = Operator(
        "mm", "matmul", "forward", (1, 4096, 4096, 4096), 2 * 4096.0**3, 3 * 4096.0**2 * 2, "bf16"
    )
    update = Operator("adamw", "stream", "optimizer", (0, 0, 0, 0), 0.0, 1e9, "fp32")
    graph = Graph("tiny", (product, update), 1, 1e6, 1e6, 2e6, 1e6, 2e6)
    found = predict(graph, "a100").fastest
    bytes_only = 1e9 / accelerator("a100").bytes_per_second
    assert bytes_only < found.seconds < 4 * bytes_only
    assert predict(graph, "h100").fastest.seconds < found.seconds
    assert np.isfinite(found.joules)
    with pytest.raises(InvalidValueError):
        Graph("empty", (), 0, 0, 0, 0, 0, 0)


def test_the_room_can_be_called():
    """`joulery.predict(model, device=...)` is what people are told to type."""
    import joulery

    found = joulery.predict(LLAMA, device="h100", plan=PLAN)
    assert found == predict(LLAMA, "h100", plan=PLAN)
    assert joulery.recommend is joulery.predict.recommend
