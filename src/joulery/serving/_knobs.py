"""The boards of a service as one knob: a locked clock or a power limit, through leases."""

from __future__ import annotations

import math
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from joulery.errors import (
    DeviceError,
    InvalidValueError,
    JouleryError,
    MissingHardwareError,
    UnknownDeviceError,
    UnsupportedError,
)
from joulery.frontier import Setting
from joulery.governor import Lease, held, lease
from joulery.hardware import Capability, ClockLock, DeviceKind, PowerLimit
from joulery.metering import my_devices
from joulery.serving._boards import serving_board
from joulery.serving._controller import knob_curves

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.clock import Clock
    from joulery.governor import Held, Hold
    from joulery.hardware import Device
    from joulery.serving._boards import ServingBoard
    from joulery.serving._controller import KnobCurves

# As in the simulator: fewer positions cost energy, lower clocks than this cost time and energy.
_POSITIONS, _LOWEST_SHARE = 14, 0.42
# Stands for boards that the catalog does not list: only ratios of times and energies are used.
_TYPICAL_BOARD = "A100"
# A holder that stands still, or a governor that is gone, shows after a third of this time at most.
_LEASE_SECONDS = 2.0
KNOBS = ("auto", "clock", "limit")


class BoardsKnob:
    """One setting on all boards of a service; the last position is the original setting.

    Args:
        devices: Boards of the service.
        kind: ``clock``, ``limit``, or ``auto`` for the clock where all boards have one.
        hold: Function that holds a board; a lease of the governor unless given.

    Raises:
        UnsupportedError: The boards have no such knob.
    """

    def __init__(
        self, devices: Sequence[Device], kind: str = "auto", hold: Hold | None = None
    ) -> None:
        if kind not in KNOBS:
            raise InvalidValueError(f"no knob {kind!r}", remedy=f"one of {', '.join(KNOBS)}")
        self._devices = tuple(devices)
        self._hold = hold or partial(lease, ttl_seconds=_LEASE_SECONDS)
        self._stack = ExitStack()
        self._leases: list[Held] = []
        self.kind = self._choose_kind(kind)
        self.settings = self._read_settings()
        self.position = len(self.settings) - 1

    def _choose_kind(self, kind: str) -> str:
        def all_have(capability: Capability) -> bool:
            return bool(self._devices) and all(
                capability in device.capabilities for device in self._devices
            )

        if kind in ("auto", "clock") and all_have(Capability.CLOCK_LOCK):
            return "clock"
        if kind in ("auto", "limit") and all_have(Capability.POWER_LIMIT):
            return "limit"
        raise UnsupportedError(
            "the boards of the service have no clock to lock and no power limit to set",
            remedy="see `joulery doctor`; `joulery serving meter` needs neither",
        )

    def _read_settings(self) -> list[Setting]:
        if self.kind == "clock":
            common = set.intersection(
                *(set(cast("ClockLock", device).supported_clocks()) for device in self._devices)
            )
            clocks = np.array(sorted(common))
            goals = np.linspace(max(clocks[0], _LOWEST_SHARE * clocks[-1]), clocks[-1], _POSITIONS)
            values = sorted({float(clocks[np.abs(clocks - goal).argmin()]) for goal in goals})
            return [*(Setting(clock_hertz=value) for value in values[:-1]), Setting()]
        ranges = [cast("PowerLimit", device).power_limits() for device in self._devices]
        low = max(limits.min_watts for limits in ranges)
        high = min(limits.current_watts for limits in ranges)
        if low >= high:
            raise UnsupportedError(
                f"the power limit stands at its lowest, {low:g} W", remedy="raise it first"
            )
        watts = np.linspace(low, high, _POSITIONS).round()[:-1]
        return [*(Setting(power_limit_watts=float(value)) for value in watts), Setting()]

    def curves(self) -> KnobCurves:
        """Effect of each position, predicted from the catalog."""
        board = board_of(self._devices)
        highest = board.max_clock_hertz
        if self.kind == "clock":
            device = cast("ClockLock", self._devices[0])
            highest = device.supported_clocks()[-1]
        rows = [
            (
                setting.power_limit_watts or board.limit_watts,
                setting.clock_hertz and setting.clock_hertz / highest * board.max_clock_hertz,
            )
            for setting in self.settings
        ]
        return knob_curves(board, rows)

    def hold(self) -> None:
        """Take the leases at the original setting, before anything is to be set.

        Raises:
            JouleryError: Another process holds a board, or this user may not set it.
        """
        if not self._leases:
            self._leases = self._stack.enter_context(held(self._devices, hold=self._hold))

    def set(self, position: int) -> None:
        """Set a position on every board.

        Raises:
            JouleryError: A board could not be set, or its lease was interrupted; all boards are
                back at the original setting, as far as this process may set them.
        """
        try:
            self.hold()
            if any(isinstance(holder, Lease) and holder.interruptions for holder in self._leases):
                raise DeviceError(
                    "the governor ended, or this process stood still for too long",
                    remedy="see `joulery governor status`",
                )
            if position == self.position:
                return
            setting = self.settings[position]
            for holder in self._leases:
                if position == len(self.settings) - 1:
                    holder.reset()
                else:
                    holder.set(watts=setting.power_limit_watts, clock_hertz=setting.clock_hertz)
            self.position = position
            self.follow()
        except JouleryError:
            self.release()
            raise

    def follow(self) -> float | None:
        """Keep to the power that a cluster's agent leaves the boards, and promise that.

        Returns:
            Lowest power that it leaves a board; None where all have what they could draw.
        """
        limit, shares = self.settings[self.position].power_limit_watts, []
        for holder in [holder for holder in self._leases if isinstance(holder, Lease)]:
            watts = holder.follow(limit)
            if watts is not None and watts < (holder.ceiling_watts or math.inf):
                shares.append(watts)
        return min(shares, default=None)

    def release(self) -> None:
        """Put the original setting back on every board, and end the leases."""
        self._leases = []
        self.position = len(self.settings) - 1
        self._stack.close()


def service_boards(clock: Clock) -> list[Device]:
    """GPUs of this machine, or of this job.

    Raises:
        MissingHardwareError: There is none.
    """
    boards = [device for device in my_devices(clock) if device.info.kind is DeviceKind.GPU]
    if not boards:
        raise MissingHardwareError(
            "there is no GPU here whose energy could be read", remedy="see `joulery doctor`"
        )
    return boards


def board_of(devices: Sequence[Device]) -> ServingBoard:
    """The catalog's board of these devices; a typical one where it lists none."""
    try:
        return serving_board(devices[0].info.name)
    except (UnknownDeviceError, IndexError):
        return serving_board(_TYPICAL_BOARD)
