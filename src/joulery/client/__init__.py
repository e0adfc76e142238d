"""Clients of recurring runs, which decide by and report to a store on this machine or a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.client._backend import (
        STORE_VARIABLE,
        DecisionBackend,
        is_server,
        open_backend,
        read_token,
        team_of,
        write_token,
    )
    from joulery.client._history import all_jobs, summary_of, usage
    from joulery.client._measurements import RunMeasurements
    from joulery.client._resilient import ResilientClient

__all__ = [
    "STORE_VARIABLE",
    "DecisionBackend",
    "ResilientClient",
    "RunMeasurements",
    "all_jobs",
    "is_server",
    "open_backend",
    "read_token",
    "summary_of",
    "team_of",
    "usage",
    "write_token",
]

__getattr__ = lazy(__name__)
