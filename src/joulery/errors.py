"""One tree of errors, each with a remedy.

JouleryError                  exit 1
├── UsageError                exit 2: the request makes no sense as it stands
│   ├── InvalidValueError         a number or word out of range (also a ValueError)
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
    └── StoreBusyError            it has too much to do at the moment
"""

from __future__ import annotations


class JouleryError(Exception):
    """Base of every error that Joulery raises on purpose.

    Args:
        message: What went wrong, one line, with the offending value.
        remedy: What the reader can do about it, one line.
    """

    exit_code = 1

    def __init__(self, message: str, *, remedy: str) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.message} ({self.remedy})"

    def __reduce__(self) -> tuple[object, ...]:
        # The default pickles positional arguments only and would lose the remedy on its way
        # between processes.
        return _rebuild, (type(self), self.message, self.remedy)


def _rebuild(kind: type[JouleryError], message: str, remedy: str) -> JouleryError:
    return kind(message, remedy=remedy)


class UsageError(JouleryError):
    """The request makes no sense as it stands."""

    exit_code = 2


class InvalidValueError(UsageError, ValueError):
    """A number or word is out of range."""


class UnknownDeviceError(UsageError):
    """No device of that name is on this machine."""


class FileError(UsageError):
    """A file cannot be read or does not parse."""


class UnknownRecordError(UsageError):
    """The store has no job or decision of that name."""


class ConflictError(UsageError):
    """The request contradicts what is stored."""


class InfeasibleError(UsageError):
    """No operating point meets the objective."""


class NotPossibleHereError(JouleryError):
    """The request is right, but not on this machine."""

    exit_code = 3


class MissingRightsError(NotPossibleHereError):
    """The system refuses the operation to this user."""


class MissingHardwareError(NotPossibleHereError):
    """There is no such counter, board or meter here."""


class MissingExtraError(NotPossibleHereError):
    """An optional package is not installed."""


class UnsupportedError(NotPossibleHereError):
    """This device lacks the capability."""


class DeviceError(JouleryError):
    """A driver call failed."""


class DeviceLostError(DeviceError):
    """The device is gone until the machine or driver restarts."""


class StoreError(JouleryError):
    """The database failed; what was not acknowledged may not have been kept."""


class StoreBusyError(StoreError):
    """The database has too much to do at the moment; the same request may be made again."""
