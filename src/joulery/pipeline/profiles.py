"""Measured time and energy of every stage's instructions under every clock, read from a file."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulery.errors import FileError, InvalidValueError
from joulery.frontier import OperatingPoint
from joulery.pipeline.cleaning import Cleaned, Sample, clean, summary
from joulery.pipeline.schedules_words import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    LETTERS,
    RECOMPUTE,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

Points = tuple[OperatingPoint, ...]

_COLUMNS = ("stage", "instruction", "frequency", "time", "energy")
_COUNT = "n_time_samples"
_REMEDY = (
    "the columns are stage, instruction, frequency (MHz), time (seconds), energy (joules), "
    "and n_time_samples if you like"
)


@dataclass(frozen=True, slots=True)
class Profiles:
    """What each instruction of each stage costs under each clock.

    Attributes:
        cleaned: By stage and kind of instruction.
        source: Where it comes from.
        sizes: Activations of each stage relative to the profiled one; empty means as profiled.
    """

    cleaned: dict[tuple[int, str], Cleaned]
    source: str = ""
    sizes: tuple[float, ...] = ()

    @property
    def stages(self) -> int:
        """How many stages were measured."""
        return 1 + max(stage for stage, _ in self.cleaned)

    @property
    def notes(self) -> list[str]:
        """What was cleaned, for people to read."""
        return summary({f"{kind} of stage {stage}": c for (stage, kind), c in self.cleaned.items()})

    def points(self, stage: int, kind: str, stages: int) -> Points:
        """The choices for an instruction of a pipeline cut into ``stages``, fastest clock first.

        A pipeline with several stages per measured one splits that one's work evenly. Halves of a
        backward that were not measured are taken as half of the whole each, a recomputation as a
        forward.

        Raises:
            InvalidValueError: It was not measured, nor what it could be made of.
        """
        pieces, rest = divmod(stages, self.stages)
        if rest or not pieces:
            raise InvalidValueError(
                f"the profile has {self.stages} stages, but the schedule {stages}",
                remedy=f"plan {self.stages} stages, or a multiple, or profile again",
            )
        whole = self._measured_or_made(stage // pieces, kind)
        if whole is None:
            raise InvalidValueError(
                f"no profile for {kind} of stage {stage // pieces}",
                remedy=f"measure it, and add its rows to {self.source or 'the profile'}",
            )
        return tuple(point.scaled(1 / pieces) for point in whole) if pieces > 1 else whole

    def scaled(self, factor: float) -> Profiles:
        """The same stages with ``factor`` times the work per microbatch."""
        if not (math.isfinite(factor) and factor > 0):
            raise InvalidValueError(
                f"cannot scale work by {factor}", remedy="give a positive, finite factor"
            )
        return Profiles(
            {
                key: replace(found, points=tuple(p.scaled(factor) for p in found.points))
                for key, found in self.cleaned.items()
            },
            self.source,
            self.sizes,
        )

    def _measured_or_made(self, stage: int, kind: str) -> Points | None:
        found = self.cleaned.get((stage, kind))
        if found is not None:
            return found.points
        if kind == RECOMPUTE:
            return self._measured_or_made(stage, FORWARD)
        whole = self.cleaned.get((stage, BACKWARD))
        if kind in (BACKWARD_INPUT, BACKWARD_WEIGHT) and whole is not None:
            return tuple(point.scaled(0.5) for point in whole.points)
        halves = [self.cleaned.get((stage, half)) for half in (BACKWARD_INPUT, BACKWARD_WEIGHT)]
        if kind == BACKWARD and halves[0] is not None and halves[1] is not None:
            return _at_equal_clocks(halves[0].points, halves[1].points)
        return None


def read_profiles(path: Path, *, smooth: bool = True) -> Profiles:
    """Profiles from a CSV file, or a JSON file with a list of rows of the same names.

    Args:
        path: The file.
        smooth: False plans on the measurements as they are.

    Raises:
        FileError: It cannot be read, or a row makes no sense.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as refused:
        reason = refused.strerror if isinstance(refused, OSError) else "it is not text"
        raise FileError(
            f"cannot read the profile {path}: {reason}", remedy="check the name of the file"
        ) from None
    rows = _json_rows(text) if text.lstrip()[:1] in ("[", "{") else _csv_rows(text)
    return profiles_of(rows, source=path.name, smooth=smooth)


def profiles_of(
    rows: Iterable[dict[str, Any]], *, source: str = "", smooth: bool = True
) -> Profiles:
    """Profiles from rows with the names of the columns."""
    samples: dict[tuple[int, str], list[Sample]] = {}
    for number, row in enumerate(rows, start=1):
        key, sample = _parsed(row, number)
        samples.setdefault(key, []).append(sample)
    if not samples:
        raise FileError("the profile holds no measurements", remedy=_REMEDY)
    # Equal stages are often copies of one measurement: clean each distinct one once.
    done: dict[tuple[Sample, ...], Cleaned] = {}
    for found in map(tuple, samples.values()):
        if found not in done:
            done[found] = clean(found, source, smooth=smooth)
    return Profiles({key: done[tuple(found)] for key, found in samples.items()}, source)


def _csv_rows(text: str) -> list[dict[str, Any]]:
    reader = csv.DictReader(io.StringIO(text))
    lacking = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
    if lacking:
        raise FileError(f"the profile lacks the column {lacking[0]!r}", remedy=_REMEDY)
    try:
        return list(reader)
    except csv.Error as broken:
        raise FileError(f"the profile is not valid CSV: {broken}", remedy=_REMEDY) from None


def _json_rows(text: str) -> list[dict[str, Any]]:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as broken:
        raise FileError(f"the profile is not valid JSON: {broken}", remedy=_REMEDY) from None
    rows = document.get("rows") if isinstance(document, dict) else document
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise FileError("the profile is not a list of rows", remedy=_REMEDY)
    return rows


def _parsed(row: dict[str, Any], number: int) -> tuple[tuple[int, str], Sample]:
    stage = _number(row, "stage", number)
    if stage < 0 or stage != int(stage):
        raise FileError(
            f"row {number} of the profile: stage {row['stage']} is no whole number", remedy=_REMEDY
        )
    word = str(row.get("instruction") or "").strip()
    kind = LETTERS.get(word, word.lower())
    if not kind:
        raise FileError(f"row {number} of the profile names no instruction", remedy=_REMEDY)
    values = {name: _number(row, name, number) for name in _COLUMNS[2:]}
    for name, value in values.items():
        if value <= 0:
            raise FileError(
                f"row {number} of the profile: {name} {value:g} is not positive", remedy=_REMEDY
            )
    counted = {"count": max(1.0, _number(row, _COUNT, number))} if row.get(_COUNT) else {}
    sample = Sample(values["frequency"], values["time"], values["energy"], **counted)
    return (int(stage), kind), sample


def _number(row: dict[str, Any], name: str, number: int) -> float:
    value = row.get(name)
    try:
        found = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise FileError(
            f"row {number} of the profile: {name} {value!r} is no number", remedy=_REMEDY
        )
    return found


def _at_equal_clocks(first: Sequence[OperatingPoint], second: Sequence[OperatingPoint]) -> Points:
    by_clock = {point.setting.clock_hertz: point for point in second}
    return tuple(
        OperatingPoint(
            point.seconds + other.seconds,
            point.joules + other.joules,
            point.setting,
            point.provenance,
        )
        for point in first
        if (other := by_clock.get(point.setting.clock_hertz)) is not None
    )
