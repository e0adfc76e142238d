"""What a device can do, one file per vendor, and how to find the devices of this machine.

Vendor libraries are imported only when :func:`discover` or :func:`survey` looks for their boards.
"""

from joulery.hardware.discovery import discover, survey
from joulery.hardware.obstacle import Obstacle, Survey

__all__ = ["Obstacle", "Survey", "discover", "survey"]
