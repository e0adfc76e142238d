"""One tree of errors, each with a remedy.

JouleryError                  exit 1
├── UsageError                exit 2: the request is invalid
│   ├── InvalidValueError         a number or word out of range (also a ValueError)
│   ├── UnknownCommandError       a program that cannot be run; exit 127, as shells do
│   ├── UnknownDeviceError        no device of that name here
│   ├── FileError                 a file that cannot be used; exit 1 for a full or broken disk,
│   │                             3 where rights are missing
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

import errno
import functools
import os
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Errors of the system put a number before their words, and the name of the file behind.
_SYSTEM = re.compile(r"\[Errno -?\d+\] (?P<words>.*?)(?P<name>: '[^']+')?$", re.MULTILINE)
# Exit codes by what the system says of a file; any other reason is the path's.
_EXIT_CODES = dict.fromkeys(
    (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO), 1
) | dict.fromkeys((errno.EACCES, errno.EPERM, errno.EROFS), 3)
# What Python says of a document that is not as it should be, and our words.
_FLAWS = tuple(
    (re.compile(pattern), words)
    for pattern, words in (
        (r"Exceeds the limit \(\d+ digits\).*", "a number has too many digits"),
        (r"(?:not enough|too many) values to unpack .*", "a list is too long or too short"),
        (r"could not convert string to \w+: (.*)", "{} is not a number"),
        (r"invalid literal for int\(\) with base 10: (.*)", "{} is not a whole number"),
        (r"\S*__init__\(\) got an unexpected keyword argument (.*)", "unknown member {}"),
        (r"\S*__init__\(\) missing \d+ required \S+ arguments?: (.*)", "{} is missing"),
    )
)
_NOUNS = {
    "int": "a number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "list": "a list",
    "dict": "an object",
    "NoneType": "null",
}
# The type that Python complains of is the first that it does not call as a function.
_TYPE = re.compile(rf"\b({'|'.join(_NOUNS)})\b(?!\()")


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
        return functools.partial(type(self), remedy=self.remedy), (self.message,), self.__dict__


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
    """A file cannot be read or written, or does not parse.

    Raised while the system's error is handled, it has the exit code of that: 1 for a disk that is
    full or broken, 3 for missing rights, 2 for anything else.
    """

    code = "file-error"

    def __init__(self, message: str, *, remedy: str) -> None:
        reason = sys.exception()
        if isinstance(reason, OSError):
            self.exit_code = _EXIT_CODES.get(reason.errno or 0, self.exit_code)
            name = f": {reason.filename!r}"
            if str(reason.filename) in message.replace(name, ""):
                message = message.replace(name, "")  # the system's words name it once more
        super().__init__(message, remedy=remedy)


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


def cannot_listen(address: str, error: OSError) -> JouleryError:
    """The error for an address on which this process cannot listen."""
    if error.errno in (errno.EACCES, errno.EPERM):
        return MissingRightsError(
            f"may not listen on {address}", remedy="choose a port above 1023 with --listen"
        )
    if error.errno is None or error.errno not in errno.errorcode:  # of the resolver
        return InvalidValueError(
            f"no address {address}: {error.strerror}",
            remedy="give one of this machine's addresses with --listen HOST:PORT",
        )
    # Servers of asyncio put words of their own around those of the system.
    return NotPossibleHereError(
        f"cannot listen on {address}: {os.strerror(error.errno)}",
        remedy="choose another address with --listen HOST:PORT",
    )


def flaw_text(error: Exception) -> str:
    """What is wrong with a document, for who wrote it, by the error that reading it raised."""
    text = str(error)
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, KeyError):
        return f"{text} is missing"
    for pattern, words in _FLAWS:
        if match := pattern.fullmatch(text):
            return words.format(*match.groups())
    if isinstance(error, TypeError | AttributeError) and (kind := _TYPE.search(text)):
        return f"{_NOUNS[kind[1]]} stands where it cannot"
    return text


@contextmanager
def document_errors(
    statement: str, *, remedy: str, kind: type[JouleryError] = FileError
) -> Iterator[None]:
    """Put what Python raises about a document that is read within into words of ours.

    Args:
        statement: Beginning of the message, such as ``jobs.json holds no jobs``.
        remedy: Advice on how to write the document.
        kind: Class of the error.
    """
    try:
        yield
    except JouleryError:
        raise
    except (
        OSError,
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise kind(f"{statement}: {flaw_text(error)}", remedy=remedy) from None
