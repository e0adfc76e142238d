"""Model of a board's clock, power and step time under a power limit.

The model, with ``x = clock / max_clock`` and ``v`` the core voltage relative to the one at the
highest clock:

* voltage: ``v`` is ``voltage_floor`` up to the knee clock, then rises in a straight line to 1;
* time of a step: ``host + (compute**p + memory**p) ** (1/p)`` with ``compute`` stretched by
  ``1/x``, so that memory-bound work saturates and host-bound work does not depend on the clock;
* energy of a step: awake and clock-tree watts throughout (the latter in proportion to
  ``x * v**2``), plus ``v**2`` of the joules that the compute takes at the highest clock, plus the
  joules of the memory traffic at any clock;
* a power limit lowers the clock until the power *while the board executes* fits. Boards regulate
  within milliseconds, so waiting for the host lowers the mean power but earns no higher clock.

Pure formulas; the C emulator reads tables made from them. ``relative_voltage``,
``smooth_max`` and ``execute`` take floats or NumPy's arrays and are what predictions and
the tuner's prior are made of, too.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from joulery.errors import InvalidValueError
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Sequence

# How sharply a step turns from compute-bound to memory-bound: 1 would be no overlap at all,
# infinity perfect overlap; by hand.
OVERLAP_EXPONENT = 3.0
# Keeps 0 / 0 from being asked for.
_TINY = 5e-324


@dataclass(frozen=True, slots=True)
class Board:
    """The constants of one type of accelerator.

    Attributes:
        name: Name in the catalog.
        idle_watts: Power when no process holds the board.
        awake_watts: Power when a process holds the board, without the clock's part.
        clock_watts: Power of the clock tree at the highest clock, whether or not work executes.
        dynamic_watts: Power of work that keeps every compute unit busy at the highest clock.
        memory_watts: Power of traffic that saturates the memory.
        voltage_floor: Lowest core voltage as a fraction of the one at the highest clock.
        knee_clock_hertz: Highest clock at which the voltage is at its floor.
        min_clock_hertz: Lowest core clock.
        max_clock_hertz: Highest core clock.
        clock_step_hertz: Distance between supported clocks.
        min_limit_watts: Lowest power limit that the board accepts.
        max_limit_watts: Highest power limit that the board accepts.
        default_limit_watts: Power limit after start-up.
        counter_period_seconds: Time between two refreshes of the energy counter.
        power_lag_seconds: Time constant with which power follows a change of load.
        fitted: Whether the constants were fitted to measurements of this type of board.
        source: Source of the constants.
    """

    name: str
    idle_watts: float
    awake_watts: float
    clock_watts: float
    dynamic_watts: float
    memory_watts: float
    voltage_floor: float
    knee_clock_hertz: float
    min_clock_hertz: float
    max_clock_hertz: float
    clock_step_hertz: float
    min_limit_watts: float
    max_limit_watts: float
    default_limit_watts: float
    counter_period_seconds: float = 0.1
    power_lag_seconds: float = 0.005
    fitted: bool = False
    source: str = ""

    def __post_init__(self) -> None:
        for name in _NON_NEGATIVE:
            finite(getattr(self, name), f"{name} of {self.name}", minimum=0.0)
        limits = (self.min_limit_watts, self.default_limit_watts, self.max_limit_watts)
        clocks = (self.min_clock_hertz, self.knee_clock_hertz, self.max_clock_hertz)
        sound = {
            "power limits": limits == tuple(sorted(limits)),
            "clocks": clocks == tuple(sorted(clocks)) and clocks[0] > 0 and clocks[1] < clocks[2],
            "idle_watts": self.idle_watts <= self.awake_watts,
            "voltage_floor": 0 < self.voltage_floor <= 1,
            "clock_step_hertz": self.clock_step_hertz > 0,
            "counter_period_seconds": self.counter_period_seconds > 0,
        }
        wrong = [name for name, holds in sound.items() if not holds]
        if wrong:
            raise InvalidValueError(
                f"{', '.join(wrong)} of {self.name} cannot be",
                remedy="keep 0 < min ≤ knee < max clock, min ≤ default ≤ max limit, "
                "idle ≤ awake watts, 0 < voltage floor ≤ 1, step and period above 0",
            )

    def voltage(self, clock_hertz: float) -> float:
        """Core voltage at a clock, relative to the one at the highest clock."""
        share = clock_hertz / self.max_clock_hertz
        knee = self.knee_clock_hertz / self.max_clock_hertz
        return float(relative_voltage(share, self.voltage_floor, knee))

    def clocks(self) -> tuple[float, ...]:
        """Supported core clocks in hertz, ascending; the highest is always among them."""
        span = self.max_clock_hertz - self.min_clock_hertz
        # The slack keeps a last step that rounding left just short of the highest clock.
        steps = int(span / self.clock_step_hertz + 1e-6)
        clocks = [self.min_clock_hertz + i * self.clock_step_hertz for i in range(steps + 1)]
        if self.max_clock_hertz - clocks[-1] > 1e-6 * self.clock_step_hertz:
            clocks.append(self.max_clock_hertz)
        else:
            clocks[-1] = self.max_clock_hertz
        return tuple(clocks)


_NON_NEGATIVE = (
    "idle_watts",
    "awake_watts",
    "clock_watts",
    "dynamic_watts",
    "memory_watts",
    "min_clock_hertz",
    "clock_step_hertz",
    "min_limit_watts",
    "counter_period_seconds",
    "power_lag_seconds",
)


@dataclass(frozen=True, slots=True)
class Workload:
    """Work of one training step on a board.

    Attributes:
        name: Name for people.
        compute_seconds: Time of the arithmetic alone at the highest clock.
        memory_seconds: Time of the memory traffic alone.
        host_seconds: Time per step in which the board waits for its host.
        activity: Share of the board's dynamic power that the arithmetic draws while it runs;
            dense matrix products come close to 1, small kernels stay far below.
    """

    name: str
    compute_seconds: float
    memory_seconds: float = 0.0
    host_seconds: float = 0.0
    activity: float = 1.0

    def __post_init__(self) -> None:
        for name in ("compute_seconds", "memory_seconds", "host_seconds", "activity"):
            finite(getattr(self, name), f"{name} of {self.name}", minimum=0.0)
        if self.compute_seconds + self.memory_seconds + self.host_seconds <= 0:
            raise InvalidValueError(
                f"a step of {self.name} takes no time", remedy="give at least one part a time"
            )

    def scaled(self, factor: float) -> Workload:
        """The same kind of work, ``factor`` times as much of it per step."""
        return Workload(
            self.name,
            self.compute_seconds * factor,
            self.memory_seconds * factor,
            self.host_seconds * factor,
            self.activity,
        )


@dataclass(frozen=True, slots=True)
class Steady:
    """Steady state of a board.

    Attributes:
        clock_hertz: Core clock.
        seconds: Time per step.
        watts: Mean power over a step.
        busy_watts: Power while the board executes, on which a power limit acts.
    """

    clock_hertz: float
    seconds: float
    watts: float
    busy_watts: float


def steady_at(board: Board, workload: Workload, clock_hertz: float) -> Steady:
    """Step time and power at one clock, no limit in force."""
    busy_seconds, awake_watts, joules = execute(
        clock_hertz / board.max_clock_hertz,
        board.voltage(clock_hertz),
        seconds=(workload.compute_seconds, workload.memory_seconds),
        watts=(board.awake_watts, board.clock_watts),
        joules=(
            workload.activity * board.dynamic_watts * workload.compute_seconds,
            board.memory_watts * workload.memory_seconds,
        ),
    )
    seconds = busy_seconds + workload.host_seconds
    return Steady(
        clock_hertz,
        seconds,
        awake_watts + joules / seconds,
        awake_watts + (joules / busy_seconds if busy_seconds > 0 else 0.0),
    )


class Execution(NamedTuple):
    """Work on a board at one clock, or at several: floats or arrays.

    Attributes:
        busy_seconds: Time in which the board executes.
        awake_watts: Power of a board that a process holds, with its clock tree.
        joules: Energy of the work beyond that.
    """

    busy_seconds: Any
    awake_watts: Any
    joules: Any


def execute(
    share: Any,
    voltage: Any,
    *,
    seconds: tuple[Any, Any],
    watts: tuple[Any, Any],
    joules: tuple[Any, Any],
    sharpness: Any = OVERLAP_EXPONENT,
) -> Execution:
    """Time and energy of work at a share of the highest clock.

    Args:
        share: Clock relative to the highest.
        voltage: Core voltage relative to the one at the highest clock.
        seconds: Time of the arithmetic at the highest clock, and of the memory traffic.
        watts: Power of an awake board, and of its clock tree at the highest clock.
        joules: Energy of the arithmetic at the highest clock, and of the memory traffic.
        sharpness: Exponent of the overlap of arithmetic and memory traffic.
    """
    return Execution(
        smooth_max(seconds[0] / share, seconds[1], sharpness),
        watts[0] + watts[1] * share * voltage**2,
        joules[0] * voltage**2 + joules[1],
    )


def relative_voltage(share: Any, floor: Any, knee: Any) -> Any:
    """Core voltage at a share of the highest clock: a floor up to a knee, then straight to 1."""
    above = share - knee
    return floor + (1.0 - floor) * 0.5 * (above + abs(above)) / (1.0 - knee)


def smooth_max(first: Any, second: Any, sharpness: Any = OVERLAP_EXPONENT) -> Any:
    """The larger of two times, a little more where they are close and cannot fully overlap."""
    # Scaled, so that times of any magnitude neither overflow nor vanish.
    scale = first + second + _TINY
    powers = (first / scale) ** sharpness + (second / scale) ** sharpness
    return scale * powers ** (1.0 / sharpness)


def clock_states(board: Board, workload: Workload) -> tuple[Steady, ...]:
    """Step time and mean power at every supported clock, ascending, no limit in force."""
    return tuple(steady_at(board, workload, clock) for clock in board.clocks())


def settle(
    board: Board, workload: Workload, limit_watts: float, locked_hertz: float | None = None
) -> Steady:
    """Steady state of a board under a power limit; see ``settle_in``."""
    return settle_in(clock_states(board, workload), limit_watts, locked_hertz)


def settle_in(
    states: Sequence[Steady], limit_watts: float, locked_hertz: float | None = None
) -> Steady:
    """Steady state of a board under a power limit, given its table of ``clock_states``.

    The highest state whose busy power is within the limit; between that and the next one, linear
    interpolation of every field, because a board that is held by its limit dithers between
    neighbouring clocks. At the lowest clock the power may exceed the limit, as it does on real
    boards. A lock takes away the states above it; one below the lowest clock means the lowest.
    """
    count = len(states)
    if locked_hertz is not None:
        count = max(1, bisect_right(states, locked_hertz, key=attrgetter("clock_hertz")))
    within = bisect_right(states, limit_watts, 0, count, key=attrgetter("busy_watts"))
    if within == count:
        return states[count - 1]
    if within == 0:
        return states[0]
    below, above = states[within - 1], states[within]
    share = (limit_watts - below.busy_watts) / (above.busy_watts - below.busy_watts)
    return Steady(
        below.clock_hertz + share * (above.clock_hertz - below.clock_hertz),
        below.seconds + share * (above.seconds - below.seconds),
        # Rounding must not lift the mean above the limit that it cannot exceed.
        min(limit_watts, below.watts + share * (above.watts - below.watts)),
        limit_watts,
    )


def idle(board: Board) -> Steady:
    """Steady state without work, as steps of one second."""
    return Steady(board.min_clock_hertz, 1.0, board.idle_watts, board.idle_watts)
