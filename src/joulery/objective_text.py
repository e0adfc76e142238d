"""Objectives as people write them, on the command line and in the environment.

``cost:eta=0.5``, ``least-energy:slowdown=5%``, ``least-energy:deadline=3600``, ``edp``,
``eds:k=2``, ``fastest:joules=1e6``, ``carbon:intensity=400``, ``money:price=0.3,rent=2``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.errors import InvalidValueError
from joulery.objectives import (
    Bounds,
    ConstantSignal,
    Cost,
    EnergyDelayProduct,
    EnergyDelaySum,
    FastestWithin,
    LeastCarbon,
    LeastEnergy,
    LeastMoney,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.objectives import Objective

HELP = (
    "what to optimise: cost:eta=0.5 | least-energy:slowdown=5%% | least-energy:deadline=SECONDS | "
    "edp | eds:k=2 | fastest:joules=J | carbon:intensity=G_PER_KWH | "
    "money:price=PER_KWH,rent=PER_HOUR"
)


def parse_objective(text: str, max_watts: float = 0.0) -> Objective:
    """The objective that ``text`` describes.

    Args:
        text: See the module's examples.
        max_watts: The most the job's devices can draw, for ``cost`` without its own.

    Raises:
        InvalidValueError: Unknown name or option, or a value out of range.
    """
    name, _, rest = text.strip().partition(":")
    options = _options(text, rest)
    builder = _BUILDERS.get(name.strip().lower())
    if builder is None:
        raise InvalidValueError(
            f"unknown objective {name!r}", remedy=f"choose one of {', '.join(_BUILDERS)}"
        )
    objective = builder(options, max_watts)
    if options:
        raise InvalidValueError(
            f"objective {name!r} has no option {next(iter(options))!r}",
            remedy="see --help for each objective's options",
        )
    return objective


def _options(text: str, rest: str) -> dict[str, float]:
    options: dict[str, float] = {}
    for part in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if key in options:
            raise InvalidValueError(
                f"objective {text!r} gives {key} twice", remedy="give each option once"
            )
        number, scale = value, 1.0
        if number.endswith("%"):
            number, scale = number[:-1], 0.01
        try:
            options[key] = float(number) * scale
        except ValueError:
            equals = ""
        if not equals:
            raise InvalidValueError(
                f"cannot read {part!r} in objective {text!r}",
                remedy="write options as name=number, such as eta=0.5 or slowdown=5%",
            )
    return options


def _bounds(options: dict[str, float]) -> Bounds:
    return Bounds(options.pop("deadline", None), options.pop("slowdown", None))


def _cost(options: dict[str, float], max_watts: float) -> Objective:
    return Cost(options.pop("eta", 0.5), options.pop("max_watts", max_watts))


def _least_energy(options: dict[str, float], _: float) -> Objective:
    bounds = _bounds(options)
    return LeastEnergy(bounds.max_slowdown, bounds.deadline_seconds)


def _product(_: dict[str, float], __: float) -> Objective:
    return EnergyDelayProduct()


def _sum(options: dict[str, float], _: float) -> Objective:
    return EnergyDelaySum(options.pop("k", 2.0))


def _fastest(options: dict[str, float], _: float) -> Objective:
    return FastestWithin(_required(options, "joules", "fastest"))


def _carbon(options: dict[str, float], _: float) -> Objective:
    signal = ConstantSignal(_required(options, "intensity", "carbon"))
    return LeastCarbon(signal, bounds=_bounds(options))


def _money(options: dict[str, float], _: float) -> Objective:
    signal = ConstantSignal(_required(options, "price", "money"))
    return LeastMoney(signal, options.pop("rent", 0.0), bounds=_bounds(options))


def _required(options: dict[str, float], option: str, objective: str) -> float:
    if option not in options:
        raise InvalidValueError(
            f"objective {objective!r} needs {option}=…", remedy=f"write {objective}:{option}=NUMBER"
        )
    return options.pop(option)


_BUILDERS: dict[str, Callable[[dict[str, float], float], Objective]] = {
    "cost": _cost,
    "least-energy": _least_energy,
    "edp": _product,
    "eds": _sum,
    "fastest": _fastest,
    "carbon": _carbon,
    "money": _money,
}
