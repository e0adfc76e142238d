"""NVML through nvidia-ml-py: calls with Joulery's errors, and a fast reader of two fields.

``nvmlDeviceGetFieldValues`` gives energy and instant power with the time of their refresh. The
binding's own wrapper builds an array and reads it through slow attributes each time;
``FieldReader`` makes the array once and unpacks it in one go.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from joulery.errors import (
    DeviceError,
    DeviceLostError,
    JouleryError,
    MissingRightsError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

_T = TypeVar("_T")

# Status codes of nvml.h.
SUCCESS = 0
_NOT_SUPPORTED = 3
_NO_PERMISSION = 4
_FUNCTION_NOT_FOUND = 13
_GPU_IS_LOST = 15

_ENERGY_FIELD = 83  # NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, millijoules
_POWER_FIELD = 186  # NVML_FI_DEV_POWER_INSTANT, milliwatts
_FUNCTION = "nvmlDeviceGetFieldValues"
_FIELDS = 2  # number of fields in the query

# nvmlFieldValue_t: field, scope, timestamp, latency, type of the value, return code, value.
_ONE = "IIqqiiQ"
_LAYOUT = struct.Struct(f"={_ONE}{_ONE}")
_UNSIGNED_INT = 1  # NVML_VALUE_TYPE_UNSIGNED_INT

# The wall clock moved by more than this against the monotonic one: it was set, not slewed.
_STEP_SECONDS = 2e-3  # by hand: above the jitter of two clock readings
_SLEW = 1e-3  # twice the 500 ppm by which Linux slews a clock
# After a step, stamps from before it may still come up for some refreshes.
_DOUBT_SECONDS = 1.0  # ten periods of the slowest counter
_OLDEST_SECONDS = 10.0  # by hand: no counter refreshes less often
_ROUNDING_SECONDS = 1e-5  # stamps are whole microseconds


class Nvml:
    """An initialised ``pynvml`` of nvidia-ml-py, with its failures as Joulery's errors."""

    def __init__(self, binding: ModuleType) -> None:
        self.binding = binding

    def call(self, function: str, *arguments: Any) -> Any:
        """Call a function of the binding by name; failures are those of ``error_of``."""
        call = getattr(self.binding, function, None)
        if call is None:
            raise error_of(_FUNCTION_NOT_FOUND, function, "not in this nvidia-ml-py")
        try:
            return call(*arguments)
        except self.binding.NVMLError as error:
            raise error_of(error.value, function, str(error)) from error
        except UnicodeDecodeError as error:
            raise error_of(SUCCESS, function, "the driver's text is not UTF-8") from error


def error_of(code: int, function: str, text: str) -> JouleryError:
    """The error that an NVML return code stands for."""
    message = f"{function}: {text}"
    if code == _NO_PERMISSION:
        return MissingRightsError(
            message, remedy="needs root (CAP_SYS_ADMIN); ask the machine's administrator"
        )
    if code == _GPU_IS_LOST:
        return DeviceLostError(
            message, remedy="see `dmesg` for Xid errors; reset the GPU or restart the machine"
        )
    if code in {_NOT_SUPPORTED, _FUNCTION_NOT_FOUND}:
        return UnsupportedError(
            message, remedy="not on this board with this driver; a newer driver may know it"
        )
    return DeviceError(f"{message} (NVML code {code})", remedy="try again; see `nvidia-smi -q`")


def optional(read: Callable[[], _T]) -> _T | None:
    """Result of ``read``, or None where the board does not support it; a lost board raises."""
    try:
        return read()
    except DeviceLostError:
        raise
    except JouleryError:
        return None


class FieldValues(NamedTuple):
    """Result of one call of ``FieldReader``, with NVML's return code for either field.

    The stamp is the time since 1970 that the driver gives for the counter.
    """

    energy_code: int
    millijoules: int
    stamp_microseconds: int
    power_code: int
    milliwatts: int


class FieldReader:
    """Reader of both fields of one board, for any thread."""

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        function = getattr(nvml.binding.nvmlLib, _FUNCTION, None)
        if function is None:
            raise error_of(13, _FUNCTION, "not in this driver")
        # A new pointer type: types set on the binding's own object would affect its other users.
        prototype = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p)
        self._function = prototype(ctypes.cast(function, ctypes.c_void_p).value or 0)
        self._handle = ctypes.cast(handle, ctypes.c_void_p).value
        self._buffer = ctypes.create_string_buffer(_LAYOUT.size)
        self._address = ctypes.addressof(self._buffer)
        _LAYOUT.pack_into(
            self._buffer, 0, *(_ENERGY_FIELD, 0, 0, 0, 0, 0, 0), *(_POWER_FIELD, 0, 0, 0, 0, 0, 0)
        )
        # Re-entrant, because a signal handler may close a window in the middle of a read.
        self._lock = threading.RLock()

    def read(self) -> FieldValues:
        """Read both fields; each has its own return code."""
        with self._lock:
            code = self._function(self._handle, _FIELDS, self._address)
            raw = _LAYOUT.unpack_from(self._buffer)
        if code != SUCCESS:
            raise error_of(code, _FUNCTION, "the driver refused")
        return FieldValues(
            raw[5], _whole(raw[4], raw[6]), raw[2], raw[12], _whole(raw[11], raw[13])
        )


def _whole(kind: int, raw: int) -> int:
    """Number in a union of 64 bits; an unsigned int leaves the upper half undefined."""
    return raw & 0xFFFFFFFF if kind == _UNSIGNED_INT else raw


class StampConverter:
    """Converts a driver's stamps from the wall clock to the monotonic one, where that is safe."""

    def __init__(self) -> None:
        self._offset: float | None = None
        self._offset_at = 0.0
        self._doubt_until = float("-inf")

    def moment(
        self, stamp_microseconds: int, before: float, wall: float, now: float
    ) -> float | None:
        """The stamp on the monotonic clock; None if it is absent or not to be trusted.

        ``before`` and ``now`` are monotonic seconds, read just before and after the wall clock.
        """
        if now - before > _STEP_SECONDS:
            # Interrupted in between: the two clocks cannot be compared this time.
            return None
        offset = wall - now
        if self._offset is not None:
            tolerance = _STEP_SECONDS + _SLEW * (now - self._offset_at)
            if abs(offset - self._offset) > tolerance:
                self._doubt_until = now + _DOUBT_SECONDS
        self._offset, self._offset_at = offset, now
        age = wall - stamp_microseconds * 1e-6
        if stamp_microseconds <= 0 or now < self._doubt_until:
            return None
        if not -_ROUNDING_SECONDS <= age <= _OLDEST_SECONDS:
            return None
        return now - max(age, 0.0)
