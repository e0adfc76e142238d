"""The ``amdsmi`` binding: its import, its errors and its absent numbers.

Without ROCm, importing ``amdsmi`` prints to stdout and raises KeyError; both are caught.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import math
from typing import TYPE_CHECKING, Any

from joulery.errors import (
    DeviceError,
    JouleryError,
    MissingHardwareError,
    MissingRightsError,
    UnsupportedError,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

# Status codes of amdsmi.h.
_NO_PERMISSION = 10
_NOT_SUPPORTED = frozenset({2, 3})
# The library fills fields that a board lacks with ones; newer wrappers write "N/A".
_ABSENT = frozenset({0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})


def load_binding(name: str = "amdsmi") -> Any:
    """Import AMD SMI's binding quietly; MissingHardwareError where it or its library is missing."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return importlib.import_module(name)
    except (ImportError, KeyError, OSError, AttributeError) as failure:
        raise MissingHardwareError(
            f"AMD SMI does not load: {type(failure).__name__}: {failure}",
            remedy="install ROCm and the amdsmi it ships (/opt/rocm/share/amd_smi), "
            "or pip install 'joulery[amd]'",
        ) from None


@contextlib.contextmanager
def translated(smi: Any, subject: str) -> Iterator[None]:
    """Failures of the binding as Joulery's errors."""
    failures = getattr(smi, "AmdSmiException", RuntimeError)
    try:
        yield
    except failures as failure:
        raise _error(failure, subject) from None
    except (AttributeError, KeyError, TypeError, OSError) as failure:
        # What the wrappers let through when the library below is older than they are.
        raise UnsupportedError(
            f"{subject}: {type(failure).__name__}: {failure}",
            remedy="install the amdsmi that ships with your ROCm",
        ) from None


def _error(failure: Exception, subject: str) -> JouleryError:
    code = getattr(failure, "get_error_code", lambda: getattr(failure, "err_code", None))()
    reason = " ".join(str(failure).split()) or type(failure).__name__
    if code == _NO_PERMISSION:
        return MissingRightsError(
            f"{subject}: not permitted", remedy="run as root, or through Joulery's governor"
        )
    if code in _NOT_SUPPORTED:
        return UnsupportedError(f"{subject}: not supported", remedy="update ROCm or leave it out")
    return DeviceError(f"{subject}: {reason}", remedy="check `amd-smi monitor`")


def number(answer: Any, *keys: str) -> float | None:
    """The first of ``keys`` that holds a number; "N/A" and all ones mean unknown."""
    for key in keys:
        value = answer.get(key) if isinstance(answer, dict) else None
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        if math.isfinite(value) and value >= 0 and value not in _ABSENT:
            return float(value)
    return None
