"""Run of a command to its end, with signals forwarded to it."""

from __future__ import annotations

import shutil
import signal
import subprocess
import threading
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

from joulery.errors import InvalidValueError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

# What a scheduler or a user sends to a job, passed on so that the command can end in its own way.
_FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGQUIT)
_POLL_SECONDS = 0.5


def check_command(command: Sequence[str]) -> None:
    """Raise :class:`UsageError` unless ``command`` names a program that can be run."""
    if not command or not command[0]:
        raise InvalidValueError(
            "no command given", remedy="put it after `--`: joulery measure -- python train.py"
        )
    if shutil.which(command[0]) is None:
        raise _cannot_run(command[0], "no such program, or not executable")


def _cannot_run(program: str, why: str) -> UsageError:
    return UsageError(
        f"cannot run {program}: {why}", remedy="check the spelling, or give its full path"
    )


def run_command(
    command: Sequence[str],
    *,
    stdout: IO[bytes] | int | None = None,
    stderr: IO[bytes] | int | None = None,
    environment: Mapping[str, str] | None = None,
    on_wait: Callable[[], None] | None = None,
    on_signal: Callable[[int], None] | None = None,
) -> int:
    """Run ``command`` to its end; its exit code, or 128 plus the signal that killed it.

    Args:
        command: Program and arguments; no shell is involved.
        stdout: Target of its standard output; inherited unless given.
        stderr: Target of its standard error; inherited unless given.
        environment: Complete environment of the command; inherited unless given.
        on_wait: Function called about twice a second meanwhile.
        on_signal: Function called with each signal that was sent to this process meanwhile.

    Raises:
        UsageError: It cannot be run; :func:`check_command` detects most such cases beforehand.
    """
    with _forwarding(on_signal) as forward:
        try:
            process = subprocess.Popen(command, stdout=stdout, stderr=stderr, env=environment)
        except OSError as error:
            raise _cannot_run(command[0], error.strerror or str(error)) from None
        forward.to(process)
        with process:
            while True:
                try:
                    code = process.wait(_POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    if on_wait is not None:
                        on_wait()
    return code if code >= 0 else 128 - code


class _Forwarding:
    """Forwards signals to a process, including those that came before it was started."""

    def __init__(self, on_signal: Callable[[int], None] | None = None) -> None:
        self._on_signal = on_signal
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []

    def to(self, process: subprocess.Popen[bytes]) -> None:
        """Forward signals to ``process`` from now on."""
        self._process = process
        for number in self._early:
            process.send_signal(number)

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """Handle one signal."""
        self.report(number)
        if self._process is None:
            self._early.append(number)
        else:
            self._process.send_signal(number)

    def report(self, number: int, _frame: FrameType | None = None) -> None:
        """Report a signal without forwarding it."""
        if self._on_signal is not None:
            self._on_signal(number)


@contextmanager
def _forwarding(on_signal: Callable[[int], None] | None = None) -> Iterator[_Forwarding]:
    """Forward signals meant for the job; leave Ctrl-C to the command, which gets it too.

    Only the main thread may decide about signals; elsewhere they stay as they are.
    """
    forwarding = _Forwarding(on_signal)
    if threading.current_thread() is not threading.main_thread():
        yield forwarding  # Python delivers signals to the main thread only
        return
    found = {number: signal.signal(number, forwarding.receive) for number in _FORWARDED}
    # A handler that does nothing rather than SIG_IGN, which the command would inherit.
    found[signal.SIGINT] = signal.signal(signal.SIGINT, forwarding.report)
    try:
        yield forwarding
    finally:
        for number, handler in found.items():
            signal.signal(number, handler)
