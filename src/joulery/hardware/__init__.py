"""Devices that measure energy and accept power limits or clocks, and how to find them.

Vendor libraries are imported only when ``discover`` or ``survey`` is called, and the
simulated boards and their catalog on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.hardware._device import (
        Capability as Capability,
        ClockLock as ClockLock,
        Device as Device,
        DeviceInfo as DeviceInfo,
        DeviceKind as DeviceKind,
        EnergyMeter as EnergyMeter,
        EnergyReading as EnergyReading,
        Obstacle as Obstacle,
        PowerLimit as PowerLimit,
        PowerLimitRange as PowerLimitRange,
        PowerMeter as PowerMeter,
        Survey as Survey,
        Telemetry as Telemetry,
        TelemetrySource as TelemetrySource,
        Throttle as Throttle,
        check_devices as check_devices,
        protocol_of as protocol_of,
        require as require,
    )
    from joulery.hardware._discovery import discover as discover, survey as survey
    from joulery.hardware._integrated import (
        IntegratedPower as IntegratedPower,
        with_energy as with_energy,
    )
    from joulery.hardware._machines import (
        MACHINES as MACHINES,
        MachineKind as MachineKind,
        find_machines as find_machines,
    )
    from joulery.hardware._sensors import (
        PowerSensor as PowerSensor,
        known_sensors as known_sensors,
        sensor_of as sensor_of,
    )
    from joulery.hardware._visibility import visible_devices as visible_devices
    from joulery.hardware.node import (
        check_node_meters as check_node_meters,
        open_node_meter as open_node_meter,
    )
    from joulery.hardware.nvidia._device import NvidiaGpu as NvidiaGpu
    from joulery.hardware.simulated import catalog as catalog
    from joulery.hardware.simulated._board import (
        Faults as Faults,
        Sensor as Sensor,
        SimulatedGpu as SimulatedGpu,
    )
    from joulery.hardware.simulated._node import SimulatedNode as SimulatedNode, preset as preset
    from joulery.hardware.simulated._physics import (
        Board as Board,
        Steady as Steady,
        Workload as Workload,
        clock_states as clock_states,
        execute as execute,
        relative_voltage as relative_voltage,
        settle as settle,
        settle_in as settle_in,
        smooth_max as smooth_max,
    )


__getattr__, __dir__ = lazy(__name__)
