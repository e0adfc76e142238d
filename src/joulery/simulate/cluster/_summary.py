"""Summary of a replay: energy, carbon, cost, waiting, slowdown, fairness."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import InfeasibleError
from joulery.units import JOULES_PER_KILOWATT_HOUR

if TYPE_CHECKING:
    from joulery.grid import Signal
    from joulery.simulate.cluster._engine import ClusterReplay

# Times at which the power is shown.
_SHOWN = 240
_PERCENTILES = (50, 90, 99)


def summarize(
    replay: ClusterReplay, carbon: Signal | None = None, price: Signal | None = None
) -> dict[str, Any]:
    """The figures of a replay, ready for JSON.

    Args:
        replay: Result of ``joulery.simulate.cluster.simulate``.
        carbon: Carbon intensity in gCO2/kWh, from the trace's start on.
        price: Price per kWh, from the trace's start on.
    """
    trace = replay.trace
    ended = np.isfinite(replay.end)
    if not ended.any():
        raise InfeasibleError(
            f"none of {len(trace)} jobs ever runs; {replay.refused} need more GPUs than there are",
            remedy="give more GPUs, or a budget above the jobs' least power",
        )
    turnaround = (replay.end - trace.submit)[ended]
    running = (replay.end - replay.start)[ended]
    work = trace.work_seconds[ended]
    speed = work / running
    lengths = np.diff(replay.times, append=replay.times[-1])
    over = replay.watts > replay.budget_watts * (1 + 1e-9)
    joules = float(replay.watts @ lengths)
    summary: dict[str, Any] = {
        "jobs": len(trace),
        "ended": int(ended.sum()),
        "refused": replay.refused,
        "skipped_rows": dict(trace.skipped),
        "pauses": replay.pauses,
        "events": replay.events,
        "seconds": float(replay.times[-1] - replay.times[0]),
        "energy_kilowatt_hours": joules / JOULES_PER_KILOWATT_HOUR,
        "peak_watts": float(replay.watts.max()),
        "violation_seconds": float(lengths[over].sum()),
        "capped_seconds": float(lengths[replay.watts >= 0.999 * replay.budget_watts].sum()),
        "turnaround_seconds": _distribution(turnaround),
        "wait_seconds": _distribution((replay.start - trace.submit)[ended]),
        "slowdown": _distribution(turnaround / work),
        "performance_mean": float(np.average(speed, weights=work)),
        "performance_worst": float(speed.min()),
        "jain_index": float(speed.sum() ** 2 / (len(speed) * (speed @ speed))),
        "power": _power(replay),
    }
    if carbon is not None:
        summary["carbon_kilograms"] = _charged(replay, carbon) / 1000
    if price is not None:
        summary["cost"] = _charged(replay, price)
    return summary


def _distribution(values: np.ndarray) -> dict[str, float]:
    shares = np.percentile(values, _PERCENTILES)
    named = {f"p{p}": float(v) for p, v in zip(_PERCENTILES, shares, strict=True)}
    return {"mean": float(values.mean()), **named, "max": float(values.max())}


def energy_until(replay: ClusterReplay, times: np.ndarray) -> np.ndarray:
    """Joules used from the start until each of some times."""
    spent = np.concatenate([[0.0], np.cumsum(replay.watts[:-1] * np.diff(replay.times))])
    joules: np.ndarray = np.interp(times, replay.times, spent)
    return joules


def _power(replay: ClusterReplay) -> dict[str, list[float]]:
    """Mean power and budget in equal steps of time; no budget where there is no limit."""
    edges = np.linspace(replay.times[0], replay.times[-1], _SHOWN + 1)
    if edges[-1] == edges[0]:
        return {"seconds": [], "watts": [], "budget_watts": []}
    watts = np.diff(energy_until(replay, edges)) / np.diff(edges)
    allowed = replay.budget_watts[np.searchsorted(replay.times, edges[:-1], side="right") - 1]
    return {
        "seconds": edges[:-1].tolist(),
        "watts": watts.tolist(),
        "budget_watts": allowed.tolist() if np.isfinite(allowed).all() else [],
    }


def _charged(replay: ClusterReplay, signal: Signal) -> float:
    """Energy times the signal, which starts with the trace."""
    first, last = float(replay.times[0]), float(replay.times[-1])
    starts, _, values = signal.window(signal.start + first, signal.start + last)
    edges = np.append(starts - signal.start, last)
    return float(np.diff(energy_until(replay, edges)) @ values) / JOULES_PER_KILOWATT_HOUR
