"""A process killed at any moment loses at most a second of logged energy."""

import json
import os
import signal
import subprocess
import sys
import time
from statistics import median

import numpy as np
import pytest

from joulery.metering import EnergyLog
from joulery.metering._log import INTERVAL_SECONDS

WATTS = 100.0

# A process that measures a device of known power for ever, logs it, and says when it is ready.
CHILD = """
import sys, time
from joulery.frontier import Origin, Provenance
from joulery.hardware._device import Capability, DeviceInfo, DeviceKind, EnergyReading
from joulery.metering._log import EnergyLog
from joulery.metering._meter import Meter

class Constant:
    info = DeviceInfo("fake:0", "Fake", DeviceKind.GPU, "fake", max_watts=200.0)
    provenance = Provenance(Origin.MEASURED, "fake", 0.0)
    capabilities = frozenset({Capability.ENERGY})
    def read_energy(self):
        now = time.monotonic()
        return EnergyReading(100.0 * now, now)

seconds = float(sys.argv[2])
with Meter([Constant()]) as meter:
    window = meter.begin("run")
    with EnergyLog(sys.argv[1]).recording(window, sys.argv[3]):
        print("ready", flush=True)
        time.sleep(seconds)
        meter.end(window)
"""


def child(path, seconds, label=""):
    """Start one; returns when its window is open and logged."""
    process = subprocess.Popen(
        [sys.executable, "-c", CHILD, str(path), str(seconds), label],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout.readline() == "ready\n"
    return process


def test_kills_lose_at_most_a_second_each(tmp_path):
    """A preempted job would lose the energy it used."""
    log = EnergyLog(tmp_path / "energy.log")
    draw = np.random.default_rng(7)
    kills, known, losses = 6, 0.0, []
    for _ in range(kills):
        process = child(log.path, 60.0)
        started = time.monotonic()
        time.sleep(draw.uniform(0.0, 1.5 * INTERVAL_SECONDS))
        os.kill(process.pid, signal.SIGKILL)
        lived = time.monotonic() - started
        process.communicate()
        totals = log.totals()
        losses.append(lived - (totals.seconds - known))
        known = totals.seconds
    assert median(losses) <= 1.0  # a busy machine delays a few
    assert totals.sessions == totals.unfinished == kills
    assert totals.damaged_lines == ()
    assert totals.joules == pytest.approx(WATTS * totals.seconds, rel=0.02, abs=0.2 * kills * WATTS)

    last = child(log.path, 1.0)
    last.communicate()
    finished = log.totals()
    assert finished.sessions == kills + 1
    assert finished.unfinished == kills
    added = finished.joules - totals.joules
    assert added == pytest.approx(WATTS * (finished.seconds - totals.seconds), rel=0.05)


def test_two_processes_append_to_one_log(tmp_path):
    """Ranks of one job would overwrite each other's lines."""
    log = EnergyLog(tmp_path / "energy.log")
    processes = [child(log.path, 1.0, label) for label in ("rank 0", "rank 1")]
    for process in processes:
        process.communicate()
    totals = log.totals()
    assert (totals.sessions, totals.unfinished, totals.damaged_lines) == (2, 0, ())
    assert totals.joules == pytest.approx(WATTS * totals.seconds, rel=0.05)
    labels = {json.loads(line)["label"] for line in log.path.read_text().splitlines()}
    assert labels == {"rank 0", "rank 1"}


def test_a_child_of_a_torn_log_starts_on_its_own_line(tmp_path):
    """What a crash left behind would swallow the first line of the next session."""
    log = EnergyLog(tmp_path / "energy.log")
    child(log.path, 0.0).communicate()
    whole = log.path.read_bytes()
    log.path.write_bytes(whole + whole[:50])
    child(log.path, 0.0).communicate()
    totals = log.totals()
    assert totals.sessions == 2
    assert len(totals.damaged_lines) == 1
