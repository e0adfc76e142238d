"""The meter: energy of windows of code.

Opening and closing a window reads no hardware: it records the time and the present span of each
device's timeline. A background sampler reads the counters when they refresh, and the energy at
the window's edges is interpolated from the refreshes around them. Nothing here raises into the
code being measured, except for a device that the user named and that does not exist.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import weakref
from typing import TYPE_CHECKING

from joulery.clock import REAL_CLOCK, check_clock_source
from joulery.errors import FileError, InvalidValueError
from joulery.hardware import Capability, DeviceKind, IntegratedPower, check_devices
from joulery.metering._calibration import load_calibrations
from joulery.metering._measurement import Flag, counted_positions
from joulery.metering._window import Window
from joulery.metering.energy._sampler import Sampler
from joulery.metering.energy._timeline import EnergyTimeline
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Self

    from joulery.clock import Clock
    from joulery.hardware import Device
    from joulery.metering._calibration import SensorCalibration
    from joulery.metering.energy._timeline import Knot

_log = logging.getLogger("joulery")

# Longest wait of a closing window for the readings of refreshed counters.
_CATCH_UP_SECONDS = 0.005  # by hand: eight boards are read in less than 1 ms
_SETTLE_SECONDS = 1.0  # by hand: ten periods of the slowest counter
_SETTLE_STEP_SECONDS = 0.01  # by hand: half a period of the fastest one

# By hand: management controllers average over some seconds and show steps of 1 to 8 W.
_SETTLED_SECONDS = 10.0
_STUCK_SECONDS = 30.0
_STUCK_WATTS = 50.0
_STUCK_SHARE = 0.1

_meters: weakref.WeakSet[Meter] = weakref.WeakSet()


class Meter:
    """Meter of the energy of this job's devices.

    Args:
        devices: Devices, or their names as ``joulery doctor`` lists them, or one name; all of
            this job's devices unless given.
        clock: Real or virtual clock.
        sample_hertz: Readings per second of each counter.
        synchronize: Function called before a window opens and closes, to wait for asynchronous
            devices (``torch.cuda.synchronize``).

    Raises:
        InvalidValueError: An argument is invalid.
        MissingHardwareError: This machine has no device of a named kind.
        UnknownDeviceError: A named device does not exist.

    Examples:
        >>> import joulery
        >>> meter = joulery.Meter()                      # doctest: +SKIP
        >>> with meter.window("epoch") as window:        # doctest: +SKIP
        ...     train()
        >>> window.joules, window.relative_error         # doctest: +SKIP
    """

    def __init__(
        self,
        devices: Iterable[Device | str] | None = None,
        *,
        clock: Clock = REAL_CLOCK,
        sample_hertz: float = 10.0,
        synchronize: Callable[[], None] | None = None,
    ) -> None:
        self.clock = check_clock_source(clock)
        names = [devices] if isinstance(devices, str) else devices
        self._wanted = None if names is None else check_devices(names, allow_names=True)
        if any(isinstance(name, str) for name in self._wanted or ()):
            self._find_devices()  # so that a mistyped name does not wait for the first window
        self._hertz = finite(sample_hertz, "sample_hertz", minimum=0.01)
        if not (synchronize is None or callable(synchronize)):
            raise InvalidValueError(
                f"synchronize={synchronize!r} cannot be called",
                remedy="give a function without arguments, such as torch.cuda.synchronize",
            )
        self._synchronize = synchronize
        self._now = clock.now
        self._wall = clock.wall
        self._timelines: tuple[EnergyTimeline, ...] = ()
        self._counted: tuple[EnergyTimeline, ...] = ()
        self._node: _NodeWatch | None = None
        self._sampler: Sampler | None = None
        self._open: dict[int, tuple[int, Window]] = {}  # by identity, with the thread it is from
        self._closing: dict[int, tuple[int, Window]] = {}
        self._starting = threading.Lock()

    def __repr__(self) -> str:
        subject = "all" if self._wanted is None else len(self._wanted)
        state = "not started" if self._sampler is None else "sampling"
        return f"<Meter: {state}, devices: {subject}>"

    def start(self) -> Self:
        """Find the devices and start sampling. The first window does this by itself."""
        with self._starting:
            if self._sampler is None:
                devices = self._find_devices()
                now = self.clock.now()
                calibrations = _calibrations()
                self._timelines = tuple(
                    EnergyTimeline(device, now, calibrations.get(device.info.id))
                    for device in devices
                )
                positions = counted_positions([device.info for device in devices])
                self._counted = tuple(self._timelines[position] for position in positions)
                self._node = _NodeWatch.of(self._timelines)
                sampler = Sampler(self._timelines, self.clock, self._hertz, self._on_knot)
                sampler.start()
                self._sampler = sampler
                _meters.add(self)
        return self

    def close(self) -> None:
        """Stop sampling. Closed windows keep their figures."""
        sampler, self._sampler = self._sampler, None
        if sampler is not None:
            sampler.stop()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def devices(self) -> tuple[Device, ...]:
        """Devices that are measured."""
        return tuple(timeline.device for timeline in self._timelines)

    def watts(self) -> dict[str, float]:
        """Power of each device as the sampler last saw it, by device id; unknown ones left out."""
        readings = (
            (timeline.device.info.id, timeline.latest_watts) for timeline in self._timelines
        )
        return {device: watts for device, watts in readings if watts is not None}

    def window(self, name: str = "window") -> Window:
        """A window to use in a ``with`` statement or as a decorator."""
        return Window(self, _check_name(name))

    def begin(self, window: Window | str) -> Window:
        """Open a window. Windows nest and overlap freely, also under the same name."""
        target = window if isinstance(window, Window) else self.window(window)
        if self._sampler is None:
            self.start()
        if self._synchronize is not None:
            self._synchronize()
        now, sampler = self._now(), self._sampler
        if sampler is not None and sampler.next_quick_seconds <= now:
            sampler.request(now)
        target._mark_begin(now, self._wall(), self._timelines)
        self._open[id(target)] = (threading.get_ident(), target)
        return target

    def end(self, window: Window | str) -> Window:
        """Close a window; by name, the latest of that name, this thread's before others'."""
        closed = window if isinstance(window, Window) else self._latest(_check_name(window))
        if self._synchronize is not None:
            self._synchronize()
        now = self._now()
        sampler = self._sampler
        late = False
        if sampler is not None and sampler.next_refresh_seconds <= now:
            late = sampler.request(now)
        if sampler is not None:
            sampler.flag_hanging(now)
        if not closed.closed:
            closed._mark_end(now, self._wall())
        entry = self._open.pop(id(closed), None)
        if entry is None:
            _log.warning("joulery: end(%r): no such window is open; begin it first", closed.name)
        elif late:
            # Its last refreshes are being read now, while the caller goes on.
            self._closing[id(closed)] = entry
        return closed

    def _catch_up(self, window: Window) -> None:
        """Wait a moment for readings of refreshes that came before a window's end.

        The first of windows that follow each other within seconds does; counters are read as they
        refresh after that.
        """
        if id(window) in self._closing:
            if self._sampler is not None:
                self._sampler.wait(_CATCH_UP_SECONDS)
            self._closing.pop(id(window), None)

    def _settle(self, window: Window) -> None:
        """Wait until the counters have refreshed past the window's end, a second at most."""
        deadline = self._now() + _SETTLE_SECONDS
        while (sampler := self._sampler) is not None and not window.settled:
            if (now := self._now()) >= deadline:
                break
            if sampler.next_quick_seconds <= now:
                sampler.request(now)
            self.clock.sleep(_SETTLE_STEP_SECONDS)

    def _find_devices(self) -> list[Device]:
        from joulery.hardware import with_energy
        from joulery.metering._attribution import my_devices, select

        clock = self.clock
        devices = my_devices(clock) if self._wanted is None else select(self._wanted, clock)
        counting = (with_energy(device, clock) for device in devices)
        return [device for device in counting if Capability.ENERGY in device.capabilities]

    def _latest(self, name: str) -> Window:
        thread = threading.get_ident()
        fitting = [entry for entry in tuple(self._open.values()) if entry[1].name == name]
        same_thread = [entry for entry in fitting if entry[0] == thread]
        return (same_thread or fitting or [(thread, Window(self, name))])[-1][1]

    def _on_knot(self, position: int, knot: Knot) -> None:
        # tuple() of the values is atomic, while other threads open and close windows.
        for key, (_, window) in tuple(self._closing.items()):
            if window._add_late_knot(position, knot):
                self._closing.pop(key, None)
        if self._node is not None and self._node.node is self._timelines[position]:
            self._node.check(knot.at_seconds)
        windows = tuple(self._open.values())
        if windows:
            total = sum(
                [timeline.share * (timeline.latest_watts or 0.0) for timeline in self._counted]
            )
            for _, window in windows:
                window._add_knot(position, knot, total)

    def _drop_sampler(self) -> None:
        """After a fork: the sampling thread stayed in the parent."""
        self._sampler = None
        self._starting = threading.Lock()
        self._open.clear()
        self._closing.clear()


class _NodeWatch:
    """Watches a node meter whose reading may stand still while the devices in the node do not."""

    def __init__(self, node: EnergyTimeline, parts: Sequence[EnergyTimeline]) -> None:
        self.node, self._parts = node, parts
        self._reading: float | None = None
        self._since = self._low = self._high = math.nan

    @classmethod
    def of(cls, timelines: Sequence[EnergyTimeline]) -> _NodeWatch | None:
        """Watch of the first node meter of power; None without one, or without devices beside it.

        A meter with a counter of its own shows by that whether it stands still.
        """
        nodes = [
            timeline
            for timeline in timelines
            if timeline.device.info.kind is DeviceKind.NODE
            and (timeline.reads_every_refresh or isinstance(timeline.device, IntegratedPower))
        ]
        parts = [t for t in timelines if t.is_plain]
        return cls(nodes[0], parts) if nodes and parts else None

    def check(self, now: float) -> None:
        """Flag the meter, just read, if it stands still although the devices drew more or less."""
        reading = self.node.sensed_watts
        total = sum(timeline.latest_watts or 0.0 for timeline in self._parts)
        if reading is None or reading != self._reading:
            self._reading, self._since = reading, now
        if not now - self._since > _SETTLED_SECONDS:
            self._low = self._high = total
            return
        self._low, self._high = min(self._low, total), max(self._high, total)
        change = max(_STUCK_WATTS, _STUCK_SHARE * (reading or 0.0))
        if now - self._since >= _STUCK_SECONDS and self._high - self._low >= change:
            self.node.add_flag(Flag.STUCK)


def _calibrations() -> dict[str, SensorCalibration]:
    try:
        return load_calibrations()
    except FileError as error:
        _log.warning("measuring without calibrations: %s", error)
        return {}


def _after_fork() -> None:
    for meter in tuple(_meters):
        meter._drop_sampler()


os.register_at_fork(after_in_child=_after_fork)


def _check_name(name: object) -> str:
    if not isinstance(name, str):
        raise InvalidValueError(
            f"{name!r} is not the name of a window", remedy='write meter.window("epoch")'
        )
    return name
