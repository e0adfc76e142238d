"""Run of a command to its end, with signals forwarded to it."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import threading
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

from joulery.errors import InvalidValueError, UnknownCommandError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import FrameType

# What a scheduler or a user sends to a job, passed on so that the command can end in its own way.
_FORWARDED = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGQUIT,
)
# What a terminal sends to every process in its foreground, the command included.
_FROM_KEYBOARD = (signal.SIGINT, signal.SIGQUIT)
_POLL_SECONDS = 0.5  # by hand: how often progress is shown


def check_command(
    command: Sequence[str], example: str = "joulery measure", *, path: str | None = None
) -> None:
    """Raise ``UsageError`` unless ``command`` names a program that can be run.

    Args:
        command: Program and arguments.
        example: Command line up to the ``--``, for the remedy.
        path: Folders of programs, as in ``PATH``; those of this process by default.
    """
    if not command or not command[0]:
        raise InvalidValueError(
            "no command given", remedy=f"put it after `--`: {example} -- python train.py"
        )
    if shutil.which(command[0], path=path) is not None:
        return
    if command[0].endswith(".py") and Path(command[0]).is_file():
        remedy = f"write `{example} -- python {shlex.join(command)}`"
        raise _cannot_run(command[0], "a script, not a program", remedy)
    raise _cannot_run(command[0], "no such program, or not executable")


def _cannot_run(
    program: str, reason: str, remedy: str = "check the spelling, or give its full path"
) -> UnknownCommandError:
    return UnknownCommandError(f"cannot run {program}: {reason}", remedy=remedy)


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
        UnknownCommandError: It cannot be run; ``check_command`` detects most such cases beforehand.
    """
    with _Forwarding(on_signal) as forward:
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
    """Forwards signals to a command while a block runs, early ones once it is started.

    Ctrl-C in a terminal reaches the command by itself: it is not forwarded. A signal that is
    ignored, as SIGHUP under nohup, stays ignored, here and in the command. Only the main thread may
    decide about signals; elsewhere they stay as they are.
    """

    def __init__(self, on_signal: Callable[[int], None] | None = None) -> None:
        self._on_signal = on_signal
        self._process: subprocess.Popen[bytes] | None = None
        self._early: list[int] = []
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            heard = [n for n in _FORWARDED if signal.getsignal(n) is not signal.SIG_IGN]
            self._handlers = {number: signal.signal(number, self.receive) for number in heard}
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def to(self, process: subprocess.Popen[bytes]) -> None:
        """Forward signals to ``process`` from now on."""
        self._process = process
        for number in self._early:
            process.send_signal(number)

    def receive(self, number: int, _frame: FrameType | None) -> None:
        """Handle one signal."""
        if self._on_signal is not None:
            self._on_signal(number)
        if number in _FROM_KEYBOARD and in_foreground():
            return  # the command has it already; twice would cut short how it ends
        if self._process is None:
            self._early.append(number)
        else:
            self._process.send_signal(number)


def in_foreground() -> bool:
    """Whether a terminal sends its keys' signals to this process and its command."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)
