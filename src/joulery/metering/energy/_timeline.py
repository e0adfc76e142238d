"""One device's energy over time, as knots and spans.

A knot is a moment at which the energy used so far is known; between two knots lies a span.
Windows keep the spans in which they begin and end, so a timeline needs no history: its memory
does not grow with its length or with the number of windows.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from joulery.errors import DeviceLostError, JouleryError
from joulery.frontier import Origin
from joulery.hardware import (
    Capability,
    DeviceKind,
    EnergyMeter,
    IntegratedPower,
    PowerMeter,
    PowerSensor,
    Telemetry,
    TelemetrySource,
)
from joulery.metering._measurement import SIGMAS_95, Flag
from joulery.metering.energy._interpolate import (
    edge_variance,
    hidden_share,
    in_step_watts,
    mean_watts,
    missed_fraction,
    note_powers,
)
from joulery.metering.energy._power import PowerIntegral
from joulery.metering.energy._refresh import Refresh, RefreshTimer
from joulery.metering.energy._repair import Advance, CounterRepair
from joulery.metering.energy._scatter import Scatter

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from joulery.hardware import Device, EnergyReading, Throttle
    from joulery.metering._calibration import SensorCalibration
    from joulery.metering.energy._interpolate import EnergyEstimate

# No change for this long, and for this many periods, while the board draws power, is a freeze.
_FREEZE_SECONDS = 1.0  # by hand
_FREEZE_PERIODS = 8  # by hand
# Power samples further apart than this leave a gap, whose energy has this relative error.
_GAP_SECONDS = 5.0  # by hand
_GAP_ERROR = 0.5  # by hand
# The first reading may be this old: no board refreshes less often.
_FIRST_HALF_WIDTH_SECONDS = 0.05  # half of the catalog's longest period
_TYPICAL_PERIOD_SECONDS = 0.1  # most sensors of the catalog
# Relative error of a period that is known from the first few refreshes.
_PERIOD_ERROR = 0.01  # on simulated boards
# Relative change of mean power from span to span: what to expect of an unknown load, how fast to
# learn better, and from where on it is a new load rather than noise.
_UNKNOWN_NOISE = 0.1  # on simulated boards
_NOISE_GAIN = 0.2  # on simulated boards
_NEW_LOAD = 0.3  # on simulated boards
# Utilisation is read this rarely while power stays the same within a fraction: the call costs more
# than reading the counter.
_IDLE_CHECK_SECONDS = 1.0  # by hand
_IDLE_CHECK_CHANGE = 0.1  # by hand
# … but a sensor that looks at less of the time than this may miss that an idle board is no longer.
_PART_TIME = 0.7  # between those of the catalog: 0.2 to 0.55, and 0.95
# Power of an idle board, and the least of any that is on, relative to its maximum.
_IDLE = 0.1  # median of the catalog's boards
_LEAST = 0.02  # by hand
# Highest power relative to the present one, where the maximum is unknown.
_SWING = 3.0  # by hand
# A reading this close to the mean power over its span, relative, repeats it.
_REPEATS_MEAN = 0.05  # on simulated boards
_AFTER_LOSS_SECONDS = 0.02  # by hand
# A reading this far outside its counter's mean powers of late, relative, and so often, is not what
# it counts.
_COMPARED = 12  # on simulated boards
_DISAGREES = 0.1  # on simulated boards
_DISAGREEMENTS = 2  # on simulated boards
# By hand: a window of this many looks shows its own load; one sigma of one that none saw, relative
# to the farthest power that is possible.
_LOOKS = 2.0
_OF_ALONE = 0.5
# One sigma of the power inside a span that nothing shows, relative: of a board whose utilisation
# says that work runs all of the time or never, and of any other. By hand: phases of a training
# step, and bursts of some milliseconds.
_SMOOTH = 0.08
_ROUGH = 0.22
# Utilisation from which on work runs all of the time: bursts of half of it show 48 to 52 %.
_BUSY = 0.95
# Utilisation is that of so long before, and is read often for so long after power changed.
_UTILISATION_SECONDS = 1 / 6  # NVML's manual: 1/6 s to 1 s
_UTILISATION_SETTLES_SECONDS = 0.5  # by hand
# Over less than this, coarse counters make mean power meaningless.
SHORTEST_MEAN_SECONDS = 0.015  # by hand: millijoules over less are noise


_NO_FLAGS: Mapping[Flag | Throttle, int] = MappingProxyType({})
# A power sensor of which nothing is known.
_FULL_TIME = PowerSensor("full time", 0.1, 0.1)


class Knot(NamedTuple):
    """A moment at which the energy used so far is known.

    Attributes:
        at_seconds: Time of the counter's refresh.
        joules: Energy since the timeline began, repaired, never decreasing.
        half_width_seconds: Largest error of ``at_seconds``.
        variance: Variance of ``joules`` from all repairs so far, in J².
        watts: Power that the sensor showed then, where it is more recent than that of the counter.
        idle_joules: Part of ``joules`` used while the device reported no utilisation.
        flags: Number of faults and of seconds with each kind of throttling so far.
        sigma_joules: One sigma of ``joules`` that later knots do not share, as of a lagging sensor.
        uneven_joules: Part of ``joules`` whose power may have come in bursts.
        in_step_joules: One sigma of ``joules``, should bursts of work be in step with the looks.
    """

    at_seconds: float
    joules: float
    half_width_seconds: float = 0.0
    variance: float = 0.0
    watts: float | None = None
    idle_joules: float = 0.0
    flags: Mapping[Flag | Throttle, int] = _NO_FLAGS
    sigma_joules: float = 0.0
    uneven_joules: float = 0.0
    in_step_joules: float = 0.0


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
        roughness: One sigma of the power inside the span that nothing shows, relative to its mean.
        amplitude: Spread of the readings around the span, relative to the highest.
        throttles: Reasons why the device's clock was lowered as the span began.
        power_before: Power as it began and one sigma, in watts; None until noted.
        power_after: The same as it ended.
    """

    start: Knot
    before: Knot | None = None
    end: Knot | None = None
    after: Knot | None = None
    watts: float = math.nan
    noise: float = _UNKNOWN_NOISE
    roughness: float = _ROUGH
    amplitude: float = 0.0
    throttles: Collection[Throttle] = ()
    power_before: tuple[float, float] | None = None
    power_after: tuple[float, float] | None = None


class EnergyTimeline:
    """One device's energy over time; one thread calls ``read``, any may take ``span``.

    Attributes:
        span: Present span; None until the device answered.
        bounds: Lowest and highest power that the device may draw, in watts; None when unknown.
        sensed_watts: Last reading of the power sensor, where there is one.
        throttles: Reasons why the device's clock was lowered when it was last asked.
        is_plain: Whether nothing else that is measured contains the device or is part of it.
        reads_every_refresh: Whether a refresh that is not read is lost, as without a counter.
        reports_idle: Whether the device reports its utilisation.
    """

    def __init__(
        self, device: Device, now: float, calibration: SensorCalibration | None = None
    ) -> None:
        self.device = device
        self.share = device.info.share
        self.is_plain = device.info.kind is not DeviceKind.NODE and device.info.parent is None
        self.sensor: PowerSensor | None = getattr(device, "power_sensor", None)
        self.calibration = calibration
        self._assumed = device.provenance.origin is Origin.ASSUMED
        self._power: PowerIntegral | None = None
        self.reads_every_refresh = power_only = (
            isinstance(device, IntegratedPower) and device.info.kind is DeviceKind.GPU
        )
        expected = self.sensor.period_seconds if power_only and self.sensor else None
        self.timer = RefreshTimer(repeats=power_only, expected_seconds=expected)
        self.due_seconds = now
        self.lost = False
        self.span: Span | None = None
        self.latest_watts: float | None = None
        self._counter: CounterRepair | None = None
        self._closed: Span | None = None
        self._noise = _UNKNOWN_NOISE
        self._lowest_watts = math.inf
        self.bounds = self._find_bounds()
        self._disagreements = 0
        prompt = self.sensor is not None and self.sensor.is_prompt
        self._looks_part_time = self.sensor is not None and self.sensor.duty < _PART_TIME
        self._is_part_time = self._looks_part_time and not power_only
        self._means: deque[float] = deque(maxlen=2 if prompt else _COMPARED)
        # Of the sensor's readings; of mean powers where they show more.
        self._scatter, self._scatters_means = Scatter(), not prompt
        self._utilisation: float | None = None
        self.throttles: Collection[Throttle] = ()
        # The first two spans, until it is known when the first of them really began.
        self._early: list[Span] = []
        # Replaced, never changed, so that knots and windows can share it.
        self.flags: dict[Flag | Throttle, int] = {}
        self.sensed_watts: float | None = None
        self._filled_watts: float | None = None  # reading of the sensor in a freeze
        self._sensor_moved_at = -math.inf
        # Checked once: checking a protocol costs more than reading a counter.
        self._meter = device if isinstance(device, EnergyMeter) else None
        claimed = Capability.TELEMETRY in device.capabilities
        self._telemetry = device if claimed and isinstance(device, TelemetrySource) else None
        self.reports_idle = self._telemetry is not None
        self.idle = False
        self._idle_checked_at = now - _IDLE_CHECK_SECONDS
        self._idle_checked_watts = 0.0
        self._moved_at = -math.inf

    def read(self, not_before: float) -> Knot | None:
        """Read the counter, again not before a moment; the knot found, if any. Never raises."""
        self.due_seconds = not_before
        if self.lost or self._meter is None:
            return None
        try:
            if self.reads_every_refresh:
                return self._read_power()
            reading = self._meter.read_energy()
            if self._counter is None:
                self._counter = CounterRepair(reading, self.device.info.max_watts)
                return self._begin(reading)
        except DeviceLostError:
            return self._lose(not_before)
        except JouleryError:
            self.add_flag(Flag.READ_ERROR)
            return None
        knot = self._follow(reading, self._counter)
        self.due_seconds = self.timer.next_due(not_before)
        return knot

    def _read_power(self) -> Knot | None:
        assert isinstance(self.device, IntegratedPower)  # noqa: S101 - its every refresh is read
        watts, now = self.device.sample()
        power = self._power
        changed = power is not None and watts != power.watts
        refresh = self.timer.observe(now, None, changed=changed)
        self.due_seconds = self.timer.next_due(now)
        self.sensed_watts = watts
        if power is None:
            self._power = PowerIntegral(self.sensor or _FULL_TIME, watts, now)
            self.latest_watts = self._possible(watts)
            self.span = Span(Knot(now, 0.0, flags=self.flags), watts=self.latest_watts)
            return self.span.start
        if self.timer.period_seconds:
            power.period_seconds = self.timer.period_seconds
        if refresh is None:
            advance = power.repeat(now)
            return None if advance is None else self._add(Refresh(power.at_seconds), advance)
        return self._add(refresh, power.change(watts, refresh.at_seconds, now))

    def _lose(self, now: float) -> Knot | None:
        """End the timeline: a board that is gone draws nothing."""
        self.lost = True
        self.bounds = self._find_bounds()
        self.add_flag(Flag.LOST)
        span = self.span
        if span is None:
            return None
        # It went at some moment since the last knot.
        missed = 0.5 * (self.latest_watts or 0.0) * (now - span.start.at_seconds)
        self._add(Refresh(now), Advance(missed, missed**2 / 3))
        return self._add(Refresh(now + _AFTER_LOSS_SECONDS), Advance(0.0))

    def _begin(self, reading: EnergyReading) -> Knot:
        self.timer.observe(reading.read_at_seconds, reading.refreshed_at_seconds, changed=False)
        self.due_seconds = self.timer.next_due(self.due_seconds)
        self.latest_watts = self.sensed_watts = reading.watts
        at, stamp = reading.read_at_seconds, reading.refreshed_at_seconds
        if stamp is not None:
            # Not trusted yet, but nothing better is known; a frozen counter's may be very old.
            at = min(at, max(stamp, at - 2 * _FIRST_HALF_WIDTH_SECONDS))
        knot = Knot(at, 0.0, _FIRST_HALF_WIDTH_SECONDS, watts=reading.watts, flags=self.flags)
        watts = math.nan if reading.watts is None else self._possible(reading.watts)
        self.span = Span(knot, watts=watts)
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
            still_seconds = counter.still_seconds(reading)
            typical_watts = self.sensed_watts or self.latest_watts or 0.0
            advance = counter.advance(reading, typical_watts, slack)
            if isinstance(self.device, IntegratedPower) and still_seconds > _GAP_SECONDS:
                variance = (_GAP_ERROR * advance.joules) ** 2
                advance = Advance(advance.joules, variance, Flag.GAP)
            self.sensed_watts, self._filled_watts = reading.watts, None
            return self._add(refresh, advance)
        if self._closed is None and self.timer.stamps_trusted and self.span is not None:
            # The first knot's stamp stood still with the value: it was its refresh.
            self.span.start = self.span.start._replace(half_width_seconds=0.0)
        if reading.watts == 0 and counter.still_seconds(reading) >= _FREEZE_SECONDS:
            return self._add(Refresh(reading.read_at_seconds), Advance(0.0))  # it states nothing
        watts = self._power_if_frozen(reading, counter)
        if watts is None:
            return None
        now = reading.read_at_seconds
        if self._filled_watts is None:
            self._sensor_moved_at = -math.inf  # until it is seen to: it may have frozen, too
        elif watts != self._filled_watts:
            self._sensor_moved_at = now
        self.sensed_watts = self._filled_watts = watts
        advance = counter.fill(reading, watts, self._sigma_if_stuck(watts, now))
        return self._add(Refresh(now), advance)

    def _sigma_if_stuck(self, watts: float, now: float) -> float | None:
        """One sigma of a power that stands still like its counter; None while it moves."""
        if now - self._sensor_moved_at < _FREEZE_SECONDS / 2:
            return None
        low, high = self.bounds
        farthest = max(watts - low, (_SWING * watts if high is None else high) - watts)
        return farthest / SIGMAS_95

    def _add(self, refresh: Refresh, advance: Advance) -> Knot | None:
        span = self.span
        assert span is not None  # noqa: S101 - _begin came first
        if advance.flag is not None:
            self.add_flag(advance.flag)
        start = span.start
        at = max(refresh.at_seconds, start.at_seconds)
        watts = advance.joules / (at - start.at_seconds) if at > start.at_seconds else 0.0
        self._compare_counter(watts, at - start.at_seconds)
        idle = start.idle_joules + (advance.joules if self._is_idle(at, watts) else 0.0)
        uneven = start.uneven_joules + self._spread(at, watts) * advance.joules
        in_step = start.in_step_joules + self._in_step_joules(watts, at - start.at_seconds)
        knot = Knot(
            at_seconds=at,
            joules=start.joules + advance.joules,
            half_width_seconds=refresh.half_width_seconds,
            variance=start.variance + advance.variance,
            watts=self._recent_watts(span, watts),
            idle_joules=idle,
            flags=self.flags,
            sigma_joules=advance.sigma_joules,
            uneven_joules=uneven,
            in_step_joules=in_step,
        )
        if at <= start.at_seconds:
            # Two refreshes at one moment: keep the later energy rather than open an empty span.
            span.start = knot
            note_powers(span)
            return None
        self._close(span, knot)
        return knot

    def unseen_variance(
        self, energy: EnergyEstimate, began: float, end_at: float, first: Span, last: Span
    ) -> float:
        """Variance in J² of a window's energy from what the sensor does not see."""
        sensor, seconds = self.sensor, end_at - began
        if sensor is None or seconds <= 0:
            return 0.0
        low, highest = self.bounds
        high = _SWING * energy.joules / seconds if highest is None else highest
        variance = 0.0
        if energy.edges_joules is not None:
            start, stop = energy.edges_joules
            variance += edge_variance(first, began, start, low, high)
            variance += edge_variance(last, end_at, stop, low, high)
        if self._power is not None:
            later = [mean_watts(knot, end) for knot, end in _pairs(last)]
            change = max(abs(watts - first.watts) for watts in (last.watts, *later))
            variance += (self._power.lag.error_seconds * change) ** 2
        return variance

    @property
    def may_look_part_time(self) -> bool:
        """Whether the counter may add up what a sensor sees that misses a part of the time."""
        return self._is_part_time and self._disagreements < _DISAGREEMENTS

    def hidden_sigma(self, joules: float, seconds: float, first: Span, last: Span) -> float:
        """One sigma of a window's energy from bursts, should the counter see what the sensor sees.

        That it does is an assumption; readings that scatter make it matter.
        """
        begin, end = first.start, last.end or last.start
        total = end.joules - begin.joules
        if self.sensor is None or total <= 0 or self._disagreements >= _DISAGREEMENTS:
            return 0.0
        period = self.timer.period_seconds or self.sensor.period_seconds
        missed = self._missed_fraction(self.sensor)
        slow = (end.uneven_joules - begin.uneven_joules) / total
        hidden = hidden_share(missed, last.amplitude, slow, seconds, period) * joules
        in_step = (end.in_step_joules - begin.in_step_joules) / total * joules
        # A window of one or two looks may hold a load of its own that neither saw.
        low, high = self.bounds
        farthest = max(joules - low * seconds, (high or 0.0) * seconds - joules)
        alone = max(0.0, 1.0 - seconds / (_LOOKS * period)) if not self.idle else 0.0
        return math.hypot(hidden, in_step, _OF_ALONE * alone * missed * max(0.0, farthest))

    def largest_sigma(self, joules: float, seconds: float) -> float:
        """One sigma whose bar of 95 % holds whatever the device may draw in a window."""
        low, high = self.bounds
        if high is None:
            return math.inf
        return max(joules - low * seconds, high * seconds - joules) / SIGMAS_95

    def _possible(self, watts: float) -> float:
        """``watts`` as far as the device may draw them; the lowest are learned."""
        if watts < self._lowest_watts:
            self._lowest_watts = watts
            self.bounds = self._find_bounds()
        low, high = self.bounds
        return max(low, watts if high is None else min(watts, high))

    def _find_bounds(self) -> tuple[float, float | None]:
        info = self.device.info
        if self.lost or info.max_watts is None or info.kind is not DeviceKind.GPU:
            return info.min_watts, info.max_watts
        lowest = min(self._lowest_watts, _IDLE * info.max_watts)
        return max(lowest, info.min_watts, _LEAST * info.max_watts), info.max_watts

    def true_joules(self, joules: float, seconds: float) -> float:
        """Energy of a window in which the device stated ``joules``."""
        if self.calibration is not None:
            joules = self.calibration.true_joules(joules, seconds)
        if self._assumed and not math.isnan(joules):
            # A guess is at least possible.
            info = self.device.info
            highest = math.inf if info.max_watts is None else info.max_watts * seconds
            joules = max(info.min_watts * seconds, min(joules, highest))
        return joules

    def shared_sigma(self, joules: float, seconds: float) -> float:
        """One sigma of a window's true energy that all windows of the device have in common."""
        sigma = (self.device.provenance.relative_error or 0.0) * joules
        if self.calibration is not None:
            return math.hypot(sigma, self.calibration.error_joules(joules, seconds))
        sensor = self.sensor
        if sensor is None:
            return sigma
        return math.hypot(sigma, sensor.error_joules(joules, seconds))

    def _compare_counter(self, mean: float, seconds: float) -> None:
        """Learn whether the counter counts more than the sensor's readings.

        A counter that adds up what the sensor sees advances by what it sees, and readings, late or
        averaged as they may be, stay within the range of that; one outside shows that the counter
        counts what the sensor does not see.
        """
        period, sensed = self.timer.period_seconds, self.sensed_watts
        if self._power is not None or not period or sensed is None or seconds > 1.3 * period:
            self._means.clear()
            return
        self._means.append(mean)
        if len(self._means) == self._means.maxlen:
            margin = _DISAGREES * max(*self._means, sensed)
            outside = not min(self._means) - margin <= sensed <= max(self._means) + margin
            self._disagreements += outside

    def _recent_watts(self, span: Span, mean: float) -> float | None:
        """Reading of the sensor at the end of a span, if it is more recent than the span's mean.

        One that averages over the span repeats the mean, and one that averages over more lags
        behind it; only a reading beyond the mean shows where the power has gone since.
        """
        sensed = self.sensed_watts
        if sensed is None or self._power is not None or span.before is None:
            return None if self._power is not None else sensed
        beyond = (sensed - mean) * (mean - span.watts)
        return sensed if beyond > 0 and abs(sensed - mean) > _REPEATS_MEAN * mean else None

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
        for span in early:
            note_powers(span)

    def _close(self, span: Span, knot: Knot) -> None:
        watts = mean_watts(span.start, knot)
        if span.before is not None:
            self._learn_noise(watts, span.watts)
        amplitude = 0.0 if self.idle else self._scatter.amplitude
        if self._closed is not None:
            self._closed.after = knot
            self._closed.amplitude = max(self._closed.amplitude, amplitude)
            note_powers(self._closed)
        span.noise, span.roughness, span.amplitude = self._noise, self._roughness(), amplitude
        span.end = knot
        self._closed = span
        if knot.at_seconds - span.start.at_seconds >= SHORTEST_MEAN_SECONDS:
            watts = self.latest_watts = self._possible(watts)
        self.span = Span(knot, span.start, None, None, watts, self._noise, span.roughness)
        self.span.throttles = self.throttles
        note_powers(span)
        note_powers(self.span)
        if len(self._early) == 1:
            self._early.append(self.span)

    def _learn_noise(self, watts: float, watts_before: float) -> None:
        change = abs(watts - watts_before) / max(watts, watts_before, 1e-9)
        if change > _NEW_LOAD:
            self._noise = max(self._noise, _UNKNOWN_NOISE)
        else:
            self._noise += _NOISE_GAIN * (change - self._noise)

    def add_flag(self, flag: Flag | Throttle) -> None:
        """Count a fault or a kind of throttling."""
        self.flags = {**self.flags, flag: self.flags.get(flag, 0) + 1}

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

    def _is_idle(self, now: float, watts: float) -> bool:
        """Whether the device was idle since the last knot: before it and now."""
        if self._telemetry is None:
            return False
        was_idle = self.idle
        change = abs(watts - self._idle_checked_watts)
        if change > _NEW_LOAD * watts:
            self._moved_at = now
        settling = now - self._moved_at < _UTILISATION_SETTLES_SECONDS
        often = self._looks_part_time and (was_idle or settling)
        changes = change > _IDLE_CHECK_CHANGE * watts
        if changes or often or now - self._idle_checked_at >= _IDLE_CHECK_SECONDS:
            self._idle_checked_at, self._idle_checked_watts = now, watts
            try:
                telemetry = self._telemetry.telemetry()
            except JouleryError:
                telemetry = Telemetry()
            self._utilisation, self.throttles = telemetry.utilisation, telemetry.throttles or ()
            for throttle in self.throttles:
                self.add_flag(throttle)
            self.idle = self._utilisation == 0
        return was_idle and self.idle

    def _spread(self, at: float, mean: float) -> float:
        """Slow spread of recent readings, relative; 0 for a board that idles."""
        sensed = self.sensed_watts
        self._scatter.add(mean if self._scatters_means or sensed is None else sensed, at)
        return 0.0 if self.idle else self._scatter.slow_amplitude

    def _missed_fraction(self, sensor: PowerSensor) -> float:
        period = self.timer.period_seconds or sensor.period_seconds
        return missed_fraction(sensor, period, counts=self._power is None)

    def _in_step_joules(self, watts: float, seconds: float) -> float:
        """One sigma of the energy of a span whose bursts may be in step with the looks at it."""
        sensor, (low, high) = self.sensor, self.bounds
        settling = self._idle_checked_at - self._moved_at < _UTILISATION_SECONDS
        if sensor is None or high is None or settling:
            return 0.0
        period = self.timer.period_seconds or sensor.period_seconds
        amplitudes = self._scatter.amplitude, self._scatter.slow_amplitude
        powers = low, watts, high
        missed = self._missed_fraction(sensor)
        return seconds * in_step_watts(missed, period, self._utilisation, powers, amplitudes)

    def _roughness(self) -> float:
        """One sigma of the power inside a span, relative, by readings and utilisation."""
        amplitude, share = self._scatter.amplitude, self._utilisation
        if share is None:
            return max(_ROUGH, amplitude)
        return max(_SMOOTH if share == 0 or share >= _BUSY else _ROUGH, amplitude)


def _pairs(span: Span) -> list[tuple[Knot, Knot]]:
    """Knots around a span and the one after, as far as they are known."""
    knots = [knot for knot in (span.start, span.end, span.after) if knot is not None]
    return list(pairwise(knots))
