"""Predict time, energy, power and memory of training on hardware that has not run it.

Examples:
    >>> from joulery.prediction import Plan, predict
    >>> model = {"layers": 32, "hidden": 4096, "heads": 32, "feedforward": 14336}
    >>> model |= {"vocabulary": 128256, "sequence": 8192}
    >>> frontier = predict(model, "h100", plan=Plan(data=8, shard=3, batch_size=64))
    >>> frontier.fastest.setting.devices
    8

The physical models behind it are in ``joulery.prediction.models``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.prediction._assumptions import (
        Assumptions as Assumptions,
        embodied_grams as embodied_grams,
        embodied_kilograms as embodied_kilograms,
        embodied_source as embodied_source,
    )
    from joulery.prediction._bayes import Interval as Interval
    from joulery.prediction._calibrate import (
        Calibration as Calibration,
        MeasuredStep as MeasuredStep,
        forget_steps as forget_steps,
        read_steps as read_steps,
        remember_steps as remember_steps,
    )
    from joulery.prediction._capture import capture as capture
    from joulery.prediction._devices import (
        Accelerator as Accelerator,
        accelerator as accelerator,
        accelerator_names as accelerator_names,
    )
    from joulery.prediction._graph import Graph as Graph, Operator as Operator
    from joulery.prediction._inference import (
        Inference as Inference,
        predict_inference as predict_inference,
    )
    from joulery.prediction._layers import operator_seconds as operator_seconds
    from joulery.prediction._limits import limit_curve as limit_curve
    from joulery.prediction._memory import (
        Memory as Memory,
        memory_verdict as memory_verdict,
        plan_memory as plan_memory,
    )
    from joulery.prediction._model import (
        Transformer as Transformer,
        training_model as training_model,
        transformer as transformer,
    )
    from joulery.prediction._plan import Plan as Plan
    from joulery.prediction._recommend import (
        Choice as Choice,
        Recommendation as Recommendation,
        recommend as recommend,
    )
    from joulery.prediction._search import Convergence as Convergence, Work as Work
    from joulery.prediction._stages import stage_rows as stage_rows
    from joulery.prediction._step import (
        PredictedFrontier as PredictedFrontier,
        Prediction as Prediction,
        predict as predict,
        prediction as prediction,
        total as total,
    )
    from joulery.prediction._task import Task as Task


__getattr__, __dir__ = lazy(__name__)
