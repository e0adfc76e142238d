"""Swings of power that synchronous jobs cause, against what a utility allows.

Range, ramp and the band in which turbines and long lines resonate are the three figures that
arXiv 2508.14318 derives from utilities' specifications.
"""

from __future__ import annotations

import math
import re
import tomllib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.documents import read_text
from joulery.errors import FileError, InvalidValueError, document_errors
from joulery.grid import read_rows, read_table
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Slower recordings do not show steps of training, which take from a tenth to some seconds.
_LEAST_HERTZ = 5.0
# Values of the series that is looked for at most: an hour at 1 kHz.
_MOST_SAMPLES = 4_000_000
_HALVINGS = 10  # by hand: a thousandth of the range
_MOST_WATTS = 1e15  # by hand: above all power stations together
_MISSING = 0.001  # by hand: some jitter of a recorder loses nothing
_MOST_COLUMNS = 1000  # by hand: each column is read anew


@dataclass(frozen=True, slots=True)
class SwingLimits:
    """What a utility allows.

    Attributes:
        range_watts: Largest difference between highest and lowest power.
        ramp_watts_per_second: Largest change within ``ramp_seconds``, up or down, over that time.
        ramp_seconds: Time over which ramps count.
        band_watts: Largest effective (RMS) power within the band.
        band_low_hertz: Lower end of the band.
        band_high_hertz: Upper end of the band.
    """

    range_watts: float = math.inf
    ramp_watts_per_second: float = math.inf
    ramp_seconds: float = 1.0
    band_watts: float = math.inf
    band_low_hertz: float = 0.1
    band_high_hertz: float = 20.0

    def __post_init__(self) -> None:
        values = [getattr(self, f.name) for f in fields(self)]
        if not all(isinstance(v, (int, float)) and _is_limit(v) for v in values) or (
            self.band_low_hertz >= self.band_high_hertz
        ):
            raise InvalidValueError(
                "a limit is not positive, too large, or the band has no width",
                remedy="give positive numbers, and band_low_hertz below band_high_hertz",
            )
        finite(self.ramp_seconds, "ramp_seconds")


@dataclass(frozen=True, slots=True)
class Swings:
    """Swings of one recording.

    Attributes:
        mean_watts: Mean power.
        range_watts: Highest less lowest power.
        ramp_watts_per_second: Largest change within the time that the limits state, over it.
        band_watts: Effective power within the band.
        hertz: Strongest frequency within the band; NaN where there is none.
        flaws: Names of the limits that are exceeded.
    """

    mean_watts: float
    range_watts: float
    ramp_watts_per_second: float
    band_watts: float
    hertz: float
    flaws: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SwingRemedy:
    """A way to smaller swings, and its cost.

    Attributes:
        name: ``floor`` (draw at least), ``cap`` (draw at most) or ``stagger`` (shift jobs).
        watts: Least or most power; NaN for ``stagger``.
        energy_share: Energy that a floor adds, or a cap takes, as a share of the whole.
        swings: Swings that remain.
    """

    name: str
    watts: float
    energy_share: float
    swings: Swings


def _is_limit(value: float) -> bool:
    return 0 < value < _MOST_WATTS or value == math.inf


def read_swing_limits(path: Path | str) -> SwingLimits:
    """Read limits from a TOML file with the names of ``SwingLimits``."""
    text = read_text(Path(path), "limits")
    remedy = f"give {', '.join(limit.name for limit in fields(SwingLimits))}"
    with document_errors(f"{path} holds no limits", remedy=remedy):
        return SwingLimits(**tomllib.loads(text))


@dataclass(frozen=True, slots=True)
class PowerTrace:
    """A recording at equal steps.

    Attributes:
        step_seconds: Step.
        watts: Power of every column; lines bridge what is missing.
        missing_share: Share of the time without a value.
    """

    step_seconds: float
    watts: Mapping[str, np.ndarray]
    missing_share: float = 0.0


def read_power_trace(path: Path | str) -> PowerTrace:
    """Power of every column of a recording.

    Raises:
        FileError: The recording is too short, slower than 5 values a second, or below zero.
    """
    path = Path(path)
    names, table = read_table(path)
    recorded = len(table)
    if len(names) > _MOST_COLUMNS:
        message = f"{path} has {len(names)} columns"
        raise FileError(message, remedy=f"record at most {_MOST_COLUMNS} jobs in a file")
    columns = {}
    for name in names:
        try:
            columns[name] = np.reshape(read_rows(path, name), (-1, 2))
        except FileError:
            if name != names[0]:
                raise  # the first is that of the times
            continue
        unit = re.search(r"(?:^|[_ (\[])(kw|mw)[)\]]?$", name.strip().lower())
        columns[name][:, 1] *= {"kw": 1e3, "mw": 1e6}[unit[1]] if unit else 1.0
        if (columns[name][:, 1] < 0).any():
            remedy = "give the power drawn; leave out what is not known"
            raise FileError(f"column {name} of {path} is below zero", remedy=remedy)
    times = next(iter(columns.values()), np.zeros((0, 2)))[:, 0]
    if len(times) < 2:
        raise FileError(
            f"{path} has fewer than two rows with a time and a power",
            remedy="give a column of times, and one of watts for each job",
        )
    step = float(np.median(np.diff(times)))
    if not 0 < step <= 1.0 / _LEAST_HERTZ * 1.01 or times[-1] - times[0] > _MOST_SAMPLES * step:
        raise FileError(
            f"{path} has a value every {step:g} s",
            remedy=f"record at least {_LEAST_HERTZ:g} values a second, for up to an hour",
        )
    grid = np.arange(times[0], times[-1] + step / 2, step)
    present = min(len(rows) for rows in columns.values()) / max(len(grid), recorded)
    watts = {name: np.interp(grid, rows[:, 0], rows[:, 1]) for name, rows in columns.items()}
    return PowerTrace(step, watts, max(0.0, 1.0 - present))


def measure_swings(watts: np.ndarray, step_seconds: float, limits: SwingLimits) -> Swings:
    """Range, ramp and band of a recording, and the limits that it exceeds."""
    span = max(1, round(limits.ramp_seconds / step_seconds))
    highest, lowest = (_extremes(watts, span + 1, pick) for pick in (np.maximum, np.minimum))
    change = (highest - lowest).max() / (span * step_seconds)
    spectrum = np.abs(np.fft.rfft(watts - watts.mean())) / len(watts)
    hertz = np.fft.rfftfreq(len(watts), step_seconds)
    band = (hertz >= limits.band_low_hertz) & (hertz <= limits.band_high_hertz)
    band_watts = math.sqrt(2 * float((spectrum[band] ** 2).sum()))
    figures = {
        "range_watts": float(np.ptp(watts)),
        "ramp_watts_per_second": float(change),
        "band_watts": band_watts,
    }
    strongest = float(hertz[band][spectrum[band].argmax()]) if band.any() else math.nan
    flaws = tuple(n for n, value in figures.items() if value > getattr(limits, n) * (1 + 1e-9))
    return Swings(float(watts.mean()), **figures, hertz=strongest, flaws=flaws)


def _extremes(
    watts: np.ndarray, length: int, pick: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> np.ndarray:
    """The highest or lowest value of every window of so many samples."""
    width, length = 1, min(length, len(watts))
    while width < length:  # windows of twice the width, which may overlap
        shift = min(width, length - width)
        watts, width = pick(watts[:-shift], watts[shift:]), width + shift
    return watts


def swing_remedies(
    columns: Mapping[str, np.ndarray], step_seconds: float, limits: SwingLimits
) -> list[SwingRemedy]:
    """A floor, a cap and, for several jobs, a stagger that meet the limits or come near them.

    A floor is met by work that draws power and does nothing; a cap delays work; a stagger shifts
    the jobs evenly over the period of the strongest frequency and costs nothing but its upkeep.
    """
    total = np.sum(list(columns.values()), axis=0)
    energy = float(total.sum())
    lowest, highest = float(total.min()), float(total.max())
    remedies = []
    for name, start, end, clip in (
        ("floor", lowest, highest, np.maximum),
        ("cap", highest, lowest, np.minimum),
    ):
        # The share of the way to flat power that just meets the limits.
        least, most = 0.0, 1.0
        for _ in range(_HALVINGS):
            middle = (least + most) / 2
            level = clip(total, start + middle * (end - start))
            is_met = not measure_swings(level, step_seconds, limits).flaws
            least, most = (least, middle) if is_met else (middle, most)
        watts = start + most * (end - start)
        level = clip(total, watts)
        share = abs(float(level.sum()) / energy - 1.0)
        remedies.append(
            SwingRemedy(name, watts, share, measure_swings(level, step_seconds, limits))
        )
    swings = measure_swings(total, step_seconds, limits)
    if len(columns) > 1 and swings.hertz > 0:
        period = 1.0 / swings.hertz / step_seconds
        shifted = np.sum(
            [np.roll(w, round(n * period / len(columns))) for n, w in enumerate(columns.values())],
            axis=0,
        )
        remains = measure_swings(shifted, step_seconds, limits)
        remedies.append(SwingRemedy("stagger", math.nan, 0.0, remains))
    return remedies


def swings_document(trace: PowerTrace, limits: SwingLimits) -> dict[str, Any]:
    """What ``joulery cluster swings`` prints: the whole, each job, remedies, and what is unseen."""
    columns, step_seconds = trace.watts, trace.step_seconds
    total = np.sum(list(columns.values()), axis=0)
    parts = {"all": total, **(columns if len(columns) > 1 else {})}

    rows = {name: measure_swings(watts, step_seconds, limits) for name, watts in parts.items()}
    remedies = swing_remedies(columns, step_seconds, limits) if rows["all"].flaws else []
    messages = []
    if limits.band_high_hertz > (highest := 0.5 / step_seconds) * (1 + 1e-6):
        needed = 2 * limits.band_high_hertz
        messages.append(
            f"nothing is known above {highest:.3g} Hz: record {needed:g} values a second for "
            f"a band up to {limits.band_high_hertz:g} Hz"
        )
    if trace.missing_share > _MISSING:
        messages.append(f"{trace.missing_share:.1%} of the recording is missing: lines bridge it")
    return {
        "step_seconds": step_seconds,
        "messages": messages,
        "limits": asdict(limits),
        "is_within": not rows["all"].flaws,
        "swings": {name: asdict(swings) for name, swings in rows.items()},
        "remedies": [
            {"name": r.name, "watts": r.watts, "energy_share": r.energy_share, **asdict(r.swings)}
            for r in remedies
        ],
    }
