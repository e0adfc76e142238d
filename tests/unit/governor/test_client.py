"""``lease`` on simulated boards, which need neither daemon nor watchdog."""

import os
import threading

import pytest

from joulery.clock import VirtualClock
from joulery.errors import InvalidValueError, MissingRightsError, NotPossibleHereError
from joulery.governor import Lease, held, lease, lease_obstacle
from joulery.hardware import Faults, SimulatedGpu, catalog
from support.governor.bench import PlainBoard


@pytest.fixture
def gpu():
    """A board whose cap is not its default."""
    made = SimulatedGpu(catalog.board("V100"), VirtualClock())
    made.set_power_limit(210.0)
    return made


def test_values_come_back(gpu):
    """The board would stay slow."""
    with lease(gpu, watts=180) as held:
        assert gpu.power_limits().current_watts == held.watts == 180.0
        assert held.baseline_watts == 210.0
        held.set(watts=150)
        held.set(clock_hertz=gpu.supported_clocks()[3])
        assert held.clock_hertz == gpu.supported_clocks()[3]
        assert held.watts == 150.0
        held.reset()
        assert (held.watts, held.clock_hertz) == (210.0, None)
        held.set(watts=120)
    assert gpu.power_limits().current_watts == 210.0


def test_values_come_back_after_an_error(gpu):
    """A crash would leave the board slow."""
    with pytest.raises(RuntimeError), lease(gpu, watts=150):
        raise RuntimeError
    assert gpu.power_limits().current_watts == 210.0


def test_early_release(gpu):
    """A tuner that is done would have to leave its block."""
    with lease(gpu, watts=150) as held:
        held.release()
        assert gpu.power_limits().current_watts == 210.0
        with lease(gpu, watts=160):
            assert gpu.power_limits().current_watts == 160.0
    assert gpu.power_limits().current_watts == 210.0


def test_one_owner(gpu):
    """Two tuners in one process would undo each other's limits."""
    with (
        lease(gpu, watts=150),
        pytest.raises(NotPossibleHereError, match="this very process"),
        lease(gpu),
    ):
        pass


@pytest.mark.parametrize("watts", [1, 1e6, float("nan"), -5])
def test_bad_limit_leaves_nothing_behind(gpu, watts):
    """A typing error would lock the board for the rest of the process."""
    with pytest.raises(InvalidValueError), lease(gpu, watts=watts):
        pass
    with lease(gpu, watts=150):
        pass


def test_no_rights():
    """People without rights must hear so, and advisers must be able to ask first."""
    gpu = SimulatedGpu(catalog.board("V100"), VirtualClock(), faults=Faults(no_permission=True))
    assert "no permission" in lease_obstacle(gpu).reason
    with pytest.raises(MissingRightsError), lease(gpu, watts=150):
        pass


def test_may(gpu):
    """An adviser would not act where it could."""
    assert lease_obstacle(gpu) is None
    assert gpu.power_limits().current_watts == 210.0


def test_device_without_knobs():
    """A CPU counter cannot be leased."""
    board = PlainBoard()
    board.capabilities = frozenset()
    assert "no power limit" in lease_obstacle(board).reason


def test_forked_child_does_not_give_back(gpu):
    """A data-loader worker that ends would take its parent's limit away."""
    with lease(gpu, watts=150) as held:
        held._process += 1
        held.release()
        with pytest.raises(NotPossibleHereError, match="forked child"):
            held.set(watts=120)
        assert gpu.power_limits().current_watts == 150.0
        held._process = os.getpid()


def test_several_devices_are_held_all_or_none():
    """A job would start with some of its boards limited and others not."""
    clock = VirtualClock()
    first, second = (SimulatedGpu(catalog.board("V100"), clock, index=n) for n in (0, 1))
    with held([first, second], watts=150.0) as both:
        assert [gpu.power_limits().current_watts for gpu in (first, second)] == [150.0, 150.0]
        both[1].set(watts=160.0)
    assert [gpu.power_limits().current_watts for gpu in (first, second)] == [250.0, 250.0]
    with lease(second), pytest.raises(NotPossibleHereError), held([first, second], watts=150.0):
        pass
    assert first.power_limits().current_watts == 250.0
    with lease(first):
        pass


def test_a_lease_is_renewed_within_the_time_that_was_granted():
    """A lease for a day would expire after the hour that the governor grants."""
    renewed = threading.Event()

    class Granting:
        """A connection whose governor grants less than was requested."""

        def ask(self, operation, **details):
            """Grant everything."""
            if operation == "renew":
                renewed.set()
            return {"lease": 1, "ttl_seconds": 0.03}

        def close(self):
            """Nothing to close."""

    made = Lease(Granting, "gpu:0", 1e9)
    made.acquire({})
    assert renewed.wait(60.0)
    made.release()
