"""Energy that a power sensor does not see, as a variance.

Between two refreshes power may come in bursts that no reading shows. Whatever it does, it stays
between the lowest and the highest power of the board and adds up to the energy of the span, which
bounds the energy at a moment in between. And a sensor that looks at a fraction of the time (an A100
or H100 at 25 of every 100 ms) may see only the bursts, or only the pauses, for as long as they keep
in step with its refreshes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from joulery.hardware import PowerSensor
    from joulery.metering.energy._timeline import Span

# One sigma of an energy of which only the range is known: the bar of 95 % reaches 95 % of the way
# to the farther end.
_OF_RANGE = 0.485
# … and of what came after the last refresh, beyond the chance of another load.
_OF_TAIL = 0.15
# One sigma of the power while a sensor does not look, relative to the farthest possible: bursts
# over half of the time, seen by a sensor that looks at a quarter of it, are within the bar of 95 %.
_OF_FARTHEST = 0.33
# Bursts are taken to be about this long: sensors that refresh more often see most of them.
_BURST_SECONDS = 0.1
# Bursts do not keep in step with refreshes for longer than this.
_IN_STEP_SECONDS = 10.0


def edge_variance(
    span: Span, at: float, joules: float, low_watts: float, high_watts: float
) -> float:
    """Variance in J² of the energy at a moment inside a span, from bursts that nothing shows.

    Args:
        span: Span of the moment.
        at: The moment, in seconds.
        joules: Energy at the moment, as estimated.
        low_watts: Lowest power of the device.
        high_watts: Highest power of the device.
    """
    start, end = span.start, span.end
    passed = max(0.0, at - start.at_seconds)
    least, most = start.joules + low_watts * passed, start.joules + high_watts * passed
    share = _OF_TAIL
    if end is not None:
        left = max(0.0, end.at_seconds - at)
        least = max(least, end.joules - high_watts * left)
        most = min(most, end.joules - low_watts * left)
        share = _OF_RANGE
    return (share * max(0.0, joules - least, most - joules)) ** 2


def missed_fraction(sensor: PowerSensor, period_seconds: float, *, counts: bool) -> float:
    """Fraction of the time whose power the readings do not tell, as far as bursts go.

    Args:
        sensor: Expected behaviour of the sensor.
        period_seconds: Time between two refreshes.
        counts: Whether a counter adds up what the sensor sees in each period.
    """
    period, window = min(period_seconds, sensor.period_seconds), sensor.window_seconds
    if window <= period or counts:
        return (1.0 - sensor.duty) * min(1.0, period / _BURST_SECONDS)
    # Seen twice, or a part of the last burst in a long mean.
    return min(window - period, _BURST_SECONDS / 2) / window


def hidden_variance(
    missed: float, watts: float, seconds: float, low_watts: float, high_watts: float
) -> float:
    """Variance in J² of a window's energy from the time in which its sensor does not look.

    Args:
        missed: Fraction of the time that it does not look.
        watts: Mean power that it stated.
        seconds: Length of the window.
        low_watts: Lowest power of the device.
        high_watts: Highest power of the device.
    """
    farthest = max(watts - low_watts, high_watts - watts)
    return (_OF_FARTHEST * missed * farthest * seconds) ** 2 / max(1.0, seconds / _IN_STEP_SECONDS)
