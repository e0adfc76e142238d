"""Processes to be killed, forked from one that has everything imported so that they start at once.

A server that imports for a second can be killed a thousand times in an hour; a forked one, ten
thousand times. The code that runs is the same.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_DIES_WITH_PARENT = 1  # PR_SET_PDEATHSIG
_LIBC = ctypes.CDLL(None, use_errno=True)


def fork(work: Callable[[], object], log: Path) -> int:
    """Fork a process that does ``work`` and ends, with its parent at the latest; its number.

    Args:
        work: Function to run.
        log: File for stderr.
    """
    parent = os.getpid()
    child = os.fork()
    if child:
        return child
    code = 70
    try:
        _LIBC.prctl(_DIES_WITH_PARENT, signal.SIGKILL)
        file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.dup2(file, 1)
        os.dup2(file, 2)
        if os.getppid() == parent:
            work()
        code = 0
    except BaseException:  # noqa: BLE001 - the process that waits must see it
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def kill(process: int) -> None:
    """End a child of ours at once, and wait for its end."""
    os.kill(process, signal.SIGKILL)
    os.waitpid(process, 0)


def ended(process: int) -> int | None:
    """The exit code of a child of ours, if it has ended by itself."""
    child, status = os.waitpid(process, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if child else None
