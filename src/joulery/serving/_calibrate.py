"""Fit a served model's times to what a real engine did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulery.serving._simulator import ServingSimulation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joulery.serving._boards import ClockTable
    from joulery.serving._model import ServedModel
    from joulery.serving._requests import ServedRequest
    from joulery.serving._simulator import EngineConfig, ServingRun

# Factors that each of arithmetic, traffic and host times may be multiplied by, coarse then fine.
_FACTORS = ((0.7, 0.85, 1.0, 1.18, 1.4), (0.93, 1.0, 1.08), (0.97, 1.0, 1.03))


def latency_errors(
    run: ServingRun, ttft_seconds: NDArray[np.float64], tpot_seconds: NDArray[np.float64]
) -> tuple[float, float]:
    """Relative errors of a run's mean TTFT, and of the median request's TPOT.

    Args:
        run: Simulated run.
        ttft_seconds: Measured times to first token of the last of its requests, or of all.
        tpot_seconds: Measured times per output token of the same requests.
    """
    ttft, tpot = (times[-len(ttft_seconds) :] for times in (run.ttft_seconds, run.tpot_seconds))
    answers = tpot_seconds > 0
    return (
        float(abs(ttft.mean() / ttft_seconds.mean() - 1)),
        float(np.median(np.abs(tpot[answers] / tpot_seconds[answers] - 1))),
    )


def calibrate_model(
    model: ServedModel,
    table: ClockTable,
    requests: Sequence[ServedRequest],
    ttft_seconds: NDArray[np.float64],
    tpot_seconds: NDArray[np.float64],
    engine: EngineConfig | None = None,
) -> ServedModel:
    """The model with its times fitted to measured latencies of the first requests.

    Args:
        model: Model from specifications.
        table: Setting of the boards during the measurement.
        requests: All requests, so that those measured meet the same queue.
        ttft_seconds: Measured times to first token of the first requests.
        tpot_seconds: Measured times per output token of the same requests.
        engine: Settings of the engine.
    """
    count = len(ttft_seconds)
    cached: dict[tuple[float, ...], float] = {}

    def error(factors: tuple[float, ...]) -> float:
        if factors not in cached:
            trial = model.slower(*factors)
            run = ServingSimulation(requests, trial, [table], engine=engine).run()
            ratios = np.log(run.tpot_seconds[:count] / np.maximum(1e-6, tpot_seconds))
            waits = np.abs(run.ttft_seconds[:count] - ttft_seconds).mean() / ttft_seconds.mean()
            cached[factors] = float(np.abs(ratios).mean() + waits)
        return cached[factors]

    best = (1.0, 1.0, 1.0)
    for steps in _FACTORS:
        for part in range(3):
            trials = [
                tuple(value * step if n == part else value for n, value in enumerate(best))
                for step in steps
            ]
            best = min(trials, key=error)  # type: ignore[assignment]
    return model.slower(*best)
