"""What can be told about a job from outside."""

import math
import time

import pytest

from joulery.errors import DeviceError
from joulery.frontier import Origin, Provenance
from joulery.hardware.device import Capability, DeviceInfo, DeviceKind
from joulery.power.step_period import StepPeriod
from joulery.training.watching import Finding, PowerWatch


class Sensor:
    """A GPU whose power the test decides."""

    def __init__(self, watts, kind=DeviceKind.GPU):
        self.watts = watts
        self.info = DeviceInfo("gpu-x", "GPU X", kind, "fake")
        self.provenance = Provenance(Origin.SIMULATED)
        self.capabilities = frozenset({Capability.POWER})

    def read_power(self):
        """What the test says."""
        return self.watts()


def failing():
    """A sensor that is out of order."""
    raise DeviceError("no answer", remedy="none")


@pytest.mark.parametrize("watts", [lambda: 200.0, failing, lambda: math.nan])
def test_power_without_a_rhythm_gives_advice_and_no_error(watts):
    """If this fails, a flat or broken sensor ends `joulery run` with an error."""
    with PowerWatch([Sensor(watts)]) as watch:
        time.sleep(0.2)
    (finding,) = watch.findings()
    assert finding.rhythm is None
    assert "no rhythm" in finding.advice
    assert finding.to_dict()["confidence"] == 0.0


def test_only_accelerators_are_watched():
    """If this fails, the processor's power is taken for the rhythm of training."""
    with PowerWatch([Sensor(lambda: 1.0, DeviceKind.CPU)]) as watch:
        assert watch.findings() == []


def test_advice_says_how_sure_it_is():
    """If this fails, a guess reads like a fact."""
    assert "(sure: 90 %" in Finding("a", StepPeriod(0.5, 0.9)).advice
    assert "(not sure: 30 %" in Finding("a", StepPeriod(0.5, 0.3)).advice
