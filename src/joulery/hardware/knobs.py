"""Hold a knob for the length of a ``with`` block, and give back what was found.

This is the in-process form for simulated boards and callers who own the machine. It restores on
every way out of the block that Python sees.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING

from joulery.hardware.device import Capability, PowerLimit, require

if TYPE_CHECKING:
    from collections.abc import Iterator

    from joulery.hardware.device import Device


@contextmanager
def held_power_limit(device: Device, watts: float) -> Iterator[None]:
    """Cap ``device`` at ``watts`` inside the block, then restore the value found before.

    Raises:
        UnsupportedError: The device has no power limit.
        MissingRightsError: This user may not set it.
        InvalidValueError: ``watts`` is outside the board's range.
    """
    require(device, Capability.POWER_LIMIT)
    assert isinstance(device, PowerLimit)  # noqa: S101 - what the capability promises
    found = device.power_limits().current_watts
    device.set_power_limit(watts)
    try:
        yield
    finally:
        device.set_power_limit(found)
