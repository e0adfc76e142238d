"""Energy and instant power of an NVIDIA board in one fast call of the driver.

``nvmlDeviceGetFieldValues`` gives both with the time of their refresh. The binding's own wrapper
builds an array and looks at it through slow attributes each time; here the array is made once and
taken apart in one go.
"""

from __future__ import annotations

import ctypes
import struct
import threading
from typing import TYPE_CHECKING, Any, NamedTuple

from joulery.hardware.nvidia_binding import SUCCESS, error_of

if TYPE_CHECKING:
    from joulery.hardware.nvidia_binding import Nvml

_ENERGY_FIELD = 83  # NVML_FI_DEV_TOTAL_ENERGY_CONSUMPTION, millijoules
_POWER_FIELD = 186  # NVML_FI_DEV_POWER_INSTANT, milliwatts
_FUNCTION = "nvmlDeviceGetFieldValues"
_FIELDS = 2

# nvmlFieldValue_t: field, scope, timestamp, latency, type of the value, return code, value.
_ONE = "IIqqiiQ"
_LAYOUT = struct.Struct(f"={_ONE}{_ONE}")
_DOUBLE, _UNSIGNED_INT, _SIGNED_INT, _UNSIGNED_SHORT = 0, 1, 5, 6

# The wall clock moved by more than this against the monotonic one: it was set, not slewed.
_STEP_SECONDS = 2e-3
_SLEW = 1e-3
# After a step, stamps from before it may still come up for some refreshes.
_DOUBT_SECONDS = 1.0
_OLDEST_SECONDS = 10.0
_ROUNDING_SECONDS = 1e-5


class FieldValues(NamedTuple):
    """What one call told.

    Attributes:
        energy_code: NVML's return code for the energy.
        millijoules: The counter.
        stamp_microseconds: Time since 1970 that the driver gives for the counter.
        power_code: NVML's return code for the power.
        milliwatts: Instant power.
    """

    energy_code: int
    millijoules: int
    stamp_microseconds: int
    power_code: int
    milliwatts: int


class FieldReader:
    """Reads both fields of one board; may be called from any thread.

    Args:
        nvml: The binding, initialised.
        handle: The board's handle, as the binding gives it.
    """

    def __init__(self, nvml: Nvml, handle: Any) -> None:
        function = getattr(nvml.binding.nvmlLib, _FUNCTION, None)
        if function is None:
            raise error_of(13, _FUNCTION, "not in this driver")
        # A pointer type of our own: types set on the binding's object would bind its other users.
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
        """Both fields; a field of its own may have failed, which its code tells.

        Raises:
            DeviceError: The call as a whole failed.
        """
        with self._lock:
            code = self._function(self._handle, _FIELDS, self._address)
            raw = _LAYOUT.unpack_from(self._buffer)
        if code != SUCCESS:
            raise error_of(code, _FUNCTION, "the driver refused")
        return FieldValues(
            raw[5], _whole(raw[4], raw[6]), raw[2], raw[12], _whole(raw[11], raw[13])
        )


def _whole(kind: int, raw: int) -> int:
    """The number in a union of 64 bits; narrower members leave the upper bits undefined."""
    if kind in {_UNSIGNED_INT, _SIGNED_INT}:
        return raw & 0xFFFFFFFF
    if kind == _DOUBLE:
        return round(float(struct.unpack("=d", struct.pack("=Q", raw))[0]))
    return raw & 0xFFFF if kind == _UNSIGNED_SHORT else raw


class StampedTime:
    """Moves a driver's stamp from the wall clock to the monotonic one, where that is safe."""

    def __init__(self) -> None:
        self._offset: float | None = None
        self._offset_at = 0.0
        self._doubt_until = float("-inf")

    def moment(
        self, stamp_microseconds: int, before: float, wall: float, now: float
    ) -> float | None:
        """The stamp on the monotonic clock; None if it is absent or not to be trusted.

        Args:
            stamp_microseconds: The driver's, since 1970.
            before: Monotonic seconds just before ``wall`` was read.
            wall: Seconds since 1970.
            now: Monotonic seconds just after.
        """
        if now - before > _STEP_SECONDS:
            # Interrupted in between: the two clocks cannot be compared this time.
            return None
        offset = wall - now
        if self._offset is not None:
            allowed = _STEP_SECONDS + _SLEW * (now - self._offset_at)
            if abs(offset - self._offset) > allowed:
                self._doubt_until = now + _DOUBT_SECONDS
        self._offset, self._offset_at = offset, now
        age = wall - stamp_microseconds * 1e-6
        if stamp_microseconds <= 0 or now < self._doubt_until:
            return None
        if not -_ROUNDING_SECONDS <= age <= _OLDEST_SECONDS:
            return None
        return now - max(age, 0.0)
