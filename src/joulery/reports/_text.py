"""Figures, dates and states as the text that all reports share."""

from __future__ import annotations

import itertools
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from joulery.objectives import Cost, LeastEnergy, objective_text
from joulery.units import human, per_cent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from datetime import tzinfo

    from joulery.jobs import DecisionEntry, Saved
    from joulery.objectives import Objective

NONE = "–"


def energy_text(joules: float) -> str:
    """Energy as bills state it, below 1 Wh in joules: ``energy_text(3.6e6)`` is ``"1.00 kWh"``."""
    return human(joules, "J") if abs(joules) < 3600.0 else human(joules / 3600.0, "Wh")


def carbon_text(grams: float) -> str:
    """Emissions in g, kg or t: ``carbon_text(2.5e6)`` is ``"2.50 t"``."""
    return human(grams, "g") if abs(grams) < 999_500 else human(grams / 1e6, "t")


def cost_text(joules: float) -> str:
    """The cost of a run, which weighs time in joules."""
    return human(joules, "J")


def limit_text(watts: float | None) -> str:
    """A power limit, such as ``250 W``; a dash for none."""
    return NONE if watts is None else f"{watts:g} W"


def date_text(wall_seconds: float | None, zone: tzinfo | None = None) -> str:
    """A moment to the minute, such as ``2026-11-17 22:20``; a dash where there is none.

    Args:
        wall_seconds: Unix time.
        zone: Time zone of the reader; UTC unless given.
    """
    try:
        moment = datetime.fromtimestamp(wall_seconds or math.nan, zone or UTC)
    except (ValueError, OverflowError, OSError):  # none, or beyond the calendar
        return NONE
    return moment.strftime("%Y-%m-%d %H:%M")


def with_error(value: float, error: float | None, show: Callable[[float], str]) -> str:
    """A figure and its standard error in the same unit, such as ``1.25 ± 0.08 kWh``.

    An error below the last digit is left out, rather than shown as 0.

    Args:
        value: Figure in SI units.
        error: One standard error; None where it is unknown.
        show: Function that writes a figure with its unit.
    """
    larger = max(abs(value), error or 0.0)
    if not (larger and math.isfinite(larger)):
        return show(value)
    text, unit = show(larger).rsplit(" ", 1)
    digits = float(text.replace(",", ""))
    scale = larger / digits if digits else 1.0
    decimals = len(text.partition(".")[2])
    scaled_error = (error or 0.0) / scale
    if not scaled_error or scaled_error < 0.5 * 10.0 ** -max(2, decimals):
        return f"{value / scale:,.{decimals}f} {unit}"
    decimals = max(decimals, min(2, -math.floor(math.log10(scaled_error))))
    return f"{value / scale:,.{decimals}f} ± {scaled_error:,.{decimals}f} {unit}"


def saved_text(saved: Saved | None) -> str:
    """A share that was saved, to the place of its error's first digit, such as ``31 ± 2 %``."""
    if saved is None:
        return NONE
    share, error = 100 * saved.share, 100 * (saved.standard_error or 0.0)
    decimals = min(2, max(0, -math.floor(math.log10(error)))) if error else 0
    if saved.standard_error is None:
        return f"{share:,.0f} ± ? %"
    bar = f"{error:,.{decimals}f}"
    figure = f"{share:,.{decimals}f}"
    return f"{figure} ± {bar} %" if float(bar.replace(",", "")) else f"{share:,.0f} %"


def count_text(count: int, noun: str) -> str:
    """A count and its noun, such as ``1 run`` or ``1,200 runs``."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def describe_objective(objective: Objective) -> str:
    """An objective as people say it, such as ``eta 0.5``."""
    if isinstance(objective, Cost):
        return f"eta {objective.eta:g}"
    slowdown = objective.bounds.max_slowdown
    if isinstance(objective, LeastEnergy) and slowdown is not None:
        return f"least energy and at most {per_cent(slowdown)} more time than the default"
    return objective_text(objective)


def end_text(entry: DecisionEntry) -> str:
    """The end of a decision, and whether its report is quarantined."""
    if entry.outcome is None:
        return {"open": "under way", "expired": "never reported"}.get(entry.state, entry.state)
    return entry.outcome.end.name.lower() + " (in quarantine)" * entry.quarantined


def origins_text(origins: dict[str, float], joules: float) -> str:
    """Shares of the energy by the origin of its figures."""
    if not joules > 0:
        return "no run has been reported"
    unexplained = joules - sum(origins.values())
    parts = [(origin, energy) for origin, energy in origins.items() if energy > 0]
    if unexplained > 0.005 * joules:
        parts.append(("reported without saying how", unexplained))
    return ", ".join(f"{per_cent(min(1.0, energy / joules))} {name}" for name, energy in parts)


def add_origins(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Energy by the origin of its figures, added up."""
    total: dict[str, float] = {}
    for origin, joules in itertools.chain.from_iterable(part.items() for part in parts):
        total[origin] = total.get(origin, 0.0) + joules
    return total


def simulated_text(origins: dict[str, float]) -> str:
    """Words for a tile whose figures are simulated, wholly or in part; empty where none is."""
    total, simulated = sum(origins.values()), origins.get("simulated", 0.0)
    share = simulated / total if total else 0.0
    if share < 0.005:
        return ""
    return "simulated" if share > 0.995 else f"{per_cent(share)} simulated"


def limit_difference(advised: float | None, held: float | None) -> str:
    """The reason why a run held another limit than its decision advised; empty if it did not.

    Args:
        advised: Power limit of the decision in watts; None where it left the choice to the run.
        held: Power limit that the run reported; None for the advised one.
    """
    if advised is None or held is None or abs(advised - held) < 0.5:
        return ""
    reason = "a run holds the nearest limit that its boards and the caps on them allow"
    return f"Advised {limit_text(advised)}, ran at {limit_text(held)}: {reason}."
