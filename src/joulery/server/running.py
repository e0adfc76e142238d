"""A server from its start to its end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.server.listening import address_of, bound_socket, check_tls

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    from joulery.server.first_start import Prepared
    from joulery.server.settings import Settings


def run(settings: Settings, tell: Callable[[Prepared], None]) -> None:
    """Serve until told to stop; ``tell`` is called once requests are answered."""
    check_tls(settings)
    with bound_socket(settings) as listener:
        address = address_of(settings, listener)
        if settings.workers > 1:
            _run_many(settings, listener, address, tell)
            return
        from joulery.server.desk_start import fork_desk
        from joulery.server.first_start import prepare
        from joulery.server.metrics import Metrics
        from joulery.server.serving import Worker, serve

        with fork_desk(0) as desk:  # which loads more while we prepare
            ready = prepare(settings, address)
            serve(Worker(settings, listener, Metrics(), desk, started=lambda: tell(ready)))


def _run_many(
    settings: Settings,
    listener: socket.socket,
    address: str,
    tell: Callable[[Prepared], None],
) -> None:
    from joulery.server.workers import Supervisor

    supervisor = Supervisor(settings, listener)
    with supervisor:
        # Workers take a second to start, so that this costs no time.
        from joulery.server.first_start import prepare

        ready = prepare(settings, address)
        supervisor.watch(lambda: tell(ready))
