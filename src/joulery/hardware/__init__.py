"""Devices that measure energy and accept power limits or clocks, and how to find them.

Vendor libraries are imported only when :func:`discover` or :func:`survey` looks for their boards.
"""

from joulery.hardware.device import Obstacle, Survey
from joulery.hardware.discovery import discover, survey

__all__ = ["Obstacle", "Survey", "discover", "survey"]
