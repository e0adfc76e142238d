"""Energy as an objective of an Optuna study."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulery.metering import Meter


class EnergyObjective:
    """An objective of Optuna that also returns the joules of each trial, as its last value.

    The trial gets ``joules``, ``seconds`` and ``relative_error`` as user attributes. A trial whose
    energy cannot be measured fails, as Optuna does for NaN.

    Args:
        objective: Objective to optimise, with one value or several.
        meter: Meter of the devices; one over this job's devices unless given.

    Examples:
        >>> study = optuna.create_study(directions=["maximize", "minimize"])  # doctest: +SKIP
        >>> study.optimize(EnergyObjective(accuracy_of), n_trials=50)         # doctest: +SKIP
        >>> study.best_trials   # the trade-off of accuracy and joules        # doctest: +SKIP
    """

    def __init__(
        self, objective: Callable[[Any], float | Sequence[float]], meter: Meter | None = None
    ) -> None:
        from joulery.metering import Meter as NewMeter

        self._objective = objective
        self._meter = NewMeter() if meter is None else meter

    def __call__(self, trial: Any) -> tuple[float, ...]:
        """Values of a trial, its joules last."""
        with self._meter.window("trial") as window:
            values = self._objective(trial)
        measured = window.settle()
        trial.set_user_attr("joules", measured.joules)
        trial.set_user_attr("seconds", measured.seconds)
        trial.set_user_attr("relative_error", measured.relative_error)
        several = (values,) if isinstance(values, (int, float)) else tuple(values)
        return (*several, measured.joules if math.isfinite(measured.joules) else math.nan)
