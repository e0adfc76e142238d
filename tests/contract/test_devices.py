"""The device contract, run over every kind of device that Joulery has."""

import pytest

from joulery.clock import VirtualClock
from joulery.hardware import (
    Faults,
    IntegratedPower,
    SimulatedGpu,
    _estimate as estimate,
    _gaudi as gaudi,
    _hwmon as hwmon,
    _rapl as rapl,
    amd,
)
from joulery.hardware.node import _scpi as scpi
from joulery.hardware.node._ipmi import IpmiMeter
from joulery.hardware.simulated.catalog import board
from joulery.testing.device_contract import DeviceContract
from support.amdsmi_module import NO_PERMISSION, EmulatedAmdGpu, EmulatedAmdSmi
from support.hlml import UNKNOWN, emulate_cards
from support.hwmon import IntelBoard, show_rails
from support.powercap import PowercapTree
from support.wattmeter import EmulatedWattMeter

IPMI_REPLY = """
    Instantaneous power reading:                   332 Watts
    Power reading state is:                   activated
"""


class OnVirtualClock(DeviceContract):
    __test__ = False

    @pytest.fixture
    def clock(self):
        """The clock that a test turns."""
        return VirtualClock(100.0)


class TestRaplPackage(OnVirtualClock):
    __test__ = True

    @pytest.fixture
    def device(self, clock, tmp_path):
        """The device under test."""
        tree = PowercapTree(tmp_path)
        tree.zone("intel-rapl:0", "package-0", 5_000_000)
        for step in range(8):
            clock.call_at(
                100 + step * self.wait_seconds / 2,
                lambda step=step: tree.count("intel-rapl:0", 5_000_000 + step),
            )
        (found,) = rapl.survey(clock, tmp_path).devices
        return found


class TestRaplWithoutCounter(OnVirtualClock):
    __test__ = True

    @pytest.fixture
    def device(self, clock, tmp_path):
        """The device under test."""
        PowercapTree(tmp_path).zone("intel-rapl:0", "package-0").unlink()
        (found,) = rapl.survey(clock, tmp_path).devices
        return found


class TestIntelGpu(OnVirtualClock):
    __test__ = True

    @pytest.fixture
    def device(self, clock, tmp_path):
        """The device under test."""
        board = IntelBoard(tmp_path, "0000:03:00.0", "xe")
        for step in range(8):
            board.count_at(clock, 100 + step * self.wait_seconds / 2, 5_000_000 + step)
        (device,) = hwmon.survey(clock, tmp_path).devices
        return device


class TestJetsonRail(OnVirtualClock):
    __test__ = True

    @pytest.fixture
    def device(self, clock, tmp_path):
        """The device under test."""
        show_rails(tmp_path, VDD_IN=(5000, 1500))
        (device,) = hwmon.survey(clock, tmp_path).devices
        return device


class TestModernAmdGpu(OnVirtualClock):
    __test__ = True

    @pytest.fixture
    def device(self, clock):
        """The device under test."""
        (found,) = amd.survey(clock, EmulatedAmdSmi()).devices
        return found


class TestOldAmdGpu(OnVirtualClock):
    __test__ = True

    @pytest.fixture
    def device(self, clock):
        """The device under test."""
        (found,) = amd.survey(clock, EmulatedAmdSmi(modern=False, watts_caps=True)).devices
        return found


class TestAmdGpuWithoutRights(OnVirtualClock):
    __test__ = True

    @pytest.fixture
    def device(self, clock):
        """The device under test."""
        knobs = ("amdsmi_set_power_cap", "amdsmi_set_gpu_clk_range", "amdsmi_set_gpu_perf_level")
        refusing = EmulatedAmdSmi(codes=dict.fromkeys(knobs, NO_PERMISSION))
        (found,) = amd.survey(clock, refusing).devices
        return found


class TestGaudiCard(OnVirtualClock):
    __test__ = True

    @pytest.fixture
    def device(self, clock, monkeypatch, tmp_path):
        """The device under test."""
        emulate_cards(monkeypatch, tmp_path)
        (device,) = gaudi.survey(clock).devices
        return device


class TestGaudiCardWithoutRights(OnVirtualClock):
    __test__ = True

    @pytest.fixture
    def device(self, clock, monkeypatch, tmp_path):
        """The device under test."""
        emulate_cards(monkeypatch, tmp_path).cards[0].fail(UNKNOWN, "set")
        monkeypatch.setattr("os.geteuid", lambda: 1000)
        (device,) = gaudi.survey(clock).devices
        return device


class TestIntegratedIpmi(OnVirtualClock):
    __test__ = True

    @pytest.fixture
    def device(self, clock):
        """The device under test."""
        return IntegratedPower(IpmiMeter(run=lambda command: IPMI_REPLY), clock)


class TestIntegratedGpu(OnVirtualClock):
    """Everything the board offers must still work through the wrapper."""

    __test__ = True

    @pytest.fixture
    def device(self, clock):
        """The device under test."""
        binding = EmulatedAmdSmi([EmulatedAmdGpu()], codes={"amdsmi_get_energy_count": 2})
        (found,) = amd.survey(clock, binding).devices
        return IntegratedPower(found, clock)


class TestCpuEstimate(OnVirtualClock):
    __test__ = True

    @pytest.fixture
    def device(self, clock, tmp_path):
        """The device under test."""
        stat = tmp_path / "stat"
        stat.write_text("cpu  100 0 50 1000 7 3 2 0 0 0\ncpu0 100 0 50 1000 7 3 2 0 0 0\n")
        return estimate.survey({}, clock, stat=stat, cpuinfo=tmp_path / "none").devices[0]


class _Direct:
    """A session without a network in between."""

    def __init__(self, meter):
        self._meter = meter

    def close(self):
        """Hang up."""
        self.closed = True

    def query(self, command):
        return self._meter.answer(command)

    def write(self, command):
        self._meter.answer(command)


class TestWattMeter(OnVirtualClock):
    __test__ = True

    @pytest.fixture
    def device(self, clock):
        """The device under test."""
        meter = scpi.open_meter("USB0::1::INSTR", lambda resource: _Direct(EmulatedWattMeter()))
        return IntegratedPower(meter, clock)


class TestSimulatedGpu(OnVirtualClock):
    __test__ = True

    @pytest.fixture
    def device(self, clock):
        """The device under test."""
        return SimulatedGpu(board("V100"), clock)


class TestSimulatedGpuWithoutRights(OnVirtualClock):
    __test__ = True

    @pytest.fixture
    def device(self, clock):
        """The device under test."""
        return SimulatedGpu(board("V100"), clock, faults=Faults(no_permission=True))
