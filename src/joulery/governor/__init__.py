"""Power limits and clocks as leases: held for a block, and restored whatever happens.

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
        checked_reply,
        daemon_obstacles,
        held,
        lease,
        lease_obstacle,
    )
    from joulery.governor._daemon import GovernorConfig, serve
    from joulery.governor._device import DeviceWorker, GovernedDevice
    from joulery.governor._journal import STATE_VARIABLE, Intent, LeaseJournal, state_folder
    from joulery.governor._leases import LeaseTable
    from joulery.governor._peer import Peer
    from joulery.governor._policy import load_policy, parse_policy
    from joulery.governor._protocol import (
        HEADER,
        MAX_REPLY_BYTES,
        MAX_REQUEST_BYTES,
        SOCKET_VARIABLE,
        VERSION,
        Decoder,
        check_secrecy,
        default_socket,
        encode,
        parse_address,
    )
    from joulery.governor._server import ConnectionLimits, LeaseSession, Server

__all__ = [
    "HEADER",
    "MAX_REPLY_BYTES",
    "MAX_REQUEST_BYTES",
    "SOCKET_VARIABLE",
    "STATE_VARIABLE",
    "VERSION",
    "Connection",
    "ConnectionLimits",
    "Decoder",
    "DeviceWorker",
    "GovernedDevice",
    "GovernorConfig",
    "Held",
    "Hold",
    "Intent",
    "Lease",
    "LeaseJournal",
    "LeaseSession",
    "LeaseTable",
    "Peer",
    "Server",
    "check_secrecy",
    "checked_reply",
    "daemon_obstacles",
    "default_socket",
    "encode",
    "held",
    "lease",
    "lease_obstacle",
    "load_policy",
    "parse_address",
    "parse_policy",
    "serve",
    "state_folder",
]

__getattr__ = lazy(__name__)
