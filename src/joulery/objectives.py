"""Choose one operating point: what the user wants, as small immutable objects.

Every objective scores a point (lower is better) and may rule points out. All but the grid
objectives under a varying or negative signal never prefer a dominated point, so choosing from the
frontier is choosing from the whole cloud.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from joulery.errors import InfeasibleError, InvalidValueError
from joulery.units import JOULES_PER_KILOWATT_HOUR, finite, kilowatt_hours

if TYPE_CHECKING:
    from collections.abc import Iterable

    from joulery.frontier import OperatingPoint


class Objective(Protocol):
    """What an optimizer asks of an objective."""

    def score(self, point: OperatingPoint, reference: OperatingPoint) -> float:
        """How bad ``point`` is; infinite where it breaks a bound.

        Args:
            point: The candidate.
            reference: The point that ratios refer to: what happens if nothing is changed.
        """
        ...


class GridSignal(Protocol):
    """A quantity per kilowatt-hour that may vary over time: carbon intensity or price."""

    def mean(self, start_seconds: float, end_seconds: float) -> float:
        """Time average between two moments, in units per kWh."""
        ...


@dataclass(frozen=True, slots=True)
class ConstantSignal:
    """The same intensity or price at all times."""

    per_kilowatt_hour: float

    def __post_init__(self) -> None:
        finite(self.per_kilowatt_hour, "intensity or price per kWh")

    def mean(self, start_seconds: float, end_seconds: float) -> float:  # noqa: ARG002 - constant
        """The constant."""
        return self.per_kilowatt_hour


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a point must respect: a longest time, absolute or against the reference.

    Attributes:
        deadline_seconds: The work must end within this time.
        max_slowdown: Largest extra time against the reference, as a fraction: 0.05 is 5 %.
    """

    deadline_seconds: float | None = None
    max_slowdown: float | None = None

    def __post_init__(self) -> None:
        if self.deadline_seconds is not None:
            finite(self.deadline_seconds, "deadline in seconds", minimum=0.0)
        if self.max_slowdown is not None:
            finite(self.max_slowdown, "slowdown as a fraction", minimum=0.0)

    def longest_seconds(self, reference: OperatingPoint) -> float:
        """The time that no point may exceed."""
        longest = math.inf if self.deadline_seconds is None else self.deadline_seconds
        if self.max_slowdown is not None:
            longest = min(longest, (1 + self.max_slowdown) * reference.seconds)
        return longest

    def allow(self, point: OperatingPoint, reference: OperatingPoint) -> bool:
        """Whether ``point`` is within; rounding of the last bits is forgiven."""
        return point.seconds <= self.longest_seconds(reference) * (1 + 1e-12)


UNBOUNDED = Bounds()


@dataclass(frozen=True, slots=True)
class Cost:
    """eta·joules + (1 - eta)·max_watts·seconds, in joules (You et al., NSDI'23, Eq. 2).

    Attributes:
        eta: 1 counts energy only, 0 time only.
        max_watts: The most the devices of the job can draw together. It turns time into joules.
    """

    eta: float = 0.5
    max_watts: float = 0.0

    def __post_init__(self) -> None:
        finite(self.eta, "eta", minimum=0.0)
        if self.eta > 1:
            raise InvalidValueError(
                f"eta must be at most 1, not {self.eta:g}", remedy="give 0 to 1"
            )
        finite(self.max_watts, "max_watts", minimum=0.0)
        if self.eta < 1 and self.max_watts == 0:
            raise InvalidValueError(
                "eta below 1 weighs time by max_watts, which is missing",
                remedy="give max_watts: the sum of the job's boards' highest power limits",
            )

    def of(self, seconds: float, joules: float) -> float:
        """The cost in joules of a time and an energy."""
        return self.eta * joules + (1 - self.eta) * self.max_watts * seconds

    def score(self, point: OperatingPoint, reference: OperatingPoint) -> float:  # noqa: ARG002
        """The cost in joules; needs no reference."""
        return self.of(point.seconds, point.joules)


@dataclass(frozen=True, slots=True)
class LeastEnergy:
    """The fewest joules within a slowdown or a deadline.

    Attributes:
        max_slowdown: Against the reference (the fastest point unless one is given), as a fraction.
        deadline_seconds: Longest time for the work.
    """

    max_slowdown: float | None = None
    deadline_seconds: float | None = None

    def __post_init__(self) -> None:
        Bounds(self.deadline_seconds, self.max_slowdown)

    def score(self, point: OperatingPoint, reference: OperatingPoint) -> float:
        """Joules, or infinity where the point is too slow."""
        bounds = Bounds(self.deadline_seconds, self.max_slowdown)
        return point.joules if bounds.allow(point, reference) else math.inf


@dataclass(frozen=True, slots=True)
class FastestWithin:
    """The least time that an energy budget allows."""

    joules: float

    def __post_init__(self) -> None:
        finite(self.joules, "energy budget in joules", minimum=0.0)

    def score(self, point: OperatingPoint, reference: OperatingPoint) -> float:  # noqa: ARG002
        """Seconds, or infinity where the budget is exceeded."""
        return point.seconds if point.joules <= self.joules * (1 + 1e-12) else math.inf


@dataclass(frozen=True, slots=True)
class EnergyDelayProduct:
    """joules × seconds."""

    def score(self, point: OperatingPoint, reference: OperatingPoint) -> float:  # noqa: ARG002
        """The product in joule-seconds."""
        return point.joules * point.seconds


@dataclass(frozen=True, slots=True)
class EnergyDelaySum:
    """alpha·joules + beta·seconds, which accepts about k times the time for all of the energy.

    alpha = (k - 1)/(k·E_ref), beta = 1/(k·t_ref) (Koszczał et al., Euro-Par'23, §3). It is 1 at
    the reference; k = 1 counts time only.
    """

    k: float

    def __post_init__(self) -> None:
        finite(self.k, "k of the energy-delay sum", minimum=1.0)

    def score(self, point: OperatingPoint, reference: OperatingPoint) -> float:
        """Dimensionless; 1 at the reference."""
        time = point.seconds / reference.seconds / self.k
        if self.k == 1:
            return time
        return (self.k - 1) / self.k * _energy_ratio(point, reference) + time


@dataclass(frozen=True, slots=True)
class LeastCarbon:
    """The fewest grams of CO2 when started at ``start_seconds`` under a grid signal in gCO2/kWh."""

    signal: GridSignal
    start_seconds: float = 0.0
    bounds: Bounds = UNBOUNDED

    def score(self, point: OperatingPoint, reference: OperatingPoint) -> float:
        """Grams of CO2, or infinity where a bound is broken."""
        if not self.bounds.allow(point, reference):
            return math.inf
        end_seconds = self.start_seconds + point.seconds
        return kilowatt_hours(point.joules) * self.signal.mean(self.start_seconds, end_seconds)


@dataclass(frozen=True, slots=True)
class LeastMoney:
    """The least money: energy at a price signal per kWh, plus rent for the time.

    Attributes:
        signal: Price per kilowatt-hour.
        rent_per_hour: What the devices cost per hour besides energy, in the same currency.
        start_seconds: When the work starts, on the signal's clock.
        bounds: Deadline or slowdown to respect.
    """

    signal: GridSignal
    rent_per_hour: float = 0.0
    start_seconds: float = 0.0
    bounds: Bounds = UNBOUNDED

    def __post_init__(self) -> None:
        finite(self.rent_per_hour, "rent per hour", minimum=0.0)

    def score(self, point: OperatingPoint, reference: OperatingPoint) -> float:
        """Money in the signal's currency, or infinity where a bound is broken."""
        if not self.bounds.allow(point, reference):
            return math.inf
        end_seconds = self.start_seconds + point.seconds
        price_per_joule = (
            self.signal.mean(self.start_seconds, end_seconds) / JOULES_PER_KILOWATT_HOUR
        )
        return point.joules * price_per_joule + self.rent_per_hour * point.seconds / 3600


def choose(
    objective: Objective,
    points: Iterable[OperatingPoint],
    reference: OperatingPoint | None = None,
) -> OperatingPoint:
    """The point that minimises ``objective``; of equals the faster, then the leaner.

    Args:
        objective: What to minimise.
        points: A frontier, or any cloud.
        reference: What ratios refer to; the fastest point unless given. Pass what the default
            setting costs to measure slowdown against it.

    Raises:
        InfeasibleError: No point meets the objective's bounds.
    """
    candidates = sorted(points, key=lambda point: (point.seconds, point.joules))
    if not candidates:
        raise InvalidValueError("no points to choose from", remedy="measure at least one setting")
    baseline = candidates[0] if reference is None else reference
    scored = [(objective.score(point, baseline), point) for point in candidates]
    best_score, best = min(scored, key=lambda pair: pair[0])
    if not best_score < math.inf:
        raise InfeasibleError(
            f"no operating point meets {objective}",
            remedy=f"the fastest takes {candidates[0].seconds:g} s and the leanest needs "
            f"{min(point.joules for point in candidates):g} J; widen the bound to one of them",
        )
    return best


@dataclass(frozen=True, slots=True)
class Gains:
    """What a point gains over a reference, in per cent, as Koszczał et al. tabulate it.

    Attributes:
        energy: Energy saved.
        time: Time lost (positive is slower).
        difference: Energy saved minus time lost.
        edp: Reduction of the energy-delay product.
    """

    energy: float
    time: float
    difference: float
    edp: float


def gains(point: OperatingPoint, reference: OperatingPoint) -> Gains:
    """Per cent gained by ``point`` over ``reference``."""
    energy_ratio = _energy_ratio(point, reference)
    time_ratio = point.seconds / reference.seconds
    return Gains(
        energy=100 * (1 - energy_ratio),
        time=100 * (time_ratio - 1),
        difference=100 * (1 - energy_ratio) - 100 * (time_ratio - 1),
        edp=100 * (1 - energy_ratio * time_ratio),
    )


def _energy_ratio(point: OperatingPoint, reference: OperatingPoint) -> float:
    if reference.joules == 0:
        raise InvalidValueError(
            "the reference used no energy", remedy="measure the default setting first"
        )
    return point.joules / reference.joules


def eds_gain(point: OperatingPoint, reference: OperatingPoint, k: float) -> float:
    """Per cent by which the energy-delay sum falls from its value of 1 at ``reference``."""
    return 100 * (1 - EnergyDelaySum(k).score(point, reference))
