"""Devices that measure energy and accept power limits or clocks, and how to find them.

Vendor libraries are imported only when :func:`discover` or :func:`survey` is called, and the
simulated boards and their catalog on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.hardware.device import (
    Capability,
    ClockLock,
    Device,
    DeviceInfo,
    DeviceKind,
    EnergyMeter,
    EnergyReading,
    Obstacle,
    PowerLimit,
    PowerLimitRange,
    PowerMeter,
    Survey,
    Telemetry,
    TelemetrySource,
    require,
)
from joulery.hardware.discovery import discover, survey
from joulery.hardware.integrated import IntegratedPower, with_energy
from joulery.hardware.visibility import visible_devices

if TYPE_CHECKING:
    from joulery.hardware.simulated import (
        Board,
        Faults,
        SimulatedGpu,
        SimulatedNode,
        Steady,
        Workload,
        catalog,
        settle,
    )

__all__ = [
    "Board",
    "Capability",
    "ClockLock",
    "Device",
    "DeviceInfo",
    "DeviceKind",
    "EnergyMeter",
    "EnergyReading",
    "Faults",
    "IntegratedPower",
    "Obstacle",
    "PowerLimit",
    "PowerLimitRange",
    "PowerMeter",
    "SimulatedGpu",
    "SimulatedNode",
    "Steady",
    "Survey",
    "Telemetry",
    "TelemetrySource",
    "Workload",
    "catalog",
    "discover",
    "require",
    "settle",
    "survey",
    "visible_devices",
    "with_energy",
]


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'joulery.hardware' has no attribute {name!r}")
    from joulery.hardware import simulated

    return getattr(simulated, name)
