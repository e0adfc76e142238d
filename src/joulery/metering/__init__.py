"""From raw counters to energy that a user can rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.metering._attribution import (
        local_rank as local_rank,
        my_devices as my_devices,
        select as select,
    )
    from joulery.metering._calibrate import (
        CalibrationTrace as CalibrationTrace,
        LearnedCalibration as LearnedCalibration,
        NodePower as NodePower,
        calibrate as calibrate,
        learn_calibrations as learn_calibrations,
    )
    from joulery.metering._calibration import (
        SensorCalibration as SensorCalibration,
        calibrations_file as calibrations_file,
        load_calibrations as load_calibrations,
        save_calibrations as save_calibrations,
    )
    from joulery.metering._command import check_command as check_command, run_command as run_command
    from joulery.metering._log import (
        SCHEMA as SCHEMA,
        EnergyLog as EnergyLog,
        LogTotals as LogTotals,
    )
    from joulery.metering._measurement import (
        DeviceMeasurement as DeviceMeasurement,
        Measurement as Measurement,
    )
    from joulery.metering._meter import Meter as Meter
    from joulery.metering._selftest import (
        BurstLoad as BurstLoad,
        SelfTest as SelfTest,
        selftest as selftest,
    )
    from joulery.metering._sensor_fit import find_refreshes as find_refreshes
    from joulery.metering._window import Window as Window
    from joulery.metering.energy._sampler import Sampler as Sampler
    from joulery.metering.energy._timeline import EnergyTimeline as EnergyTimeline, Knot as Knot


__getattr__, __dir__ = lazy(__name__)
