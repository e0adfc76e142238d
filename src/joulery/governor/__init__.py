"""Power limits and clocks as leases: held for a block, and restored whatever happens.

Examples:
    >>> from joulery.governor import lease
    >>> with lease(device, watts=180) as held:      # doctest: +SKIP
    ...     train()
    ...     held.set(watts=200)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.governor._client import (
        Connection,
        Held,
        Hold,
        Lease,
        daemon_obstacles,
        held,
        lease,
        lease_obstacle,
    )
    from joulery.governor._daemon import GovernorConfig, serve
    from joulery.governor._journal import STATE_VARIABLE, state_folder
    from joulery.governor._policy import load_policy
    from joulery.governor._protocol import (
        SOCKET_VARIABLE,
        check_secrecy,
        default_socket,
        parse_address,
    )
    from joulery.governor._server import ConnectionLimits

__all__ = [
    "SOCKET_VARIABLE",
    "STATE_VARIABLE",
    "Connection",
    "ConnectionLimits",
    "GovernorConfig",
    "Held",
    "Hold",
    "Lease",
    "check_secrecy",
    "daemon_obstacles",
    "default_socket",
    "held",
    "lease",
    "lease_obstacle",
    "load_policy",
    "parse_address",
    "serve",
    "state_folder",
]

__getattr__ = lazy(__name__)
