"""Devices that measure energy and accept power limits or clocks, and how to find them.

Vendor libraries are imported only when :func:`discover` or :func:`survey` is called, and the
simulated boards and their catalog on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.hardware._device import (
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
        protocol_of,
        require,
    )
    from joulery.hardware._discovery import discover, survey
    from joulery.hardware._integrated import IntegratedPower, with_energy
    from joulery.hardware._sensors import PowerSensor, known_sensors, sensor_of
    from joulery.hardware._visibility import visible_devices
    from joulery.hardware.node import check_node_meters
    from joulery.hardware.nvidia._device import NvidiaGpu
    from joulery.hardware.simulated import catalog
    from joulery.hardware.simulated._board import Faults, Sensor, SimulatedGpu
    from joulery.hardware.simulated._node import SimulatedNode, preset
    from joulery.hardware.simulated._physics import Board, Steady, Workload, clock_states, settle

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
    "NvidiaGpu",
    "Obstacle",
    "PowerLimit",
    "PowerLimitRange",
    "PowerMeter",
    "PowerSensor",
    "Sensor",
    "SimulatedGpu",
    "SimulatedNode",
    "Steady",
    "Survey",
    "Telemetry",
    "TelemetrySource",
    "Workload",
    "catalog",
    "check_node_meters",
    "clock_states",
    "discover",
    "known_sensors",
    "preset",
    "protocol_of",
    "require",
    "sensor_of",
    "settle",
    "survey",
    "visible_devices",
    "with_energy",
]

__getattr__ = lazy(__name__)
