"""Measured steps: how they sharpen predictions, and how they are kept."""

import json
from dataclasses import replace
from datetime import date, timedelta

import pytest

from joulery.errors import FileError
from joulery.prediction import (
    Calibration,
    MeasuredStep,
    Plan,
    prediction,
    read_steps,
    remember_steps,
    transformer,
)

MODEL = transformer(
    {
        "layers": 32,
        "hidden": 4096,
        "heads": 32,
        "kv_heads": 8,
        "feedforward": 14336,
        "vocabulary": 128256,
        "sequence": 8192,
        "name": "llama-8b",
    }
)
PLAN = Plan(data=8, batch_size=64, shard=3)
TODAY = date(2026, 11, 16)


def fastest(device="h100", plan=PLAN, **options):
    """The prediction at the default limit."""
    step = prediction(MODEL, device, plan, **options)
    return step, step.points[-1]


PLAIN, POINT = fastest()
SLOW = MeasuredStep(MODEL, "h100", PLAN, 1.5 * POINT.seconds, measured=TODAY)


def test_measured_steps_pull_the_prediction_to_them():
    """What was measured must count more than what was fitted elsewhere."""
    step, point = fastest(calibration=Calibration((SLOW,), TODAY))
    assert point.seconds == pytest.approx(SLOW.seconds, rel=0.15)
    assert step.deviation < PLAIN.deviation
    assert "measured" in point.provenance.source


def test_old_measurements_say_less():
    """Software moves on; a step of last year must not be taken as today's."""
    old = replace(SLOW, measured=TODAY - timedelta(days=400))
    _, fresh = fastest(calibration=Calibration((SLOW,), TODAY))
    _, aged = fastest(calibration=Calibration((old,), TODAY))
    assert POINT.seconds < aged.seconds < fresh.seconds


def test_steps_on_another_device_say_little():
    """A slow host with A100s does not make H100s slow."""
    elsewhere = replace(SLOW, device="b200", seconds=0.8 * SLOW.seconds)
    step, point = fastest(calibration=Calibration((elsewhere,), TODAY))
    assert POINT.seconds < point.seconds < 1.4 * POINT.seconds
    assert step.deviation > 0.9 * PLAIN.deviation


def test_measured_power_moves_power():
    """A step that draws less than predicted makes the next one cheaper."""
    low = replace(SLOW, watts=0.8 * POINT.watts / 8, seconds=POINT.seconds)
    _, point = fastest(calibration=Calibration((low,), TODAY))
    assert point.watts == pytest.approx(0.8 * POINT.watts, rel=0.07)


def test_steps_are_kept_with_their_day(tmp_path):
    """A later prediction must find them, each once, as they were."""
    file = tmp_path / "predict" / "steps.json"
    assert remember_steps(path=file).steps == ()
    remember_steps([SLOW], file)
    steps = (SLOW, replace(SLOW, seconds=9.0, watts=500.0))
    assert remember_steps(steps, file).steps == steps
    assert remember_steps(path=file).steps == steps
    file.write_text("{")
    with pytest.raises(FileError):
        remember_steps(path=file)


def test_measured_steps_are_read_from_a_file(tmp_path):
    """`--calibrate` takes what people write down."""
    file = tmp_path / "steps.json"
    row = {"device": "h100", "plan": "dp8-mb1-zero3", "batch_size": 64, "seconds": 9.0}
    file.write_text(json.dumps([row]))
    assert read_steps(file, MODEL)[0].plan == PLAN
    with pytest.raises(FileError, match="model"):
        read_steps(file)
    for broken in (
        '[{"device": "h100"}]',
        "{",
        "[1]",
        json.dumps([{**row, "seconds": -1}]),
        json.dumps([{**row, "seconds": "9"}]),
        json.dumps([{**row, "device": "h1000"}]),
        json.dumps([{**row, "plan": "dp3"}]),
        json.dumps([{**row, "measured": "yesterday"}]),
    ):
        file.write_text(broken)
        with pytest.raises(FileError):
            read_steps(file, MODEL)
    with pytest.raises(FileError):
        read_steps(tmp_path / "missing.json", MODEL)


def test_steps_that_contradict_each_other_widen_the_interval():
    """An interval would exclude both of two measurements of the same plan."""
    plan = Plan(data=8, batch_size=128, shard=3, precision="fp8")
    steps = tuple(MeasuredStep(MODEL, "h100", plan, seconds) for seconds in (9.07, 14.0))
    step = prediction(MODEL, "h100", plan, calibration=Calibration(steps))
    low, high = step.seconds(step.points[-1])
    assert low < 9.07
    assert high > 14.0
    alone = prediction(MODEL, "h100", plan, calibration=Calibration(steps[:1]))
    assert alone.deviation < 0.6 * step.deviation


def test_a_step_that_beats_the_arithmetic_units_is_left_out():
    """A typing error of a factor of three would move every later prediction."""
    plan = Plan(data=8, batch_size=128, shard=3, precision="fp8")
    assert Calibration((MeasuredStep(MODEL, "h100", plan, 3.0),)).outliers()
    assert not Calibration((MeasuredStep(MODEL, "h100", plan, 9.07),)).outliers()


def test_a_step_speaks_for_plans_with_the_same_kernels():
    """What is unexplained of a kernel is so in every plan that runs it, whatever the depth."""
    deep = replace(MODEL, layers=16)
    alike, other = (
        Plan(data=4, pipeline=2, batch_size=64, shard=3, micro_batch=size) for size in (1, 4)
    )
    evidence = Calibration((SLOW,), TODAY)
    moved = [prediction(deep, "h100", plan, calibration=evidence).moved for plan in (alike, other)]
    assert moved[0] > moved[1] > 0.1
