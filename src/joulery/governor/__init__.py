"""Power limits and clocks as leases: held for a block, and restored whatever happens.

>>> from joulery.governor import lease
>>> with lease(device, watts=180) as held:      # doctest: +SKIP
...     train()
...     held.set(watts=200)
"""

from joulery.governor.client import Held, Hold, Lease, held, lease, lease_obstacle

__all__ = ["Held", "Hold", "Lease", "held", "lease", "lease_obstacle"]
