"""The choice of a batch size and power limit for a job under an objective, from its history."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from joulery.errors import InfeasibleError
from joulery.frontier import Frontier, OperatingPoint, Origin, Provenance, Setting
from joulery.jobs.policies import RunEnd
from joulery.objectives import choose, gains

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulery.jobs._summary import JobSummary
    from joulery.objectives import Gains, Objective

    _Runs = dict[tuple[int, float | None], list[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class SettingChoice:
    """The setting that an objective chooses for a job, among all that are known.

    Attributes:
        objective: Objective of the choice.
        points: Time and energy of a whole run by batch size and power limit: means of runs that
            reached the target, and predictions from epochs measured under other limits.
        baseline: Mean run of the default batch size; None where there is none.
        point: Chosen setting; None where nothing meets the objective.
        remedy: What would make a choice possible; empty where there is one.
    """

    objective: Objective
    points: tuple[OperatingPoint, ...]
    baseline: OperatingPoint | None
    point: OperatingPoint | None
    remedy: str = ""

    @property
    def is_default(self) -> bool:
        """Whether the choice is the mean run of the default batch size itself."""
        point, baseline = self.point, self.baseline
        if point is None or baseline is None:
            return False
        return (point.seconds, point.joules) == (baseline.seconds, baseline.joules)

    @property
    def gains(self) -> Gains | None:
        """Gains over the default in per cent; None without a choice or a baseline."""
        if self.point is None or self.baseline is None:
            return None
        return gains(self.point, self.baseline)

    @property
    def frontier(self) -> Frontier:
        """The settings that no other setting beats in both time and energy."""
        return Frontier.from_points(self.points)


def choose_setting(summary: JobSummary, objective: Objective | None = None) -> SettingChoice:
    """The setting that an objective chooses for the next runs of a job.

    Args:
        summary: Summary of the job's history.
        objective: Objective to choose under, in place of the job's own.
    """
    objective = objective or summary.job.objective or summary.job.cost
    runs = _reached_runs(summary)
    origins = map(Origin, summary.origins)
    origin = max(origins, key=list(Origin).index, default=Origin.ASSUMED)
    points = [
        _mean_point(figures, Setting(limit, batch_size=size), origin)
        for (size, limit), figures in runs.items()
    ]
    points += _predicted_points(summary, set(runs))
    default = summary.job.default
    figures = [figure for (size, _), some in runs.items() if size == default for figure in some]
    baseline = _mean_point(figures, Setting(batch_size=default), origin) if figures else None
    if not points:
        remedy = "run the job until it reaches its target"
        return SettingChoice(objective, (), baseline, None, remedy)
    try:
        point = choose(objective, points, baseline)
    except InfeasibleError as error:
        return SettingChoice(objective, tuple(points), baseline, None, error.remedy)
    return SettingChoice(objective, tuple(points), baseline, point)


def _reached_runs(summary: JobSummary) -> _Runs:
    """Seconds and joules of runs that reached the target, by batch size and power limit."""
    runs: _Runs = {}
    for entry in summary.decisions:
        outcome, size = entry.outcome, entry.decision.batch_size
        if outcome is not None and outcome.end == RunEnd.REACHED and not entry.quarantined:
            limit = outcome.limit_watts or entry.decision.power_limit_watts
            runs.setdefault((size, limit), []).append((outcome.seconds, outcome.joules))
    return runs


def _mean_point(
    runs: Sequence[tuple[float, float]], setting: Setting, origin: Origin
) -> OperatingPoint:
    """The mean of runs, with its relative standard error."""
    joules = [energy for _, energy in runs]
    mean, error = fmean(joules), None
    if len(runs) > 1 and mean > 0:
        squares = sum((energy - mean) ** 2 for energy in joules)
        error = math.sqrt(squares / (len(runs) - 1) / len(runs)) / mean
    provenance = Provenance(origin, f"{len(runs)} runs", error)
    return OperatingPoint(fmean(seconds for seconds, _ in runs), mean, setting, provenance)


def _predicted_points(
    summary: JobSummary, settings: set[tuple[int, float | None]]
) -> Iterable[OperatingPoint]:
    """Whole runs under limits that only epochs were measured under, of sizes that were run."""
    for profile in summary.profiles:
        size = profile.batch_size
        epochs = [
            entry.outcome.epochs
            for entry in summary.decisions
            if entry.decision.batch_size == size
            and entry.outcome is not None
            and entry.outcome.end == RunEnd.REACHED
            and not entry.quarantined
        ]
        if not epochs:
            continue
        source = f"an epoch, times the mean of {len(epochs)} runs"
        for point in profile.frontier.scaled(fmean(epochs)):
            limit = point.setting.power_limit_watts
            if (size, limit) not in settings:
                error = point.provenance.relative_error
                provenance = Provenance(Origin.PREDICTED, source, error)
                setting = Setting(limit, batch_size=size)
                yield OperatingPoint(point.seconds, point.joules, setting, provenance)
