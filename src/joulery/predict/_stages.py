"""Predicted time and energy of every stage's instructions, for planners of pipelines.

The rows have the names that ``joulery plan`` and ``joulery.pipeline.profiles_from_rows`` read, so
that clocks can be planned before the pipeline has run.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import InvalidValueError
from joulery.predict._calibrate import Calibration
from joulery.predict._devices import accelerator
from joulery.predict._kernels import ATTENTION
from joulery.predict._layers import attention_kernels, feedforward_kernels, head_kernels
from joulery.predict._plan import stage_layers
from joulery.predict._plan_time import PLAN_CONSTANTS, kernel_seconds
from joulery.predict._power import plan_demand, response

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.predict._devices import Accelerator
    from joulery.predict._model import Transformer
    from joulery.predict._plan import Plan

_CLOCKS = 12
# Forward share of both directions: one product of three; attention takes 2.5 times backward.
_FORWARD, _FORWARD_ATTENTION = 1 / 3, 1 / 3.5


def stage_rows(
    model: Transformer,
    device: str,
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
    board, known = accelerator(device), calibration or Calibration()
    hertz = np.linspace(0.4, 1.0, _CLOCKS) * board.clock_hertz if clocks is None else clocks
    slowdown, watts = response(
        board, plan_demand(known.power(board.name)[0]), np.empty(0), np.asarray(hertz, float)
    )
    rows = []
    for stage in range(plan.pipeline):
        forward, backward = _stage_seconds(model, plan, board, stage, known)
        if plan.recompute:
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
    model: Transformer, plan: Plan, board: Accelerator, stage: int, known: Calibration
) -> tuple[float, float]:
    """Seconds of forward and of backward of one micro-batch on one device of a stage."""
    weight = dict(zip(PLAN_CONSTANTS, np.exp(known.belief(board.name).mean), strict=True))
    factor = weight.get(plan.precision, 1.0)
    dense, experts = stage_layers(model, plan, stage)
    found = [(dense + experts, attention_kernels(model, plan, board), weight["dense"])]
    if dense:
        mlp = feedforward_kernels(model, plan, board, experts=False)
        found.append((dense, mlp, weight["dense"]))
    if experts:
        moe = feedforward_kernels(model, plan, board, experts=True)
        found.append((experts, moe, weight["experts"]))
    if stage == plan.pipeline - 1:
        found.append((1, head_kernels(model, plan, board), weight["dense"]))
    forward = backward = 0.0
    for times, kernels, scale in found:
        seconds, fused = kernel_seconds(kernels, board), kernels.kind == ATTENTION
        plain, special = scale * seconds[~fused].sum(), weight["attention"] * seconds[fused].sum()
        ahead = _FORWARD * plain + _FORWARD_ATTENTION * special
        forward += factor * times * float(ahead)
        backward += factor * times * float(plain + special - ahead)
    return forward, backward
