"""``joulery measure``: what it prints about a measurement, and what it refuses to start."""

import json
import math
import sys
from contextlib import closing
from dataclasses import replace

import pytest

from joulery.cli import main, measure
from joulery.client import open_backend
from joulery.frontier import Origin, Provenance
from joulery.hardware import DeviceInfo, DeviceKind
from joulery.metering import Measurement
from joulery.metering._measurement import DeviceMeasurement, Flag

GPU = DeviceMeasurement(
    DeviceInfo("GPU-1", "V100", DeviceKind.GPU, "nvidia"),
    joules=7.2e6,
    standard_error_joules=7.2e4,
    peak_watts=301.0,
    idle_joules=1e3,
    provenance=Provenance(Origin.MEASURED, "NVML", 0.01),
)
UNREAD = DeviceMeasurement(
    DeviceInfo("cpu", "CPU", DeviceKind.CPU, "test"),
    joules=math.nan,
    standard_error_joules=math.nan,
    peak_watts=math.nan,
    idle_joules=math.nan,
    provenance=Provenance(Origin.ASSUMED, "no reading"),
    flags=frozenset({next(iter(Flag))}),
)


@pytest.fixture
def measured(monkeypatch):
    """Has `measure` find the given devices, and notes which command it was to run."""
    commands = []

    def install(*devices, code=0):
        result = Measurement("command", 36_000.0, devices, peak_watts=301.0)

        def run(command, arguments):
            commands.append(command)
            return result, code

        monkeypatch.setattr(measure, "_measure", run)
        return commands

    return install


def test_a_total_says_what_it_is_of():
    """The joules of a CPU that is only estimated would pass for those of the boards."""
    cpu = replace(UNREAD, joules=5.0)
    total = Measurement("run", 1.0, (GPU, replace(GPU, info=replace(GPU.info, id="GPU-2")), cpu))
    assert total.devices_text == "2 GPUs and 1 CPU (estimated)"
    assert replace(total, devices=(GPU,)).devices_text == "1 GPU"
    assert replace(total, devices=()).devices_text == "no device"


def test_a_command_knows_the_run_that_measures_it(tmp_path, monkeypatch):
    """Joules of a training under `joulery measure` would be counted once by each of them."""
    path, seen = str(tmp_path / "store.sqlite"), tmp_path / "seen"
    monkeypatch.setenv("JOULERY_STORE", path)
    for name in ("JOULERY_TEAM", "JOULERY_OUTER_RUN", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    program = f"import os; open({str(seen)!r}, 'w').write(os.environ.get('JOULERY_OUTER_RUN', ''))"
    command = ["measure", "--", sys.executable, "-c", program]
    assert main(command) == 0
    with closing(open_backend(path)) as backend:
        (run,), _ = backend.runs()
        assert seen.read_text().split()[0] == run.key
        monkeypatch.setenv("LOCAL_RANK", "1")  # the first rank of the machine measures the same
        assert main(command) == 0
        assert seen.read_text() == ""
        assert len(backend.runs()[0]) == 1


@pytest.mark.parametrize("separator", [[], ["--"]])
def test_runs_what_follows(measured, separator, capsys):
    """Options after the program are the program's."""
    commands = measured(GPU)
    assert main(["measure", *separator, sys.executable, "--json", "--", "-x"]) == 0
    assert commands == [[sys.executable, "--json", "--", "-x"]]


def test_figures_go_to_stderr(measured, capsys):
    """The command's own output must stay usable in a pipe."""
    measured(GPU, code=3)
    assert main(["measure", "--grid", "500", "--price", "0.25", "--", "true"]) == 3
    out, err = capsys.readouterr()
    assert out == ""
    assert "10 h 00 min, 7.20 MJ ± 1 %, 200 W mean, 301 W peak: measured; exit code 3" in err
    assert "1.00 kg CO2" in err
    assert "0.5 at the price given" in err
    assert "V100" in err
    assert "NVML" in err


def test_the_document(measured, capsys):
    """Scripts rely on these keys."""
    measured(GPU, UNREAD, code=3)
    assert main(["measure", "--json", "--grid", "500", "--price", "0.25", "--", "true", "x"]) == 3
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert err == ""
    assert out.count("\n") == 1
    assert document["command"] == ["true", "x"]
    assert document["exit_code"] == 3
    assert document["seconds"] == 36_000
    assert document["joules"] == 7.2e6
    assert document["mean_watts"] == pytest.approx(200)
    assert document["peak_watts"] == 301
    assert document["grams_co2"] == pytest.approx(1000)
    assert document["money"] == pytest.approx(0.5)
    gpu, unread = document["devices"]
    assert (gpu["name"], gpu["joules"], gpu["provenance"]) == ("V100", 7.2e6, "measured")
    assert gpu["relative_error"] == 0.01
    assert (unread["joules"], unread["relative_error"]) == (None, None)


def test_the_unknown_is_not_zero(measured, capsys):
    """No reading means no figure: neither joules nor carbon nor money."""
    measured(UNREAD)
    options = ["--grid", "500", "--price", "0.25", "--", "true"]
    assert main(["measure", *options]) == 0
    err = capsys.readouterr().err
    assert "unknown" in err
    assert "CO2" not in err
    assert f"faults: {next(iter(Flag)).value}" in err
    assert err.rstrip().endswith(next(iter(Flag)).value)  # beside its device
    assert main(["measure", "--json", *options]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["joules"] is None
    assert "grams_co2" not in document
    assert "money" not in document


def test_no_devices_points_to_the_doctor(measured, capsys):
    """A user who can measure nothing needs the reason."""
    measured()
    assert main(["measure", "--", "true"]) == 0
    assert "joulery doctor" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "no command given"),
        (["--"], "no command given"),
        (["--", ""], "no command given"),
        (["--grid", "-1", "--", "true"], "gCO2/kWh must be at least 0"),
        (["--grid", "nan", "--", "true"], "gCO2/kWh must be finite"),
        (["--price", "inf", "--", "true"], "--price: 'inf' is not a number"),
        (["--price", "x", "--", "true"], "--price: 'x' is not a number"),
        (["--wat", "--", "true"], "unknown argument"),
    ],
)
def test_nothing_is_run_on_wrong_use(measured, capsys, arguments, says):
    """An hour of training must not be over before the typo is found."""
    commands = measured(GPU)
    assert main(["measure", *arguments]) == 2
    out, err = capsys.readouterr()
    assert (out, commands) == ("", [])
    assert says in err
    assert "→" in err


def test_a_command_that_cannot_be_run_exits_as_in_a_shell(measured, capsys):
    """Scripts take a mistyped command for wrong use of `joulery`."""
    commands = measured(GPU)
    assert main(["measure", "--", "/no/such/program"]) == 127
    assert commands == []
    assert "cannot run /no/such/program" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["measure"], "joulery measure -- python train.py"),
        (["run"], "joulery run -- python train.py"),
        (["emulate", "a100"], "joulery emulate a100 -- python train.py"),
    ],
)
def test_a_missing_command_is_asked_for_by_its_own_example(capsys, arguments, remedy):
    """The remedy of another command sends the user astray."""
    assert main(arguments) == 2
    assert remedy in capsys.readouterr().err


@pytest.mark.parametrize(
    ("relative_error", "text"), [(None, "± ?"), (0.01, "± 1 %"), (0.7, "± 70 %"), (0.0, "± 0 %")]
)
def test_error_bars(relative_error, text):
    """An unknown error is shown as such, a large one in full."""
    assert measure.error_bar(relative_error) == text


def test_what_a_report_needs_is_loaded_before_the_window(monkeypatch, capsys):
    """If this fails, joules of our own reporting count in a short command."""
    began = []
    begin = measure.metering.Meter.begin

    def service():
        assert not began

    def noted(meter, *arguments):
        began.append(meter)
        return begin(meter, *arguments)

    monkeypatch.setattr(measure, "reporting_service", service)
    monkeypatch.setattr(measure.metering.Meter, "begin", noted)
    assert main(["measure", "--", sys.executable, "-c", ""]) == 0
    assert began
