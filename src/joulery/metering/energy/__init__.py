"""Energy of a device over time, from the refreshes of its counter.

``sampler`` reads the counters, ``refresh`` learns when they refresh, ``repair`` removes their
faults, ``power`` replaces a counter where there is none, ``timeline`` keeps what is known as knots
and spans, and ``interpolate`` estimates the energy between two moments of a timeline.
"""
