"""Every error of the driver at every call that Joulery makes."""

import os
import re
from contextlib import suppress
from pathlib import Path

import pynvml
import pytest

from joulery.errors import (
    DeviceError,
    DeviceLostError,
    JouleryError,
    MissingRightsError,
    UnsupportedError,
)
from joulery.hardware import Capability, catalog, nvidia
from joulery.testing.emulator import BoardSpec, EmulatedNode, build

CODES = sorted(
    {value for name, value in vars(pynvml).items() if name.startswith("NVML_ERROR_")}
    | {31, 77, 998}  # codes of drivers to come
)
SOURCES = Path(nvidia.__file__).parent.glob("*.py")
CALLS = sorted(
    {
        call
        for source in SOURCES
        for call in re.findall(r'"(nvml[A-Z]\w+)"', source.read_text(encoding="utf-8"))
    }
)
KINDS = {3: UnsupportedError, 4: MissingRightsError, 13: UnsupportedError, 15: DeviceLostError}
# The C function behind a name of the binding carries another version, or is another function.
SYMBOLS = {"nvmlInit": "nvmlInit*"}


@pytest.fixture
def node(tmp_path):
    """A board in MIG mode and a whole one, in this process."""
    if build.compiler() is None and os.environ.get("CI") != "true":
        pytest.skip("no C compiler: the emulated NVML cannot be built")
    board = catalog.board("A100")
    boards = [BoardSpec(board, mig_slices=(2, 3)), BoardSpec(board)]
    with EmulatedNode(boards, directory=tmp_path) as running:
        running.load_in_process()
        yield running


def symbol(call):
    """A pattern that fits the C function behind a call of the binding."""
    return SYMBOLS.get(call, f"{call}*")


def deeds(device):
    """Everything that a consumer may ask of a device."""
    yield device.read_energy
    yield device.read_power
    yield device.telemetry
    if isinstance(device, nvidia.NvidiaGpu):
        yield device.power_limits
        yield lambda: device.set_power_limit(200.0)
        yield lambda: device.lock_clock(device.supported_clocks()[0])
        yield device.unlock_clock


def test_the_calls_are_known():
    """A call that this file does not see would go untested."""
    assert len(CALLS) >= 20
    assert {"nvmlDeviceSetPowerManagementLimit", "nvmlDeviceGetFieldValues"} <= set(CALLS)


@pytest.mark.parametrize("call", CALLS)
def test_discovery_survives_every_error(node, call):
    """One odd driver would take down the command, or claim what does not work."""
    for code in CODES:
        node.fault(None, code, symbol(call))
        for device in nvidia.survey().devices:
            if Capability.ENERGY in device.capabilities:
                assert device.read_energy().joules > 0
            if Capability.POWER in device.capabilities:
                assert device.read_power() > 0
            if Capability.POWER_LIMIT in device.capabilities:
                assert device.power_limits().max_watts > 0
            if Capability.CLOCK_LOCK in device.capabilities:
                assert device.supported_clocks()
        node.clear_faults()
    assert len(nvidia.survey().devices) == 4


@pytest.mark.parametrize("call", CALLS)
def test_only_our_errors_come_out(node, call):
    """An NVMLError would end a training run that guards against JouleryError."""
    devices = nvidia.survey().devices
    for code in CODES:
        node.fault(None, code, symbol(call))
        for device in devices:
            for deed in deeds(device):
                with suppress(JouleryError):
                    deed()
        node.clear_faults()
    for device in devices:
        for deed in deeds(device):
            deed()


@pytest.mark.parametrize("code", CODES)
def test_each_error_is_of_the_right_kind(node, code):
    """A consumer decides by the kind whether to try again, give up or ask for rights."""
    *_, gpu = nvidia.survey().devices
    expected = KINDS.get(code, DeviceError)
    node.fault(1, code)
    for deed in deeds(gpu):
        if deed.__name__ == "telemetry":
            continue
        with pytest.raises(JouleryError) as caught:
            deed()
        assert type(caught.value) is expected
        assert caught.value.remedy
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("field", "read"), [("energy", "read_energy"), ("power", "read_power")])
def test_a_field_that_fails_by_itself_is_an_error(node, field, read):
    """The call as a whole succeeds, and the counter would read zero."""
    *_, gpu = nvidia.survey().devices
    good = gpu._energy_reader.read()

    class Broken:
        def read(self):
            return good._replace(**{f"{field}_code": 10, "millijoules": 0, "milliwatts": 0})

    gpu._energy_reader = gpu._power_reader = Broken()
    with pytest.raises(DeviceError):
        getattr(gpu, read)()


def test_telemetry_of_a_lost_board_raises(node):
    """A monitor would show an empty row for ever instead of a dead board."""
    *_, gpu = nvidia.survey().devices
    node.lose(1)
    with pytest.raises(DeviceLostError):
        gpu.telemetry()


def test_a_driver_that_recovers_is_used_again(node):
    """One time-out would lose the board for the rest of the run."""
    *_, gpu = nvidia.survey().devices
    node.fault(1, 10, "nvmlDeviceGetFieldValues", calls=1)
    with pytest.raises(DeviceError):
        gpu.read_energy()
    assert gpu.read_energy().joules > 0
