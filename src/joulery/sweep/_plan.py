"""The plan of a sweep: every power limit and number of GPUs, each several times."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, cast

from joulery.errors import InvalidValueError, UnsupportedError
from joulery.hardware import Capability, PowerLimit, PowerLimitRange, require

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from joulery.hardware import Device

# More runs than this are a typing error, not a sweep.
_MOST_RUNS = 1_000_000
_MOST_LIMITS = 12  # by hand: an hour for a run of five minutes
# Distances between limits that people would choose by hand, in watts.
_ROUND_STEPS_WATTS = (1.0, 2.0, 5.0, 10.0, 20.0, 25.0, 50.0, 100.0, 200.0, 250.0, 500.0)


@dataclass(frozen=True, slots=True, order=True)
class Trial:
    """One run of a plan.

    Attributes:
        repeat: Number of the run among those of its setting, counted from 0.
        gpus: Number of boards that the command may use.
        watts: Power limit of every board of the node.
    """

    repeat: int
    gpus: int
    watts: float

    @property
    def setting(self) -> str:
        """Boards and limit in words."""
        return f"{self.gpus} GPU{'s' * (self.gpus > 1)} at {self.watts:g} W"

    def __str__(self) -> str:
        return f"{self.setting}, run {self.repeat + 1}"


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """Plan of a sweep; a journal belongs to one plan.

    Attributes:
        work: Command, or name and seed of the simulated node.
        boards: Ids of all boards of the node; each gets the limit, also those left idle.
        limits_watts: Power limits, highest first; the default is among them.
        gpu_counts: Numbers of boards to run on, ascending.
        repeats: Runs per setting.
        default_watts: Limit that gains refer to.
    """

    work: tuple[str, ...]
    boards: tuple[str, ...]
    limits_watts: tuple[float, ...]
    gpu_counts: tuple[int, ...]
    repeats: int
    default_watts: float

    def __post_init__(self) -> None:
        for gpus in self.gpu_counts:
            if not 1 <= gpus <= len(self.boards):
                machine = f"{len(self.boards)} GPU{'s' * (len(self.boards) > 1)}"
                raise InvalidValueError(
                    f"cannot run on {gpus} GPUs: this node has {machine}",
                    remedy=f"give numbers from 1 to {len(self.boards)}",
                )
        if not len(self):
            raise InvalidValueError(
                "a sweep needs a power limit, a number of GPUs and a repeat",
                remedy="give at least one of each",
            )
        if len(self) > _MOST_RUNS:
            raise InvalidValueError(
                f"{len(self)} runs are too many",
                remedy=f"take fewer limits or repeats; {_MOST_RUNS} runs at most",
            )

    def __len__(self) -> int:
        return max(0, self.repeats) * len(self.gpu_counts) * len(self.limits_watts)

    def trials(self) -> Iterator[Trial]:
        """All runs, in order.

        Each setting runs once before any runs again: an interrupted sweep covers all settings,
        and a drift of the machine affects them alike. The fastest come first, so that mistakes
        in the command show early.
        """
        for repeat in range(self.repeats):
            for gpus in sorted(self.gpu_counts, reverse=True):
                for watts in self.limits_watts:
                    yield Trial(repeat, gpus, watts)

    def to_dict(self) -> dict[str, Any]:
        """JSON document of the plan."""
        return asdict(self)


def settable_boards(devices: Iterable[Device]) -> tuple[Device, ...]:
    """The boards among ``devices`` whose power limit can be set, parts of boards left out.

    Raises:
        UnsupportedError: There are boards, but some have no power limit to set.
    """
    boards = [d for d in devices if d.info.kind == "gpu" and d.info.parent is None]
    fixed = [board for board in boards if Capability.POWER_LIMIT not in board.capabilities]
    if fixed:
        raise UnsupportedError(
            f"{fixed[0].info.name} ({fixed[0].info.id}) has no power limit to set",
            remedy="hide it, for example with CUDA_VISIBLE_DEVICES, or see `joulery doctor`",
        )
    return tuple(boards)


def limit_range(device: Device) -> PowerLimitRange:
    """Limits that ``device`` accepts; UnsupportedError where it has none."""
    require(device, Capability.POWER_LIMIT)
    return cast("PowerLimit", device).power_limits()


def common_limits(boards: Sequence[Device]) -> PowerLimitRange:
    """Limits that all ``boards`` accept; the one in force is the lowest in force."""
    ranges = [limit_range(board) for board in boards]
    in_force = min(entry.current_watts for entry in ranges)
    return PowerLimitRange(
        min_watts=max(entry.min_watts for entry in ranges),
        max_watts=min(entry.max_watts for entry in ranges),
        default_watts=min(in_force, *(entry.default_watts for entry in ranges)),
        current_watts=in_force,
    )


def checked_limits(limits: Iterable[float], bounds: PowerLimitRange) -> tuple[float, ...]:
    """``wanted`` and the default, highest first, once all are known to be allowed.

    Raises:
        InvalidValueError: A board refuses a limit, or it is above the administrator's limit in
            force, which a sweep respects.
    """
    highest = min(bounds.max_watts, bounds.current_watts)
    for watts in limits:
        if highest < watts <= bounds.max_watts:
            raise InvalidValueError(
                f"power limit {watts:g} W is above the {highest:g} W in force on this machine",
                remedy=f"give {bounds.min_watts:g} to {highest:g} W, "
                "or have the administrator raise the limit first",
            )
        if not bounds.min_watts <= watts <= highest:
            raise InvalidValueError(
                f"power limit {watts:g} W is outside what the boards of this node accept",
                remedy=f"give {bounds.min_watts:g} to {highest:g} W",
            )
    return tuple(sorted({*limits, bounds.default_watts}, reverse=True))


def spread_limits(bounds: PowerLimitRange) -> tuple[float, ...]:
    """At most twelve limits at round distances, from the highest down to the lowest.

    The range's ends and its default are among them, so that savings refer to the default.
    """
    span = bounds.max_watts - bounds.min_watts
    # Two of the points may be the ends, off the round grid, and one the default.
    enough = (step for step in _ROUND_STEPS_WATTS if span / step <= _MOST_LIMITS - 3)
    step = next(enough, span)
    limits = {bounds.min_watts, bounds.max_watts, bounds.default_watts}
    if step > 0:
        first = math.ceil(bounds.min_watts / step)
        last = math.floor(bounds.max_watts / step)
        limits.update(count * step for count in range(first, last + 1))
    return tuple(sorted(limits, reverse=True))
