"""Data-parallel ranks tune together: one decision, taken by rank 0, followed by all.

All ranks call ``step()`` equally often, so they reach every boundary at the same step. There they
put their readings together (joules add up, the slowest rank sets the pace), rank 0's machine
decides, and its command goes to everyone. A rank that fails says so, and all stop together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

from joulery.power.messages import Command, Reading, State, TuningEvent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.hardware.device import Device
    from joulery.power.choice import TuningChoice
    from joulery.power.knob import SettlingMachine

T = TypeVar("T")

# A board that draws power for nobody: busy less than this.
_IDLE_UTILISATION = 0.01


class Broadcast(Protocol):
    """What a framework's process group offers; `joulery.integrations.torch_ranks` has torch's."""

    @property
    def rank(self) -> int:
        """This process, counting from 0."""
        ...

    def agree(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        ...

    def gather(self, value: T) -> Sequence[T]:
        """Every rank's value, on every rank, by rank."""
        ...


class RankGroup:
    """Makes the tuners of all ranks follow rank 0.

    Args:
        broadcast: How the ranks talk.

    Example:
        >>> tuner = PowerTuner([my_gpu], objective, group=RankGroup(torch_ranks))  # doctest: +SKIP
    """

    def __init__(self, broadcast: Broadcast) -> None:
        self._broadcast = broadcast

    @property
    def rank(self) -> int:
        """This process, counting from 0."""
        return self._broadcast.rank

    def agree(self, value: T) -> T:
        """Rank 0's value, on every rank."""
        return self._broadcast.agree(value)

    def gather(self, value: T) -> Sequence[T]:
        """Every rank's value, on every rank, by rank."""
        return self._broadcast.gather(value)

    def joined(self, machine: SettlingMachine | None) -> SettlingMachine:
        """The machine as this rank sees it; None where the rank could not make one."""
        return _Joined(machine, self._broadcast)


class _Joined:
    def __init__(self, machine: SettlingMachine | None, broadcast: Broadcast) -> None:
        self._machine = machine
        self._broadcast = broadcast
        self._before: Sequence[Reading] = ()
        self._now_seconds = 0.0
        self._settled: TuningChoice | None = None

    @property
    def settled(self) -> TuningChoice | None:
        return self._settled

    def start(self, reading: Reading) -> Command:
        self._before = self._broadcast.gather(reading)
        return self._agreed(self._together(self._before), first=True)

    def send(self, reading: Reading) -> Command:
        found = self._broadcast.gather(reading)
        # The slowest rank sets the pace; clocks of different ranks need not agree.
        elapsed = (
            now.now_seconds - before.now_seconds
            for now, before in zip(found, self._before, strict=True)
        )
        self._now_seconds += max(elapsed)
        self._before = found
        return self._agreed(self._together(found), first=False)

    def _together(self, readings: Sequence[Reading]) -> Reading:
        failed = any(reading.event is TuningEvent.FAILED for reading in readings)
        return Reading(
            self._now_seconds,
            sum(reading.joules for reading in readings),
            sum(reading.sigma_joules**2 for reading in readings) ** 0.5,
            readings[0].steps,
            TuningEvent.FAILED if failed else readings[0].event,
        )

    def _agreed(self, reading: Reading, *, first: bool) -> Command:
        command, machine = Command(0, 1, State.STOPPED), self._machine
        if (
            self._broadcast.rank == 0
            and machine is not None
            and reading.event is not TuningEvent.FAILED
        ):
            # An error here must reach the others as a command too, or they would wait for ever.
            try:
                command = machine.start(reading) if first else machine.send(reading)
            except Exception:
                self._broadcast.agree((command, self._settled))
                raise
            self._settled = machine.settled
        command, self._settled = self._broadcast.agree((command, self._settled))
        return command


def idle_devices(node: Sequence[Device], used: Sequence[Device]) -> tuple[Device, ...]:
    """Boards of the node that nobody works on, though they draw power.

    Args:
        node: All boards of the node.
        used: Those of this job.
    """
    from joulery.errors import JouleryError
    from joulery.hardware.device import Capability, TelemetrySource

    mine = {device.info.id for device in used}
    found = []
    for device in node:
        if device.info.id in mine or Capability.TELEMETRY not in device.capabilities:
            continue
        assert isinstance(device, TelemetrySource)  # noqa: S101 - what the capability promises
        try:
            seen = device.telemetry()
        except JouleryError:
            continue
        if seen.utilisation is not None and seen.utilisation <= _IDLE_UTILISATION:
            found.append(device)
    return tuple(found)
