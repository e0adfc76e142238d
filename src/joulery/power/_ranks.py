"""Data-parallel ranks tune together: one decision, taken by rank 0, followed by all.

All ranks call ``step()`` equally often, so they reach every boundary at the same step. There they
put their readings together (joules add up, the slowest rank sets the pace), rank 0's machine
decides, and its command goes to every rank. A rank that fails says so, and all stop together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from joulery.errors import InvalidValueError
from joulery.power._step_profiler import Command, Reading, TunerState, TuningEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.power._state_machine import Machine, TuningChoice

T = TypeVar("T")


@runtime_checkable
class ProcessGroup(Protocol):
    """The processes of a data-parallel job; `joulery.integrations.torch_ranks` has torch's."""

    @property
    def rank(self) -> int:
        """This process, counting from 0."""
        ...

    def broadcast(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        ...

    def all_gather(self, value: T) -> Sequence[T]:
        """Every rank's value, on every rank, by rank."""
        ...


def check_process_group(group: object) -> None:
    """Refuse what is neither a process group nor None.

    Raises:
        InvalidValueError: It is something else.
    """
    if isinstance(group, type) or not (group is None or isinstance(group, ProcessGroup)):
        raise InvalidValueError(
            f"{group!r} is not a process group",
            remedy="give an object with rank, broadcast and all_gather; for torch, "
            "joulery.integrations.torch_ranks.torch_ranks()",
        )


class RankMachine:
    """A machine as one rank of a group sees it; None where the rank could not make one."""

    def __init__(self, machine: Machine | None, group: ProcessGroup) -> None:
        self.choice: TuningChoice | None = None
        self._machine = machine
        self._group = group
        self._before: Sequence[Reading] = ()
        self._now_seconds = 0.0

    def start(self, reading: Reading) -> Command:
        """The first command."""
        self._before = self._group.all_gather(reading)
        self._now_seconds = max(rank.now_seconds for rank in self._before)
        return self._agree(self._combine(self._before), first=True)

    def send(self, reading: Reading) -> Command:
        """The answer to a reading."""
        readings = self._group.all_gather(reading)
        # The slowest rank sets the pace; clocks of different ranks need not agree.
        elapsed = (
            now.now_seconds - before.now_seconds
            for now, before in zip(readings, self._before, strict=True)
        )
        self._now_seconds += max(elapsed)
        self._before = readings
        return self._agree(self._combine(readings), first=False)

    def _combine(self, readings: Sequence[Reading]) -> Reading:
        failed = any(reading.event is TuningEvent.FAILED for reading in readings)
        return Reading(
            self._now_seconds,
            sum(reading.joules for reading in readings),
            sum(reading.sigma_joules**2 for reading in readings) ** 0.5,
            readings[0].steps,
            TuningEvent.FAILED if failed else readings[0].event,
            any(reading.hot for reading in readings),
        )

    def _agree(self, reading: Reading, *, first: bool) -> Command:
        command, machine = Command(0, 1, TunerState.STOPPED), self._machine
        if (
            self._group.rank == 0
            and machine is not None
            and reading.event is not TuningEvent.FAILED
        ):
            # An error here must reach the others as a command too, or they would wait for ever.
            try:
                command = machine.start(reading) if first else machine.send(reading)
            except Exception:
                self._group.broadcast((command, self.choice))
                raise
            self.choice = machine.choice
        command, self.choice = self._group.broadcast((command, self.choice))
        return command
