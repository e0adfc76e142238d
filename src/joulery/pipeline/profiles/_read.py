"""Measured time and energy of every stage's instructions under every clock, from files or rows."""

from __future__ import annotations

import csv
import io
import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.documents import read_text
from joulery.errors import FileError, InvalidValueError
from joulery.pipeline._files import parse_json
from joulery.pipeline._instructions import (
    BACKWARD,
    BACKWARD_INPUT,
    BACKWARD_WEIGHT,
    FORWARD,
    LETTERS,
    RECOMPUTE,
)
from joulery.pipeline.profiles._smoothing import (
    ClockSample,
    InstructionProfile,
    smooth_profile,
    summary,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from joulery.frontier import OperatingPoint

    Points = tuple[OperatingPoint, ...]
    Work = tuple[int, str]
    # Begin and end of an instruction by microbatch.
    Moments = dict[int, tuple[float, float]]

_COLUMNS = ("stage", "instruction", "frequency", "time", "energy")
_COUNT, _WAITING, _BYTES = "n_time_samples", "waiting_watts", "activation_bytes"
_ERROR, _REDUCTION = "relative_error", "reduction_seconds"
# When the instructions of one iteration at the highest clock ran: microbatch, begin, end.
MOMENTS = "moments"
_OPTIONAL = (_COUNT, _WAITING, _BYTES, _ERROR, _REDUCTION, MOMENTS, "source")
_KNOWN = {*_COLUMNS, *_OPTIONAL}
# Half the lowest clock that boards lock, and ten times the highest: beyond, numbers are in another
# unit; by hand.
_MEGAHERTZ = (50.0, 30_000.0)
# Power of one device at work beyond which times or energies are likely in another unit, or those of
# a group of devices; by hand.
_PLAUSIBLE_WATTS = (10.0, 3000.0)
# Relative error of a time or an energy beyond which no plan should rest on it: plans differ from
# full clocks by some 10 %; by hand.
TOO_NOISY = 0.05
# Share by which the highest clock may be slower than a lower one and still be what runs without a
# plan: boards at their power limit are up to 4 % slower (A100 and A40 profiles of Perseus).
_THROTTLED = 0.05
# Lowest and highest figures that instructions of any pipeline have; beyond, sums lose their digits.
_RANGES = {"time": (1e-9, 1e6), "energy": (1e-9, 1e9), "activation_bytes": (0.0, 1e15)}
_RANGES |= {"waiting_watts": (0.0, 1e5), "reduction_seconds": (0.0, 1e6)}
_REMEDY = (
    "the columns are stage, instruction, frequency (MHz), time (seconds), energy (joules), "
    f"and optionally {', '.join(_OPTIONAL)}"
)


@dataclass(frozen=True, slots=True)
class Profiles:
    """Time and energy of each instruction of each stage under each clock.

    Attributes:
        instructions: Profiles by stage and kind of instruction.
        source: Name of the file or run that the measurements come from.
        sizes: Activations of each stage relative to the profiled one; empty means as profiled.
        activation_bytes: Memory that the activations of one microbatch take in each stage, on one
            device; empty where unknown.
        waiting_watts: Power of one device of each stage while it waits; empty where unknown.
        reduction_seconds: Time at the end of an iteration outside of the instructions.
        communication_seconds: Time from the end of an instruction to the start of the one of the
            next stage that needs its result, for each pair of stages; empty where unknown.
    """

    instructions: dict[Work, InstructionProfile]
    source: str = ""
    sizes: tuple[float, ...] = ()
    activation_bytes: tuple[float, ...] = ()
    waiting_watts: tuple[float, ...] = ()
    reduction_seconds: float = 0.0
    communication_seconds: tuple[float, ...] = ()

    @property
    def stages(self) -> int:
        """Number of stages that were measured."""
        return 1 + max(stage for stage, _ in self.instructions)

    @property
    def notes(self) -> list[str]:
        """Changes that smoothing made to the measurements, and doubts, one sentence each."""
        named = {f"{kind} of stage {stage}": p for (stage, kind), p in self.instructions.items()}
        changes = summary(named)
        tops = {name: p.points[0].setting.clock_hertz or 0.0 for name, p in named.items()}
        highest, below = max(tops.values()), min(tops, key=lambda name: tops[name])
        if tops[below] < highest:
            changes.append(
                f"{below} was measured up to {tops[below] / 1e6:.0f} MHz only, others up to "
                f"{highest / 1e6:.0f} MHz: full clocks are the measured ones, a board may be faster"
            )
        throttled = [name for name, p in named.items() if full_clock(p.points) is not p.points[0]]
        if throttled:
            points = named[throttled[0]].points
            clocks = [(p.setting.clock_hertz or 0.0) / 1e6 for p in (points[0], full_clock(points))]
            suffix = f" and {len(throttled) - 1} more" if len(throttled) > 1 else ""
            changes.append(
                f"slower at {clocks[0]:.0f} MHz than at lower clocks, where a device may have "
                f"throttled: {throttled[0]}{suffix}; full clocks are {clocks[1]:.0f} MHz there"
            )
        watts = [point.watts for p in self.instructions.values() for point in p.points]
        low, high = min(watts), max(watts)
        if low < _PLAUSIBLE_WATTS[0] or high > _PLAUSIBLE_WATTS[1]:
            changes.append(
                f"a device would draw {low:.3g} to {high:.3g} W at work: check that times are in "
                "seconds and energies in joules of one device"
            )
        return changes

    def split_notes(self, stages: int) -> list[str]:
        """What a pipeline of more stages than were measured takes for granted."""
        pieces = self._pieces(stages)
        note = (
            f"each of the {self.stages} measured stages is split evenly into {pieces}; "
            f"measure {stages} stages if an embedding or head makes some unequal"
        )
        return [note] if pieces > 1 else []

    def points(self, stage: int, kind: str, stages: int) -> Points:
        """The operating points of an instruction in a pipeline cut into ``stages``.

        A pipeline with several stages per measured one splits that one's work evenly. Halves of a
        backward that were not measured are taken as half of the whole each, a recomputation as a
        forward.

        Returns:
            One point per clock, highest clock first.

        Raises:
            InvalidValueError: Neither the instruction was measured nor what it could be made of.
        """
        pieces = self._pieces(stages)
        full = self._measured_or_derived(stage // pieces, kind)
        if full is None:
            raise InvalidValueError(
                f"no profile for {kind} of stage {stage // pieces}",
                remedy=f"measure it, and add its rows to {self.source or 'the profile'}",
            )
        return tuple(point.scaled(1 / pieces) for point in full) if pieces > 1 else full

    def waiting(self, stage: int, stages: int) -> float:
        """The power of one device while it waits, in a pipeline cut into ``stages``."""
        return self.waiting_watts[stage // self._pieces(stages)] if self.waiting_watts else 0.0

    def measured(self, stage: int, kind: str, stages: int) -> bool:
        """Whether an instruction itself was measured."""
        return (stage // self._pieces(stages), kind) in self.instructions

    def _pieces(self, stages: int) -> int:
        """Stages of a pipeline per measured stage."""
        pieces, remainder = divmod(stages, self.stages)
        if remainder or not pieces:
            raise InvalidValueError(
                f"the profile has {self.stages} stages, but the schedule {stages}",
                remedy=f"plan {self.stages} stages, or a multiple, or profile again",
            )
        return pieces

    def scaled(self, factor: float) -> Profiles:
        """The same stages with ``factor`` times the work per microbatch."""
        if not 1e-6 <= factor <= 1e6:
            raise InvalidValueError(
                f"cannot scale work by {factor}", remedy="give a factor from 1e-6 to 1e6"
            )
        scaled = {
            key: replace(profile, points=tuple(p.scaled(factor) for p in profile.points))
            for key, profile in self.instructions.items()
        }
        sizes = tuple(size * factor for size in self.activation_bytes)
        return replace(self, instructions=scaled, activation_bytes=sizes)

    def _measured_or_derived(self, stage: int, kind: str) -> Points | None:
        profile = self.instructions.get((stage, kind))
        if profile is not None:
            return profile.points
        if kind == RECOMPUTE:
            return self._measured_or_derived(stage, FORWARD)
        full = self.instructions.get((stage, BACKWARD))
        if kind in (BACKWARD_INPUT, BACKWARD_WEIGHT) and full is not None:
            return tuple(point.scaled(0.5) for point in full.points)
        first = self.instructions.get((stage, BACKWARD_INPUT))
        second = self.instructions.get((stage, BACKWARD_WEIGHT))
        if kind == BACKWARD and first is not None and second is not None:
            return _sum_at_equal_clocks(first.points, second.points)
        return None


def full_clock(points: Sequence[OperatingPoint]) -> OperatingPoint:
    """The point at the highest clock, but for those at which a device throttles.

    A clock slower than a lower one says how a device was measured, not how fast it is.
    """
    fastest = min(point.seconds for point in points)
    full_speed = [point for point in points if point.seconds <= (1 + _THROTTLED) * fastest]
    return max(full_speed, key=lambda point: point.setting.clock_hertz or 0.0)


def read_profiles(path: Path | str) -> Profiles:
    """Profiles from a CSV file, a JSON file with a list of rows of the same names, or a folder.

    Of a folder all such files are read, one per rank, as ``ClockProfiler`` writes them.

    Raises:
        FileError: A file cannot be read, or a row is invalid.
    """
    path = Path(path)
    if not path.is_dir():
        return profiles_from_rows(read_rows(path), source=path.name)
    files = sorted(file for file in path.iterdir() if file.suffix in (".json", ".csv"))
    return profiles_from_rows([row for file in files for row in read_rows(file)], source=path.name)


def read_rows(path: Path) -> list[dict[str, Any]]:
    """The rows of a file, which are not checked yet."""
    text = read_text(path, "profile")
    if text.lstrip()[:1] not in ("[", "{"):
        return _csv_rows(text)
    rows = parse_json(text, "profile", _REMEDY)
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise FileError("the profile is not a list of rows", remedy=_REMEDY)
    return rows


def profiles_from_rows(
    rows: Iterable[dict[str, Any]], *, source: str = "", smooth: bool = True
) -> Profiles:
    """Profiles from rows with the names of the columns; measurements are smoothed over clocks."""
    samples: dict[Work, list[ClockSample]] = {}
    sizes: dict[int, float] = {}
    waiting: dict[int, dict[float, float]] = {}
    reduction = 0.0
    moments: dict[Work, Moments] = {}
    for number, row in enumerate(rows, start=1):
        key, sample = _parse(row, number)
        samples.setdefault(key, []).append(sample)
        if size := _optional(row, _BYTES, number):
            sizes[key[0]] = max(sizes.get(key[0], 0.0), size)
        if watts := _optional(row, _WAITING, number):
            waiting.setdefault(key[0], {})[sample.megahertz] = watts
        reduction = max(reduction, _optional(row, _REDUCTION, number) or 0.0)
        if row.get(MOMENTS):
            moments[key] = _moments(row[MOMENTS], number)
    _check_stages({stage for stage, _ in samples})
    # Equal stages are often copies of one measurement: smooth each distinct one once.
    smoothed: dict[tuple[ClockSample, ...], InstructionProfile] = {}
    for profile in map(tuple, samples.values()):
        if profile not in smoothed:
            smoothed[profile] = smooth_profile(profile, source, enabled=smooth)
    for (stage, kind), rows_of_work in samples.items():
        error = smoothed[tuple(rows_of_work)].repeats_error
        if error > TOO_NOISY:
            raise FileError(
                f"rows of the profile contradict each other: {kind} of stage {stage} has several "
                f"of one clock, whose mean is known to {100 * error:.0f} % only",
                remedy="keep those of one job on one board, or profile again",
            )
    stages = range(1 + max(stage for stage, _ in samples))
    # Devices wait at full clocks.
    watts_of = {stage: by_clock[max(by_clock)] for stage, by_clock in waiting.items()}
    usual = statistics.fmean(watts_of.values()) if watts_of else 0.0
    return Profiles(
        {key: smoothed[tuple(profile)] for key, profile in samples.items()},
        source,
        activation_bytes=tuple(sizes[stage] for stage in stages)
        if len(sizes) == len(stages)
        else (),
        waiting_watts=tuple(watts_of.get(stage, usual) for stage in stages) if watts_of else (),
        reduction_seconds=reduction,
        communication_seconds=_link_seconds(moments, len(stages)),
    )


def _check_stages(stages: set[int]) -> None:
    """Refuse a profile without stages, or one that lacks some."""
    if not stages:
        raise FileError("the profile holds no measurements", remedy=_REMEDY)
    if missing := set(range(len(stages))) - stages:
        raise FileError(
            f"the profile has a stage {max(stages)}, but no stage {min(missing)}",
            remedy="number the stages 0, 1, 2, … without a gap; of files per rank, give the folder",
        )


def _moments(entries: Any, number: int) -> Moments:
    try:
        return {int(batch): (float(begin), float(end)) for batch, begin, end in entries}
    except (TypeError, ValueError):
        raise FileError(
            f"row {number} of the profile: {MOMENTS} are no [microbatch, begin, end]",
            remedy="leave them out, or profile again",
        ) from None


def _link_seconds(moments: dict[Work, Moments], stages: int) -> tuple[float, ...]:
    """The time between each stage and the next; empty where some was not measured.

    Somewhere in an iteration a stage waits for the one before, and somewhere for the one after: the
    least delays there and back. Clocks of two machines differ by an offset, which their mean lacks.
    """
    back = BACKWARD if (0, BACKWARD) in moments else BACKWARD_INPUT
    links = []
    for stage in range(stages - 1):
        ahead = _least_delay(moments, (stage, FORWARD), (stage + 1, FORWARD))
        behind = _least_delay(moments, (stage + 1, back), (stage, back))
        links.append(max(0.0, (ahead + behind) / 2))
    return tuple(links) if all(map(math.isfinite, links)) else ()


def _least_delay(moments: dict[Work, Moments], sender: Work, receiver: Work) -> float:
    begins, ends = moments.get(receiver, {}), moments.get(sender, {})
    return min((begins[b][0] - ends[b][1] for b in begins.keys() & ends.keys()), default=math.inf)


def _csv_rows(text: str) -> list[dict[str, Any]]:
    reader = csv.DictReader(io.StringIO(text))
    if not reader.fieldnames:
        raise FileError("the profile is empty", remedy=_REMEDY)
    missing = [name for name in _COLUMNS if name not in reader.fieldnames]
    if missing:
        raise FileError(f"the profile lacks the column {missing[0]!r}", remedy=_REMEDY)
    try:
        return list(reader)
    except csv.Error as error:
        raise FileError(f"the profile is not valid CSV: {error}", remedy=_REMEDY) from None


def _parse(row: dict[str, Any], number: int) -> tuple[Work, ClockSample]:
    unknown = [str(name or "without a name") for name in row if name not in _KNOWN]
    if unknown:
        raise FileError(
            f"row {number} of the profile: there is no column {unknown[0]!r}", remedy=_REMEDY
        )
    stage = _number(row, "stage", number)
    if stage < 0 or stage != int(stage):
        raise FileError(
            f"row {number} of the profile: stage {row['stage']} is no whole number", remedy=_REMEDY
        )
    word = str(row.get("instruction") or "").strip()
    kind = LETTERS.get(word, word.lower())
    if kind not in LETTERS.values():
        raise FileError(
            f"row {number} of the profile: {word!r} names no instruction",
            remedy=f"known are {', '.join(LETTERS.values())}",
        )
    values = {name: _number(row, name, number) for name in _COLUMNS[2:]}
    for name, value in values.items():
        if value <= 0:
            raise FileError(
                f"row {number} of the profile: {name} {value:g} is not positive", remedy=_REMEDY
            )
    if not _MEGAHERTZ[0] <= values["frequency"] <= _MEGAHERTZ[1]:
        raise FileError(
            f"row {number} of the profile: no board locks a clock of {values['frequency']:g} MHz",
            remedy="give frequencies in MHz, not in Hz, kHz or GHz",
        )
    if (error := _optional(row, _ERROR, number) or 0.0) > TOO_NOISY:
        raise FileError(
            f"row {number} of the profile: its energy is known to {100 * error:.0f} % only",
            remedy="profile again with more iterations per clock",
        )
    runs = _optional(row, _COUNT, number)
    counted = () if runs is None else (max(1.0, runs),)
    sample = ClockSample(values["frequency"], values["time"], values["energy"], *counted)
    return (int(stage), kind), sample


def _optional(row: dict[str, Any], name: str, number: int) -> float | None:
    """A figure from 0 on; None where the row has none."""
    if row.get(name) in (None, ""):
        return None
    figure = _number(row, name, number)
    if figure < 0:
        raise FileError(
            f"row {number} of the profile: {name} {figure:g} is negative", remedy=_REMEDY
        )
    return figure


def _number(row: dict[str, Any], name: str, number: int) -> float:
    value = row.get(name)
    try:
        figure = float(value) if isinstance(value, str | int | float) else math.nan
    except (ValueError, OverflowError):
        figure = math.nan
    if not math.isfinite(figure):
        raise FileError(
            f"row {number} of the profile: {name} {value!r} is no number", remedy=_REMEDY
        )
    low, high = _RANGES.get(name, (-math.inf, math.inf))
    if figure > high or 0.0 < figure < low:
        raise FileError(
            f"row {number} of the profile: {name} {figure:g} is not between {low:g} and {high:g}",
            remedy=_REMEDY,
        )
    return figure


def _sum_at_equal_clocks(first: Points, second: Points) -> Points:
    by_clock = {point.setting.clock_hertz: point for point in second}
    return tuple(
        replace(
            point,
            seconds=point.seconds + point_there.seconds,
            joules=point.joules + point_there.joules,
        )
        for point in first
        if (point_there := by_clock.get(point.setting.clock_hertz)) is not None
    )


def balanced_layers(profiles: Profiles, layers: Sequence[int]) -> tuple[int, ...]:
    """The numbers of layers that make the slowest stage as fast as possible at full clocks.

    Layers are taken to be equal. One costs what it costs in the stage that needs the least per
    layer; what another stage needs beyond that is its embedding or head, which stays with it. Of
    stages that would take equally long the later one gets the layer: it holds fewer activations.
    """
    if len(layers) != profiles.stages or min(layers) < 1:
        raise InvalidValueError(
            f"{len(layers)} numbers of layers for {profiles.stages} stages, or a stage without any",
            remedy="give one positive number per stage of the profile",
        )
    reference = _reference(profiles, layers)
    layer = _seconds(profiles, reference) / layers[reference]
    fixed = [_seconds(profiles, stage) - count * layer for stage, count in enumerate(layers)]
    counts = [1] * len(layers)
    for _ in range(sum(layers) - len(layers)):
        after = [fixed[stage] + (count + 1) * layer for stage, count in enumerate(counts)]
        # Rounded, so that equal stages are equal.
        stage = min(range(len(counts)), key=lambda s: (round(after[s] / layer, 6), -s))
        counts[stage] += 1
    return tuple(counts)


def repartitioned(
    profiles: Profiles, layers: Sequence[int], layers_after: Sequence[int]
) -> Profiles:
    """The profiles of stages with ``layers_after`` (of ``balanced_layers``)."""
    reference = _reference(profiles, layers)
    instructions = {}
    for (stage, kind), profile in profiles.instructions.items():
        reference_profile = profiles.instructions.get((reference, kind))
        extra = layers_after[stage] - layers[stage]
        points = profile.points
        if extra and reference_profile is not None:
            points = _with_layers(points, reference_profile.points, extra / layers[reference])
        instructions[stage, kind] = replace(profile, points=points)
    sizes = tuple(new / old for new, old in zip(layers_after, layers, strict=True))
    pairs = zip(profiles.activation_bytes, sizes, strict=False)
    return replace(
        profiles,
        instructions=instructions,
        sizes=sizes,
        activation_bytes=tuple(size * share for size, share in pairs),
    )


def _seconds(profiles: Profiles, stage: int) -> float:
    """Time of forward and backward at full clocks."""
    return sum(
        full_clock(profiles.points(stage, kind, profiles.stages)).seconds
        for kind in (FORWARD, BACKWARD)
    )


def _reference(profiles: Profiles, layers: Sequence[int]) -> int:
    return min(range(len(layers)), key=lambda stage: _seconds(profiles, stage) / layers[stage])


def _with_layers(
    points: Sequence[OperatingPoint], reference: Sequence[OperatingPoint], share: float
) -> tuple[OperatingPoint, ...]:
    """The points with ``share`` of the reference's work more (or less), clock by clock."""
    rows = [(p.setting.clock_hertz or 0.0, p.seconds, p.joules) for p in reversed(reference)]
    clocks, seconds, joules = zip(*rows, strict=True)
    shifted = []
    for point in points:
        clock = point.setting.clock_hertz or 0.0
        time = point.seconds + share * float(np.interp(clock, clocks, seconds))
        energy = point.joules + share * float(np.interp(clock, clocks, joules))
        if time <= 0 or energy <= 0:
            raise InvalidValueError(
                "a stage would take no time without its layers",
                remedy="check the number of layers of each stage",
            )
        shifted.append(replace(point, seconds=time, joules=energy))
    return tuple(shifted)
