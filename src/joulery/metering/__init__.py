"""From raw counters to energy that a user can rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.metering._attribution import local_rank, my_devices, select
    from joulery.metering._calibrate import (
        CalibrationTrace,
        LearnedCalibration,
        NodePower,
        calibrate,
        learn_calibrations,
    )
    from joulery.metering._calibration import (
        SensorCalibration,
        calibrations_file,
        load_calibrations,
        save_calibrations,
    )
    from joulery.metering._command import check_command, run_command
    from joulery.metering._log import SCHEMA, EnergyLog, LogTotals
    from joulery.metering._measurement import Measurement
    from joulery.metering._meter import Meter
    from joulery.metering._window import Window
    from joulery.metering.energy._sampler import Sampler
    from joulery.metering.energy._timeline import EnergyTimeline, Knot

__all__ = [
    "SCHEMA",
    "CalibrationTrace",
    "EnergyLog",
    "EnergyTimeline",
    "Knot",
    "LearnedCalibration",
    "LogTotals",
    "Measurement",
    "Meter",
    "NodePower",
    "Sampler",
    "SensorCalibration",
    "Window",
    "calibrate",
    "calibrations_file",
    "check_command",
    "learn_calibrations",
    "load_calibrations",
    "local_rank",
    "my_devices",
    "run_command",
    "save_calibrations",
    "select",
]

__getattr__ = lazy(__name__)
