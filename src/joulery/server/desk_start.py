"""Ways to start a desk: forked while the worker is young, as a program of its own later.

A fork takes no time and shares what is loaded, but is safe only as long as there is one thread.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from dataclasses import dataclass
from typing import Protocol, Self

_END_SECONDS = 20.0
_BUFFER_BYTES = 1 << 20
_FIRST_FILE = 3  # after stdin, stdout and stderr


class Process(Protocol):
    """One that runs."""

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; its exit code.

        Raises:
            subprocess.TimeoutExpired: It goes on.
        """

    def kill(self) -> None:
        """End it at once."""


@dataclass(frozen=True, slots=True)
class Started:
    """A desk that was started; it ends with the ``with`` block, if not before.

    Attributes:
        process: Of the desk.
        line: To it.
    """

    process: Process
    line: socket.socket

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Let it finish what it was given; make it end, if it does not."""
        self.line.close()
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class _Forked:
    """A child of this process.

    Args:
        pid: Its number.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._file = os.pidfd_open(pid)
        self._code: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        if self._code is not None:
            return self._code
        looking = select.poll()
        looking.register(self._file, select.POLLIN)
        if not looking.poll(None if timeout is None else 1000.0 * timeout):
            raise subprocess.TimeoutExpired("the desk", timeout or 0.0)
        os.close(self._file)
        self._code = os.waitstatus_to_exitcode(os.waitpid(self._pid, 0)[1])
        return self._code

    def kill(self) -> None:
        signal.pidfd_send_signal(self._file, signal.SIGKILL)


def fork_desk(number: int) -> Started:
    """Start a desk from a process that has no other thread yet.

    Args:
        number: Of the worker.
    """
    here, there = _line()
    pid = os.fork()
    if pid == 0:
        _be_a_desk(number, there)
    there.close()
    return Started(_Forked(pid), here)


def _be_a_desk(number: int, line: socket.socket) -> None:
    code = 1
    try:
        # Above all the socket that listens: a port must be free once its worker is gone.
        os.closerange(_FIRST_FILE, line.fileno())
        os.closerange(line.fileno() + 1, os.sysconf("SC_OPEN_MAX"))
        from joulery.server.desk_process import work

        code = work(number, line)
    except BaseException:  # noqa: BLE001 - nobody else will hear of it
        traceback.print_exc()
    finally:
        os._exit(code)


def spawn_desk(number: int) -> Started:
    """Start a desk from any process.

    Args:
        number: Of the worker.
    """
    here, there = _line()
    with there:
        command = [sys.executable, "-m", "joulery.server.desk_process"]
        process = subprocess.Popen(
            [*command, str(number), str(there.fileno())],
            stdin=subprocess.DEVNULL,
            pass_fds=(there.fileno(),),
        )
    return Started(process, here)


def _line() -> tuple[socket.socket, socket.socket]:
    ends = socket.socketpair()
    for end in ends:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _BUFFER_BYTES)
    return ends
