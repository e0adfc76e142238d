from dataclasses import replace

import pytest

from joulery.clock import VirtualClock
from joulery.errors import InvalidValueError
from joulery.frontier import Origin
from joulery.hardware import SimulatedNode, preset
from joulery.hardware.simulated._physics import settle
from joulery.testing.device_contract import DeviceContract

PRESET = preset("rtx6000x8")


def without_noise(chosen):
    """The preset with runs that all take the same time."""
    return replace(chosen, noise=0.0)


@pytest.fixture
def node():
    """The preset without noise."""
    return SimulatedNode(without_noise(PRESET), VirtualClock())


def test_presets_go_by_name():
    """A typing error would end in a traceback."""
    assert preset("RTX6000x8") is PRESET
    with pytest.raises(InvalidValueError, match="no simulated node 'dgx'") as unknown:
        preset("dgx")
    assert "rtx6000x8" in unknown.value.remedy


def test_the_node_is_the_papers(node):
    """Limits of the published sweep would be refused."""
    assert len(node.gpus) == 8
    found = node.gpus[0].power_limits()
    assert (found.min_watts, found.max_watts, found.default_watts) == (100.0, 260.0, 260.0)


def test_only_the_first_boards_work(node):
    """Idle boards would not be idle."""
    node.clock.call_at(1.0, lambda: seen.extend(gpu.steady().watts for gpu in node.gpus))
    seen = []
    node.run(2)
    idle = node.gpus[0].board.idle_watts
    assert [watts > idle for watts in seen] == [True, True] + [False] * 6
    assert all(gpu.steady().watts == idle for gpu in node.gpus)


def test_a_run_takes_what_is_expected(node):
    """Estimates of duration would be wrong."""
    started = node.clock.now()
    seconds = node.run(4)
    assert seconds == node.clock.now() - started
    assert seconds == settle(node.gpus[0].board, PRESET.work_on(4), 260.0).seconds


@pytest.mark.parametrize("gpus", [0, 9])
def test_boards_that_are_not_there_are_refused(node, gpus):
    """The simulation would quietly run on fewer."""
    with pytest.raises(InvalidValueError, match="boards"):
        node.run(gpus)


def test_the_plug_sees_boards_and_host(node):
    """A joule would be missing or counted twice."""
    start = node.read_energy().joules
    boards = sum(gpu.true_joules() for gpu in node.gpus)
    seconds = node.run(8)
    used = node.read_energy().joules - start
    boards = sum(gpu.true_joules() for gpu in node.gpus) - boards
    rest = used - boards - PRESET.constant_watts * seconds - PRESET.host_joules
    assert 0 < rest < PRESET.fan_watts * seconds


def test_an_idle_node_still_draws(node):
    """Savings on few boards would look as large as on all."""
    idle = 8 * node.gpus[0].board.idle_watts + PRESET.constant_watts
    assert node.read_power() == pytest.approx(idle, rel=0.01)
    node.clock.sleep(10.0)
    assert node.read_energy().joules == pytest.approx(10 * idle, rel=0.01)
    assert node.read_energy().range_joules is None
    assert node.provenance.origin is Origin.SIMULATED


def test_noise_depends_on_seed_and_occasion_only():
    """A sweep that was interrupted would end with other figures than one that was not."""

    def seconds(seed, *occasions):
        node = SimulatedNode(PRESET, VirtualClock(), seed=seed)
        return [node.run(8, occasion) for occasion in occasions]

    first, second = seconds(0, 0, 1)
    assert first != second
    assert seconds(0, 1) == [second]
    assert seconds(1, 0) != [first]


def test_boards_under_different_limits_wait_for_the_slowest(node):
    """Data-parallel ranks go at the pace of the last."""
    node.gpus[1].set_power_limit(150.0)
    slowest = settle(node.gpus[1].board, PRESET.work_on(2), 150.0).seconds
    assert node.run(2) == slowest


class TestMeterContract(DeviceContract):
    """The meter at the plug is a device like any other."""

    @pytest.fixture
    def clock(self):
        """Time that the test turns."""
        return VirtualClock()

    @pytest.fixture
    def device(self, clock):
        """The plug of an idle node."""
        return SimulatedNode(PRESET, clock)
