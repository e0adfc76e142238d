"""The HTTP API over the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.server._config import ServerConfig
    from joulery.server._main import FirstStart, serve
    from joulery.server._routes import token_entry

__all__ = [
    "FirstStart",
    "ServerConfig",
    "serve",
    "token_entry",
]

__getattr__ = lazy(__name__)
