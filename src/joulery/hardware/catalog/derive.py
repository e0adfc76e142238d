"""A board's power constants from its specification, by what fitted boards have in common."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from joulery.hardware.physics import Board

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.hardware.catalog import Specs

# A workload can make up for too low an awake power (by activity) but not for one that is too
# high, so the rule stays below every share seen. The fit errors of boards derived from the others
# hardly depend on it between 0 and 0.85; at 1, host-bound work on a V100 is off by 14 %.
_AWAKE_MARGIN = 0.6

# Where no source states them.
_IDLE_SHARE = 0.1
_MIN_LIMIT_SHARE = 0.4
_MIN_CLOCK_SHARE = 0.14
_CLOCK_STEP_HERTZ = 15e6


@dataclass(frozen=True, slots=True)
class Constants:
    """What no vendor states, and measurements must tell; see :class:`Board`.

    ``knee_share`` is the knee clock as a fraction of the highest.
    """

    awake_watts: float
    clock_watts: float
    dynamic_watts: float
    memory_watts: float
    voltage_floor: float
    knee_share: float


def derived(specs: Specs, references: Sequence[Board]) -> Board:
    """An unmeasured board: watts as shares of the default limit, as on ``references``.

    Args:
        specs: What the vendor states.
        references: Fitted boards; one is enough when it carries the same chip.
    """
    limit = specs.default_limit_watts

    def shares(name: str) -> list[float]:
        return [getattr(board, name) / board.default_limit_watts for board in references]

    margin = _AWAKE_MARGIN if len(references) > 1 else 1.0
    constants = Constants(
        awake_watts=max(margin * min(shares("awake_watts")) * limit, specs.idle_watts or 0.0),
        clock_watts=fmean(shares("clock_watts")) * limit,
        dynamic_watts=fmean(shares("dynamic_watts")) * limit,
        memory_watts=fmean(shares("memory_watts")) * limit,
        voltage_floor=fmean(board.voltage_floor for board in references),
        knee_share=fmean(board.knee_clock_hertz / board.max_clock_hertz for board in references),
    )
    of_whom = ", ".join(board.name for board in references)
    source = f"derived from {specs.source}, with the power shares of {of_whom}"
    return assembled(specs, constants, fitted=False, source=source)


def assembled(specs: Specs, constants: Constants, *, fitted: bool, source: str) -> Board:
    """A board from what its vendor states and what was measured or derived."""
    limit, highest = specs.default_limit_watts, specs.boost_clock_hertz
    idle = specs.idle_watts or _IDLE_SHARE * limit
    return Board(
        name=specs.name,
        idle_watts=min(idle, constants.awake_watts),
        awake_watts=constants.awake_watts,
        clock_watts=constants.clock_watts,
        dynamic_watts=constants.dynamic_watts,
        memory_watts=constants.memory_watts,
        voltage_floor=constants.voltage_floor,
        knee_clock_hertz=constants.knee_share * highest,
        min_clock_hertz=specs.min_clock_hertz or _MIN_CLOCK_SHARE * highest,
        max_clock_hertz=highest,
        clock_step_hertz=specs.clock_step_hertz or _CLOCK_STEP_HERTZ,
        min_limit_watts=specs.min_limit_watts or _MIN_LIMIT_SHARE * limit,
        max_limit_watts=specs.max_limit_watts,
        default_limit_watts=limit,
        fitted=fitted,
        source=source,
    )
