"""A measured window of time: its start and end on every timeline, and its energy."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from joulery.frontier import Origin, Provenance
from joulery.hardware import Throttle
from joulery.metering._calls import CallTotals
from joulery.metering._measurement import DeviceMeasurement, Flag, Measurement
from joulery.metering.energy._interpolate import energy_between, energy_unseen
from joulery.metering.energy._timeline import SHORTEST_MEAN_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Self

    from joulery.metering._meter import Meter
    from joulery.metering.energy._interpolate import EnergyEstimate
    from joulery.metering.energy._timeline import EnergyTimeline, Knot, Span

P = ParamSpec("P")
R = TypeVar("R")

# The wall clock moved this much against the monotonic one: it was set, not slewed.
_STEP_SECONDS = 0.05  # by hand
_STEP_FRACTION = 1e-3  # twice the 500 ppm by which Linux slews a clock
# By hand: power that stays within this, relative, over at least so many refreshes, is stable.
_STABLE = 0.1
_FEWEST_REFRESHES = 3
# A counter that refreshed before a window's end is read by this time after it.
_LATE_SECONDS = 0.2  # by hand: two periods of the slowest counter


class Window:
    """A measured window of time: a context manager, a decorator, and the figures themselves.

    The figures may be read while it is open (so far), right after it closed (extrapolated from
    the last refresh, with a wider error bar) or after ``settle``. The first access after
    closing decides them; they do not change any more.
    """

    def __init__(self, meter: Meter, name: str) -> None:
        self.name = name
        self._meter = meter
        self._began = math.nan
        self._ended: float | None = None
        self._wall = self._wall_end = math.nan
        self._timelines: Sequence[EnergyTimeline] = ()
        self._first: list[Span | None] = []
        self._last: list[Span | None] = []
        self._peaks: dict[int, float] = {}
        self._lows: dict[int, float] = {}
        self._counts: dict[int, int] = {}
        self._total_peak = 0.0
        self._measurement: Measurement | None = None
        self._energies: list[EnergyEstimate | None] | None = None
        self._frozen = False  # decided as unseen: later refreshes do not count

    def __enter__(self) -> Self:
        self._meter.begin(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._meter.end(self)

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Decorate ``function``: each call is a separate window with this one's name.

        The attribute ``totals`` of the result has the time and energy of all calls.
        """
        totals = CallTotals(self.name)

        @functools.wraps(function)
        def measured(*args: P.args, **kwargs: P.kwargs) -> R:
            window = self._meter.window(self.name)
            try:
                with window:
                    return function(*args, **kwargs)
            finally:
                totals.add(window)

        measured.totals = totals  # type: ignore[attr-defined]
        return measured

    def __repr__(self) -> str:
        if math.isnan(self._began):
            return f"<Window {self.name!r}, not begun>"
        state = "closed" if self.closed else "open"
        return f"<Window {self.name!r} {state}: {self.measurement}>"

    def _repr_html_(self) -> str:
        return self.measurement._repr_html_()

    @property
    def measurement(self) -> Measurement:
        """Measurement of the window; so far, while it is open."""
        if self._measurement is None:
            if self._ended is None:
                clock = self._meter.clock
                now, wall = clock.now(), clock.wall()
                last = [timeline.span for timeline in self._timelines]
                return self._resolve(now, wall, last, self._energy_until(now, last))
            energies = self._decided(self._ended)
            self._measurement = self._resolve(self._ended, self._wall_end, self._last, energies)
        return self._measurement

    def settle(self) -> Measurement:
        """Wait, at most about a second, for the counters to refresh past the end.

        Useful for windows under a second, whose energy depends on one or two refreshes.
        """
        if self.closed:
            self._meter._settle(self)
            self._measurement = self._energies = None
            self._frozen = False
        return self.measurement

    @property
    def closed(self) -> bool:
        """Whether it has ended."""
        return self._ended is not None

    @property
    def settled(self) -> bool:
        """Whether every counter has refreshed twice since the end."""
        return self.closed and all(s is None or s.after is not None for s in self._last)

    @property
    def seconds(self) -> float:
        """Length of the window; so far, while it is open."""
        end = self._meter.clock.now() if self._ended is None else self._ended
        return end - self._began

    @property
    def joules(self) -> float:
        """Energy of all devices, each joule once; NaN when unknown."""
        end, timelines = self._ended, self._timelines
        if self._measurement is not None or end is None or not all(t.is_plain for t in timelines):
            return self.measurement.joules
        # Without building a measurement, because many windows are asked for nothing else.
        seconds = end - self._began
        if self._energies is None:
            self._meter._catch_up(self)
        stated: list[float | None]
        if self._energies is None and (self._frozen or self._unseen_by_all()):
            stated = [None if span is None else span.watts * seconds for span in self._first]
        else:
            stated = [None if e is None else e.joules for e in self._decided(end)]
        joules = [
            timeline.share * timeline.true_joules(figure, seconds)
            for timeline, figure in zip(timelines, stated, strict=True)
            if figure is not None and not math.isnan(figure)
        ]
        return math.fsum(joules) if joules else math.nan

    def _decided(self, end: float) -> list[EnergyEstimate | None]:
        """Energy of each device of a closed window; decided when first asked for."""
        if self._energies is None:
            self._meter._catch_up(self)
            if not self._frozen:
                self._unseen_by_all()
            self._energies = self._energy_until(end, self._last)
        return self._energies

    def _energy_until(self, end: float, last: Sequence[Span | None]) -> list[EnergyEstimate | None]:
        """Energy that each device stated until ``ended``; None where it is unknown."""
        energies: list[EnergyEstimate | None] = []
        for timeline, first, final in zip(self._timelines, self._first, last, strict=True):
            is_gone = timeline.lost and first is not None and Flag.LOST in first.start.flags
            if first is None or final is None or is_gone:
                energies.append(None)
            elif self._frozen:
                energies.append(energy_unseen(first, end - self._began, timeline.bounds[1]))
            else:
                looks = timeline.may_look_part_time
                bounds, began = timeline.bounds, self._began
                energies.append(energy_between(first, began, final, end, bounds, part_time=looks))
        return energies

    def _unseen_by_all(self) -> bool:
        """Decide by the power before, if no counter refreshed since it began."""
        if not self._first:
            return False
        for timeline, first, last in zip(self._timelines, self._first, self._last, strict=True):
            if first is not last or first is None or first.end is not None or timeline.lost:
                return False
        self._frozen = True
        return True

    @property
    def mean_watts(self) -> float:
        """Mean power."""
        return self.measurement.mean_watts

    @property
    def peak_watts(self) -> float:
        """Highest power between two refreshes."""
        return self.measurement.peak_watts

    @property
    def devices(self) -> tuple[DeviceMeasurement, ...]:
        """The figures of each device."""
        return self.measurement.devices

    @property
    def provenance(self) -> Provenance:
        """Source of the joules."""
        return self.measurement.provenance

    @property
    def relative_error(self) -> float | None:
        """One sigma of the joules, relative; None when unknown."""
        return self.measurement.relative_error

    @property
    def flags(self) -> frozenset[Flag]:
        """Faults during the window."""
        return self.measurement.flags

    def _mark_begin(self, now: float, wall: float, timelines: Sequence[EnergyTimeline]) -> None:
        """Record the start; called by the meter."""
        self._began, self._wall, self._timelines = now, wall, timelines
        self._ended = self._measurement = self._energies = None
        self._peaks, self._lows, self._counts = {}, {}, {}
        self._total_peak, self._frozen = 0.0, False
        self._first = [timeline.span for timeline in timelines]

    def _mark_end(self, now: float, wall: float) -> None:
        """Record the end; called by the meter."""
        self._last = [timeline.span for timeline in self._timelines]
        self._wall_end = wall
        self._ended = now

    def _add_knot(self, position: int, knot: Knot, total_watts: float) -> None:
        """Record a knot that arrived while the window is open; called by the meter."""
        timeline = self._timelines[position]
        first = self._first[position]
        if first is not None and first.end is knot and knot.at_seconds <= self._began:
            # The counter had refreshed before the window began, but was read after.
            self._first[position] = timeline.span
            return
        before = timeline.span.before if timeline.span is not None else None
        if before is None or before.at_seconds < self._began:
            return
        if knot.at_seconds - before.at_seconds >= SHORTEST_MEAN_SECONDS:
            watts = timeline.latest_watts or 0.0
            self._peaks[position] = max(self._peaks.get(position, 0.0), watts)
            self._lows[position] = min(self._lows.get(position, math.inf), watts)
            self._counts[position] = self._counts.get(position, 0) + 1
            self._total_peak = max(self._total_peak, total_watts)

    def _add_late_knot(self, position: int, knot: Knot) -> bool:
        """Record a knot from before the end that was read after it; called by the meter.

        Returns:
            Whether the window needs no more of them.
        """
        last = self._last[position]
        end = self._ended
        if self._energies is not None or end is None:
            return True
        if last is not None and last.end is knot and knot.at_seconds <= end:
            self._last[position] = self._timelines[position].span
        return knot.at_seconds > end + _LATE_SECONDS

    def _stable(self, position: int) -> bool | None:
        """Whether power stayed alike from refresh to refresh; None where there were too few."""
        if self._counts.get(position, 0) < _FEWEST_REFRESHES:
            return None
        high = self._peaks[position]
        return high - self._lows[position] <= _STABLE * high

    def _resolve(
        self,
        end: float,
        wall: float,
        last: Sequence[Span | None],
        energies: Sequence[EnergyEstimate | None],
    ) -> Measurement:
        devices = tuple(
            self._resolve_device(position, end, span, energies[position])
            for position, span in enumerate(last)
        )
        seconds = end - self._began
        drift = abs((wall - self._wall) - seconds)
        stepped = drift > max(_STEP_SECONDS, _STEP_FRACTION * seconds)
        events = frozenset([Flag.CLOCK_STEPPED] if stepped else [])
        if math.isnan(self._began):
            events |= {Flag.NEVER_BEGUN}
        mean = Measurement(self.name, seconds, devices).joules / (seconds or math.nan)
        peak = math.nan if math.isnan(mean) else max(self._total_peak, mean)
        return Measurement(self.name, seconds, devices, peak, self._wall, events)

    def _resolve_device(
        self, position: int, end: float, last: Span | None, energy: EnergyEstimate | None
    ) -> DeviceMeasurement:
        timeline, first = self._timelines[position], self._first[position]
        device = timeline.device
        if first is None or last is None or energy is None:
            return _unknown(timeline)
        share, origin, seconds = device.info.share, device.provenance, end - self._began
        calibration = timeline.calibration
        gain = 1.0 if calibration is None else calibration.gain
        true = timeline.true_joules(energy.joules, seconds)
        unseen = timeline.unseen_variance(energy, self._began, end, first, last)
        hidden = timeline.hidden_sigma(true, seconds, first, last)
        systematic = share * math.hypot(timeline.shared_sigma(true, seconds), hidden)
        varying = min(
            math.sqrt(energy.variance + unseen), timeline.largest_sigma(energy.joules, seconds)
        )
        sigma = math.hypot(share * varying / gain, systematic)
        joules = share * true
        counts = _new_counts(first.start, last.end.flags if last.end else timeline.flags)
        flags = frozenset(flag for flag in counts if isinstance(flag, Flag))
        throttles = frozenset(first.throttles).union(t for t in counts if isinstance(t, Throttle))
        is_known = Flag.LOST not in flags and math.isfinite(sigma)
        source = origin.source
        if calibration is not None:
            source += f", calibrated {calibration.learned_at[:10]} against {calibration.meter}"
        kind = origin.origin
        if share < 1:
            # How the parts of a board share its power is not measured.
            kind, source, is_known = Origin.ASSUMED, f"{share:.3g} of {source}", False
        mean = joules / seconds if seconds > 0 else math.nan
        peak = share * timeline.true_joules(self._peaks.get(position, 0.0), 1.0)
        return DeviceMeasurement(
            info=device.info,
            joules=joules,
            standard_error_joules=sigma if is_known else math.nan,
            peak_watts=max(mean, peak),
            idle_joules=_idle_share(first, last, joules) if timeline.reports_idle else math.nan,
            provenance=Provenance(
                kind, source, sigma / joules if is_known and joules > 0 else None
            ),
            flags=flags,
            systematic_error_joules=systematic,
            throttles=throttles,
            stable=self._stable(position),
        )


def _unknown(timeline: EnergyTimeline) -> DeviceMeasurement:
    """Measurement of a device that never answered, or is gone."""
    device = timeline.device
    flags = frozenset(flag for flag in timeline.flags if isinstance(flag, Flag))
    return DeviceMeasurement(
        device.info,
        joules=math.nan,
        standard_error_joules=math.nan,
        peak_watts=math.nan,
        idle_joules=math.nan,
        provenance=Provenance(device.provenance.origin, device.provenance.source),
        flags=flags if Flag.LOST in flags else flags | {Flag.UNREADABLE},
    )


def _new_counts(before: Knot, now: Mapping[Flag | Throttle, int]) -> list[Flag | Throttle]:
    return [kind for kind, count in now.items() if count > before.flags.get(kind, 0)]


def _idle_share(first: Span, last: Span, joules: float) -> float:
    """Energy used while idle, scaled from the whole spans that the window touches."""
    begin, end = first.start, last.end or last.start
    joules_total = end.joules - begin.joules
    if joules_total <= 0:
        return 0.0
    return joules * min(1.0, (end.idle_joules - begin.idle_joules) / joules_total)
