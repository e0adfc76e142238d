"""The boards of a service as one knob: a locked clock or a power limit, through leases."""

from __future__ import annotations

import math
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, cast

import numpy as np

from joulery.clock import REAL_CLOCK
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
from joulery.hardware import Capability, ClockLock, DeviceKind, PowerLimit, TelemetrySource
from joulery.metering import my_devices
from joulery.serving._boards import serving_board
from joulery.serving._controller import ClockLag, knob_curves

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
# A board's clock is read so often until it has followed a setting, for no longer than this.
_LOOK_SECONDS, _LONGEST_LAG_SECONDS = 0.01, 0.5
# A holder that stands still, or a governor that is gone, shows after a third of this time at most.
_LEASE_SECONDS = 2.0
KNOBS = ("auto", "clock", "limit")


class BoardsKnob:
    """One setting on all boards of a service; the last position is the original setting.

    Args:
        devices: Boards of the service.
        kind: ``clock``, ``limit``, or ``auto`` for the clock where all boards have one.
        hold: Function that holds a board; a lease of the governor unless given.
        clock: Real or virtual clock.

    Attributes:
        lag: Time that the boards take to follow, learned from the first changes.

    Raises:
        UnsupportedError: The boards have no such knob.
    """

    def __init__(
        self,
        devices: Sequence[Device],
        kind: str = "auto",
        hold: Hold | None = None,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        if kind not in KNOBS:
            raise InvalidValueError(f"no knob {kind!r}", remedy=f"one of {', '.join(KNOBS)}")
        self._devices = tuple(devices)
        self._hold = hold or partial(lease, ttl_seconds=_LEASE_SECONDS)
        self._clock = clock
        self.lag = ClockLag()
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
            if self.kind == "clock" and math.isnan(self.lag.seconds):
                self._change_timed(position)
            else:
                self._change(position)
            self.position = position
            self.follow()
        except JouleryError:
            self.release()
            raise

    def _change(self, position: int) -> None:
        setting = self.settings[position]
        for holder in self._leases:
            if position == len(self.settings) - 1:
                holder.reset()
            else:
                holder.set(watts=setting.power_limit_watts, clock_hertz=setting.clock_hertz)

    def _change_timed(self, position: int) -> None:
        """Change the clocks, and see when that of the last board follows."""
        highest = cast("ClockLock", self._devices[-1]).supported_clocks()[-1]
        clocks = [self.settings[n].clock_hertz or highest for n in (self.position, position)]
        middle, rises = 0.5 * sum(clocks), clocks[1] > clocks[0]

        def is_there() -> bool:
            hertz = _read_clock(self._devices[-1])
            return hertz is None or (hertz > middle) == rises

        shows, began = not is_there(), self._clock.now()
        self._change(position)
        if not shows:  # the clock cannot be read, or something else holds it down
            return
        while not is_there() and self._clock.now() - began < _LONGEST_LAG_SECONDS:
            self._clock.sleep(_LOOK_SECONDS)
        self.lag.add(self._clock.now() - began)

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


def _read_clock(board: Device) -> float | None:
    """Present clock of a board; None where it cannot be read."""
    with suppress(JouleryError):
        return board.telemetry().clock_hertz if isinstance(board, TelemetrySource) else None
    return None


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
