"""Knobs as leases: a power limit or clock is held, and comes back whatever happens.

>>> from joulery.governor import lease
>>> with lease(device, watts=180) as held:      # doctest: +SKIP
...     train()
...     held.set(watts=200)
"""

from joulery.governor.holding import Lease, lease, lease_obstacle, may_lease

__all__ = ["Lease", "lease", "lease_obstacle", "may_lease"]
