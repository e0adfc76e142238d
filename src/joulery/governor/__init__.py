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
        Connection as Connection,
        Held as Held,
        Hold as Hold,
        Lease as Lease,
        daemon_obstacles as daemon_obstacles,
        held as held,
        lease as lease,
        lease_obstacle as lease_obstacle,
    )
    from joulery.governor._daemon import GovernorConfig as GovernorConfig, serve as serve
    from joulery.governor._device import governable_devices as governable_devices
    from joulery.governor._journal import (
        STATE_VARIABLE as STATE_VARIABLE,
        state_folder as state_folder,
    )
    from joulery.governor._policy import load_policy as load_policy
    from joulery.governor._protocol import (
        SOCKET_VARIABLE as SOCKET_VARIABLE,
        FencedError as FencedError,
        check_secrecy as check_secrecy,
        default_socket as default_socket,
        parse_address as parse_address,
    )
    from joulery.governor._server import ConnectionLimits as ConnectionLimits


__getattr__, __dir__ = lazy(__name__)
