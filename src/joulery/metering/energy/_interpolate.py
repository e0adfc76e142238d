"""Energy at the edges of a window, which fall between the refreshes of a counter.

Inside a span the power is assumed to switch at most once. Going forward from the span's start with
the power before it, and backward from its end with the power after it, gives two straight lines;
the truth follows one up to where they cross and then the other. A rising power makes that the
larger of the two, a falling one the smaller. Where the end is not known yet, only the forward
line is available, and the error bar is wider.

A power sensor does not see everything. Between two refreshes power may come in bursts that no
reading shows; whatever it does, it stays between the lowest and the highest power of the board and
adds up to the energy of the span, which bounds the energy at a moment in between. And a sensor that
looks at a fraction of the time (an A100 or H100 at 25 of every 100 ms) may see only the bursts, or
only the pauses, for as long as they keep in step with its refreshes.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from joulery.hardware import PowerSensor
    from joulery.metering.energy._timeline import Knot, Span

# Smallest relative error of power: sensors and loads both fluctuate.
_LEAST_POWER_ERROR = 0.01  # on simulated boards
# Length, as a fraction of a span, over which mean power is about as good as the sensor.
_SENSOR_WEIGHT = 0.3  # on simulated boards
# Share of the disagreement of the two lines that counts as one sigma.
_DISAGREEMENT = 0.25  # on simulated boards
# … and where the counter may be one of part-time looks.
_PART_TIME_DISAGREEMENT = 0.3  # on simulated boards
# By hand: a window of more spans has a power of its own.
_INSIDE_SPANS = 4
# Lines closer than this many sigmas may be one and the same.
_SAME_SIGMAS = 2.0  # by hand
# One sigma of an unknown power, relative.
_UNKNOWN_POWER_ERROR = 0.5  # by hand
# One sigma of the power sensor, relative.
_SENSOR_ERROR = 0.1  # on simulated boards
# A sensor this far off the mean, relative, saw another load.
_SENSOR_AGREES = 0.1  # on simulated boards
# How long power may take to follow a change of load.
_RESPONSE_SECONDS = 0.01  # by hand: some sensors follow within 15 ms
# One sigma of that time, as a fraction of it.
_RESPONSE_DOUBT = 0.6  # on simulated boards, whose power follows within 0 to 20 ms
# Chance that the load changes within a span: for one that just did, and per relative change of
# power lately.
_CHANGE_CHANCE = 0.5  # by hand
_CHANGE_CHANCE_PER_NOISE = 5.0  # on simulated boards
_ONE_IN_TWENTY = 0.05  # outside a bar of 95 %
# A tail longer than this many spans may hold any load, however steady it was before.
_OVERDUE_SPANS = 3  # by hand
# Do not extrapolate a ramp further than this early in it, in response times.
_LEAST_PASSED = 0.3  # on simulated boards
# One sigma of an energy of which only the range is known: the bar of 95 % reaches 95 % of the way
# to the farther end.
_OF_RANGE = 0.485
_SQRT_12 = math.sqrt(12)  # one sigma of something that may be anywhere in a range
# Above the power of any device.
_ANY_WATTS = 1e6
# One sigma of the mean power while a sensor does not look, relative to the spread of what it sees.
_OF_SPREAD = 0.7  # on simulated boards, types left out
_OF_LOOK = 0.33  # on simulated boards, types left out
# Bursts are taken to be about this long: sensors that refresh more often see most of them.
_BURST_SECONDS = 0.1  # those of the recordings
# A sensor that refreshes more often than this sees a burst more than once.
_FAST_SECONDS = _BURST_SECONDS / 2
# Share of the time in which work runs, from which on its pauses are those between steps.
_STEADY_SHARE = 0.8  # by hand
# Bursts do not keep in step with refreshes for longer than this.
_IN_STEP_SECONDS = 1.5  # half a beat of the recorded bursts


class EnergyEstimate(NamedTuple):
    """Energy of a window.

    Attributes:
        joules: The energy.
        variance: Its variance in J².
        edges_joules: Energy since the timeline began at the window's start and end; None for a
            window without a refresh.
    """

    joules: float
    variance: float
    edges_joules: tuple[float, float] | None = None


# Plain tuples, because a window of many boards makes hundreds of them: joules since the timeline
# began with their variance in J², and watts with one sigma.
Energy = tuple[float, float]
Power = tuple[float, float]


def energy_between(
    first: Span,
    began: float,
    last: Span,
    end_at: float,
    bounds: tuple[float, float | None],
    *,
    part_time: bool = False,
) -> EnergyEstimate:
    """Energy from ``began``, inside ``first``, to ``end_at``, inside ``last``.

    The lowest and highest power of the device bound what is unknown. ``part_time`` says that the
    counter may add up what a sensor sees that looks at a part of the time.
    """
    seconds, (min_watts, max_watts) = end_at - began, bounds
    if last is first and first.end is None:
        return energy_unseen(first, seconds, max_watts)
    before = first.power_before or _power_before(first)
    # A few spans inside the window tell its own power.
    part_time = part_time and seconds > _INSIDE_SPANS * _length(last)
    start, variance = _at_begin(first, began, end_at, before, part_time=part_time)
    start = _possible(start, first, began, bounds)
    if last is first:
        end, end_variance = _at_end_of_same(last, end_at, start, seconds)
    else:
        watts, sigma = _power_inside(last, began, start, before[0])
        if max_watts is not None and watts > max_watts:
            watts, sigma = max_watts, max(sigma, watts - max_watts)
        end, end_variance = _at_end(last, end_at, (watts, sigma), part_time=part_time)
        if last.end is None:
            end_variance += _tail_variance(last, began, end_at, max_watts)
    if not part_time:
        end = _possible(end, last, end_at, bounds)
    # Repairs before the window are no uncertainty of the window; those that became known during it
    # leave its start uncertain.
    repaired = abs(last.start.variance - first.start.variance)
    joules = max(end - start, min_watts * seconds)
    if max_watts is not None:
        joules = min(joules, max_watts * seconds)
    variance += end_variance + repaired + _knot_variance(first) + _knot_variance(last)
    return EnergyEstimate(joules, variance + (joules - end + start) ** 2, (start, end))


def _length(span: Span) -> float:
    """Length of the span before, which the next ones resemble."""
    return span.start.at_seconds - span.before.at_seconds if span.before is not None else 0.0


def energy_unseen(span: Span, seconds: float, max_watts: float | None) -> EnergyEstimate:
    """Energy of a window without any refresh since it began, from the power before it."""
    spread = _farthest(span.watts, max_watts) / 2
    return EnergyEstimate(span.watts * seconds, (spread * seconds) ** 2)


def _farthest(watts: float, max_watts: float | None) -> float:
    """Largest possible change of power from ``watts`` between two refreshes."""
    high = max_watts if max_watts is not None else 3 * watts
    return max(watts, high - watts)


def _tail_variance(span: Span, began: float, end: float, max_watts: float | None) -> float:
    """Variance of a change of load after the last refresh.

    The longer power has been steady, the less likely is a change in this span. It makes two sigma
    the deviation that is exceeded once in twenty times, if a change may fall at any moment of the
    tail.
    """
    if span.before is None:
        return 0.0
    tail = max(0.0, end - span.start.at_seconds)
    chance = min(_CHANGE_CHANCE, _CHANGE_CHANCE_PER_NOISE * span.noise)
    overdue = tail > _OVERDUE_SPANS * (span.start.at_seconds - span.before.at_seconds)
    if overdue or span.before.at_seconds < began:
        # The counter should have refreshed long ago: reading it fails, or it froze. Or it did not
        # refresh often enough to show the load that came with the window.
        chance = _CHANGE_CHANCE
    if chance <= _ONE_IN_TWENTY:
        return 0.0
    reach = _farthest(mean_watts(span.before, span.start), max_watts) * tail
    return (reach * (1 - _ONE_IN_TWENTY / chance) / 2) ** 2


def _at_begin(
    span: Span, at: float, window_end: float, before: Power, *, part_time: bool
) -> Energy:
    """Energy at the start of a window: forward from before it, checked against after it."""
    if span.end is not None and at >= span.end.at_seconds:
        return _beyond(span, at)
    forward = _line(span.start, at, before)
    inside = _power_early(span, window_end)
    if inside is None:
        return forward
    joules, variance = _switched(span, at, forward, before, inside, 1 if part_time else 0)
    # The delay of power behind load is not known, so neither is the exact time of the switch.
    late = _RESPONSE_DOUBT * _RESPONSE_SECONDS * (inside[0] - before[0])
    return joules, variance + late**2


def _power_early(span: Span, window_end: float) -> Power | None:
    """Power that a window began with in ``span``; None when it is unknown.

    It is that of the span after, if that lies wholly inside the window, else the sensor's at the
    span's end.
    """
    if span.end is None or span.end.at_seconds > window_end:
        return None
    if span.after is not None and span.after.at_seconds <= window_end:
        return span.power_after or _power_after(span)
    sensed = span.end.watts
    return None if sensed is None else (sensed, _SENSOR_ERROR * sensed)


def _at_end(span: Span, at: float, inside: Power, *, part_time: bool) -> Energy:
    """Energy at the end of a window, with the power that the window itself has."""
    if span.end is not None and at >= span.end.at_seconds:
        return _beyond(span, at)
    forward = _line(span.start, at, inside)
    if span.end is None or span.after is None:
        return forward
    return _switched(
        span, at, forward, inside, span.power_after or _power_after(span), -1 if part_time else 0
    )


def _at_end_of_same(span: Span, at: float, start: float, seconds: float) -> Energy:
    """Energy at the end of a window inside one closed span, by the backward line alone."""
    assert span.end is not None  # noqa: S101 - the caller checked
    if at >= span.end.at_seconds:
        return _beyond(span, at)
    after = _power_after(span)
    joules, variance = _line(span.end, at, after)
    inside = (joules - start) / max(seconds, 1e-9)
    late = (inside - after[0]) * min(_RESPONSE_SECONDS, seconds)
    return joules, variance + late**2


def _beyond(span: Span, at: float) -> Energy:
    """Energy at a moment just after the span, whose knot was read late."""
    assert span.end is not None  # noqa: S101 - the caller checked
    return _line(span.end, at, _with_noise(span_watts(span), span))


def _line(knot: Knot, at: float, power: Power) -> Energy:
    """Energy at a moment before or after a knot, with the power in between."""
    watts, sigma = power
    distance = at - knot.at_seconds
    # A refresh of uncertain moment (uniform over its bracket) makes its energy uncertain.
    moment = (knot.half_width_seconds * watts) ** 2 / 3
    return knot.joules + watts * distance, (sigma * distance) ** 2 + moment


def _switched(
    span: Span, at: float, forward: Energy, before: Power, after: Power, window_side: int
) -> Energy:
    """Follow the forward line up to the crossing, then the backward line.

    A counter of part-time looks advances by what it saw at the span's end, whenever the load
    changed: there the line holds that has the window's own power, the forward one where
    ``window_side`` is -1, the backward one where it is 1.
    """
    assert span.end is not None  # noqa: S101 - only for closed spans
    joules, variance = _line(span.end, at, after)
    # Power that follows its load late leaves some of the window's energy behind its end.
    late = (after[0] - before[0]) * _RESPONSE_SECONDS
    backward = (joules, variance + late**2)
    rising = after[0] > before[0]
    forward_wins = (forward[0] >= joules) == rising
    line, alternative = (forward, backward) if forward_wins else (backward, forward)
    gap = abs(forward[0] - joules)
    if window_side:
        line = forward if window_side < 0 else backward
        return line[0], line[1] + (_PART_TIME_DISAGREEMENT * gap) ** 2
    doubt = line[1] + alternative[1]
    if line[1] > alternative[1] and gap**2 <= _SAME_SIGMAS**2 * doubt:
        # The line that should hold is the less certain one, and the choice may be chance: average
        # both by their variances instead.
        weight = alternative[1] / doubt
        line = (weight * line[0] + (1 - weight) * alternative[0], weight * line[1])
    return line[0], line[1] + (_DISAGREEMENT * gap) ** 2


def _possible(joules: float, span: Span, at: float, bounds: tuple[float, float | None]) -> float:
    """Energy at a moment inside a closed span, as far as the device's lowest and highest power go.

    A span of several refreshes may hold more than one change, so that no line through it is right.
    """
    if span.end is None or not span.start.at_seconds <= at <= span.end.at_seconds:
        return joules
    least, most = _range_at(span, at, bounds[0], bounds[1] or _ANY_WATTS)
    return min(max(joules, least), most) if least <= most else joules


def _range_at(span: Span, at: float, low_watts: float, high_watts: float) -> tuple[float, float]:
    """Least and largest energy at a moment inside a span."""
    start, end = span.start, span.end
    passed = max(0.0, at - start.at_seconds)
    least, most = start.joules + low_watts * passed, start.joules + high_watts * passed
    if end is None:
        return least, most
    remaining = max(0.0, end.at_seconds - at)
    return max(least, end.joules - high_watts * remaining), min(
        most, end.joules - low_watts * remaining
    )


def _knot_variance(span: Span) -> float:
    """Variance of the energy at the knots around a span, as of a lagging sensor."""
    end = span.end or span.start
    return max(span.start.sigma_joules, end.sigma_joules) ** 2


def _with_noise(watts: float, span: Span, extra: float = 0.0) -> Power:
    noise = max(_LEAST_POWER_ERROR, span.noise)
    return watts, max(noise * watts, extra)


def _reconciled(mean: float, sensed: float | None, span: Span) -> Power:
    """Power at a knot, from the mean over the adjacent span and the sensor at the knot.

    They agree while the load is steady. Where they do not, the load changed within that span (the
    sensor is right) or the sensor lags (the mean is right): any value between them is possible.
    """
    if sensed is None or abs(sensed - mean) <= _SENSOR_AGREES * mean:
        return _with_noise(mean, span)
    return _with_noise((mean + sensed) / 2, span, abs(sensed - mean) / _SQRT_12)


def note_powers(span: Span) -> None:
    """Note the powers around a span, so that the code being measured does not wait for them."""
    span.power_before = _power_before(span)
    if span.after is not None:
        span.power_after = _power_after(span)


def _power_before(span: Span) -> Power:
    """Power as the span began: the mean over the span before, or the sensor for the first one."""
    if span.before is not None:
        return _reconciled(mean_watts(span.before, span.start), span.start.watts, span)
    if span.start.watts is not None:
        return span.start.watts, _SENSOR_ERROR * span.start.watts
    if span.end is not None:
        return span_watts(span), _UNKNOWN_POWER_ERROR * span_watts(span)
    return 0.0, 0.0


def _power_after(span: Span) -> Power:
    """Power as the span ended: the mean over the span after, or the sensor at its end."""
    assert span.end is not None  # noqa: S101 - only for closed spans
    if span.after is not None:
        return _reconciled(mean_watts(span.end, span.after), span.end.watts, span)
    if span.end.watts is not None:
        return span.end.watts, _SENSOR_ERROR * span.end.watts
    return span_watts(span), _UNKNOWN_POWER_ERROR * span_watts(span)


def _power_inside(span: Span, began: float, start: float, outside_watts: float) -> Power:
    """Power as the span began, for a window that may itself have begun only shortly before."""
    knot, before = span.start, span.before
    seconds = knot.at_seconds - began
    if before is None or before.at_seconds >= began or seconds <= 0:
        return span.power_before or _power_before(span)
    mean = max(0.0, knot.joules - start) / seconds
    sensed = mean if knot.watts is None else knot.watts
    if seconds < 3 * knot.half_width_seconds:
        mean = sensed  # the refresh may as well have come before the window began
    length = knot.at_seconds - before.at_seconds
    weight = seconds / (seconds + _SENSOR_WEIGHT * length)
    blend = weight * mean + (1 - weight) * sensed
    early = math.exp(-seconds / (2 * _RESPONSE_SECONDS))
    watts = blend + early * (_ramp_target(mean, sensed, outside_watts) - blend)
    doubt = math.hypot(
        abs(watts - outside_watts) * early**2 / max(1 - early**2, 0.1),
        (1 - weight) * (mean - sensed),
    )
    return _with_noise(watts, span, doubt)


def _ramp_target(mean: float, sensed: float, outside: float) -> float:
    """Final value of a power that so far averaged ``mean`` and is now ``sensed``.

    On an exponential approach the mean lags behind the present value: by half right after the
    change, by nothing long after it. The ratio gives the progress of the approach.
    """
    climbed = sensed - outside
    along = (mean - outside) / climbed if climbed else 1.0
    if not 0 <= along < 1:
        return mean  # no approach: the load fluctuates
    lag = min(1.0, 2 * (1 - along))
    # Response times passed, from the lag; within 8 % of the exact inverse.
    passed = max(_LEAST_PASSED, 6 * (1 - lag) if lag > 0.5 else 2 / lag)
    return outside + climbed / (1 - math.exp(-passed))


def span_watts(span: Span) -> float:
    """Mean power over a closed span."""
    assert span.end is not None  # noqa: S101 - only for closed spans
    return mean_watts(span.start, span.end)


def edge_variance(
    span: Span, at: float, joules: float, low_watts: float, high_watts: float
) -> float:
    """Variance in J² of the energy at a moment inside a span, from bursts that nothing shows."""
    lowest, highest = _range_at(span, at, low_watts, high_watts)
    reach = min(max(0.0, at - span.start.at_seconds), _BURST_SECONDS / 2)
    watts = span.watts
    if span.end is not None:
        watts, reach = span_watts(span), min(max(0.0, span.end.at_seconds - at), reach)
    farthest = max(0.0, joules - lowest, highest - joules)
    return min(_OF_RANGE * farthest, span.roughness * watts * reach) ** 2


def missed_fraction(sensor: PowerSensor, period_seconds: float, *, counts: bool) -> float:
    """Fraction of the time whose power the readings do not tell, as far as bursts go.

    ``counts`` says whether a counter adds up what the sensor sees in each period.
    """
    period, window = min(period_seconds, sensor.period_seconds), sensor.window_seconds
    if window <= period or counts:
        return (1.0 - sensor.duty) * min(1.0, period / _BURST_SECONDS)
    # Seen twice, or a part of the last burst in a long mean.
    return min(window - period, _BURST_SECONDS / 2) / window


def hidden_share(
    missed: float, amplitude: float, slow_amplitude: float, seconds: float, period: float
) -> float:
    """One sigma of a window's energy, relative, from the time in which its sensor does not look.

    Looks at phases of a step average out from one to the next; looks at bursts, whose readings
    spread further, may keep in step with them for a while.

    Args:
        missed: Fraction of the time in which it does not.
        amplitude: Spread of its readings, relative.
        slow_amplitude: Spread of their means over half a second, relative.
        seconds: Length of the window.
        period: Time between two looks in seconds.
    """
    looks = _OF_LOOK * amplitude * math.sqrt(min(1.0, period / seconds))
    in_step = _OF_SPREAD * slow_amplitude * math.sqrt(min(1.0, _IN_STEP_SECONDS / seconds))
    return missed * math.hypot(looks, in_step)


def in_step_watts(
    missed: float,
    period: float,
    share: float | None,
    watts: tuple[float, float, float],
    amplitudes: tuple[float, float],
) -> float:
    """One sigma of mean power from bursts of work that come in step with the looks at them.

    Readings do not show whether they are of the bursts, of the pauses or of both; that work ran for
    a part of the time does.

    Args:
        missed: Fraction of the time in which the sensor does not look.
        period: Time between two looks in seconds.
        share: Part of the time in which work ran; None where the device does not say.
        watts: Lowest power of the device, the power that was seen, and the highest.
        amplitudes: Spread of the readings and of their means over half a second, relative.
    """
    if not share or share >= _STEADY_SHARE:
        return 0.0
    low, seen, high = watts
    burst = max(0.0, seen - low)
    if period < _FAST_SECONDS:
        # Each burst and each pause is seen, their ends are not.
        return _OF_RANGE * missed * min(burst, amplitudes[0] * seen)
    too_much = min(1.0 - share, missed) * burst
    too_little = min(missed * (high - low), share * (high - low) - burst)
    # Readings that jump are of bursts and of pauses.
    jumps = max(0.0, amplitudes[0] - amplitudes[1]) * seen
    return _OF_RANGE * max(0.0, max(too_much, too_little) - jumps)


def mean_watts(first: Knot, second: Knot) -> float:
    """Mean power between two knots."""
    return (second.joules - first.joules) / (second.at_seconds - first.at_seconds)
