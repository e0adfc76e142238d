"""``joulery run``: train under an objective, and tell what that saved."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery.objectives import OBJECTIVE_HELP

if TYPE_CHECKING:
    import argparse

    from joulery.metering.measurement import Measurement
    from joulery.training.watching import Finding


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the options."""
    parser.usage = "joulery run [options] -- COMMAND [ARGUMENTS...]"
    parser.epilog = (
        "The power of a script that reports its steps through joulery.Run is tuned while it\n"
        "trains. A script that reports nothing is measured, and told what could be known about\n"
        "its steps from outside; its limits are left alone. Figures go to standard error; with\n"
        "--json to standard output, and the command's output to standard error. The exit code\n"
        "is the command's own.\n\n"
        "example: joulery run --objective least-energy:slowdown=5% -- python train.py"
    )
    parser.add_argument("command", nargs="...", help="what to run, after `--`")
    parser.add_argument("--objective", default="cost:eta=0.5", metavar="TEXT", help=OBJECTIVE_HELP)
    parser.add_argument(
        "--observe", action="store_true", help="find out what could be saved, change nothing"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Run the command under the objective."""
    from joulery.metering.command import check_command
    from joulery.objectives import parse_objective

    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    check_command(command)
    parse_objective(arguments.objective, max_watts=1.0)  # complain before the training starts
    with tempfile.TemporaryDirectory(prefix="joulery-run-") as folder:
        measured, watched, code = _trained(command, arguments, Path(folder))
        reports = _reports(Path(folder))
    if arguments.json:
        document = {
            **measured.to_dict(),
            "objective": arguments.objective,
            "runs": reports,
            "watched": [finding.to_dict() for finding in watched],
            "command": command,
            "exit_code": code,
        }
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    else:
        sys.stderr.write(_rendered(measured, reports, watched, code))
    return code


def _trained(
    command: list[str], arguments: argparse.Namespace, folder: Path
) -> tuple[Measurement, list[Finding], int]:
    from joulery.metering.command import run_command
    from joulery.metering.meter import Meter
    from joulery.training.config import OBJECTIVE_VARIABLE, OBSERVE_VARIABLE
    from joulery.training.reports import FOLDER_VARIABLE
    from joulery.training.watching import PowerWatch

    environment = {
        **os.environ,
        FOLDER_VARIABLE: str(folder),
        OBJECTIVE_VARIABLE: arguments.objective,
        OBSERVE_VARIABLE: "1" if arguments.observe else "",
    }
    stdout = sys.stderr.fileno() if arguments.json else None
    with Meter() as meter, PowerWatch(meter.devices) as watch:
        with meter.window("run") as window:
            code = run_command(command, stdout=stdout, environment=environment)
        return window.settle(), watch.findings(), code


def _reports(folder: Path) -> list[dict[str, Any]]:
    from joulery.training.reports import read_reports

    return read_reports(folder)


def _rendered(
    measured: Measurement, reports: list[dict[str, Any]], watched: list[Finding], code: int
) -> str:
    from joulery.cli.measure import error_bar
    from joulery.units import human, human_duration

    lines = [
        "",
        (
            f"{human_duration(measured.seconds)}, {human(measured.joules, 'J')} "
            f"{error_bar(measured.relative_error)}: {measured.provenance.origin}; exit code {code}"
        ),
    ]
    for report in reports:
        name = f"{report['name']}: " if report.get("name") else ""
        lines.append(f"{name}{report['steps']} steps reported; {_verdict(report)}")
    if not reports:
        lines.append("the script reported no steps through joulery.Run, so nothing was changed")
        lines += [finding.advice for finding in watched]
    return "\n".join(lines) + "\n"


def _verdict(report: dict[str, Any]) -> str:
    if report.get("summary"):
        return str(report["summary"])
    return str(report.get("why_not") or "it ended before a limit was chosen")
