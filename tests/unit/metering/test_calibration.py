"""Calibrations survive a file and refuse what makes no sense."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from joulery.errors import FileError, InvalidValueError
from joulery.metering import (
    SensorCalibration,
    calibrations_file,
    load_calibrations,
    save_calibrations,
)

if TYPE_CHECKING:
    from pathlib import Path

CALIBRATION = SensorCalibration(
    "GPU-1", 1.04, -22.0, 0.01, 0.5, "wattmeter", "2026-11-16T10:00:00Z"
)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File of the calibrations, in a folder that does not exist yet."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "new"))
    return calibrations_file()


def test_calibrations_come_back_from_the_file(path: Path) -> None:
    """If this fails, what `joulery calibrate` learned is lost or replaced by another board's."""
    assert load_calibrations() == {}
    assert save_calibrations([CALIBRATION, replace(CALIBRATION, device_id="GPU-2")]) == path
    save_calibrations([replace(CALIBRATION, gain=0.95)])
    found = load_calibrations()
    assert {name: entry.gain for name, entry in found.items()} == {"GPU-1": 0.95, "GPU-2": 1.04}


def test_true_energy_undoes_gain_and_offset() -> None:
    """If this fails, a calibrated meter corrects in the wrong direction."""
    read_joules = (1.04 * 300.0 - 22.0) * 10.0
    assert CALIBRATION.true_joules(read_joules, 10.0) == pytest.approx(3000.0)
    assert CALIBRATION.error_joules(3000.0, 10.0) == pytest.approx(math.hypot(30.0, 5.0) / 1.04)


@pytest.mark.parametrize("content", [b"", b"[]", b"{}", b'{"schema": "other/1"}', b"\xff"])
def test_a_foreign_file_is_refused_and_kept(path: Path, content: bytes) -> None:
    """If this fails, a damaged file is silently taken for "no calibration" or overwritten."""
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(FileError, match="calibrations"):
        save_calibrations([CALIBRATION])
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "change", [{"gain": 0.0}, {"gain": 9.0}, {"gain_error": -1.0}, {"offset_watts": math.nan}]
)
def test_values_that_no_sensor_has_are_refused(change: dict[str, Any]) -> None:
    """If this fails, a broken calibration turns into false joules."""
    with pytest.raises(InvalidValueError):
        replace(CALIBRATION, **change)
