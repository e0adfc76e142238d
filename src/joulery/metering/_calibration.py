"""Calibrations of power sensors, kept in a file of this user.

A sensor reads ``gain · true watts + offset``; a calibration holds both, as learned against a better
meter, with their errors. The meter applies those that it finds for its devices.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from joulery.errors import FileError, InvalidValueError, document_errors
from joulery.files import data_folder, write_atomic
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

SCHEMA = "joulery.calibrations/1"
# A sensor further off than this factor is broken, not uncalibrated.
_LARGEST_GAIN = 4.0  # by hand: published gains reach 1.18


@dataclass(frozen=True, slots=True)
class SensorCalibration:
    """Gain and offset of one device's sensor: ``read watts = gain · true watts + offset``.

    Attributes:
        device_id: Id of the device, as ``joulery doctor`` lists it.
        gain: Watts read per true watt.
        offset_watts: Watts read at zero true watts.
        gain_error: One sigma of ``gain``.
        offset_error_watts: One sigma of ``offset_watts``.
        meter: Name of the meter that it was learned against.
        learned_at: Date and time in UTC, ISO 8601.
    """

    device_id: str
    gain: float
    offset_watts: float
    gain_error: float
    offset_error_watts: float
    meter: str
    learned_at: str

    def __post_init__(self) -> None:
        finite(self.gain, "gain", minimum=1 / _LARGEST_GAIN)
        finite(self.offset_watts, "offset in watts")
        finite(self.gain_error, "error of the gain", minimum=0.0)
        finite(self.offset_error_watts, "error of the offset in watts", minimum=0.0)
        if self.gain > _LARGEST_GAIN:
            raise InvalidValueError(
                f"gain must be at most {_LARGEST_GAIN:g}, not {self.gain:g}",
                remedy="check that the meter and the device belong together",
            )

    def true_joules(self, joules: float, seconds: float) -> float:
        """True energy of ``seconds`` for which the device states ``joules``."""
        return max(0.0, joules - self.offset_watts * seconds) / self.gain

    def error_joules(self, true_joules: float, seconds: float) -> float:
        """One sigma of ``true_joules`` from the errors of gain and offset."""
        return (
            math.hypot(self.gain_error * true_joules, self.offset_error_watts * seconds) / self.gain
        )


def calibrations_file() -> Path:
    """File of this user's calibrations."""
    return data_folder() / "calibrations.json"


def load_calibrations() -> dict[str, SensorCalibration]:
    """This user's calibrations by device id; none where there is no file.

    Raises:
        FileError: The file cannot be read or is none of ours.
    """
    path = calibrations_file()
    if not path.exists():
        return {}
    import json  # costs 10 ms, which only those who have calibrations pay

    remedy = "run `joulery calibrate` again, or delete the file"
    with document_errors(f"cannot read the calibrations in {path}", remedy=remedy):
        document = json.loads(path.read_bytes())
        if document["schema"] != SCHEMA:
            raise ValueError(f"schema is {document['schema']!r}, not {SCHEMA!r}")
        names = SensorCalibration.__dataclass_fields__
        entries = [
            SensorCalibration(**{name: entry[name] for name in names})
            for entry in document["calibrations"]
        ]
    return {calibration.device_id: calibration for calibration in entries}


def save_calibrations(calibrations: Iterable[SensorCalibration]) -> Path:
    """Add ``learned`` to this user's file, in place of older ones of the same devices; its path.

    Raises:
        FileError: The file cannot be written, or holds something else.
    """
    import json

    path, entries = calibrations_file(), load_calibrations()
    entries.update((calibration.device_id, calibration) for calibration in calibrations)
    document = {"schema": SCHEMA, "calibrations": [asdict(entry) for entry in entries.values()]}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, json.dumps(document, indent=1).encode() + b"\n", sync=True)
    except OSError as error:
        raise FileError(
            f"cannot write {path}: {error.strerror or error}",
            remedy="make its folder writable, or set XDG_DATA_HOME",
        ) from None
    return path
