"""What a sweep will run: every power limit and number of GPUs, each several times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError, UnsupportedError
from joulery.hardware.device import Capability, PowerLimit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from joulery.hardware.device import Device

# More runs than this is a slip of the keyboard, not a sweep.
_MOST_RUNS = 1_000_000


@dataclass(frozen=True, slots=True, order=True)
class Trial:
    """One run to make.

    Attributes:
        repeat: Which of the runs of this setting, counted from 0.
        gpus: Number of boards that the command may use.
        watts: Power limit of every board of the node.
    """

    repeat: int
    gpus: int
    watts: float

    def __str__(self) -> str:
        boards = f"{self.gpus} GPU{'s' * (self.gpus > 1)}"
        return f"{boards} at {self.watts:g} W, run {self.repeat + 1}"


@dataclass(frozen=True, slots=True)
class SweepPlan:
    """Everything that decides which runs a sweep makes.

    Attributes:
        work: What is run: the command, or the simulated node and its seed.
        boards: Ids of all boards of the node; each gets the limit, also those left idle.
        limits_watts: The limits, highest first; the default is among them.
        gpu_counts: Numbers of boards to run on, ascending.
        repeats: Runs per setting.
        default_watts: The limit that gains refer to.
    """

    work: tuple[str, ...]
    boards: tuple[str, ...]
    limits_watts: tuple[float, ...]
    gpu_counts: tuple[int, ...]
    repeats: int
    default_watts: float

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise InvalidValueError(
                f"cannot repeat each run {self.repeats} times", remedy="give --repeat 1 or more"
            )
        for gpus in self.gpu_counts:
            if not 1 <= gpus <= len(self.boards):
                here = f"{len(self.boards)} GPU{'s' * (len(self.boards) > 1)}"
                raise InvalidValueError(
                    f"cannot run on {gpus} GPUs: this node has {here}",
                    remedy=f"give numbers from 1 to {len(self.boards)}",
                )
        if not self.gpu_counts or not self.limits_watts:
            raise InvalidValueError(
                "a sweep needs a power limit and a number of GPUs",
                remedy="give at least one of each",
            )
        if len(self) > _MOST_RUNS:
            raise InvalidValueError(
                f"{len(self)} runs are too many",
                remedy=f"take fewer limits or repeats; {_MOST_RUNS} runs at most",
            )

    def __len__(self) -> int:
        return self.repeats * len(self.gpu_counts) * len(self.limits_watts)

    def trials(self) -> Iterator[Trial]:
        """Every run, in order.

        Each setting once before any is run again: whoever interrupts a sweep has the whole
        picture already, and a drift of the machine meets all settings alike. The fastest first,
        so that mistakes in the command show early.
        """
        for repeat in range(self.repeats):
            for gpus in sorted(self.gpu_counts, reverse=True):
                for watts in self.limits_watts:
                    yield Trial(repeat, gpus, watts)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "work": list(self.work),
            "boards": list(self.boards),
            "limits_watts": list(self.limits_watts),
            "gpu_counts": list(self.gpu_counts),
            "repeats": self.repeats,
            "default_watts": self.default_watts,
        }


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


@dataclass(frozen=True, slots=True)
class CommonLimits:
    """Limits in watts that every board of a node accepts.

    Attributes:
        min_watts: The highest of the lowest limits.
        max_watts: The lowest of the highest limits.
        ceiling_watts: The lowest limit in force; the administrator's will, which a sweep respects.
        default_watts: What the boards run at if nothing is changed.
    """

    min_watts: float
    max_watts: float
    ceiling_watts: float
    default_watts: float


def common_limits(boards: Sequence[Device]) -> CommonLimits:
    """What all ``boards`` accept together."""
    ranges = [board.power_limits() for board in boards if isinstance(board, PowerLimit)]
    ceiling = min(found.current_watts for found in ranges)
    return CommonLimits(
        max(found.min_watts for found in ranges),
        min(found.max_watts for found in ranges),
        ceiling,
        min(ceiling, *(found.default_watts for found in ranges)),
    )


def checked_limits(wanted: Iterable[float], allowed: CommonLimits) -> tuple[float, ...]:
    """``wanted`` and the default, highest first, once all are known to be allowed.

    Raises:
        InvalidValueError: A limit that a board refuses, or above what the administrator set.
    """
    highest = min(allowed.max_watts, allowed.ceiling_watts)
    for watts in wanted:
        if allowed.min_watts <= watts <= highest:
            continue
        if allowed.min_watts <= watts <= allowed.max_watts:
            raise InvalidValueError(
                f"power limit {watts:g} W is above the {highest:g} W in force on this machine",
                remedy=f"give {allowed.min_watts:g} to {highest:g} W, "
                "or have the administrator raise the limit first",
            )
        raise InvalidValueError(
            f"power limit {watts:g} W is outside what the boards of this node accept",
            remedy=f"give {allowed.min_watts:g} to {highest:g} W",
        )
    return tuple(sorted({*wanted, allowed.default_watts}, reverse=True))
