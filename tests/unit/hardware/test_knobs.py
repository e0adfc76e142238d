"""Holding a power limit for a block and giving back what was found."""

from types import SimpleNamespace

import pytest

from joulery.clock import VirtualClock
from joulery.errors import InvalidValueError, MissingRightsError, UnsupportedError
from joulery.hardware import catalog
from joulery.hardware.device import DeviceInfo, DeviceKind
from joulery.hardware.knobs import held_power_limit
from joulery.hardware.simulated import Faults, SimulatedGpu

BOARD = catalog.board("V100")


@pytest.fixture
def gpu():
    """A board at a limit that is not its default."""
    made = SimulatedGpu(BOARD, VirtualClock())
    made.set_power_limit(220.0)
    return made


def limit(gpu):
    """What is in force."""
    return gpu.power_limits().current_watts


def test_the_limit_holds_inside_and_is_given_back(gpu):
    """A sweep would leave boards capped, or reset them to a default nobody chose."""
    with held_power_limit(gpu, 150.0):
        assert limit(gpu) == 150.0
    assert limit(gpu) == 220.0


def test_it_is_given_back_when_the_block_raises(gpu):
    """A crashed training step would leave the board capped."""
    with pytest.raises(KeyError), held_power_limit(gpu, 150.0):
        raise KeyError
    assert limit(gpu) == 220.0


def test_holds_nest(gpu):
    """An inner hold would undo the outer one."""
    with held_power_limit(gpu, 200.0):
        with held_power_limit(gpu, 150.0):
            assert limit(gpu) == 150.0
        assert limit(gpu) == 200.0
    assert limit(gpu) == 220.0


def test_a_limit_out_of_range_changes_nothing(gpu):
    """A refused limit would leave the block running uncapped or the board changed."""
    with pytest.raises(InvalidValueError), held_power_limit(gpu, 10_000.0):
        pytest.fail("the block must not run")
    assert limit(gpu) == 220.0


def test_without_rights_the_block_does_not_run():
    """Work would run under a limit that was never set."""
    gpu = SimulatedGpu(BOARD, VirtualClock(), faults=Faults(no_permission=True))
    with pytest.raises(MissingRightsError), held_power_limit(gpu, 150.0):
        pytest.fail("the block must not run")


def test_a_device_without_limit_is_refused():
    """A CPU would be taken for capped."""
    device = SimpleNamespace(
        info=DeviceInfo("x", "Plain", DeviceKind.CPU, "fake"), capabilities=frozenset()
    )
    with pytest.raises(UnsupportedError, match="power limit"), held_power_limit(device, 100.0):
        pytest.fail("the block must not run")
