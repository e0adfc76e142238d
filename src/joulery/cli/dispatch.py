"""Run one command and turn every outcome into an exit code and, on failure, a line and a remedy."""

from __future__ import annotations

import argparse
import difflib
import errno
import importlib
import json
import os
import re
import shlex
import signal
import sys
import textwrap
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, NoReturn

from joulery.errors import FileError, JouleryError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from joulery.reports import Report

INTERRUPTED = 130  # as shells say: 128 and the number of SIGINT
_TRACEBACK_VARIABLE = "JOULERY_TRACEBACK"
_FILE_REMEDIES = {
    errno.ENOSPC: "make room on the disk",
    errno.EDQUOT: "make room on the disk",
    errno.EACCES: "ask for the right to use it, or name another",
    errno.EROFS: "name a file on a disk that can be written",
}
_OUTPUT_FAILED = (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Output:
    """Result of a command.

    Attributes:
        document: Document that ``--json`` prints.
        text: Text or report for people, or a function that makes it.
        code: Exit code.
        aside: Whether the text goes to standard error, beside the output of another program.
        page: File to write the report to, as a page; None for none.
    """

    document: Mapping[str, Any]
    text: str | Report | Callable[[], str | Report]
    code: int = 0
    aside: bool = False
    page: Path | None = None

    def show(self, *, as_json: bool) -> int:
        """Write the page, and print the document or the text; the exit code."""
        text: str | Report = ""
        if self.page is not None or not as_json:
            text = self.text() if callable(self.text) else self.text
        if not isinstance(text, str):
            from joulery.cli.options import write_file
            from joulery.reports import Terminal

            if self.page is not None:
                write_file(self.page, text.html(), "--html")
            text = text.text(Terminal.of())
        if as_json:
            # What is not known is null in JSON, which has neither NaN nor infinity.
            lines = json.dumps(self.document, default=os.fspath)
            document = json.loads(lines, parse_constant=lambda _: None)
            sys.stdout.write(json.dumps(document) + "\n")
        else:
            (sys.stderr if self.aside else sys.stdout).write(text.rstrip("\n") + "\n")
        return self.code

    def announce(self, *, as_json: bool) -> None:
        """Print it at once, before work that continues."""
        self.show(as_json=as_json)
        sys.stdout.flush()


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Turn signals that end the process into KeyboardInterrupt, so that cleaning up runs."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield  # Python delivers signals to the main thread only
        return
    handlers = {n: signal.signal(n, interrupt) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


class _HelpFormatter(argparse.RawDescriptionHelpFormatter):
    """Wraps paragraphs to the terminal; indented lines and examples stay as they are written."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        for is_kept, group in groupby(text.splitlines(), _stands_alone):
            block = list(group)
            lines += block if is_kept else self._split_lines(" ".join(block), width)
        return "\n".join(indent + line for line in lines)

    def _split_lines(self, text: str, width: int) -> list[str]:
        words = " ".join(text.split())
        return textwrap.wrap(words, width, break_on_hyphens=False)  # options stay whole


def _stands_alone(line: str) -> bool:
    """Whether a line of help is a command, a row of a table, or empty."""
    return not line.strip() or line.startswith((" ", "example"))


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are errors of our own tree; every action has --json."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", _HelpFormatter)
        super().__init__(**options, allow_abbrev=False)
        # Without a default, so that it may stand before an action or after it.
        self.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON document"
        )

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the whole usage text."""
        flag = re.match(r"argument (--[\w-]+)", message)
        action = self._option_string_actions.get(flag[1]) if flag else None
        words = " ".join([self.prog, *self._required()]) if action is None else _written(action)
        raise UsageError(message, remedy=f"write `{words}`: see `{self.prog} --help`")

    def parse(self, arguments: list[str]) -> argparse.Namespace:
        """Parse all arguments.

        Raises:
            UsageError: One is unknown, misspelled or misses its value.
        """
        parsed, unknown = self.parse_known_args(arguments)
        if unknown:
            leaf: Parser = parsed.parser
            remedy = leaf._remedy(unknown[0].partition("=")[0])
            raise UsageError(f"unknown argument {unknown[0]!r}", remedy=remedy)
        return parsed

    def parse_known_args(  # type: ignore[override]
        self, args: list[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse, and remember the words for what a wrong action may come from."""
        self._words = list(args or ())
        return super().parse_known_args(args, namespace)

    def _remedy(self, word: str) -> str:
        flags = self._option_string_actions
        names = ", ".join(flag for flag in flags if flag.startswith("--") and flag != "--help")
        return did_you_mean(word, flags) or f"it takes {names}: see `{self.prog} --help`"

    def _required(self) -> list[str]:
        """Arguments that must be given, as they are written."""
        return [_written(action) for action in self._actions if action.required]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Refuse a value that is not among the choices, with the nearest of them."""
        if action.choices is not None and value not in action.choices:
            before = self._words[self._words.index(value) - 1] if value in self._words else ""
            if before.startswith("--") and before not in self._option_string_actions:
                raise UsageError(f"unknown argument {before!r}", remedy=self._remedy(before))
            choices = ", ".join(map(str, action.choices))
            remedy = did_you_mean(str(value), action.choices) or f"give one of {choices}"
            name = next(iter(action.option_strings), action.metavar or action.dest)
            raise UsageError(f"{name} {value!r} is unknown", remedy=remedy)


def _written(action: argparse.Action) -> str:
    """An argument with its value, such as ``--budget W``."""
    value = action.metavar or action.dest.upper()
    if action.nargs == argparse.REMAINDER:
        return f"-- {value}"
    return " ".join([*action.option_strings[-1:], *([] if action.nargs == 0 else [str(value)])])


def did_you_mean(word: str, words: Iterable[str]) -> str:
    """A question that names the nearest of ``words``; empty where none is near."""
    by_letters = {candidate.strip("-"): candidate for candidate in words}
    nearest = difflib.get_close_matches(word.strip("-"), by_letters, n=1, cutoff=0.65)
    return f"did you mean {by_letters[nearest[0]]}?" if nearest else ""


def run_command(name: str, summary: str, arguments: list[str]) -> int:
    """Parse ``arguments`` for the command ``name`` and run it."""
    options = arguments[: arguments.index("--")] if "--" in arguments else arguments
    as_json = "--json" in options
    try:
        module = importlib.import_module(f"joulery.cli.{name}")
        about = f"{summary[0].upper()}{summary[1:]}."
        parser = Parser(prog=f"joulery {name}", description=about)
        parser.set_defaults(json=False, command_line=shlex.join(["joulery", name, *options]))
        module.COMMAND.define(parser)
        parsed = parser.parse(arguments)
        if module.COMMAND.measures:  # figures would silently lack a node meter that is misspelled
            from joulery.hardware import check_node_meters

            check_node_meters(os.environ)
        output: Output | int = parsed.run(parsed)
        return output.show(as_json=parsed.json) if isinstance(output, Output) else output
    except KeyboardInterrupt:
        return INTERRUPTED
    except SystemExit:  # the parser has shown its help
        return 0
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None and error.errno in _OUTPUT_FAILED:
            raise  # our output cannot be written, which the caller explains
        return report_error(_explain(error), as_json=as_json)


def _explain(error: Exception) -> JouleryError:
    """The error with its remedy; raised as it is where the user asks for a traceback."""
    if isinstance(error, JouleryError):
        return error
    if isinstance(error, UnicodeEncodeError):  # an argument that is not UTF-8
        return UsageError(f"{error.object[:80]!r} is not valid text", remedy="write it in UTF-8")
    if isinstance(error, OSError) and error.filename is not None:
        message = f"cannot use {error.filename!s:.200}: {error.strerror}"
        return FileError(message, remedy=_FILE_REMEDIES.get(error.errno or 0, "check the path"))
    if os.environ.get(_TRACEBACK_VARIABLE):
        raise error
    message = f"internal error: {type(error).__name__}: {error}"
    return JouleryError(message, remedy=f"set {_TRACEBACK_VARIABLE}=1 to see where, and report it")


def report_error(error: JouleryError, *, as_json: bool) -> int:
    """Print an error and its remedy; the exit code."""
    sys.stderr.write(f"joulery: {error.message}\n  → {error.remedy}\n")
    if as_json:
        document = {"error": error.message, "remedy": error.remedy, "exit_code": error.exit_code}
        sys.stdout.write(json.dumps(document) + "\n")
    return error.exit_code
