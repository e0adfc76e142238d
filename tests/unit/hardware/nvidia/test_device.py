import subprocess
import sys
from types import SimpleNamespace

import pytest

from joulery.frontier import Origin
from joulery.hardware import nvidia
from joulery.hardware.nvidia import _device as device


class NVMLError(Exception):
    """Stands in for the binding's error."""

    value = 999


def refuse(*_arguments):
    """Fail as the driver does."""
    raise NVMLError


def binding(**functions):
    """A binding with these functions only."""
    return SimpleNamespace(NVMLError=NVMLError, nvmlLib=SimpleNamespace(), **functions)


def test_a_driver_without_boards_is_an_obstacle(monkeypatch, tmp_path):
    """A container with the device files but without the library would look like no GPU at all."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setattr(device, "DRIVER", tmp_path / "nvidiactl")
    assert nvidia.survey().obstacles == ()
    device.DRIVER.touch()
    (obstacle,) = nvidia.survey().obstacles
    assert "nvidia-smi" in obstacle.remedy


def test_importing_does_not_load_the_binding():
    """`joulery --help` would pay for a driver that it does not use."""
    code = "import sys, joulery.hardware.nvidia; sys.exit('pynvml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_no_binding_means_no_boards(monkeypatch):
    """A machine without nvidia-ml-py could not even measure its CPU."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvidia.survey().devices == ()


@pytest.mark.parametrize("broken", ["nvmlInit", "nvmlDeviceGetCount"])
def test_no_driver_means_no_boards(monkeypatch, broken):
    """A machine without a GPU would fail instead of finding none."""
    functions = {"nvmlInit": lambda: None, "nvmlDeviceGetCount": lambda: 1, broken: refuse}
    monkeypatch.setitem(sys.modules, "pynvml", binding(**functions))
    assert nvidia.survey().devices == ()


@pytest.mark.parametrize(
    ("driver", "nvml", "origin"),
    [
        ("580.65.06", "13.580.65", Origin.MEASURED),
        ("580.00-emulated", "13.580.00-emulated", Origin.SIMULATED),
        (None, "13.580.00-emulated", Origin.SIMULATED),
        (None, None, Origin.ASSUMED),
    ],
)
def test_emulated_figures_never_pass_as_measured(monkeypatch, driver, nvml, origin):
    """A test run's joules would end up in a report as real ones."""

    def version(text):
        return refuse if text is None else lambda: text

    fake = binding(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 1,
        nvmlSystemGetDriverVersion=version(driver),
        nvmlSystemGetNVMLVersion=version(nvml),
        nvmlDeviceGetHandleByIndex=lambda index: index,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    (board,) = nvidia.survey().devices
    assert board.provenance.origin is origin
    # No accuracy is published for the counter; only the emulated one is known to be exact.
    assert board.provenance.relative_error == (0.0 if origin is Origin.SIMULATED else None)


def test_a_board_that_tells_nothing_claims_nothing(monkeypatch):
    """Consumers would call what cannot work."""
    fake = binding(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index or refuse(),
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    (board,) = nvidia.survey().devices
    assert board.info.id == "nvidia:1"
    assert board.info.index == 1
    assert board.info.max_watts is None
    assert board.capabilities == frozenset()
