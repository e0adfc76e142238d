"""The meter on the real clock: many threads at once, and life after a fork."""

import math
import subprocess
import sys
import threading
import time

import pytest

from joulery.frontier import Origin, Provenance
from joulery.hardware import Capability, DeviceInfo, DeviceKind, EnergyReading
from joulery.metering import Meter

WATTS = 100.0


class Constant:
    """A device of constant power whose counter refreshes every ``period`` seconds."""

    def __init__(self, period=0.02, *, stamped=True, name="fake:0"):
        self.period = period
        self.stamped = stamped
        self.hang = threading.Event()
        self.hang.set()
        self.info = DeviceInfo(name, "Fake", DeviceKind.GPU, "fake", max_watts=200.0)
        self.provenance = Provenance(Origin.MEASURED, "fake", 0.0)
        self.capabilities = frozenset({Capability.ENERGY})

    def read_energy(self):
        """The counter as of its last refresh."""
        self.hang.wait(60.0)
        now = time.monotonic()
        tick = now // self.period * self.period
        return EnergyReading(WATTS * tick, now, tick if self.stamped else None, WATTS)


@pytest.mark.parametrize("stamped", [True, False])
def test_windows_of_many_threads_are_all_right(stamped):
    """Threads that measure at once would corrupt each other's windows."""
    problems, lock = [], threading.Lock()
    with Meter([Constant(stamped=stamped), Constant(0.05, name="fake:1")]) as meter:
        time.sleep(0.4)

        def work(number):
            for turn in range(8):
                with meter.window(f"outer {number}") as outer:
                    inner = meter.begin("shared name")
                    time.sleep(0.01 + 0.007 * ((number + turn) % 4))
                    by_name = meter.end("shared name")
                wrong = abs(outer.joules - 2 * WATTS * outer.seconds)
                spread = math.hypot(*(device.standard_error_joules for device in outer.devices))
                allowed = 4 * spread + 0.5  # joules; threads wake up late
                if by_name is not inner or wrong > allowed or outer.seconds < inner.seconds:
                    with lock:
                        problems.append((number, turn, wrong, allowed, outer, inner))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not meter._open
    assert problems == []


def test_one_window_over_a_real_second():
    """The real clock and its thread would give other figures than the virtual one."""
    with Meter([Constant()]) as meter:
        time.sleep(0.2)
        started = time.monotonic()
        with meter.window() as window:
            slept = time.monotonic()
            time.sleep(0.5)
            slept = time.monotonic() - slept
        took = time.monotonic() - started
    assert slept <= window.seconds <= took
    assert window.joules == pytest.approx(WATTS * window.seconds, rel=0.01)
    assert window.flags == frozenset()


def test_a_driver_that_hangs_does_not_hang_the_work():
    """A stuck driver call would stop the training."""
    device = Constant()
    with Meter([device]) as meter:
        time.sleep(0.3)
        device.hang.clear()
        time.sleep(0.1)
        started = time.monotonic()
        for _ in range(10):
            with meter.window() as window:
                pass
        assert time.monotonic() - started < 30.0  # it would be for ever
        assert window.joules >= 0.0
        device.hang.set()


FORK = """
import os, sys, time
sys.path.insert(0, sys.argv[1])
from test_meter_threads import Constant, WATTS
from joulery.metering._meter import Meter

meter = Meter([Constant()]).start()
time.sleep(0.2)
inherited = meter.begin("across")
child = os.fork()
with meter.window("after") as window:
    time.sleep(0.4)
right = abs(window.joules - WATTS * window.seconds) < 0.1 * WATTS * window.seconds
if child == 0:
    os._exit(0 if right else 1)
meter.end(inherited)
right &= abs(inherited.joules - WATTS * inherited.seconds) < 0.1 * WATTS * inherited.seconds
_, status = os.waitpid(child, 0)
print(right, os.waitstatus_to_exitcode(status))
"""


def test_both_sides_of_a_fork_can_measure(request):
    """Data loaders fork: the child would hang or measure nothing, or the parent stop."""
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(request.path.parent)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "True 0\n", done.stderr


EXIT = """
import sys
sys.path.insert(0, sys.argv[1])
from test_meter_threads import Constant
from joulery.metering._meter import Meter
meter = Meter([Constant()]).start()
meter.begin("never ended")
"""


def test_a_program_may_end_with_a_meter_running(request):
    """Leaving a program would hang or print a traceback."""
    done = subprocess.run(
        [sys.executable, "-c", EXIT, str(request.path.parent)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
