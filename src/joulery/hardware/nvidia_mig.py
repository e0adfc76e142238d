"""MIG instances: parts of an NVIDIA board that are held by different users."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from joulery.hardware.device import Capability
from joulery.hardware.nvidia_binding import memory_used, process_ids, told

if TYPE_CHECKING:
    from joulery.frontier import Provenance
    from joulery.hardware.device import DeviceInfo, EnergyReading, Telemetry
    from joulery.hardware.nvidia import NvidiaGpu
    from joulery.hardware.nvidia_binding import Nvml


class MigInstance:
    """A MIG instance: part of a board that one container or process holds.

    NVML counts energy per board only. The readings here are the board's own; ``info.share`` says
    for which part of them the instance stands.

    Args:
        nvml: The binding, initialised.
        handle: The instance's NVML handle.
        info: Who it is, with its board as parent.
        board: The board that it is part of.
    """

    def __init__(self, nvml: Nvml, handle: Any, info: DeviceInfo, board: NvidiaGpu) -> None:
        self._nvml = nvml
        self._handle = handle
        self._info = info
        self._board = board

    @property
    def info(self) -> DeviceInfo:
        """Who it is; the id is the instance's UUID."""
        return self._info

    @property
    def provenance(self) -> Provenance:
        """The board's, with the error unknown: shares need not draw alike."""
        found = self._board.provenance
        return replace(found, source=f"{found.source} of the whole board", relative_error=None)

    @property
    def capabilities(self) -> frozenset[Capability]:
        """What the board can do, less its knobs, which would act on the neighbours too."""
        knobs = {Capability.POWER_LIMIT, Capability.CLOCK_LOCK}
        return self._board.capabilities - knobs

    def read_energy(self) -> EnergyReading:
        """The counter of the whole board."""
        return self._board.read_energy()

    def counter_range_joules(self) -> float | None:
        """As the board's."""
        return self._board.counter_range_joules()

    def read_power(self) -> float:
        """Watts of the whole board."""
        return self._board.read_power()

    def telemetry(self) -> Telemetry:
        """Memory and processes of the instance, temperature and clock of the board."""
        found = self._board.telemetry()
        return replace(
            found,
            utilisation=None,  # NVML does not tell it per instance
            memory_used_bytes=told(lambda: memory_used(self._nvml, self._handle)),
            process_ids=told(lambda: process_ids(self._nvml, self._handle)),
        )
