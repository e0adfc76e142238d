"""What a run runs on: its boards, what measures them, and the other processes of the job."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from joulery.clock import REAL_CLOCK
from joulery.hardware.device import Capability, DeviceKind

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulery.clock import Clock
    from joulery.hardware.device import Device
    from joulery.power.tuner import Agreement

T = TypeVar("T")


@runtime_checkable
class Ranks(Protocol):
    """Processes that can agree on values; :class:`joulery.power.ranks.RankGroup` for one."""

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


@dataclass(frozen=True, slots=True)
class RunEnvironment:
    """Where a run runs; looked at when asked, not before.

    Attributes:
        devices: Of this job and process; found unless given.
        group: The other processes of a data-parallel job.
        clock: Real or virtual.
        environ: Tells about other processes.
    """

    devices: Sequence[Device] | None = None
    group: Agreement | None = None
    clock: Clock = REAL_CLOCK
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def found(self) -> list[Device]:
        """All devices of this job and process."""
        if self.devices is not None:
            return list(self.devices)
        from joulery.metering.attribution import my_devices

        return my_devices(self.clock)

    def boards(self) -> list[Device]:
        """The accelerators whose power limit can be set."""
        return [
            device
            for device in self.found()
            if Capability.POWER_LIMIT in device.capabilities
            and device.info.kind is DeviceKind.GPU
            and device.info.parent is None
        ]

    def metered(self) -> list[Device]:
        """What the energy of the job is: of its accelerators, or of all there is without any."""
        known = [
            device
            for device in self.found()
            if {Capability.ENERGY, Capability.POWER} & device.capabilities
            and device.info.parent is None
        ]
        return [device for device in known if device.info.kind is DeviceKind.GPU] or known

    @property
    def processes(self) -> int:
        """How many train together, on all machines, as far as they know."""
        from joulery.metering.attribution import local_rank

        everywhere = self.environ.get("WORLD_SIZE", "")
        if everywhere.isdecimal() and int(everywhere) > 0:
            return int(everywhere)
        here = local_rank(self.environ)
        return 1 if here is None else here.size

    @property
    def ranks(self) -> Ranks | None:
        """The processes that can agree on values; None for one that decides alone."""
        return self.group if isinstance(self.group, Ranks) else None
