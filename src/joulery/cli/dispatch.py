"""Run one command and turn every outcome into an exit code and, on failure, a line and a remedy."""

from __future__ import annotations

import argparse
import errno
import importlib
import json
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from joulery.errors import JouleryError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from joulery.reports import Report

_INTERRUPTED = 130
# Commands whose figures would silently lack a node meter that is misspelled.
_MEASURING = ("measure", "run", "sweep", "calibrate")
_TRACEBACK_VARIABLE = "JOULERY_TRACEBACK"
_OUTPUT_FAILED = (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True)
class Output:
    """Result of a command.

    Attributes:
        document: Document that ``--json`` prints.
        text: Text or report for people, or a function that makes it.
        code: Exit code.
        aside: Whether the text goes to standard error, beside the output of another program.
    """

    document: Mapping[str, Any]
    text: str | Report | Callable[[], str | Report]
    code: int = 0
    aside: bool = False

    def show(self, *, as_json: bool) -> int:
        """Print one or the other; the exit code."""
        if as_json:
            # JSON has no word for what is not known but null.
            lines = json.dumps(self.document, default=os.fspath)
            known = json.loads(lines, parse_constant=lambda _: None)
            sys.stdout.write(json.dumps(known) + "\n")
        else:
            text = self.text() if callable(self.text) else self.text
            if not isinstance(text, str):
                from joulery.reports import Terminal

                text = text.text(Terminal.of())
            (sys.stderr if self.aside else sys.stdout).write(text.rstrip("\n") + "\n")
        return self.code

    def announce(self, *, as_json: bool) -> None:
        """Print it at once, before work that goes on."""
        self.show(as_json=as_json)
        sys.stdout.flush()


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are errors of our own tree; every action has --json."""

    def __init__(self, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(**options, allow_abbrev=False)
        # Without a default, so that it may stand before an action or after it.
        self.add_argument(
            "--json", action="store_true", default=argparse.SUPPRESS, help="print one JSON document"
        )

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the whole usage text."""
        raise UsageError(message, remedy=f"see `{self.prog} --help`")


def run_command(name: str, summary: str, arguments: list[str]) -> int:
    """Parse ``arguments`` for the command ``name`` and run it."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    as_json = "--json" in own
    try:
        module = importlib.import_module(f"joulery.cli.{name}")
        about = f"{summary[0].upper()}{summary[1:]}."
        parser = Parser(prog=f"joulery {name}", description=about)
        parser.set_defaults(json=False)
        module.COMMAND.define(parser)
        parsed = parser.parse_args(arguments)
        if name in _MEASURING:
            from joulery.hardware import check_node_meters

            check_node_meters(os.environ)
        found: Output | int = parsed.run(parsed)
        return found.show(as_json=parsed.json) if isinstance(found, Output) else found
    except JouleryError as error:
        return _report(error.message, error.remedy, error.exit_code, as_json=as_json)
    except KeyboardInterrupt:
        return _INTERRUPTED
    except SystemExit:  # the parser has shown its help
        return 0
    except Exception as error:
        if isinstance(error, OSError) and error.filename is None and error.errno in _OUTPUT_FAILED:
            raise  # our output cannot be written, which the caller explains
        return _internal_error(error, as_json=as_json)


def _internal_error(error: Exception, *, as_json: bool) -> int:
    if os.environ.get(_TRACEBACK_VARIABLE):
        raise error
    return _report(
        f"internal error: {type(error).__name__}: {error}",
        f"set {_TRACEBACK_VARIABLE}=1 to see where, and report it",
        1,
        as_json=as_json,
    )


def usage_error(message: str, remedy: str, *, as_json: bool) -> int:
    """Report wrong use of the command line."""
    return _report(message, remedy, UsageError.exit_code, as_json=as_json)


def _report(message: str, remedy: str, code: int, *, as_json: bool) -> int:
    sys.stderr.write(f"joulery: {message}\n  → {remedy}\n")
    if as_json:
        document = {"error": message, "remedy": remedy, "exit_code": code}
        sys.stdout.write(json.dumps(document) + "\n")
    return code
