"""One device's energy over time, as knots and spans.

A knot is a moment at which the energy used so far is known; between two knots lies a span.
Windows keep the spans in which they begin and end, so a timeline needs no history: its memory
does not grow with its length or with the number of windows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from joulery.errors import DeviceLostError, JouleryError
from joulery.hardware import Capability, EnergyMeter, PowerMeter, TelemetrySource
from joulery.metering._measurement import Flag
from joulery.metering.energy._refresh import Refresh, RefreshTimer
from joulery.metering.energy._repair import Advance, CounterRepair

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulery.hardware import Device, EnergyReading

# No change for this long, and for this many periods, while the board draws power, is a freeze.
_FREEZE_SECONDS = 1.0
_FREEZE_PERIODS = 8
# The first reading may be this old: no board refreshes less often.
_FIRST_HALF_WIDTH_SECONDS = 0.05
_TYPICAL_PERIOD_SECONDS = 0.1
# Relative error of a period that is known from the first few refreshes.
_PERIOD_ERROR = 0.01
# Relative change of mean power from span to span: what to expect of an unknown load, how fast to
# learn better, and from where on it is a new load rather than noise.
_UNKNOWN_NOISE = 0.1
_NOISE_GAIN = 0.2
_NEW_LOAD = 0.3
# Utilisation is read this rarely: the call costs more than reading the counter.
_IDLE_CHECK_SECONDS = 2.0
# Over less than this, coarse counters make mean power meaningless.
SHORTEST_MEAN_SECONDS = 0.015


_NO_FLAGS: Mapping[Flag, int] = MappingProxyType({})


class Knot(NamedTuple):
    """A moment at which the energy used so far is known.

    Attributes:
        at_seconds: Time of the counter's refresh.
        joules: Energy since the timeline began, repaired, never decreasing.
        half_width_seconds: Largest error of ``at_seconds``.
        variance: Variance of ``joules`` from all repairs so far, in J².
        watts: Power that the sensor showed then, if any.
        idle_joules: Part of ``joules`` used while the device reported no utilisation.
        flags: Number of faults of each kind so far.
    """

    at_seconds: float
    joules: float
    half_width_seconds: float = 0.0
    variance: float = 0.0
    watts: float | None = None
    idle_joules: float = 0.0
    flags: Mapping[Flag, int] = _NO_FLAGS


@dataclass(slots=True)
class Span:
    """The time between two knots, and the power around it.

    Attributes:
        start: Knot that opened it.
        before: Knot that opened the span before; None for the first span.
        end: Knot that closed it; None while it is open.
        after: Knot that closed the span after; None until then.
        watts: Power as it began: the mean over the span before, or the sensor's value; NaN when
            there was neither.
        noise: Typical relative change of mean power from one span to the next.
    """

    start: Knot
    before: Knot | None = None
    end: Knot | None = None
    after: Knot | None = None
    watts: float = math.nan
    noise: float = _UNKNOWN_NOISE


class EnergyTimeline:
    """One device's energy over time; one thread calls :meth:`read`, any may take :attr:`span`."""

    def __init__(self, device: Device, now: float) -> None:
        self.device = device
        self.share = device.info.share
        self.timer = RefreshTimer()
        self.due_seconds = now
        self.lost = False
        self.span: Span | None = None
        self.latest_watts: float | None = None
        self._counter: CounterRepair | None = None
        self._closed: Span | None = None
        self._noise = _UNKNOWN_NOISE
        # The first two spans, until it is known when the first of them really began.
        self._early: list[Span] = []
        # Replaced, never changed, so that knots and windows can share it.
        self.flags: dict[Flag, int] = {}
        self._sensor_watts: float | None = None
        # Checked once: checking a protocol costs more than reading a counter.
        self._meter = device if isinstance(device, EnergyMeter) else None
        claimed = Capability.TELEMETRY in device.capabilities
        self._telemetry = device if claimed and isinstance(device, TelemetrySource) else None
        self._idle = False
        self._idle_checked_at = now - _IDLE_CHECK_SECONDS

    @property
    def reports_idle(self) -> bool:
        """Whether the device reports its utilisation."""
        return self._telemetry is not None

    def read(self, not_before: float) -> Knot | None:
        """Read the counter; the knot that this revealed, if any. Never raises.

        Args:
            not_before: Earliest time of the next reading.
        """
        self.due_seconds = not_before
        if self.lost or self._meter is None:
            return None
        try:
            reading = self._meter.read_energy()
            if self._counter is None:
                self._counter = CounterRepair(reading.range_joules, self.device.info.max_watts)
                return self._begin(reading, self._counter)
        except DeviceLostError:
            self.lost = True
            self._add_flag(Flag.LOST)
            return None
        except JouleryError:
            self._add_flag(Flag.READ_ERROR)
            return None
        knot = self._follow(reading, self._counter)
        self.due_seconds = self.timer.next_due(not_before)
        return knot

    def _begin(self, reading: EnergyReading, counter: CounterRepair) -> Knot:
        counter.start(reading)
        self.timer.observe(reading.read_at_seconds, reading.refreshed_at_seconds, changed=False)
        self.due_seconds = self.timer.next_due(self.due_seconds)
        self.latest_watts = self._sensor_watts = reading.watts
        at, stamp = reading.read_at_seconds, reading.refreshed_at_seconds
        if stamp is not None:
            # Not trusted yet, but nothing better is known; a frozen counter's may be very old.
            at = min(at, max(stamp, at - 2 * _FIRST_HALF_WIDTH_SECONDS))
        knot = Knot(at, 0.0, _FIRST_HALF_WIDTH_SECONDS, watts=reading.watts, flags=self.flags)
        self.span = Span(knot, watts=math.nan if reading.watts is None else reading.watts)
        self._early = [self.span]
        return knot

    def _follow(self, reading: EnergyReading, counter: CounterRepair) -> Knot | None:
        changed = counter.changed(reading)
        refresh = self.timer.observe(
            reading.read_at_seconds, reading.refreshed_at_seconds, changed=changed
        )
        if self._early and self.timer.period_seconds is not None:
            self._place_first(self._early, self.timer.period_seconds)
            self._early = []
        if refresh is not None:
            slack = 2 * (self.timer.period_seconds or _TYPICAL_PERIOD_SECONDS)
            advance = counter.advance(reading, self._typical_watts(), slack)
            self._sensor_watts = reading.watts
            return self._add(refresh, advance)
        if self._closed is None and self.timer.stamps_trusted and self.span is not None:
            # The first knot's stamp stood still with the value: it was its refresh.
            self.span.start = self.span.start._replace(half_width_seconds=0.0)
        watts = self._power_if_frozen(reading, counter)
        if watts is None:
            return None
        self._sensor_watts = watts
        return self._add(Refresh(reading.read_at_seconds), counter.fill(reading, watts))

    def _add(self, refresh: Refresh, advance: Advance) -> Knot | None:
        span = self.span
        assert span is not None  # noqa: S101 - _begin came first
        if advance.flag is not None:
            self._add_flag(advance.flag)
        start = span.start
        at = max(refresh.at_seconds, start.at_seconds)
        idle = start.idle_joules + (advance.joules if self._is_idle(at) else 0.0)
        knot = Knot(
            at_seconds=at,
            joules=start.joules + advance.joules,
            half_width_seconds=refresh.half_width_seconds,
            variance=start.variance + advance.variance,
            watts=self._sensor_watts,
            idle_joules=idle,
            flags=self.flags,
        )
        if at <= start.at_seconds:
            # Two refreshes at one moment: keep the later energy rather than open an empty span.
            span.start = knot
            return None
        self._close(span, knot)
        return knot

    def _place_first(self, early: list[Span], period: float) -> None:
        """Correct the time of the first value's refresh, now that the period is known."""
        first = early[0]
        if first.end is None or self.timer.stamps_trusted:
            return
        read_at, unsure = first.start.at_seconds, first.end.half_width_seconds
        at = min(read_at, first.end.at_seconds - period) if period > 0 else read_at
        first.start = first.start._replace(
            at_seconds=max(at, read_at - period), half_width_seconds=unsure + _PERIOD_ERROR * period
        )
        if len(early) > 1:
            early[1].before = first.start

    def _close(self, span: Span, knot: Knot) -> None:
        watts = mean_watts(span.start, knot)
        if span.before is not None:
            self._learn_noise(watts, span.watts)
        if self._closed is not None:
            self._closed.after = knot
        span.noise = self._noise
        span.end = knot
        self._closed = span
        if knot.at_seconds - span.start.at_seconds >= SHORTEST_MEAN_SECONDS:
            self.latest_watts = watts
        self.span = Span(knot, before=span.start, watts=watts, noise=self._noise)
        if len(self._early) == 1:
            self._early.append(self.span)

    def _learn_noise(self, watts: float, watts_before: float) -> None:
        change = abs(watts - watts_before) / max(watts, watts_before, 1e-9)
        if change > _NEW_LOAD:
            self._noise = max(self._noise, _UNKNOWN_NOISE)
        else:
            self._noise += _NOISE_GAIN * (change - self._noise)

    def _add_flag(self, flag: Flag) -> None:
        self.flags = {**self.flags, flag: self.flags.get(flag, 0) + 1}

    def _typical_watts(self) -> float:
        """Best guess of the power just now without the counter."""
        return self._sensor_watts or self.latest_watts or 0.0

    def _power_if_frozen(self, reading: EnergyReading, counter: CounterRepair) -> float | None:
        """Power of a device whose counter should have moved by now; None when it is not frozen."""
        patience = max(_FREEZE_SECONDS, _FREEZE_PERIODS * (self.timer.period_seconds or 0.0))
        if counter.still_seconds(reading) < patience:
            return None
        watts = reading.watts
        if watts is None and Capability.POWER in self.device.capabilities:
            assert isinstance(self.device, PowerMeter)  # noqa: S101 - what it claims
            try:
                watts = self.device.read_power()
            except JouleryError:
                watts = None
        return watts or None

    def _is_idle(self, now: float) -> bool:
        if self._telemetry is None:
            return False
        if now - self._idle_checked_at >= _IDLE_CHECK_SECONDS:
            self._idle_checked_at = now
            try:
                self._idle = self._telemetry.telemetry().utilisation == 0
            except JouleryError:
                self._idle = False
        return self._idle


def mean_watts(first: Knot, second: Knot) -> float:
    """Mean power between two knots."""
    return (second.joules - first.joules) / (second.at_seconds - first.at_seconds)
