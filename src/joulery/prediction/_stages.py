"""Predicted time and energy of every stage's instructions, for planners of pipelines.

The rows have the names that ``joulery plan`` and ``joulery.pipeline.profiles_from_rows`` read, so
that clocks can be planned before the pipeline has run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import InvalidValueError
from joulery.prediction._calibrate import Calibration
from joulery.prediction._devices import accelerator
from joulery.prediction._layers import layer_costs, plan_batch
from joulery.prediction._plan import stage_layers
from joulery.prediction._plan_time import PLAN_CONSTANTS, plan_seconds, step_parts
from joulery.prediction._power import plan_load, response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.prediction._bayes import Array
    from joulery.prediction._devices import Accelerator
    from joulery.prediction._model import Transformer
    from joulery.prediction._plan import Plan

# Clocks of a profile where the board lists more; by hand.
_CLOCKS = 12


def stage_rows(
    model: Transformer,
    device: str | Accelerator,
    plan: Plan,
    *,
    clocks: Sequence[float] | None = None,
    calibration: Calibration | None = None,
) -> list[dict[str, Any]]:
    """Time and energy of forward and backward of one micro-batch, per stage and locked clock.

    Args:
        model: Description of a transformer.
        device: Name in the catalog.
        plan: Parallel plan with at least two pipeline stages.
        clocks: Locked clocks in hertz; some between the lowest useful and the highest where None.
        calibration: Measured steps that sharpen the prediction.

    Raises:
        InvalidValueError: The plan does not divide or has no pipeline.
    """
    plan.check(model)
    if plan.pipeline < 2:
        raise InvalidValueError(
            f"{plan} has no pipeline", remedy="give a plan with two stages or more, such as pp4"
        )
    board, calibration = accelerator(device), calibration or Calibration()
    hertz = np.linspace(0.4, 1.0, _CLOCKS) * board.clock_hertz if clocks is None else clocks
    constants = calibration.belief(board).mean
    parts = step_parts(model, plan, board)
    total = float(plan_seconds(constants, parts)[0])
    load = plan_load(constants, parts, total, calibration.power(board)[0])
    slowdown, watts = response(board, load, np.empty(0), np.asarray(hertz, float))
    rows = []
    for stage in range(plan.pipeline):
        forward, backward = _stage_seconds(model, plan, board, stage, constants)
        if plan.recompute == "full":
            backward += forward
        for kind, seconds in (("forward", forward), ("backward", backward)):
            rows += [
                {
                    "stage": stage,
                    "instruction": kind,
                    "frequency": float(clock) / 1e6,
                    "time": seconds * slow,
                    "energy": seconds * slow * power,
                }
                for clock, slow, power in zip(hertz, slowdown, watts, strict=True)
            ]
    return rows


def _stage_seconds(
    model: Transformer, plan: Plan, board: Accelerator, stage: int, constants: Array
) -> tuple[float, float]:
    """Seconds of forward and of backward of one micro-batch on one device of a stage."""
    weight = dict(zip(PLAN_CONSTANTS, np.exp(constants).tolist(), strict=True))
    factor = weight.get(plan.precision, 1.0) * weight.get(plan.framework, 1.0)
    layers = stage_layers(model, plan, stage)

    def seconds(*, ahead: bool) -> float:
        batch = plan_batch(model, plan, forward=ahead)
        block, mlp, moe, head = layer_costs(model, batch, board)
        around = block.times(sum(layers)) + mlp.times(layers[0])
        if stage == plan.pipeline - 1:
            around = around + head
        plain = weight["dense"] * around.seconds + weight["attention"] * around.attention
        return float(factor * (plain + weight["experts"] * moe.times(layers[1]).seconds))

    forward = seconds(ahead=True)
    return forward, seconds(ahead=False) - forward
