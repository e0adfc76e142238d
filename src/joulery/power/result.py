"""What tuning found: the frontier, the choice, what it saves and what finding it cost."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulery.frontier import Frontier, OperatingPoint, Origin, Provenance, Setting
from joulery.objectives import gains
from joulery.power.choice import foretold
from joulery.units import per_cent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from joulery.power.choice import TuningChoice
    from joulery.power.slices import Estimate

# Predicted points are listed this many apart at most; all of them would only be noise to a reader.
_MOST_PREDICTED = 60


@dataclass(frozen=True, slots=True)
class TuningResult:
    """One step's cost at every setting that was tried or foreseen.

    Attributes:
        points: All points, slowest setting first, each with its provenance.
        chosen: The point that the objective prefers.
        reference: The point of the setting that was found.
        held: Whether the choice is in force, or was to the end; not when observing or without
            rights.
        ended: Whether tuning is over.
        regret: Expected relative excess of the choice's score over the best possible.
        profiling_steps: Steps that profiling took, all of them part of the training.
        profiling_seconds: How long these took.
        extra_seconds: How much longer than the same steps at the chosen setting.
        extra_joules: How much more energy than the same steps at the chosen setting.
    """

    points: tuple[OperatingPoint, ...]
    chosen: OperatingPoint
    reference: OperatingPoint
    held: bool
    ended: bool
    regret: float
    profiling_steps: int
    profiling_seconds: float
    extra_seconds: float
    extra_joules: float

    @property
    def frontier(self) -> Frontier:
        """The Pareto set of all points, per step."""
        return Frontier.from_points(self.points, "one step")

    @property
    def energy_saving(self) -> float:
        """Share of the energy that the choice saves against the reference."""
        return gains(self.chosen, self.reference).energy / 100

    @property
    def slowdown(self) -> float:
        """Extra time of the choice against the reference, as a fraction."""
        return gains(self.chosen, self.reference).time / 100

    def __str__(self) -> str:
        saves = "would save"
        if self.held:
            saves = "saved" if self.ended else "saves"
        return (
            f"{self.chosen.setting}: {saves} {per_cent(self.energy_saving)} of the energy "
            f"at {per_cent(max(0.0, self.slowdown))} more time than {self.reference.setting}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "points": [point.to_dict() for point in self.points],
            "chosen": self.chosen.to_dict(),
            "reference": self.reference.to_dict(),
            "held": self.held,
            "ended": self.ended,
            "regret": self.regret,
            "profiling": {
                "steps": self.profiling_steps,
                "seconds": self.profiling_seconds,
                "extra_seconds": self.extra_seconds,
                "extra_joules": self.extra_joules,
            },
        }


def result_of(
    settled: TuningChoice,
    setting_at: Callable[[int], Setting],
    reference: int,
    origin: Provenance,
    *,
    held: bool,
    ended: bool,
) -> TuningResult:
    """Put what the machine found into the words of the waist.

    Args:
        settled: What it found.
        setting_at: The knobs behind a position.
        reference: Position of the setting found.
        origin: Where the joules come from.
        held: Whether the choice is in force, or was to the end.
        ended: Whether tuning is over.
    """
    seen = {settled.position: settled.chosen, **settled.measured}
    points = {
        position: _point(estimate, setting_at(position), origin)
        for position, estimate in seen.items()
    }
    for position, estimate in _predicted(settled):
        points.setdefault(position, _point(estimate, setting_at(position), origin))
    chosen = points[settled.position]
    steps = settled.profiling_steps
    return TuningResult(
        tuple(points[position] for position in sorted(points)),
        chosen,
        points[reference],
        held,
        ended,
        settled.regret,
        steps,
        settled.profiling_seconds,
        settled.profiling_seconds - steps * chosen.seconds,
        settled.profiling_joules - steps * chosen.joules,
    )


def _point(seen: Estimate, setting: Setting, origin: Provenance) -> OperatingPoint:
    error = math.hypot(seen.seconds_error, seen.watts_error)
    if seen.steps == 0:
        provenance = Provenance(Origin.PREDICTED, "fit to the probes", error)
    else:
        source = f"{seen.steps} steps, {origin.source}" if origin.source else f"{seen.steps} steps"
        provenance = Provenance(origin.origin, source, error)
    return OperatingPoint(seen.seconds, seen.seconds * seen.watts, setting, provenance)


def _predicted(settled: TuningChoice) -> Iterator[tuple[int, Estimate]]:
    """What the belief foretells at evenly spaced positions."""
    if settled.belief is not None:
        count = settled.belief.log_seconds.shape[1]
        for position in range(0, count, max(1, math.ceil(count / _MOST_PREDICTED))):
            yield position, foretold(settled.belief, position)
