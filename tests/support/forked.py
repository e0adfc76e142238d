"""Processes forked from one that has imported Joulery before: tests start many of them.

Importing what a server needs takes a second of processor time. A forked process is otherwise one of
its own: it has its own environment and output, and can be killed.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import sys
from typing import TYPE_CHECKING, Any, BinaryIO

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerProcess
    from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "joulery.cli.serve",
        "joulery.server._main",
        "joulery.server._app",
        "joulery.testing.emulator",
        "sqlalchemy.dialects.postgresql.psycopg",
    ]
)


class ForkedCommand:
    """A command with its standard output in a pipe.

    Args:
        arguments: Arguments of ``joulery``, or of ``code``.
        env: Its environment.
        errors: File for its standard error.
        code: Python source to run instead of ``joulery``.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str] = os.environ,
        errors: Path | None = None,
        code: str = "",
    ) -> None:
        reader, writer = CONTEXT.Pipe(duplex=False)
        words = list(arguments), dict(env), str(errors or os.devnull), code
        self._process = _started(_command, *words, writer)
        writer.close()
        self.stdout: BinaryIO = os.fdopen(os.dup(reader.fileno()), "rb")
        reader.close()

    @property
    def pid(self) -> int:
        """Number of the process."""
        assert self._process.pid is not None
        return self._process.pid

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self._process.exitcode is None:
            os.kill(self.pid, number)

    def wait(self, seconds: float) -> int:
        """Exit code, minus the number of the signal that ended it."""
        self._process.join(seconds)
        assert self._process.exitcode is not None, f"still running after {seconds} s"
        return self._process.exitcode


def call(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a function returns in a process of its own; it and its arguments are pickled."""
    reader, writer = CONTEXT.Pipe(duplex=False)
    process = _started(_call, function, arguments, writer, daemon=False)
    writer.close()
    try:
        return reader.recv()
    finally:
        process.join()
        reader.close()


def _started(
    target: Callable[..., None], *arguments: Any, daemon: bool = True
) -> ForkServerProcess:
    process = CONTEXT.Process(target=target, args=arguments, daemon=daemon)
    process.start()
    return process


def _command(
    arguments: list[str], env: dict[str, str], errors: str, code: str, output: Connection
) -> None:
    os.environ.clear()
    os.environ.update(env)
    os.dup2(output.fileno(), 1)
    os.dup2(os.open(errors, os.O_WRONLY | os.O_APPEND | os.O_CREAT), 2)
    output.close()
    sys.stdout, sys.stderr = (os.fdopen(number, "w", closefd=False) for number in (1, 2))
    try:
        if code:
            sys.argv = ["-c", *arguments]
            exec(code, {"__name__": "__main__"})  # noqa: S102 - a test's own
        else:
            from joulery.cli import main

            sys.exit(main(arguments))
    finally:
        atexit._run_exitfuncs()  # type: ignore[attr-defined]  # multiprocessing leaves them out


def _call(function: Callable[..., Any], arguments: tuple[Any, ...], answer: Connection) -> None:
    answer.send(function(*arguments))
