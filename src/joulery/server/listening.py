"""The socket that a server listens on."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

from joulery.clock import REAL_CLOCK
from joulery.errors import FileError, InvalidValueError, MissingRightsError

if TYPE_CHECKING:
    from joulery.clock import Clock
    from joulery.errors import JouleryError
    from joulery.server.settings import Settings

_BACKLOG = 2048
_TAKEN_SECONDS = 3.0
_LOOK_SECONDS = 0.05


def bound_socket(settings: Settings, clock: Clock = REAL_CLOCK) -> socket.socket:
    """A socket at the server's address.

    Where it is taken, waits a little: workers of a server that was killed notice within moments.

    Raises:
        InvalidValueError: The address does not exist, or is taken.
        MissingRightsError: It is not for this user.
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except OSError:
        raise InvalidValueError(
            f"no address {settings.host!r}", remedy="give one of this machine's addresses"
        ) from None
    deadline = clock.now() + _TAKEN_SECONDS
    while True:
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE or clock.now() >= deadline:
                raise _refused(settings, error) from None
            clock.sleep(_LOOK_SECONDS)
        else:
            return listener


def _refused(settings: Settings, error: OSError) -> JouleryError:
    where = f"{settings.host} port {settings.port}"
    if error.errno == errno.EACCES:
        return MissingRightsError(f"may not listen on {where}", remedy="choose a --port above 1023")
    return InvalidValueError(
        f"cannot listen on {where}: {error.strerror}", remedy="choose another --port or --host"
    )


def check_tls(settings: Settings) -> None:
    """See that the certificate and its key can be used, before anything is started.

    Raises:
        FileError: They cannot.
    """
    if settings.tls_certificate is None:
        return
    import ssl

    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(settings.tls_certificate, settings.tls_key, password=_no_password)
    except (OSError, ValueError) as error:  # errors of ssl are among the former
        raise FileError(
            f"cannot use {settings.tls_certificate} with {settings.tls_key}: "
            f"{error.strerror if isinstance(error, OSError) else error}",
            remedy="give a certificate and its own key without a password, both in PEM format",
        ) from None


def _no_password() -> str:
    raise ValueError("the key has a password")


def address_of(settings: Settings, listener: socket.socket) -> str:
    """Where programs of this machine find the server."""
    host, port = listener.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - it is undone
    return f"{settings.scheme}://{f'[{host}]' if ':' in host else host}:{port}"
