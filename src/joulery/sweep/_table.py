"""Results of a sweep: time, energy and gains of each setting, and the best by each metric.

The metrics are those of Koszczał et al., Performance and Energy Aware Training of a Deep Neural
Network in a Multi-GPU Environment with Power Capping (Euro-Par 2023 workshops), §3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from joulery.files import csv_text
from joulery.frontier import (
    Frontier,
    OperatingPoint,
    Origin,
    Provenance,
    Setting,
    origins,
    sources,
)
from joulery.objectives import eds_gain, gains

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulery.sweep._journal import FinishedRun

# Differences within this many standard errors are not significant.
_SIGMAS = 2.0


class Metric(StrEnum):
    """Metric of a setting: a gain over the default limit, in per cent."""

    ENERGY = "energy"
    DIFFERENCE = "difference"
    EDP = "edp"
    EDS_1_5 = "eds_1.5"
    EDS_2_0 = "eds_2.0"

    @property
    def label(self) -> str:
        """Name for people."""
        return _LABELS[self]

    def gain(self, point: OperatingPoint, reference: OperatingPoint) -> float:
        """Per cent gained by ``point`` over ``reference``; higher is better."""
        if self is Metric.EDS_1_5:
            return eds_gain(point, reference, 1.5)
        if self is Metric.EDS_2_0:
            return eds_gain(point, reference, 2.0)
        return float(getattr(gains(point, reference), self.value))


_LABELS = {
    Metric.ENERGY: "energy",
    Metric.DIFFERENCE: "difference",
    Metric.EDP: "EDP",
    Metric.EDS_1_5: "EDS (k = 1.5)",
    Metric.EDS_2_0: "EDS (k = 2.0)",
}


@dataclass(frozen=True, slots=True)
class SettingResult:
    """Results of one setting, averaged over its runs that succeeded.

    Attributes:
        gpus: Number of boards that the command could use.
        watts: Power limit of every board.
        runs: Number of runs that succeeded.
        failed: Number of runs that did not.
        point: Mean seconds and joules.
        seconds_sd: Standard deviation of the time over the runs; None with fewer than two.
        joules_sd: Standard deviation of the energy, likewise.
        gpu_joules: Mean energy of the boards in use, if known.
        idle_gpu_joules: Mean energy of the boards left idle, if known.
        gains: Gain over the default limit with as many boards, in per cent, by metric; empty
            where the default has no run that succeeded.
        gain_errors: Standard error of each gain; empty with fewer than two runs.
        time_loss: Time lost against the default limit, in per cent.
    """

    gpus: int
    watts: float
    runs: int
    failed: int
    point: OperatingPoint
    seconds_sd: float | None
    joules_sd: float | None
    gpu_joules: float | None
    idle_gpu_joules: float | None
    gains: dict[Metric, float]
    gain_errors: dict[Metric, float]
    time_loss: float | None

    def to_dict(self) -> dict[str, Any]:
        """Flat record for JSON and CSV; unknown is null."""
        return {
            "gpus": self.gpus,
            "power_limit_watts": self.watts,
            "runs": self.runs,
            "failed": self.failed,
            "seconds": self.point.seconds,
            "seconds_sd": self.seconds_sd,
            "joules": self.point.joules,
            "joules_sd": self.joules_sd,
            "mean_watts": self.point.watts,
            "gpu_joules": self.gpu_joules,
            "idle_gpu_joules": self.idle_gpu_joules,
            "energy_gain_percent": self.gains.get(Metric.ENERGY),
            "time_loss_percent": self.time_loss,
            "difference_percent": self.gains.get(Metric.DIFFERENCE),
            "edp_joule_seconds": self.point.joules * self.point.seconds,
            "edp_gain_percent": self.gains.get(Metric.EDP),
            "eds_1.5_gain_percent": self.gains.get(Metric.EDS_1_5),
            "eds_2.0_gain_percent": self.gains.get(Metric.EDS_2_0),
            "origin": self.point.provenance.origin.value,
        }


@dataclass(frozen=True, slots=True)
class Best:
    """The best limit by one metric for one number of boards.

    Attributes:
        gpus: Number of boards.
        metric: Metric in question.
        watts: Best limit.
        gain: Gain over the default, in per cent.
        as_good_watts: Limits whose difference from the best is not significant, and the best.
    """

    gpus: int
    metric: Metric
    watts: float
    gain: float
    as_good_watts: tuple[float, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON document of the best limit."""
        return {
            "gpus": self.gpus,
            "metric": self.metric.value,
            "power_limit_watts": self.watts,
            "gain_percent": self.gain,
            "as_good_watts": list(self.as_good_watts),
        }


@dataclass(frozen=True, slots=True)
class SweepTable:
    """All results of a sweep.

    Attributes:
        device: Name of the boards.
        default_watts: Limit that gains refer to.
        settings: Results by number of boards and then by limit, ascending; settings without a
            successful run are left out.
        failures: Runs that failed.
    """

    device: str
    default_watts: float
    settings: tuple[SettingResult, ...]
    failures: tuple[FinishedRun, ...]

    @classmethod
    def of(cls, runs: Iterable[FinishedRun], default_watts: float, device: str) -> SweepTable:
        """The table of the runs of a journal."""
        grouped: dict[tuple[int, float], list[FinishedRun]] = {}
        # A run that was tried again after a failure counts once, as it ended last.
        latest = {run.trial: run for run in runs}
        for run in latest.values():
            grouped.setdefault((run.gpus, run.watts), []).append(run)
        points = {
            key: _mean_point(good, device)
            for key, runs in grouped.items()
            if (good := _succeeded(runs))
        }
        settings = [
            _setting(grouped[key], point, points.get((key[0], default_watts)))
            for key, point in sorted(points.items())
        ]
        failures = tuple(run for run in latest.values() if run.exit_code != 0)
        return cls(device, default_watts, tuple(settings), failures)

    @property
    def gpu_counts(self) -> tuple[int, ...]:
        """Numbers of boards with results, ascending."""
        return tuple(dict.fromkeys(setting.gpus for setting in self.settings))

    @property
    def origin(self) -> str:
        """Origin of the figures, such as ``simulated``."""
        return origins(setting.point for setting in self.settings)

    @property
    def sources(self) -> str:
        """Sources of the energy figures."""
        return sources(setting.point for setting in self.settings)

    def of_count(self, gpus: int) -> tuple[SettingResult, ...]:
        """The settings with that many boards, ascending in the limit."""
        return tuple(setting for setting in self.settings if setting.gpus == gpus)

    def default_of(self, gpus: int) -> SettingResult | None:
        """The default limit with that many boards; None where it never succeeded."""
        matches = (s for s in self.of_count(gpus) if s.watts == self.default_watts)
        return next(matches, None)

    def best(self) -> tuple[Best, ...]:
        """The best limit by each metric, for each number of boards."""
        candidates = (_best(self.of_count(n), metric) for n in self.gpu_counts for metric in Metric)
        return tuple(best for best in candidates if best is not None)

    def best_by(self, gpus: int, metric: Metric) -> Best | None:
        """The best limit by one metric; None without a default to compare with."""
        return _best(self.of_count(gpus), metric)

    def frontier(self) -> Frontier:
        """The frontier over all settings."""
        return Frontier.from_points((setting.point for setting in self.settings), self.device)

    def to_dict(self) -> dict[str, Any]:
        """JSON document of all results."""
        return {
            "origin": self.origin,
            "source": self.sources,
            "default_limit_watts": self.default_watts,
            "settings": [setting.to_dict() for setting in self.settings],
            "best": [best.to_dict() for best in self.best()],
            "failed": [
                {
                    "gpus": run.gpus,
                    "power_limit_watts": run.watts,
                    "repeat": run.repeat,
                    "exit_code": run.exit_code,
                }
                for run in self.failures
            ],
        }

    def to_csv(self) -> str:
        """One line per setting, with a header; unknown is empty."""
        return csv_text([setting.to_dict() for setting in self.settings])


def _succeeded(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    return [run for run in runs if run.exit_code == 0]


def _mean_point(runs: Sequence[FinishedRun], device: str) -> OperatingPoint:
    provenance = Provenance.combined(
        (Provenance(Origin(run.origin), run.source, run.relative_error), run.joules) for run in runs
    )
    return OperatingPoint(
        fmean(run.seconds for run in runs),
        fmean(run.joules for run in runs),
        Setting(power_limit_watts=runs[0].watts, device=device, devices=runs[0].gpus),
        provenance,
    )


def _setting(
    runs: Sequence[FinishedRun], point: OperatingPoint, default: OperatingPoint | None
) -> SettingResult:
    good = _succeeded(runs)
    metric_gains: dict[Metric, float] = {}
    errors: dict[Metric, float] = {}
    if default is not None:
        metric_gains = {metric: metric.gain(point, default) for metric in Metric}
        errors = {m: e for m in Metric if (e := _gain_error(m, good, default)) is not None}
    return SettingResult(
        gpus=good[0].gpus,
        watts=good[0].watts,
        runs=len(good),
        failed=len(runs) - len(good),
        point=point,
        seconds_sd=_deviation([run.seconds for run in good]),
        joules_sd=_deviation([run.joules for run in good]),
        gpu_joules=_known_mean([run.gpu_joules for run in good]),
        idle_gpu_joules=_known_mean([run.idle_gpu_joules for run in good]),
        gains=metric_gains,
        gain_errors=errors,
        time_loss=None if default is None else gains(point, default).time,
    )


def _gain_error(
    metric: Metric, runs: Sequence[FinishedRun], default: OperatingPoint
) -> float | None:
    """Standard error of a mean gain, from the gain of each run."""
    gains = [metric.gain(OperatingPoint(run.seconds, run.joules), default) for run in runs]
    spread = _deviation(gains)
    return None if spread is None else spread / math.sqrt(len(gains))


def _deviation(values: Sequence[float]) -> float | None:
    return stdev(values) if len(values) > 1 else None


def _known_mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return fmean(numbers) if numbers and len(numbers) == len(values) else None


def _best(settings: Sequence[SettingResult], metric: Metric) -> Best | None:
    candidates = [setting for setting in settings if metric in setting.gains]
    if not candidates:
        return None
    # Of equals the higher limit, which is the faster one.
    top = max(candidates, key=lambda setting: (setting.gains[metric], setting.watts))
    as_good = tuple(s.watts for s in candidates if s is top or _as_good(s, top, metric))
    return Best(top.gpus, metric, top.watts, top.gains[metric], as_good)


def _as_good(setting: SettingResult, top: SettingResult, metric: Metric) -> bool:
    if metric not in setting.gain_errors or metric not in top.gain_errors:
        return False
    error = math.hypot(setting.gain_errors[metric], top.gain_errors[metric])
    return top.gains[metric] - setting.gains[metric] <= _SIGMAS * error
