"""Objectives: what to minimise, and which operating point that chooses.

An objective has a ``value`` to minimise and ``bounds`` that rule settings out. Both work on plain
floats and on NumPy arrays that broadcast, so every optimizer uses the same few lines. All but the
grid objectives under a varying or negative signal never prefer a dominated point, so choosing from
the frontier is choosing from the whole cloud.

A new objective is one class with ``value`` and ``bounds``, and one line in ``_TEXT_FORMS`` if
users are to write it as text: on the command line, in the environment, over HTTP and in stores
an objective is text such as ``cost:eta=0.5``, ``least-energy:slowdown=5%``, ``edp``, ``eds:k=2``,
``fastest:joules=1e6``, ``carbon:intensity=400`` or ``money:price=0.3,rent=2``.
"""

from __future__ import annotations

import math
from dataclasses import MISSING, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from joulery.arguments import check_items, check_type
from joulery.errors import InfeasibleError, InvalidValueError
from joulery.frontier import OperatingPoint
from joulery.units import JOULES_PER_KILOWATT_HOUR, finite, quantity

if TYPE_CHECKING:
    from collections.abc import Iterable

# A float, or a NumPy array of them.
Quantity = Any

_ROUNDING = 1.0 + 1e-12  # some thousand times the rounding of one operation


@runtime_checkable
class Reference(Protocol):
    """The run that ratios refer to: what happens if nothing is changed."""

    @property
    def seconds(self) -> Quantity:
        """Time of the work."""
        ...

    @property
    def joules(self) -> Quantity:
        """Energy of the work."""
        ...


@dataclass(frozen=True, slots=True)
class Totals:
    """Time and energy of whole runs, as floats or arrays."""

    seconds: Quantity
    joules: Quantity


@dataclass(frozen=True, slots=True)
class Bounds:
    """Limits that a setting must keep.

    Attributes:
        deadline_seconds: Longest time of the work.
        max_slowdown: Largest extra time against the reference, as a fraction of at most 1: 0.05 is
            5 %.
        max_joules: Largest energy of the work.
    """

    deadline_seconds: float | None = None
    max_slowdown: float | None = None
    max_joules: float | None = None

    def __post_init__(self) -> None:
        if self.deadline_seconds is not None:
            _checked_budget(self.deadline_seconds, "deadline in seconds")
        if self.max_slowdown is not None:
            finite(self.max_slowdown, "slowdown as a fraction", minimum=0.0)
            if self.max_slowdown > 1:
                raise InvalidValueError(
                    f"a slowdown of {self.max_slowdown:g} would be {100 * self.max_slowdown:g} %",
                    remedy="write 5% or 0.05 for 5 per cent; 1, twice the time, is the largest, "
                    "and a deadline may be any",
                )
        if self.max_joules is not None:
            _checked_budget(self.max_joules, "energy budget in joules")

    @property
    def of_whole_work(self) -> bool:
        """Whether one is of the whole work, so that how long that is has to be known."""
        return self.deadline_seconds is not None or self.max_joules is not None

    def overshoot(self, seconds: Quantity, joules: Quantity, reference: Reference) -> Quantity:
        """Ratio of a run to its tightest bound; at most 1 where all are kept."""
        worst: Quantity = 0.0
        if self.deadline_seconds is not None:
            worst = _larger(worst, seconds / self.deadline_seconds)
        if self.max_slowdown is not None:
            worst = _larger(worst, seconds / ((1 + self.max_slowdown) * reference.seconds))
        if self.max_joules is not None:
            worst = _larger(worst, joules / self.max_joules)
        return worst

    def kept(self, seconds: Quantity, joules: Quantity, reference: Reference) -> Any:
        """Whether a run keeps every bound; rounding of the last bits is forgiven."""
        return self.overshoot(seconds, joules, reference) <= _ROUNDING


UNBOUNDED = Bounds()


class Objective(Protocol):
    """The protocol of objectives: a value to minimise, and bounds."""

    def value(self, seconds: Quantity, joules: Quantity, reference: Reference) -> Quantity:
        """The quantity to minimise, bounds aside.

        Args:
            seconds: Time of the work; a float or an array.
            joules: Energy of the work, alike.
            reference: Run that ratios refer to: what happens if nothing is changed.
        """
        ...

    @property
    def bounds(self) -> Bounds:
        """Bounds that rule settings out."""
        ...


@runtime_checkable
class GridSignal(Protocol):
    """A quantity per kilowatt-hour that may vary over time: carbon intensity or price."""

    def mean(self, start_seconds: float, end_seconds: float) -> float:
        """Time average between two moments, in units per kWh."""
        ...


@dataclass(frozen=True, slots=True)
class Cost:
    """eta·joules + (1 - eta)·max_watts·seconds, in joules (You et al., NSDI'23, Eq. 2).

    Attributes:
        eta: Weight of energy: 1 counts energy only, 0 time only.
        max_watts: Highest power of all devices of the job together. It turns time into joules.
    """

    eta: float = 0.5
    max_watts: float = 0.0
    bounds: ClassVar[Bounds] = UNBOUNDED

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

    def of(self, seconds: Quantity, joules: Quantity) -> Quantity:
        """The cost in joules of a time and an energy."""
        return self.eta * joules + (1 - self.eta) * self.max_watts * seconds

    def value(self, seconds: Quantity, joules: Quantity, reference: Reference) -> Quantity:  # noqa: ARG002
        """The cost in joules; needs no reference."""
        return self.of(seconds, joules)


class _InTime:
    """An objective with an optional slowdown and deadline, checked when it is made."""

    __slots__ = ()
    max_slowdown: float | None
    deadline_seconds: float | None

    def __post_init__(self) -> None:
        _ = self.bounds

    @property
    def bounds(self) -> Bounds:
        """The slowdown and the deadline."""
        return Bounds(self.deadline_seconds, self.max_slowdown)


@dataclass(frozen=True, slots=True)
class LeastEnergy(_InTime):
    """The fewest joules within a slowdown or a deadline.

    Attributes:
        max_slowdown: Largest extra time against the reference (the fastest point unless one is
            given), as a fraction.
        deadline_seconds: Longest time for the work.
    """

    max_slowdown: float | None = None
    deadline_seconds: float | None = None

    def value(self, seconds: Quantity, joules: Quantity, reference: Reference) -> Quantity:  # noqa: ARG002
        """Joules."""
        return joules


@dataclass(frozen=True, slots=True)
class FastestWithin:
    """The least time that an energy budget allows.

    Attributes:
        joules: Energy budget of the work.
    """

    joules: float

    def __post_init__(self) -> None:
        _ = self.bounds

    @property
    def bounds(self) -> Bounds:
        """The energy budget."""
        return Bounds(max_joules=self.joules)

    def value(self, seconds: Quantity, joules: Quantity, reference: Reference) -> Quantity:  # noqa: ARG002
        """Seconds."""
        return seconds


@dataclass(frozen=True, slots=True)
class EnergyDelayProduct:
    """joules × seconds."""

    bounds: ClassVar[Bounds] = UNBOUNDED

    def value(self, seconds: Quantity, joules: Quantity, reference: Reference) -> Quantity:  # noqa: ARG002
        """The product in joule-seconds."""
        return joules * seconds


@dataclass(frozen=True, slots=True)
class EnergyDelaySum:
    """alpha·joules + beta·seconds, which accepts about k times the time for all of the energy.

    alpha = (k - 1)/(k·E_ref), beta = 1/(k·t_ref) (Koszczał et al., Euro-Par'23, §3). It is 1 at
    the reference; k = 1 counts time only.

    Attributes:
        k: Factor of time that is accepted for all of the energy.
    """

    k: float = 2.0
    bounds: ClassVar[Bounds] = UNBOUNDED

    def __post_init__(self) -> None:
        finite(self.k, "k of the energy-delay sum", minimum=1.0)

    def value(self, seconds: Quantity, joules: Quantity, reference: Reference) -> Quantity:
        """The weighted sum of both ratios; 1 at the reference."""
        time = seconds / reference.seconds / self.k
        if self.k == 1:
            return time
        return (self.k - 1) / self.k * _ratio(joules, reference.joules) + time


@dataclass(frozen=True, slots=True)
class LeastCarbon(_InTime):
    """The fewest grams of CO2 of a run on the grid.

    Attributes:
        intensity: Carbon intensity in gCO2/kWh, a constant or a signal over time.
        max_slowdown: Largest extra time against the reference, as a fraction.
        deadline_seconds: Longest time for the work.
        start_seconds: Start of the work on the signal's clock.
    """

    intensity: float | GridSignal
    max_slowdown: float | None = None
    deadline_seconds: float | None = None
    start_seconds: float = 0.0

    def __post_init__(self) -> None:
        _checked_signal(self.intensity, "carbon intensity in g/kWh", minimum=0.0)
        finite(self.start_seconds, "start in seconds")
        _InTime.__post_init__(self)

    def value(self, seconds: Quantity, joules: Quantity, reference: Reference) -> Quantity:  # noqa: ARG002
        """Grams of CO2."""
        mean = _mean(self.intensity, self.start_seconds, seconds)
        return joules * mean / JOULES_PER_KILOWATT_HOUR


@dataclass(frozen=True, slots=True)
class LeastMoney(_InTime):
    """The least money: energy at a price per kWh, plus rent for the time.

    Attributes:
        price: Price per kWh, a constant or a signal over time.
        rent_per_hour: Cost of the devices per hour apart from energy, in the same currency.
        max_slowdown: Largest extra time against the reference, as a fraction.
        deadline_seconds: Longest time for the work.
        start_seconds: Start of the work on the signal's clock.
    """

    price: float | GridSignal
    rent_per_hour: float = 0.0
    max_slowdown: float | None = None
    deadline_seconds: float | None = None
    start_seconds: float = 0.0

    def __post_init__(self) -> None:
        _checked_signal(self.price, "price per kWh")
        finite(self.rent_per_hour, "rent per hour", minimum=0.0)
        finite(self.start_seconds, "start in seconds")
        _InTime.__post_init__(self)

    def value(self, seconds: Quantity, joules: Quantity, reference: Reference) -> Quantity:  # noqa: ARG002
        """Money in the price's currency."""
        mean = _mean(self.price, self.start_seconds, seconds)
        return joules * mean / JOULES_PER_KILOWATT_HOUR + self.rent_per_hour * seconds / 3600


def score(
    objective: Objective, seconds: Quantity, joules: Quantity, reference: Reference
) -> Quantity:
    """The value of runs, infinite where one breaks a bound: lower is better."""
    value = objective.value(seconds, joules, reference)
    is_kept = objective.bounds.kept(seconds, joules, reference)
    if _is_array(is_kept):
        import numpy as np

        return np.where(is_kept, value, np.inf)
    return value if is_kept else math.inf


def depends_on_reference(objective: Objective) -> bool:
    """Whether scores change with the reference, so that it has to be measured well."""
    first, second = Totals(1.0, 1.0), Totals(2.0, 3.0)
    values = (objective.value(1.0, 1.0, first), objective.value(1.0, 1.0, second))
    return objective.bounds.max_slowdown is not None or values[0] != values[1]


_FORMS = "give its text, such as 'least-energy:slowdown=5%', or see joulery.objectives"
_ORDER = "the objective comes first, then points: choose('edp', frontier)"


def choose(
    objective: Objective | str,
    points: Iterable[OperatingPoint],
    reference: OperatingPoint | None = None,
) -> OperatingPoint:
    """The point that minimises ``objective``; of equals the faster, then the one of less energy.

    Args:
        objective: Objective to minimise, or its text (``least-energy:slowdown=5%``); time in a cost
            then weighs as much as the highest power among the points.
        points: Frontier, or any cloud of points.
        reference: Point that ratios refer to; the fastest unless given. Pass what the default
            setting costs to measure slowdown against it.

    Raises:
        InfeasibleError: No point meets the objective's bounds.
    """
    if not isinstance(objective, str):
        check_objective(objective, f"{_FORMS}; {_ORDER}")
    candidates: list[OperatingPoint] = [
        *check_items(points, OperatingPoint, "points must be operating points", _ORDER)
    ]
    if reference is not None:
        check_type(reference, Reference, "reference must be an operating point", _ORDER)
    candidates.sort(key=lambda point: (point.seconds, point.joules))
    if not candidates:
        raise InvalidValueError("no points to choose from", remedy="measure at least one setting")
    if isinstance(objective, str):
        objective = parse_objective(objective, max(point.watts for point in candidates))
    baseline = candidates[0] if reference is None else reference
    scores = [score(objective, point.seconds, point.joules, baseline) for point in candidates]
    best = min(scores)
    if not best < math.inf:
        raise InfeasibleError(
            f"no operating point meets {objective_label(objective)}",
            remedy=f"the fastest takes {candidates[0].seconds:g} s and the lowest energy is "
            f"{min(point.joules for point in candidates):g} J; widen the bound to one of them",
        )
    return candidates[scores.index(best)]


@dataclass(frozen=True, slots=True)
class Gains:
    """Gains of a point over a reference, in per cent, as Koszczał et al. tabulate them.

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


def gains(point: Reference, reference: Reference) -> Gains:
    """Per cent gained by ``point`` over ``reference``."""
    energy_ratio = _ratio(point.joules, reference.joules)
    time_ratio = point.seconds / reference.seconds
    return Gains(
        energy=100 * (1 - energy_ratio),
        time=100 * (time_ratio - 1),
        difference=100 * (1 - energy_ratio) - 100 * (time_ratio - 1),
        edp=100 * (1 - energy_ratio * time_ratio),
    )


def eds_gain(point: Reference, reference: Reference, k: float) -> float:
    """Per cent by which the energy-delay sum falls from its value of 1 at ``reference``."""
    value = EnergyDelaySum(k).value(point.seconds, point.joules, reference)
    return float(100 * (1 - value))


# How objectives are written: name, class, the field that each option sets, and options as help
# texts show them.
_BOUND = {"slowdown": "max_slowdown", "deadline": "deadline_seconds"}
_MONEY = {"price": "price", "rent": "rent_per_hour", **_BOUND}
_TEXT_FORMS: dict[str, tuple[type[Any], dict[str, str], tuple[str, ...]]] = {
    "cost": (Cost, {"eta": "eta", "max_watts": "max_watts"}, (":eta=0.5",)),
    "least-energy": (LeastEnergy, _BOUND, (":slowdown=5%", ":deadline=8h")),
    "edp": (EnergyDelayProduct, {}, ("",)),
    "eds": (EnergyDelaySum, {"k": "k"}, (":k=2",)),
    "fastest": (FastestWithin, {"joules": "joules"}, (":joules=J",)),
    "carbon": (LeastCarbon, {"intensity": "intensity", **_BOUND}, (":intensity=G_PER_KWH",)),
    "money": (LeastMoney, _MONEY, (":price=PER_KWH,rent=PER_HOUR",)),
}
_OPTION_UNITS = {"deadline": "s", "max_watts": "W"}


# As argparse takes it, with every per cent sign doubled.
OBJECTIVE_HELP = "objective: " + " | ".join(
    (name + options).replace("%", "%%")
    for name, (*_, examples) in _TEXT_FORMS.items()
    for options in examples
)


def check_objective(objective: object, remedy: str = _FORMS) -> None:
    """Raise ``InvalidValueError`` unless it has the value and the bounds of an objective."""
    has_value = callable(getattr(objective, "value", None)) and hasattr(objective, "bounds")
    if isinstance(objective, type) or not has_value:
        raise InvalidValueError(f"{objective!r} is not an objective", remedy=remedy)


def parse_objective(text: str, max_watts: float = 0.0) -> Objective:
    """The objective that ``text`` describes, such as ``least-energy:slowdown=5%``.

    Args:
        text: Name and options, as in the examples of this module.
        max_watts: Highest power of the job's devices, for ``cost`` without its own.

    Raises:
        InvalidValueError: Unknown name or option, or a value out of range.
    """
    check_type(text, str, "an objective must be text", "write 'least-energy:slowdown=5%', say")
    name, _, suffix = text.strip().partition(":")
    name = name.strip().lower()
    if name not in _TEXT_FORMS:
        raise InvalidValueError(
            f"unknown objective {name!r}", remedy=f"choose one of {', '.join(_TEXT_FORMS)}"
        )
    finite(max_watts, "max_watts", minimum=0.0)
    kind, options, _examples = _TEXT_FORMS[name]
    values: dict[str, float] = {"max_watts": max_watts} if "max_watts" in options else {}
    for option, value in _read_options(text, suffix).items():
        if option not in options:
            raise InvalidValueError(
                f"objective {name!r} has no option {option!r}",
                remedy=f"its options are: {', '.join(options) or 'none'}",
            )
        values[options[option]] = value
    for option, required in options.items():
        if required not in values and _is_required(kind, required):
            raise InvalidValueError(
                f"objective {name!r} needs {option}=…", remedy=f"write {name}:{option}=NUMBER"
            )
    objective: Objective = kind(**values)
    return objective


def objective_text(objective: Objective) -> str:
    """The text that ``parse_objective`` reads as the same objective.

    Raises:
        InvalidValueError: The objective has no text form, or a signal that varies over time.
    """
    for name, (kind, options, _examples) in _TEXT_FORMS.items():
        if type(objective) is kind:
            values = {option: getattr(objective, field) for option, field in options.items()}
            if any(isinstance(value, GridSignal) for value in values.values()):
                break
            settings = [f"{option}={v!r}" for option, v in values.items() if v is not None]
            return f"{name}:{','.join(settings)}" if settings else name
    raise InvalidValueError(
        f"{objective} has no text form",
        remedy=f"use one of {', '.join(_TEXT_FORMS)}, with constant intensity or price",
    )


def objective_label(objective: Objective) -> str:
    """Text of an objective for people: the one that is parsed where it has one."""
    try:
        return objective_text(objective)
    except InvalidValueError:
        return str(objective)


def _read_options(text: str, suffix: str) -> dict[str, float]:
    options: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in suffix.split(","))):
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key in options:
            raise InvalidValueError(
                f"objective {text!r} gives {key} twice", remedy="give each option once"
            )
        try:
            options[key] = _read_number(key, value)
        except ValueError:
            raise InvalidValueError(
                f"cannot read {part!r} in objective {text!r}",
                remedy="write options as name=number, such as eta=0.5 or slowdown=5%",
            ) from None
    return options


def _read_number(option: str, text: str) -> float:
    if option in _OPTION_UNITS:
        return quantity(text, option, _OPTION_UNITS[option])
    return float(text[:-1]) / 100 if text.endswith("%") else float(text)


def _is_required(kind: type[Any], name: str) -> bool:
    return any(field.name == name and field.default is MISSING for field in fields(kind))


def _checked_budget(value: float, name: str) -> None:
    if finite(value, name, minimum=0.0) == 0:
        raise InvalidValueError(f"{name} is 0, which no work keeps", remedy="give more than 0")


def _checked_signal(signal: float | GridSignal, name: str, minimum: float | None = None) -> None:
    if not isinstance(signal, GridSignal):
        finite(signal, name, minimum=minimum)


def _mean(signal: float | GridSignal, start_seconds: float, seconds: Quantity) -> Quantity:
    """Mean of a constant or a signal over a run of ``seconds``."""
    if not isinstance(signal, GridSignal):
        return signal
    if not _is_array(seconds):
        return signal.mean(start_seconds, start_seconds + seconds)
    import numpy as np

    means = [signal.mean(start_seconds, start_seconds + length) for length in seconds.flat]
    return np.array(means).reshape(seconds.shape)


def _ratio(joules: Quantity, reference_joules: Quantity) -> Quantity:
    if not _is_array(reference_joules) and reference_joules == 0:
        raise InvalidValueError(
            "the reference used no energy", remedy="measure the default setting first"
        )
    return joules / reference_joules


def _larger(first: Quantity, second: Quantity) -> Quantity:
    if _is_array(first) or _is_array(second):
        import numpy as np

        return np.maximum(first, second)
    return max(first, second)


def _is_array(value: Quantity) -> bool:
    return getattr(value, "ndim", 0) > 0
