"""Run one command and turn every outcome into an exit code and, on failure, a line and a remedy."""

from __future__ import annotations

import argparse
import errno
import importlib
import json
import os
import sys
from typing import NoReturn

from joulery.errors import JouleryError, UsageError

_INTERRUPTED = 130
# Commands whose figures would silently lack a node meter that is misspelled.
_MEASURING = ("measure", "run", "sweep", "calibrate")
_TRACEBACK_VARIABLE = "JOULERY_TRACEBACK"
_OUTPUT_FAILED = (errno.EPIPE, errno.ENOSPC, errno.EIO, errno.EDQUOT, errno.EFBIG)


class Parser(argparse.ArgumentParser):
    """An argument parser whose complaints are errors of our own tree."""

    def error(self, message: str) -> NoReturn:
        """Raise instead of printing the whole usage text."""
        raise UsageError(message, remedy=f"see `{self.prog} --help`")


def run_command(name: str, summary: str, arguments: list[str]) -> int:
    """Parse ``arguments`` for the command ``name`` and run it."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    as_json = "--json" in own
    try:
        module = importlib.import_module(f"joulery.cli.{name}")
        parser = Parser(
            prog=f"joulery {name}",
            description=summary[0].upper() + summary[1:] + ".",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        module.add_arguments(parser)
        parsed = parser.parse_args(arguments)
        if name in _MEASURING:
            from joulery.hardware import check_node_meters

            check_node_meters(os.environ)
        code = int(module.run(parsed))
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
    return code


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
