"""Holders that die in every way, on the real daemon and an emulated driver."""

import os
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from joulery.testing.emulator import build
from support.governor.experiments import kill_holders
from support.governor.node import GovernedNode
from support.governor.nursery import DEADLY

HOLD = """
import sys, time
from joulery.governor import lease
from joulery.hardware import discover
with lease(discover()[0], watts=150, ttl_seconds=float(sys.argv[1])) as held:
    print("held", flush=True)
    {body}
"""


@pytest.fixture(scope="module")
def shared():
    """A governor on one emulated board."""
    if build.compiler() is None and os.environ.get("CI") != "true":
        pytest.skip("no C compiler: the emulated NVML cannot be built")
    with GovernedNode() as made:
        yield made


@pytest.fixture
def governed(shared):
    """The governor, with its board at 400 W."""
    shared.node.set_power_limit(0, 400.0)
    return shared


@contextmanager
def _holding(governed, body="time.sleep(60)", ttl=30):
    with subprocess.Popen(
        [sys.executable, "-c", HOLD.format(body=body), str(ttl)],
        env=governed.env,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        try:
            assert process.stdout.readline() == b"held\n"
            assert governed.node.power_limit(0) == 150.0
            yield process
        finally:
            process.kill()


def test_killed_holders_leave_nothing_behind(governed):
    """A job killed at any moment by any signal would leave its board slow."""
    report = kill_holders(governed, 100, seed=int(time.time()))
    assert report.unrestored == 0
    assert report.caught_holding > 5
    assert len(DEADLY) > 15


@pytest.mark.parametrize("body", ["input()", "input(); 1 / 0", "input(); sys.exit(3)"])
def test_end_of_the_block_restores(governed, body):
    """A job that ends by itself would leave its board slow."""
    with _holding(governed, body) as process:
        process.stdin.write(b"\n")
        process.stdin.close()
        process.wait(60)
        assert governed.restored_after(0, 400.0) is not None


def test_restored_though_a_forked_child_keeps_the_connection(governed):
    """Data-loader workers inherit the socket; a dead job would hold its limit through them."""
    body = "import os; child = os.fork(); child and print(child, flush=True); time.sleep(200)"
    with _holding(governed, body) as process:
        child = int(process.stdout.readline())
        process.kill()
        try:
            assert governed.restored_after(0, 400.0) is not None
        finally:
            os.kill(child, signal.SIGKILL)


def test_stopped_holder_loses_its_lease(governed):
    """A paused container would keep its board slow for as long as it is paused."""
    with _holding(governed, ttl=2.0) as process:
        os.kill(process.pid, signal.SIGSTOP)
        assert governed.restored_after(0, 400.0) is not None
        os.kill(process.pid, signal.SIGCONT)
        deadline = time.monotonic() + 60
        while governed.node.power_limit(0) != 150.0 and time.monotonic() < deadline:
            time.sleep(0.01)
        assert governed.node.power_limit(0) == 150.0, "once awake it gets its lease back"
    assert governed.restored_after(0, 400.0) is not None


def test_administrators_cap_wins(governed):
    """Restoring the old cap over a new one would undo the administrator's work."""
    with _holding(governed) as process:
        governed.node.set_power_limit(0, 120.0)
        process.kill()
        assert governed.restored_after(0, 120.0) is not None
