"""Energy of a device over time, from the refreshes of its counter.

``_sampler`` reads the counters, ``_refresh`` learns when they refresh, ``_repair`` removes their
faults, ``_power`` replaces a counter where there is none, ``_timeline`` keeps the energy so far as
knots and spans, and ``_interpolate`` estimates the energy between two moments of a timeline.
"""
