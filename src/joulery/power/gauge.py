"""Joules of a job so far, read at step boundaries."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple, Protocol

from joulery.errors import DeviceError

if TYPE_CHECKING:
    from joulery.metering.measurement import Measurement
    from joulery.metering.meter import Meter


class EnergySoFar(NamedTuple):
    """Joules since the gauge was opened, and one sigma of where the counters stand now."""

    joules: float
    sigma_joules: float


class EnergyGauge(Protocol):
    """What the tuner asks about energy."""

    def read(self) -> EnergySoFar:
        """Energy so far."""
        ...

    def close(self) -> None:
        """Stop measuring."""
        ...


class MeterGauge:
    """Reads a :class:`joulery.metering.meter.Meter` as windows that follow each other."""

    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._window = meter.begin("tuner")
        self._joules = 0.0

    def read(self) -> EnergySoFar:
        """Close the window and open the next one.

        Raises:
            DeviceError: No device could be read.
        """
        measured = self._meter.end(self._window).measurement
        self._window = self._meter.begin("tuner")
        if math.isnan(measured.joules):
            raise DeviceError(
                "the energy of the job's devices cannot be read",
                remedy="see `joulery doctor` for what each device can do",
            )
        self._joules += measured.joules
        return EnergySoFar(self._joules, _edge_sigma(measured))

    def close(self) -> None:
        """Close the last window; the meter stays open."""
        self._meter.end(self._window)


def _edge_sigma(measured: Measurement) -> float:
    """One sigma at one edge of a window.

    How well a sensor is calibrated does not matter for comparing settings on the same board, so
    it is taken out; the rest belongs to two edges.
    """
    variance = 0.0
    for device in measured.counted:
        if math.isnan(device.joules):
            continue
        sigma = device.standard_error_joules
        variance += (0.1 * device.joules) ** 2 if math.isnan(sigma) else sigma**2
    return math.sqrt(variance / 2)
