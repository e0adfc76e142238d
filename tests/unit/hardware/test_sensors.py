"""The sensor of one's own board, from the file of a self-test."""

import json

import pytest

from joulery.errors import FileError
from joulery.hardware import sensor_of
from joulery.hardware._discovery import survey
from joulery.hardware._sensors import check_sensor_file

SENSOR = {
    "name": "NVIDIA A100, self-test",
    "boards": "^NVIDIA\\ A100$",
    "period_seconds": 0.05,
    "window_seconds": 0.01,
    "lag_seconds": 0.0,
}


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Function that writes a file and names it in the environment."""

    def write(text):
        path = tmp_path / f"selftest-{abs(hash(text))}.json"
        path.write_text(text, "utf-8")
        monkeypatch.setenv("JOULERY_SENSORS", str(path))

    return write


def test_the_own_sensor_goes_before_the_catalog(write):
    """Error bars ignore what a self-test found on this very board."""
    write(json.dumps({"sensor": SENSOR}))
    sensor = sensor_of("NVIDIA A100")
    assert (sensor.period_seconds, sensor.duty) == (0.05, pytest.approx(0.2))
    assert sensor.gain_error > 0
    assert sensor_of("NVIDIA V100").name == "Volta"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"sensor": null}',
        json.dumps({"sensor": SENSOR | {"period_seconds": -1}}),
        json.dumps({"sensor": SENSOR | {"window_seconds": 0}}),
        json.dumps({"sensor": SENSOR | {"boards": "("}}),
        "[" * 100_000,
    ],
    ids=["empty", "list", "none", "negative", "zero", "expression", "deep"],
)
def test_another_file_is_an_obstacle_not_a_lost_board(write, text):
    """A wrong file hides every board, or is taken silently."""
    write(text)
    with pytest.raises(FileError):
        check_sensor_file()
    assert sensor_of("NVIDIA A100").name == "GA100"
    assert "JOULERY_SENSORS" in str(survey().obstacles)
