"""``joulery calibrate``: what it refuses, what it keeps, what it prints."""

import json

import pytest

from joulery.cli import main
from joulery.clock import REAL_CLOCK
from joulery.frontier import Origin, Provenance
from joulery.hardware import Capability, DeviceInfo, DeviceKind, SimulatedGpu, Survey, catalog
from joulery.metering import LearnedCalibration, SensorCalibration, load_calibrations

FOUND = SensorCalibration(
    "simulated:a100:0", 0.946, 0.0, 0.006, 9.0, "BMC", "2026-11-16T10:00:00+00:00"
)


class Node:
    """A node meter that states one value."""

    info = DeviceInfo("ipmi:local", "BMC", DeviceKind.NODE, "ipmi")
    provenance = Provenance(Origin.MEASURED, "test")
    capabilities = frozenset({Capability.POWER})

    def read_power(self):
        """Watts."""
        return 500.0


@pytest.fixture
def machine(monkeypatch, tmp_path):
    """A machine with a node meter and a board, and what a calibration was asked for."""
    asked = {}
    board = SimulatedGpu(catalog.board("A100"), REAL_CLOCK)

    def calibrate(node, boards, load, **options):
        asked.update(options, node=node, boards=boards)
        load(lambda: None)
        return LearnedCalibration((FOUND,), (), 1.5, 2.0, 1.9)

    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setattr("joulery.hardware.survey", lambda: Survey((Node(), board)))
    monkeypatch.setattr("joulery.metering.calibrate", calibrate)
    return asked


def test_what_was_learned_is_kept_with_its_date_and_shown(machine, capsys):
    """If this fails, minutes of calibration are lost."""
    assert main(["calibrate", "--efficiency", "0.94", "--", "true"]) == 0
    out = capsys.readouterr().out
    assert "0.9460" in out
    assert "94 % ± 0.5 % arrive at the boards" in " ".join(out.split())
    assert "--host-power" in out
    assert machine["supply"].efficiency == 0.94
    assert load_calibrations() == {FOUND.device_id: FOUND}
    assert main(["calibrate", "--show", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["calibrations"][0]["gain"] == 0.946
    assert main(["calibrate", "--show"]) == 0
    assert "2026-11-16" in capsys.readouterr().out


def test_json_is_one_document_beside_a_talking_load(machine, capfd):
    """If this fails, scripts that calibrate many nodes break on what the load prints."""
    assert main(["calibrate", "--json", "--", "sh", "-c", "echo training"]) == 0
    out, err = capfd.readouterr()
    assert json.loads(out)["calibrations"][0]["device_id"] == FOUND.device_id
    assert "training" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--", "false"], "exit code 1"),
        (["--efficiency", "94", "--", "true"], "from 0% to 100%"),
        (["--efficiency", "nan", "--", "true"], "not a number"),
        (["--duration", "1", "--", "true"], "--duration"),
        (["--host-power", "-5", "--", "true"], "at least 0"),
        (["--device", "tpu", "--", "true"], "no device 'tpu'"),
    ],
)
def test_wrong_use_is_refused_and_nothing_kept(machine, capsys, arguments, message):
    """If this fails, a typing error becomes a calibration that all measurements use."""
    assert main(["calibrate", *arguments]) in (1, 2)
    assert message in capsys.readouterr().err
    assert load_calibrations() == {}


def test_a_machine_without_a_node_meter_is_told_how_to_name_one(monkeypatch, capsys):
    """If this fails, users do not learn what is missing."""
    monkeypatch.setattr("joulery.hardware.survey", lambda: Survey(()))
    assert main(["calibrate", "--", "true"]) == 3
    assert "JOULERY_NODE_METER" in capsys.readouterr().err


def test_the_load_is_ended_after_its_time(machine):
    """If this fails, a calibration lasts as long as the training that it runs."""
    from joulery.cli.calibrate import _Load

    calls = []
    _Load(["sleep", "60"], 0.4)(lambda: calls.append(1))
    assert len(calls) <= 1
