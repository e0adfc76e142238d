"""Calls of NVML through nvidia-ml-py, with its errors turned into Joulery's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

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

SUCCESS = 0
_NOT_SUPPORTED = 3
_NO_PERMISSION = 4
_FUNCTION_NOT_FOUND = 13
_GPU_IS_LOST = 15


class Nvml:
    """The binding, fit for our error tree.

    Args:
        binding: The ``pynvml`` module of nvidia-ml-py, initialised.
    """

    def __init__(self, binding: ModuleType) -> None:
        self.binding = binding

    def call(self, function: str, *arguments: Any) -> Any:
        """Call a function of the binding by name.

        Raises:
            MissingRightsError: This user may not.
            UnsupportedError: The board, driver or binding does not know it.
            DeviceLostError: The board is gone.
            DeviceError: Anything else that the driver reports.
        """
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
    """The error that an NVML return code stands for.

    Args:
        code: What the driver returned.
        function: What was asked of it.
        text: The driver's own words.
    """
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


def told(ask: Callable[[], _T]) -> _T | None:
    """The answer, or None if the board has none to give; a lost board still raises."""
    try:
        return ask()
    except DeviceLostError:
        raise
    except JouleryError:
        return None


def memory_used(nvml: Nvml, handle: Any) -> int:
    """Bytes in use on a board or instance."""
    return int(nvml.call("nvmlDeviceGetMemoryInfo", handle).used)


def process_ids(nvml: Nvml, handle: Any) -> tuple[int, ...]:
    """Processes that compute on a board or instance."""
    # By its versioned name: the plain one hides an old driver behind an error of another tree.
    processes = nvml.call("nvmlDeviceGetComputeRunningProcesses_v3", handle)
    return tuple(int(process.pid) for process in processes)
