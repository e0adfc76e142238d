"""A driver call that hangs: other devices are served, and nothing is lost."""

import os
import signal
import threading
import time
from contextlib import closing

import pytest

from joulery.errors import DeviceError
from joulery.governor import Connection
from joulery.testing.emulator import build
from support.governor.node import GovernedNode

SET = "nvmlDeviceSetPowerManagementLimit*"
PATIENCE_SECONDS = 1.0
HANG_SECONDS = 4.0


@pytest.fixture
def governed():
    """A governor on two boards that loses patience soon."""
    if build.compiler() is None and os.environ.get("CI") != "true":
        pytest.skip("no C compiler: the emulated NVML cannot be built")
    with GovernedNode(["A100", "A100"], stall_seconds=PATIENCE_SECONDS) as made:
        yield made


def _took(call, *arguments, **details):
    began = time.monotonic()
    call(*arguments, **details)
    return time.monotonic() - began


def _refused(connection, *arguments, **details):
    with pytest.raises(DeviceError, match="does not answer"):
        connection.ask(*arguments, **details)


def _hold(governed, index, watts):
    connection = Connection(governed.socket)
    device = governed.devices[index]
    reply = connection.ask("acquire", device=device, watts=watts, ttl_seconds=30)
    return connection, reply["lease"]


def test_other_devices_are_served(governed):
    """One board that hangs would freeze every board of the node."""
    stuck, lease = _hold(governed, 0, 200)
    other, other_lease = _hold(governed, 1, 200)
    with closing(stuck), closing(other):
        governed.node.slow(0, HANG_SECONDS, SET)
        asking = threading.Thread(
            target=_refused, args=(stuck, "set"), kwargs={"lease": lease, "watts": 150}
        )
        asking.start()
        slowest = max(
            _took(other.ask, "set", lease=other_lease, watts=150 + number) for number in range(50)
        )
        asking.join(60)
        assert not asking.is_alive()
        assert slowest < HANG_SECONDS
        assert [device["stuck"] for device in governed.status()] == [True, False]
        assert _took(_refused, stuck, "set", lease=lease, watts=160) < PATIENCE_SECONDS


def test_limit_comes_back_once_the_driver_answers(governed):
    """A holder that dies while its driver hangs would leave its limit for good."""
    stuck, lease = _hold(governed, 0, 200)
    governed.node.slow(0, HANG_SECONDS, SET)
    _refused(stuck, "set", lease=lease, watts=150)
    stuck.close()
    assert list(governed.state.glob("*.json")), "the journal knows meanwhile"
    governed.node.clear_faults()
    assert governed.restored_after(0, 400.0, 3 * HANG_SECONDS) is not None
    assert list(governed.state.glob("*.json")) == []


def test_lease_granted_too_late_is_not_kept(governed):
    """A client that was refused would hold a device without knowing it."""
    governed.node.slow(0, HANG_SECONDS, SET)
    with closing(Connection(governed.socket)) as connection:
        device = governed.devices[0]
        _refused(connection, "acquire", device=device, watts=150, ttl_seconds=30)
        governed.node.clear_faults()
        assert governed.restored_after(0, 400.0, 3 * HANG_SECONDS) is not None
        assert connection.ask("acquire", device=device, watts=170, ttl_seconds=30)["watts"] == 170.0


def test_next_governor_repairs_what_a_stopped_one_could_not(governed):
    """Stopping a service with a driver that hangs would take for ever, or leave the limit."""
    stuck, lease = _hold(governed, 0, 200)
    governed.node.slow(0, HANG_SECONDS, SET)
    _refused(stuck, "set", lease=lease, watts=150)
    assert _took(governed.stop, signal.SIGTERM) < HANG_SECONDS
    stuck.close()
    governed.node.clear_faults()
    governed.start()
    assert governed.restored_after(0, 400.0) is not None
