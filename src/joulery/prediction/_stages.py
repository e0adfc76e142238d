"""Predicted time and energy of every stage's instructions, for planners of pipelines.

The rows have the names that ``joulery plan`` and ``joulery.pipeline.profiles_from_rows`` read, so
that clocks can be planned before the pipeline has run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import InvalidValueError
from joulery.prediction._calibrate import Calibration
from joulery.prediction._devices import accelerator
from joulery.prediction._layers import layer_costs, plan_batch
from joulery.prediction._plan import stage_layers
from joulery.prediction._plan_time import PLAN_CONSTANTS, plan_seconds, stage_seconds, step_parts
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

    Collectives within a stage are part of its instructions and do not follow the clock. What the
    predicted step takes beyond instructions and the bubble of their schedule (gradients between
    copies, the optimizer, the rest of its bubble) is ``reduction_seconds``, so that a plan at full
    clocks takes the time and energy of the prediction. Each chunk of a rank is a stage.

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
    if plan.pipeline < 2 or plan.schedule != "1f1b":
        raise InvalidValueError(
            f"{plan} has no 1F1B pipeline",
            remedy="give a plan with two stages or more, such as pp4, and no other schedule",
        )
    board, calibration = accelerator(device), calibration or Calibration()
    hertz = np.linspace(0.4, 1.0, _CLOCKS) * board.clock_hertz if clocks is None else clocks
    constants = calibration.belief(board).mean
    parts = step_parts(model, plan, board)
    total = float(plan_seconds(constants, parts)[0])
    load = plan_load(constants, parts, total, calibration.power(board)[0])
    slowdown, watts = response(board, load, np.empty(0), np.asarray(hertz, float))
    shares = _shares(model, plan, board, constants)
    kernels, stage = (float(seconds[0]) for seconds in stage_seconds(constants, parts))
    others = sum(sum(kinds.values()) for kinds in shares) - 1
    filling = others / plan.chunks / plan.micro_batches
    step = {
        "waiting_watts": load.waiting_watts(board),
        "reduction_seconds": max(0.0, total - stage * (1 + filling)),
    }
    return [
        {
            "stage": number,
            "instruction": kind,
            "frequency": float(clock) / 1e6,
            "time": share * (kernels * slow + stage - kernels) / plan.micro_batches,
            "energy": share
            * (kernels * slow * power + (stage - kernels) * min(power, step["waiting_watts"]))
            / plan.micro_batches,
            **step,
        }
        for number, kinds in enumerate(shares)
        for kind, share in kinds.items()
        for clock, slow, power in zip(hertz, slowdown, watts, strict=True)
    ]


def _shares(
    model: Transformer, plan: Plan, board: Accelerator, constants: Array
) -> list[dict[str, float]]:
    """Time of forward and backward of each stage, relative to all work of the last rank."""
    cut = replace(plan, pipeline=plan.pipeline * plan.chunks, chunks=1)
    stages = []
    for stage in range(cut.pipeline):
        forward, backward = _stage_seconds(model, cut, board, stage, constants)
        again = forward if plan.recompute == "full" else 0.0
        stages.append({"forward": forward, "backward": backward + again})
    last = sum(sum(kinds.values()) for kinds in stages[plan.pipeline - 1 :: plan.pipeline])
    return [{kind: seconds / last for kind, seconds in kinds.items()} for kinds in stages]


def _stage_seconds(
    model: Transformer, plan: Plan, board: Accelerator, stage: int, constants: Array
) -> tuple[float, float]:
    """Seconds of forward and of backward of one micro-batch on one device of a stage."""
    weight = dict(zip(PLAN_CONSTANTS, np.exp(constants).tolist(), strict=True))
    layers = stage_layers(model, plan, stage)

    def seconds(*, ahead: bool) -> float:
        batch = plan_batch(model, plan, forward=ahead)
        block, mlp, moe, head = layer_costs(model, batch, board)
        around = block.times(sum(layers)) + mlp.times(layers[0])
        if stage == plan.pipeline - 1:
            around = around + head
        plain = weight["dense"] * around.seconds + weight["attention"] * around.attention
        return float(plain + weight["experts"] * moe.times(layers[1]).seconds)

    forward = seconds(ahead=True)
    return forward, seconds(ahead=False) - forward
