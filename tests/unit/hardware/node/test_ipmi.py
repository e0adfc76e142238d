"""Node power through ipmitool."""

import sys

import pytest

from joulery.errors import (
    DeviceError,
    InvalidValueError,
    MissingHardwareError,
    MissingRightsError,
    UnsupportedError,
)
from joulery.hardware import Capability, DeviceKind
from joulery.hardware.node import _ipmi as ipmi

ACTIVE = """

    Instantaneous power reading:                   332 Watts
    Minimum during sampling period:                 68 Watts
    Maximum during sampling period:                504 Watts
    Average power reading over sample period:      348 Watts
    IPMI timestamp:                           Thu Feb 15 08:36:01 2024
    Sampling period:                          00000001 Seconds.
    Power reading state is:                   activated

"""


def test_takes_the_present_power():
    """The average since some reset must not pass for the present power."""
    assert ipmi.IpmiMeter(run=lambda command: ACTIVE).read_power() == 332.0


@pytest.mark.parametrize(
    "output", [ACTIVE.replace("activated", "deactivated"), ACTIVE.replace("332", "0")]
)
def test_an_inactive_reading_is_no_reading(output):
    """A stale or zero value would become free energy."""
    with pytest.raises(DeviceError, match="not active"):
        ipmi.parse_power_reading(output)


@pytest.mark.parametrize("output", ["", "DCMI request failed because: Invalid command\n"])
def test_a_controller_without_dcmi_is_unsupported(output):
    """The reader should try another meter, not another time."""
    with pytest.raises(UnsupportedError):
        ipmi.parse_power_reading(output)


def test_local_and_remote_commands():
    """The password stays in the environment, out of the process list."""
    assert ipmi.command() == ("ipmitool", "dcmi", "power", "reading")
    remote = ipmi.command("bmc1.example.org", "reader")
    assert remote[:7] == ("ipmitool", "-I", "lanplus", "-H", "bmc1.example.org", "-U", "reader")
    assert "-E" in remote
    assert "-U" not in ipmi.command("bmc1")


@pytest.mark.parametrize("host", ["-f/etc/shadow", "a b", "x;y"])
def test_a_host_cannot_smuggle_options(host):
    """The name comes from the environment and goes to a command line."""
    with pytest.raises(InvalidValueError):
        ipmi.IpmiMeter(host)


def test_the_command_reaches_the_runner():
    """What is asked must be what was configured."""
    asked = []

    def run(command):
        asked.append(command)
        return ACTIVE

    ipmi.IpmiMeter("bmc1", run=run).read_power()
    assert asked == [ipmi.command("bmc1")]


def test_identity():
    """A node meter is a NODE with power only, of unknown accuracy."""
    meter = ipmi.IpmiMeter()
    assert meter.info.kind is DeviceKind.NODE
    assert meter.info.id == "ipmi:local"
    assert ipmi.IpmiMeter("bmc1").info.id == "ipmi:bmc1"
    assert meter.capabilities == {Capability.POWER}
    assert meter.provenance.relative_error is None


def python(code):
    """A command that runs ``code``."""
    return [sys.executable, "-S", "-c", code]


def test_runs_a_command():
    """The output is what the parser sees."""
    assert ipmi.run_command(python("print('hello')")) == "hello\n"


def test_a_missing_ipmitool_is_explained():
    """FileNotFoundError must not escape."""
    with pytest.raises(MissingHardwareError, match="not installed"):
        ipmi.run_command(["joulery-no-such-command"])


def test_a_file_that_cannot_run_is_a_device_error(tmp_path):
    """PermissionError must not escape."""
    script = tmp_path / "ipmitool"
    script.write_text("")
    with pytest.raises(DeviceError, match="Permission denied"):
        ipmi.run_command([str(script)])


@pytest.mark.parametrize(
    ("complaint", "expected"),
    [
        ("Could not open device at /dev/ipmi0: No such file", MissingRightsError),
        ("Insufficient privilege level", MissingRightsError),
        ("Unable to establish LAN session", DeviceError),
    ],
)
def test_complaints_become_errors(complaint, expected):
    """Missing rights are distinguished from failures, since their remedies differ."""
    with pytest.raises(expected, match=complaint.split()[0]):
        ipmi.run_command(python(f"import sys; sys.exit({complaint!r})"))


def test_a_hanging_command_ends(monkeypatch):
    """A dead controller must not stop the measurement for good."""
    monkeypatch.setattr(ipmi, "TIMEOUT_SECONDS", 0.05)
    with pytest.raises(DeviceError, match="does not answer"):
        ipmi.run_command(python("import time; time.sleep(5)"))
