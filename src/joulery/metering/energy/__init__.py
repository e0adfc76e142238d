"""Energy of a device over time, from the refreshes of its counter.

``sampler`` reads the counters, ``refresh`` learns when they refresh, ``repair`` removes their
faults, ``timeline`` keeps what is known as knots and spans, and ``interpolate`` estimates the
energy between two moments of a timeline.
"""

from joulery.metering.energy._interpolate import EnergyEstimate, energy_between, energy_unseen
from joulery.metering.energy._sampler import Sampler
from joulery.metering.energy._timeline import EnergyTimeline, Knot, Span, mean_watts

__all__ = [
    "EnergyEstimate",
    "EnergyTimeline",
    "Knot",
    "Sampler",
    "Span",
    "energy_between",
    "energy_unseen",
    "mean_watts",
]
