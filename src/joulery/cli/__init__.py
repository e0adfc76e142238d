"""The command line: one file per command, imported only when the command is run."""

from __future__ import annotations

import codecs
import contextlib
import io
import os
import sys

GROUPS = {
    "try it": {
        "doctor": "what this machine can measure and change, and how to get more",
        "demo": "train, sweep, choose and train again on a simulated GPU",
        "emulate": "emulated NVIDIA boards under any command, without a GPU",
    },
    "train with less energy": {
        "measure": "the energy of a command and everything it starts",
        "run": "train under an objective: find the power limit while the job runs",
        "sweep": "energy and time of a command under one power limit after another",
        "jobs": "recurring jobs: what was decided, why, and what that saved",
    },
    "serve a model": {
        "serving": "meter, tune, sweep and simulate a served language model",
    },
    "decide before a run": {
        "predict": "time, power, energy and memory of a training step before it runs",
        "recommend": "device type, count, parallel plan and power limit before the run",
        "plan": "the clock of every instruction of a training pipeline",
    },
    "look back and report": {
        "top": "what draws power on this machine now, and which runs are under way",
        "runs": "every run that reported to a store: power, energy, setting",
        "compare": "runs and energy logs beside each other",
        "report": "energy, carbon, cost and savings of a run, job or team; frontiers",
        "disclose": "footprint of a training for model cards, regulators and others",
    },
    "share with a team": {
        "serve": "recurring jobs for teams and machines, over HTTP, and their tokens",
        "store": "backup, restore, export, import and check of a store of jobs",
    },
    "clusters and machines": {
        "cluster": "many jobs under one power budget: shares, events, a Slurm agent",
        "governor": "the daemon that lends power limits and clocks, and restores them",
        "calibrate": "gains of board sensors, learned against a meter of the whole node",
        "export": "energy and power of this machine for Prometheus and Grafana",
        "completion": "a script that completes commands and options in bash, zsh or fish",
    },
}
COMMANDS = {name: text for group in GROUPS.values() for name, text in group.items()}

_EXIT_CODES = (
    "0 done, 1 failed, 2 wrong use, 3 not possible here; measure, run and emulate pass on that of "
    "their command, 127 where it cannot be run"
)
_WIDEST = 100  # columns that the longest line needs
_REMEDY = f"the commands are {', '.join(COMMANDS)}"


def main(argv: list[str] | None = None) -> int:
    """Run one command; its exit code.

    0 done, 1 failed, 2 wrong use, 3 not possible here (rights, hardware, packages, ports);
    ``measure`` and ``run`` pass on the exit code of what they ran.
    """
    arguments = sys.argv[1:] if argv is None else argv
    _prepare_streams()
    code = 0
    try:
        code = _run(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has gone; nothing is left to say.
        _discard_stdout()
        return code or 1
    except OSError as full:
        _discard_stdout()
        sys.stderr.write(f"joulery: cannot write: {full.strerror}\n  → make room for the output\n")
        return code or 1
    return code


def _discard_stdout() -> None:
    """Have stdout lead nowhere, else Python complains once more when it flushes at exit."""
    with contextlib.suppress(OSError, ValueError):  # a stand-in has no number
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


# What stands for characters that a terminal's encoding lacks.
_PLAIN = str.maketrans(
    {"─": "-", "–": "-", "−": "-", "→": ">", "×": "x", "±": "+-", "·": "*", "…": "~", "★": "*"}
    | {"µ": "u", "│": "|", "█": "#", "°": " deg"}
)


def _plainly(error: UnicodeError) -> tuple[str, int]:
    """An error handler of encoders: a plain letter where there is one, else a question mark."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    plain = error.object[error.start : error.end].translate(_PLAIN)
    return "".join(char if char.isascii() else "?" for char in plain), error.end


class _ForgivingStream(io.TextIOWrapper):
    """Standard error that may be full or gone: what goes there must never stop a command."""

    def write(self, text: str) -> int:
        """Write; errors are ignored."""
        with contextlib.suppress(OSError):
            super().write(text)
        return len(text)

    def flush(self) -> None:
        """Flush; errors are ignored."""
        with contextlib.suppress(OSError, ValueError):
            super().flush()


def _prepare_streams() -> None:
    """Replace characters that the encoding lacks, and ignore errors of stderr."""
    for number in (0, 1, 2):  # a closed one would become the next file that is opened
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    if sys.stdout is None:
        sys.stdout = os.fdopen(os.dup(1), "w", encoding="utf-8")
    codecs.register_error("joulery-plain", _plainly)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="joulery-plain")
    if sys.stderr is None or type(sys.stderr) is io.TextIOWrapper:
        encoding = "utf-8" if sys.stderr is None else sys.stderr.encoding
        raw = io.FileIO(2, "w", closefd=False)
        sys.stderr = _ForgivingStream(
            io.BufferedWriter(raw), encoding, "joulery-plain", line_buffering=True
        )


def _run(arguments: list[str]) -> int:
    command = arguments[0] if arguments else "--help"
    if command in ("-h", "--help", "help"):
        sys.stdout.write(_help())
        return 0 if arguments else 2
    if command in ("-V", "--version"):
        from joulery import __version__

        sys.stdout.write(f"joulery {__version__}\n")
        return 0
    from joulery.cli.dispatch import did_you_mean, report_error, run_command
    from joulery.errors import UsageError

    error = None
    if command not in COMMANDS:
        remedy = did_you_mean(command, COMMANDS) or _REMEDY
        error = UsageError(f"unknown command {command!r}", remedy=remedy)
    for word in arguments:
        if "\0" in word:  # no file and no program takes one
            error = UsageError(f"{word[:80]!r} contains a NUL character", remedy="leave it out")
    if error is not None:
        return report_error(error, as_json="--json" in arguments)
    return run_command(command, COMMANDS[command], arguments[1:])


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = []
    for title, commands in GROUPS.items():
        lines += ["", f"{title}:"]
        for name, text in commands.items():
            lines += _hanging(f"  {name:<{width}}  ", text)
    return "\n".join(
        [
            "usage: joulery COMMAND [options]",
            "",
            "Train and serve models with less energy.",
            *lines,
            "",
            "Every command takes --help and --json.",
            *_hanging("Exit codes: ", f"{_EXIT_CODES}."),
            "",
        ]
    )


def _hanging(head: str, text: str) -> list[str]:
    """A text after a head, continued below itself where the terminal is too narrow for it."""
    lines, columns = [head], _terminal_columns()
    for word in text.split():  # by hand: importing textwrap takes longer than all of this
        blank = " " * (not lines[-1].endswith(" "))
        if len(lines[-1]) + len(blank) + len(word) > columns and lines[-1].strip():
            lines.append(" " * len(head))
            blank = ""
        lines[-1] += blank + word
    return lines


def _terminal_columns() -> int:
    """Width of the terminal; enough for every line where there is none."""
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        return int(columns)
    try:
        return os.get_terminal_size(1).columns or _WIDEST
    except OSError:
        return _WIDEST
