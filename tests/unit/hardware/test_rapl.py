"""RAPL through powercap trees of several kinds of machine."""

from pathlib import Path

import pytest

from joulery.clock import VirtualClock
from joulery.errors import DeviceError, DeviceLostError, MissingRightsError
from joulery.frontier import Origin
from joulery.hardware import Capability, DeviceKind, _rapl as rapl
from support.powercap import RANGE_MICROJOULES, PowercapTree


@pytest.fixture
def tree(tmp_path):
    """An empty powercap tree."""
    return PowercapTree(tmp_path)


@pytest.fixture
def clock():
    """The clock that a test turns."""
    return VirtualClock()


def ids(tree):
    """Ids in the order of discovery."""
    return [device.info.id for device in rapl.survey(VirtualClock(), tree.root).devices]


def test_no_tree_means_no_device(tmp_path):
    """A machine without powercap must not stop discovery."""
    assert rapl.survey(root=tmp_path / "absent") == rapl.Survey()


def test_two_sockets_with_dram(tree):
    """Each package and its memory is a device of its own; the package's parts are not."""
    for socket in (0, 1):
        tree.zone(f"intel-rapl:{socket}", f"package-{socket}")
        tree.zone(f"intel-rapl:{socket}:0", "core")
        tree.zone(f"intel-rapl:{socket}:1", "uncore")
        tree.zone(f"intel-rapl:{socket}:2", "dram")
    assert ids(tree) == [
        "rapl:package-0",
        "rapl:package-1",
        "rapl:package-0:dram",
        "rapl:package-1:dram",
    ]


def test_kinds_and_the_platform_left_out(tree):
    """The platform contains the package and would count it twice."""
    tree.zone("intel-rapl:0", "package-0")
    tree.zone("intel-rapl:0:0", "dram")
    tree.zone("intel-rapl:1", "psys")
    kinds = [device.info.kind for device in rapl.survey(root=tree.root).devices]
    assert kinds == [DeviceKind.CPU, DeviceKind.MEMORY]


def test_the_same_package_through_msr_and_mmio_counts_once(tree, clock):
    """Two views of one counter would double the CPU's energy."""
    tree.zone("intel-rapl-mmio:0", "package-0", 7_000_000)
    tree.zone("intel-rapl:0", "package-0", 3_000_000)
    (device,) = rapl.survey(clock, tree.root).devices
    assert device.read_energy().joules == pytest.approx(3.0)


def test_dies_of_one_package_are_separate(tree):
    """Multi-die parts name their zones by die; each has its own counter."""
    tree.zone("intel-rapl:0", "package-0-die-0")
    tree.zone("intel-rapl:1", "package-0-die-1")
    assert ids(tree) == ["rapl:package-0-die-0", "rapl:package-0-die-1"]


def test_many_sockets_stay_in_order(tree):
    """Positions follow the package's number, not the spelling (10 after 2)."""
    for socket in (10, 2, 0):
        tree.zone(f"intel-rapl:{socket}", f"package-{socket}")
    assert [device.info.index for device in rapl.survey(root=tree.root).devices] == [0, 2, 10]


def test_memory_without_a_package_is_still_memory(tree):
    """A tree that puts dram at the top must not lose it."""
    tree.zone("intel-rapl:3", "dram")
    assert ids(tree) == ["rapl:dram"]


def test_unknown_zones_are_left_out(tree):
    """A zone of unknown meaning may already be inside another."""
    tree.zone("intel-rapl:0", "mystery")
    (tree.root / "intel-rapl").mkdir()
    assert ids(tree) == []


def test_reading_is_in_joules_on_the_clock(tree, clock):
    """Microjoules and wall time would spoil every window."""
    tree.zone("intel-rapl:0", "package-0", 1_234_567)
    clock.sleep(42.0)
    (device,) = rapl.survey(clock, tree.root).devices
    reading = device.read_energy()
    assert reading.joules == pytest.approx(1.234567)
    assert reading.read_at_seconds == 42.0
    assert reading.refreshed_at_seconds is None


def test_wrapping_goes_on_counting(tree, clock):
    """After a wrap the count continues instead of dropping to zero."""
    tree.zone("intel-rapl:0", "package-0", RANGE_MICROJOULES - 2_000_000)
    (device,) = rapl.survey(clock, tree.root).devices
    before = device.read_energy().joules
    clock.sleep(1.0)
    tree.count("intel-rapl:0", 3_000_000)
    after = device.read_energy().joules
    assert after - before == pytest.approx(5.0)
    assert device.read_energy().range_joules == pytest.approx(RANGE_MICROJOULES * 1e-6)


def test_several_wraps_add_up(tree, clock):
    """Each wrap adds the whole range once."""
    tree.zone("intel-rapl:0", "package-0", 0, range_microjoules=100_000_000)
    (device,) = rapl.survey(clock, tree.root).devices
    start = device.read_energy().joules
    for _ in range(3):
        for value in (90_000_000, 10_000_000):
            clock.sleep(1.0)
            tree.count("intel-rapl:0", value)
            end = device.read_energy().joules
    assert end - start == pytest.approx(310.0)


def test_a_reset_is_not_taken_for_a_wrap(tree, clock):
    """A reload of the driver must not add 262 kJ in a second."""
    tree.zone("intel-rapl:0", "package-0", 500_000_000)
    (device,) = rapl.survey(clock, tree.root).devices
    before = device.read_energy().joules
    clock.sleep(1.0)
    tree.count("intel-rapl:0", 1_000_000)
    after = device.read_energy().joules
    assert after < before
    assert after == pytest.approx(1.0)


def test_an_unknown_range_is_not_unwrapped(tree, clock):
    """Without a range nothing may be invented; the reader sees the counter go back."""
    tree.zone("intel-rapl:0", "package-0", 9_000_000, range_microjoules=0)
    (device,) = rapl.survey(clock, tree.root).devices
    device.read_energy()
    clock.sleep(1.0)
    tree.count("intel-rapl:0", 1_000_000)
    assert device.read_energy().joules == pytest.approx(1.0)
    assert device.read_energy().range_joules is None


@pytest.fixture
def closed(tree, monkeypatch):
    """A tree whose counters only root may read, also when root runs the test."""

    def refuse(path):
        raise PermissionError(13, "Permission denied", str(path))

    tree.zone("intel-rapl:0", "package-0")
    tree.zone("intel-rapl:1", "package-1")
    monkeypatch.setattr(Path, "read_bytes", refuse)
    return tree


def test_closed_counters_are_found_without_energy(closed):
    """Claiming a counter that cannot be read would break every measurement."""
    devices = rapl.survey(root=closed.root).devices
    assert [device.capabilities for device in devices] == [frozenset(), frozenset()]


def test_closed_counters_come_with_a_remedy(closed):
    """The doctor must say once, for all packages, how to open them."""
    (obstacle,) = rapl.survey(root=closed.root).obstacles
    assert "package-0, package-1" in obstacle.subject
    assert "root" in obstacle.reason
    assert "chmod g+r" in obstacle.remedy
    assert str(closed.root / "intel-rapl:1" / "energy_uj") in obstacle.remedy


def test_reading_a_closed_counter_is_a_matter_of_rights(closed):
    """Rights lost after discovery must show as such."""
    (first, _) = rapl.survey(root=closed.root).devices
    with pytest.raises(MissingRightsError):
        first.read_energy()


def test_a_vanished_counter_is_lost(tree, clock):
    """Unloading the driver ends the device; retrying is pointless."""
    counter = tree.zone("intel-rapl:0", "package-0")
    (device,) = rapl.survey(clock, tree.root).devices
    counter.unlink()
    with pytest.raises(DeviceLostError):
        device.read_energy()


@pytest.mark.parametrize("content", ["", "garbage", "1.5"])
def test_a_broken_counter_is_a_device_error(tree, clock, content):
    """A half-written or foreign value must not become a number."""
    counter = tree.zone("intel-rapl:0", "package-0")
    (device,) = rapl.survey(clock, tree.root).devices
    counter.write_text(content)
    with pytest.raises(DeviceError):
        device.read_energy()


def test_a_broken_counter_at_discovery_is_an_obstacle(tree):
    """A fault that is not about rights is reported with its own reason."""
    tree.zone("intel-rapl:0", "package-0").write_text("nonsense")
    survey = rapl.survey(root=tree.root)
    assert survey.devices[0].capabilities == frozenset()
    assert "nonsense" in survey.obstacles[0].reason


def test_design_power_becomes_max_watts(tree):
    """The zone's constraint tells the package's maximum; zero there means unknown."""
    for socket, microwatts in ((0, "205000000"), (1, "0")):
        zone = tree.zone(f"intel-rapl:{socket}", f"package-{socket}").parent
        (zone / "constraint_0_max_power_uw").write_text(microwatts)
    assert [d.info.max_watts for d in rapl.survey(root=tree.root).devices] == [205.0, None]


def test_provenance_names_the_counter(tree):
    """A figure is traced to its zone."""
    tree.zone("intel-rapl:0", "package-0")
    (package,) = rapl.survey(root=tree.root).devices
    assert package.provenance.origin is Origin.MEASURED
    assert package.provenance.source == "RAPL package-0 counter"
    assert package.provenance.relative_error == 0.03


def test_readable_counters_claim_energy(tree):
    """Consumers trust the claim."""
    tree.zone("intel-rapl:0", "package-0")
    assert rapl.survey(root=tree.root).devices[0].capabilities == {Capability.ENERGY}
