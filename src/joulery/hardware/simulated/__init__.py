"""Simulated accelerators and servers: the board model, the catalog, and devices on a clock."""

from joulery.hardware.simulated import catalog

__all__ = ["catalog"]
