"""Looking around the machine."""

import subprocess
import sys
import types

import pytest

import joulery.hardware
from joulery.clock import VirtualClock
from joulery.errors import DeviceError, InvalidValueError, MissingHardwareError
from joulery.frontier import Origin, Provenance
from joulery.hardware import (
    Capability,
    DeviceInfo,
    DeviceKind,
    EnergyReading,
    IntegratedPower,
    Obstacle,
    Survey,
    _discovery as discovery,
    _estimate as estimate,
    _gaudi as gaudi,
    _hwmon as hwmon,
    _rapl as rapl,
    amd,
    node,
    nvidia,
)


class Counter:
    """A small energy meter."""

    provenance = Provenance(Origin.MEASURED, "counter", 0.01)
    capabilities = frozenset({Capability.ENERGY})

    def __init__(self, name="counter:0", kind=DeviceKind.CPU):
        self.info = DeviceInfo(name, name, kind, "test")

    def read_energy(self):
        """A constant count."""
        return EnergyReading(1.0, 0.0)


class Sensor(Counter):
    """A power sensor without a counter, such as an old GPU."""

    capabilities = frozenset({Capability.POWER})

    def read_power(self):
        """The watts that were set, or the failure."""
        return 100.0


class Mute(Counter):
    """Found, but without rights."""

    capabilities = frozenset()


class Point:
    """An entry point."""

    def __init__(self, name, plugin):
        self.name = name
        self.value = f"package:{name}"
        self._plugin = plugin

    def load(self):
        """The plug-in, or its failure to import."""
        if isinstance(self._plugin, Exception):
            raise self._plugin
        return self._plugin


@pytest.fixture
def machine(monkeypatch):
    """A machine with nothing in it, to which tests add."""
    parts = types.SimpleNamespace(
        nvidia=Survey(), amd=Survey(), rapl=Survey(), node=Survey(), plugins=[], estimates=0
    )
    monkeypatch.setattr(nvidia, "survey", lambda clock: parts.nvidia)
    monkeypatch.setattr(amd, "survey", lambda clock: parts.amd)
    monkeypatch.setattr(gaudi, "survey", lambda clock: Survey())
    monkeypatch.setattr(hwmon, "survey", lambda clock: Survey())
    monkeypatch.setattr(rapl, "survey", lambda clock: parts.rapl)
    monkeypatch.setattr(node, "survey", lambda environ, clock: parts.node)
    monkeypatch.setattr(discovery, "entry_points", lambda: parts.plugins)

    def guess(environ, clock):
        parts.estimates += 1
        return Survey((Counter("estimate:cpu"),))

    monkeypatch.setattr(estimate, "survey", guess)
    return parts


def ids():
    """Ids in the order of discovery."""
    return [device.info.id for device in joulery.hardware.discover(VirtualClock(), environ={})]


def obstacles():
    """What stands in the way."""
    return joulery.hardware.survey(VirtualClock(), environ={}).obstacles


def test_an_empty_machine_has_an_estimate(machine):
    """Something must answer for the CPU, even if only by guessing."""
    assert ids() == ["estimate:cpu"]
    assert obstacles() == ()


def test_every_source_contributes(machine):
    """Leaving one out would under-count the machine."""
    machine.nvidia = Survey((Counter("GPU-1", DeviceKind.GPU),))
    machine.amd = Survey((Counter("amd:0", DeviceKind.GPU),))
    machine.rapl = Survey((Counter("rapl:package-0"),))
    machine.node = Survey((Counter("ipmi:local", DeviceKind.NODE),))
    machine.plugins = [Point("tpu", lambda clock: [Counter("tpu:0", DeviceKind.GPU)])]
    assert ids() == ["GPU-1", "amd:0", "rapl:package-0", "ipmi:local", "tpu:0"]


def test_a_cpu_counter_makes_the_estimate_superfluous(machine):
    """Counter and estimate together would double the CPU."""
    machine.rapl = Survey((Counter("rapl:package-0"),))
    assert ids() == ["rapl:package-0"]
    assert machine.estimates == 0


@pytest.mark.parametrize(
    "device",
    [
        Mute("rapl:package-0"),
        Counter("rapl:psys", DeviceKind.NODE),
        Counter("m", DeviceKind.MEMORY),
    ],
)
def test_only_a_readable_cpu_counter_replaces_the_estimate(machine, device):
    """Memory, platform or a closed counter say nothing of the CPU."""
    machine.rapl = Survey((device,))
    assert ids() == [device.info.id, "estimate:cpu"]


def test_a_plugin_may_count_the_cpu(machine):
    """Third-party counters are as good as ours."""
    machine.plugins = [Point("cpu", lambda clock: [Counter("mycpu")])]
    assert ids() == ["mycpu"]


def test_plugins_get_the_clock(machine):
    """A device on another clock cannot be compared with the rest."""
    clock, given = VirtualClock(), []
    machine.plugins = [Point("spy", lambda clock: given.append(clock) or [])]
    joulery.hardware.discover(clock, environ={})
    assert given == [clock]


class Hollow(Counter):
    """Claims a knob that it lacks."""

    capabilities = frozenset({Capability.POWER_LIMIT})


def _explodes(clock):
    raise ZeroDivisionError("oops")


def _asks_for_a_driver(clock):
    raise MissingHardwareError("no TPU", remedy="buy one")


@pytest.mark.parametrize(
    ("plugin", "why"),
    [
        (ImportError("no module named tpu"), "ImportError: no module named tpu"),
        (_explodes, "ZeroDivisionError: oops"),
        (lambda clock: None, "TypeError"),
        (lambda clock: ["text"], "str is not a device"),
        (lambda clock: [Hollow("hollow")], "claims power_limit but lacks its methods"),
        (_asks_for_a_driver, "no TPU"),
    ],
)
def test_a_broken_plugin_is_an_obstacle(machine, plugin, why):
    """A third party's bug must neither raise nor hide other devices."""
    machine.plugins = [
        Point("bad", plugin),
        Point("good", lambda clock: [Counter("tpu:0", DeviceKind.GPU)]),
    ]
    assert ids() == ["tpu:0", "estimate:cpu"]
    (obstacle,) = obstacles()
    assert obstacle.subject == "plug-in bad (package:bad)"
    assert why in obstacle.reason


def test_obstacles_of_every_source_are_passed_on(machine):
    """The doctor shows them all."""
    machine.amd = Survey(obstacles=(Obstacle("a", "b", "c"),))
    machine.rapl = Survey(obstacles=(Obstacle("d", "e", "f"),))
    assert [obstacle.subject for obstacle in obstacles()] == ["a", "d"]


def test_an_obstacle_names_its_device_once():
    """A user would read "A100: A100 (GPU-1) is held"."""
    error = DeviceError("A100 (GPU-1) is held", remedy="wait")
    assert str(Obstacle.from_error("A100", error)) == "A100: (GPU-1) is held (wait)"


def test_a_vendor_that_raises_is_an_obstacle(machine, monkeypatch):
    """Discovery never raises for a driver."""

    def fail(clock):
        raise DeviceError("driver mismatch", remedy="reboot")

    monkeypatch.setattr(nvidia, "survey", fail)
    assert obstacles() == (Obstacle("NVIDIA GPUs", "driver mismatch", "reboot"),)


def test_an_estimate_that_fails_is_an_obstacle(machine, monkeypatch):
    """Without /proc, discovery would raise instead of finding nothing."""

    def fail(environ, clock):
        raise MissingHardwareError("no /proc", remedy="mount it")

    monkeypatch.setattr(estimate, "survey", fail)
    assert obstacles() == (Obstacle("CPU energy estimate", "no /proc", "mount it"),)


def test_boards_without_a_counter_are_integrated(machine):
    """Old GPUs state power only; their energy must not be missing."""
    machine.nvidia = Survey((Sensor("GPU-old", DeviceKind.GPU),))
    (gpu, _) = joulery.hardware.discover(VirtualClock(), environ={})
    assert isinstance(gpu, IntegratedPower)
    assert gpu.info.id == "GPU-old"


def test_the_same_id_counts_once(machine):
    """A plug-in for a board that we find ourselves would double it."""
    machine.rapl = Survey((Counter("rapl:package-0"),))
    machine.plugins = [Point("again", lambda clock: [Counter("rapl:package-0")])]
    assert ids() == ["rapl:package-0"]
    (obstacle,) = obstacles()
    assert "rapl:package-0" in obstacle.reason


def test_importing_is_cheap():
    """`joulery --help` must not pay for vendors, metadata or numerics."""
    code = (
        "import sys, joulery.hardware;"
        "heavy = {'numpy', 'pynvml', 'amdsmi', 'pyhlml', 'pyvisa', 'importlib.metadata', 'ssl'};"
        "sys.exit(', '.join(sorted(heavy & set(sys.modules))) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_entry_points_are_asked_by_group(monkeypatch):
    """The group's name is a promise to other packages."""
    from importlib import metadata

    monkeypatch.setattr(metadata, "entry_points", lambda *, group: [group])
    assert list(discovery.entry_points()) == ["joulery.devices"]


def test_names_of_devices_are_for_meters():
    """`discover("gpu")` failed somewhere in a driver's module."""
    with pytest.raises(InvalidValueError, match="not a clock") as caught:
        joulery.hardware.discover("gpu")
    assert "Meter(devices=" in caught.value.remedy


def test_surveys_add_up_in_order():
    """Devices keep the order of discovery, and so do obstacles."""
    first = Survey((Counter("a"),), (Obstacle("x", "", ""),))
    second = Survey((Counter("b"),), (Obstacle("y", "", ""),))
    total = first + second
    assert [device.info.id for device in total.devices] == ["a", "b"]
    assert [obstacle.subject for obstacle in total.obstacles] == ["x", "y"]
