"""One tree of errors, each with a remedy.

JouleryError                  exit 1
├── UsageError                exit 2: the request is invalid
│   ├── InvalidValueError         a number or word out of range (also a ValueError)
│   ├── UnknownCommandError       a program that cannot be run; exit 127, as shells do
│   ├── UnknownDeviceError        no device of that name here
│   ├── FileError                 a file that cannot be read or does not parse
│   ├── UnknownRecordError        no job or decision of that name
│   ├── ConflictError             it contradicts what is stored
│   └── InfeasibleError           no operating point meets the objective
├── NotPossibleHereError      exit 3: right request, wrong machine
│   ├── MissingRightsError        the system refuses; says who can
│   ├── MissingHardwareError      no such counter, board or meter
│   ├── MissingExtraError         an optional package is not installed
│   └── UnsupportedError          this device lacks the capability
├── DeviceError               exit 1: a driver call failed
│   └── DeviceLostError           the device is gone for good
└── StoreError                exit 1: the database failed
    ├── StoreBusyError            it has too much to do at the moment
    └── StoreReplacedError        another content took its place while it was open
"""

from __future__ import annotations

import functools
import re

# Errors of the system put a number before their words, and the name of the file behind.
_SYSTEM = re.compile(r"\[Errno -?\d+\] (?P<words>.*?)(?P<name>: '[^']+')?$", re.MULTILINE)


class JouleryError(Exception):
    """Base of every error that Joulery raises on purpose.

    Args:
        message: Description of the error, one line, with the offending value.
        remedy: Advice to the user, one line.

    Attributes:
        exit_code: Exit code of the command line.
        code: Name of the error in problem documents of the server; part of its interface, so it
            stays when a class is renamed.
    """

    exit_code = 1
    code = "joulery-error"

    def __init__(self, message: str, *, remedy: str) -> None:
        self.message = _SYSTEM.sub(_without_number, message)
        super().__init__(self.message)
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})"

    def __reduce__(self) -> tuple[object, ...]:
        # The default pickles positional arguments only and would lose the remedy on its way
        # between processes.
        return functools.partial(type(self), remedy=self.remedy), (self.message,)


def _without_number(error: re.Match[str]) -> str:
    """The words of an error of the system, and its file unless the message names it already."""
    name = error["name"] or ""
    is_named = name[3:-1] in error.string[: error.start()]
    return error["words"] + ("" if is_named else name)


class UsageError(JouleryError):
    """The request is invalid."""

    exit_code = 2
    code = "usage-error"


class InvalidValueError(UsageError, ValueError):
    """A number or word is out of range."""

    code = "invalid-value-error"


class UnknownCommandError(UsageError):
    """A program cannot be run; its exit code is that of shells."""

    exit_code = 127
    code = "unknown-command-error"


class UnknownDeviceError(UsageError):
    """No device of that name is on this machine."""

    code = "unknown-device-error"


class FileError(UsageError):
    """A file cannot be read or does not parse."""

    code = "file-error"


class UnknownRecordError(UsageError):
    """The store has no job or decision of that name."""

    code = "unknown-record-error"


class ConflictError(UsageError):
    """The request contradicts what is stored."""

    code = "conflict-error"


class InfeasibleError(UsageError):
    """No operating point meets the objective."""

    code = "infeasible-error"


class NotPossibleHereError(JouleryError):
    """The request is right, but not on this machine."""

    exit_code = 3
    code = "not-possible-here-error"


class MissingRightsError(NotPossibleHereError):
    """The system refuses the operation to this user."""

    code = "missing-rights-error"


class MissingHardwareError(NotPossibleHereError):
    """There is no such counter, board or meter here."""

    code = "missing-hardware-error"


class MissingExtraError(NotPossibleHereError):
    """An optional package is not installed."""

    code = "missing-extra-error"


class UnsupportedError(NotPossibleHereError):
    """This device lacks the capability."""

    code = "unsupported-error"


class DeviceError(JouleryError):
    """A driver call failed."""

    code = "device-error"


class DeviceLostError(DeviceError):
    """The device is gone until the machine or driver restarts."""

    code = "device-lost-error"


class StoreError(JouleryError):
    """The database failed; what was not acknowledged may not have been kept."""

    code = "store-error"


class StoreBusyError(StoreError):
    """The database has too much to do at the moment; the same request may be made again."""

    code = "store-busy-error"


class StoreReplacedError(StoreError):
    """A restore, import or other file took the place of the store while it was open."""

    code = "store-replaced-error"
