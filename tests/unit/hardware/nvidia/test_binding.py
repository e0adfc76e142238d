from types import SimpleNamespace

import pytest

from joulery.errors import (
    DeviceError,
    DeviceLostError,
    JouleryError,
    MissingRightsError,
    UnsupportedError,
)
from joulery.hardware.nvidia._binding import Nvml, error_of


class NVMLError(Exception):
    """Stands in for the binding's error."""

    def __init__(self, value):
        super().__init__(f"code {value}")
        self.value = value


def failing(error):
    """A binding whose one function raises."""

    def call(*_arguments):
        raise error

    return Nvml(SimpleNamespace(NVMLError=NVMLError, nvmlAsk=call))


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (3, UnsupportedError),
        (4, MissingRightsError),
        (13, UnsupportedError),
        (15, DeviceLostError),
        (1, DeviceError),
        (10, DeviceError),
        (999, DeviceError),
        (12345, DeviceError),
    ],
)
def test_each_code_has_its_error(code, kind):
    """A consumer could not tell missing rights from a lost board."""
    with pytest.raises(kind) as caught:
        failing(NVMLError(code)).call("nvmlAsk", 1)
    assert type(caught.value) is kind
    assert "nvmlAsk" in caught.value.message
    assert caught.value.remedy


def test_unknown_codes_are_named():
    """A report about a new driver's error would not say which."""
    assert "31" in error_of(31, "nvmlAsk", "?").message


def test_a_function_that_the_binding_lacks_is_unsupported():
    """An old nvidia-ml-py would end in AttributeError."""
    with pytest.raises(UnsupportedError):
        failing(NVMLError(1)).call("nvmlNew")


def test_garbled_text_is_a_device_error():
    """A board with a broken name would end in UnicodeDecodeError."""
    with pytest.raises(JouleryError):
        failing(UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad")).call("nvmlAsk")


def test_results_pass_through():
    """Every figure comes this way."""
    nvml = Nvml(SimpleNamespace(NVMLError=NVMLError, nvmlAdd=lambda a, b: a + b))
    assert nvml.call("nvmlAdd", 1, 2) == 3
