"""Devices that measure energy and accept power limits or clocks, and how to find them.

Vendor libraries are imported only when :func:`discover` or :func:`survey` is called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.hardware.device import Obstacle, Survey
from joulery.hardware.discovery import discover, survey

if TYPE_CHECKING:
    from joulery.hardware.simulated import catalog

__all__ = ["Obstacle", "Survey", "catalog", "discover", "survey"]


def __getattr__(name: str) -> object:
    if name != "catalog":
        raise AttributeError(f"module 'joulery.hardware' has no attribute {name!r}")
    # Not needed by most users of devices, so it is read on first use.
    from joulery.hardware.simulated import catalog

    return catalog
