"""The HTTP API over the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.server._config import ServerConfig as ServerConfig
    from joulery.server._main import (
        FirstStart as FirstStart,
        bound_socket as bound_socket,
        serve as serve,
    )


__getattr__, __dir__ = lazy(__name__)
