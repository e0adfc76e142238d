"""The HTTP API over the store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.server._config import ServerConfig
    from joulery.server._main import FirstStart, serve

__all__ = [
    "FirstStart",
    "ServerConfig",
    "serve",
]

__getattr__ = lazy(__name__)
