"""Energy that a power sensor does not see, as a variance.

Between two refreshes power may come in bursts that no reading shows, so the energy at the edges of
a window is less sure than a smooth line suggests. And a sensor that looks at a fraction of the time
(an A100 or H100 at 25 of every 100 ms) may see only the bursts, or only the pauses, for as long as
they keep in step with its refreshes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from joulery.hardware import PowerSensor

# One sigma of the energy in a part of a span whose power comes in bursts, relative to the span's.
_BURST_AT_EDGE = 0.13
# One sigma of the mean power of a sensor that sees almost nothing of it, relative.
_BURST_UNSEEN = 0.3
# Bursts are taken to be about this long: sensors that refresh more often see most of them.
_BURST_SECONDS = 0.1
# Bursts do not keep in step with refreshes for longer than this.
_IN_STEP_SECONDS = 10.0
# Below this share of the way from the lowest reading to the board's maximum, a sensor may have
# missed most of the work of a board that is not idle.
_LOOKS_IDLE = 0.5


def edge_variance(watts: float, *span_seconds: float) -> float:
    """Variance in J² of a window's energy from bursts at its edges.

    Args:
        watts: Mean power of the window.
        span_seconds: Lengths of the spans that the edges lie in.
    """
    return sum((_BURST_AT_EDGE * watts * seconds) ** 2 for seconds in span_seconds)


def hidden_sigma(
    sensor: PowerSensor, watts: float, lowest_watts: float, max_watts: float | None
) -> float:
    """One sigma in watts of the mean power that a part-time sensor states.

    Args:
        sensor: Expected behaviour of the sensor.
        watts: Mean power that it stated.
        lowest_watts: Lowest power that it ever stated.
        max_watts: Highest power of the board, if known.
    """
    period, window = sensor.period_seconds, sensor.window_seconds
    missed = max(0.0, period - window) / max(period, _BURST_SECONDS)
    swing = watts
    if max_watts is not None and lowest_watts < max_watts:
        height = (watts - lowest_watts) / (max_watts - lowest_watts)
        swing = max(watts, (max_watts - watts) * (1 - height / _LOOKS_IDLE))
    return _BURST_UNSEEN * missed * swing


def hidden_variance(sigma_watts: float, seconds: float) -> float:
    """Variance in J² of a window from what a part-time sensor did not see."""
    return (sigma_watts * seconds) ** 2 / max(1.0, seconds / _IN_STEP_SECONDS)
