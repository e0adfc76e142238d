"""``joulery run``: train under an objective, and print what that saved."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery.cli.checked import given_command
from joulery.objectives import OBJECTIVE_HELP

if TYPE_CHECKING:
    import argparse

    from joulery.metering import Measurement
    from joulery.power import ObservedSteps


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the options."""
    parser.usage = "joulery run [options] -- COMMAND [ARGUMENTS...]"
    parser.epilog = (
        "The power of a script that reports its steps through joulery.Run is tuned while it\n"
        "trains. A script that reports nothing is measured, and its limits are left alone; what\n"
        "its power shows about its steps is printed. Figures go to standard error; with\n"
        "--json to standard output, and the command's output to standard error. The exit code\n"
        "is the command's own.\n\n"
        "example: joulery run --objective least-energy:slowdown=5% -- python train.py\n"
        "         joulery run --when greener --deadline 8h --takes 2h --signal forecast.csv \\\n"
        "             -- python train.py"
    )
    parser.add_argument("command", nargs="...", help="command to run, after `--`")
    parser.add_argument("--objective", default="cost:eta=0.5", metavar="TEXT", help=OBJECTIVE_HELP)
    parser.add_argument(
        "--dry-run", action="store_true", help="find out what could be saved, change nothing"
    )
    parser.add_argument(
        "--when",
        choices=("now", "greener"),
        default="now",
        help="greener: start when the signal is lowest while the command runs",
    )
    parser.add_argument("--deadline", metavar="TIME", help="from now until the end, such as 8h")
    parser.add_argument("--takes", metavar="TIME", help="how long the command runs, such as 2h")
    parser.add_argument(
        "--signal",
        type=Path,
        metavar="FILE",
        help="forecast of carbon intensity or price until the deadline, as CSV or Parquet",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Run the command under the objective."""
    from joulery.metering import check_command
    from joulery.objectives import parse_objective
    from joulery.training import read_reports

    command = given_command(arguments.command)
    check_command(command)
    parse_objective(arguments.objective, max_watts=1.0)  # refused before the training starts
    _wait(arguments)
    with tempfile.TemporaryDirectory(prefix="joulery-run-") as folder:
        measured, observed, code = _trained(command, arguments, Path(folder))
        reports = read_reports(Path(folder))
    if arguments.json:
        document = {
            **measured.to_dict(),
            "objective": arguments.objective,
            "runs": reports,
            "observed_steps": [steps.to_dict() for steps in observed],
            "command": command,
            "exit_code": code,
        }
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    else:
        sys.stderr.write(_rendered(measured, reports, observed, code))
    return code


def _wait(arguments: argparse.Namespace) -> None:
    """Wait for the start that the options ask for."""
    from joulery.clock import REAL_CLOCK
    from joulery.cluster import best_start
    from joulery.errors import InvalidValueError
    from joulery.grid import read_signal
    from joulery.units import human_duration, seconds_from_text

    given = [getattr(arguments, name) for name in ("deadline", "takes", "signal")]
    if (arguments.when == "greener") != all(given) or (arguments.when == "now" and any(given)):
        raise InvalidValueError(
            f"--when {arguments.when} with {sum(map(bool, given))} of its three options",
            remedy="give --when greener with all of --deadline, --takes and --signal, or none",
        )
    if arguments.when == "now":
        return
    now = REAL_CLOCK.wall()
    deadline = now + seconds_from_text(arguments.deadline, "--deadline")
    takes = seconds_from_text(arguments.takes, "--takes")
    plan = best_start(read_signal(arguments.signal), takes, now, deadline)
    saved = 1 - plan.value / plan.value_at_once if plan.value_at_once else 0.0
    sys.stderr.write(
        f"starts in {human_duration(plan.start - now)}: the signal is {plan.value:.4g} on average, "
        f"{100 * saved:.1f} % less than at once\n"
    )
    while (left := plan.start - REAL_CLOCK.wall()) > 0:
        REAL_CLOCK.sleep(min(left, 60.0))  # the clock may be set meanwhile


def _trained(
    command: list[str], arguments: argparse.Namespace, folder: Path
) -> tuple[Measurement, list[ObservedSteps], int]:
    from joulery.metering import Meter, run_command
    from joulery.power import PowerObserver
    from joulery.training import DRY_RUN_VARIABLE, OBJECTIVE_VARIABLE, REPORTS_VARIABLE

    environment = {
        **os.environ,
        REPORTS_VARIABLE: str(folder),
        OBJECTIVE_VARIABLE: arguments.objective,
        DRY_RUN_VARIABLE: "1" if arguments.dry_run else "",
    }
    stdout = sys.stderr.fileno() if arguments.json else None
    with Meter() as meter, PowerObserver(meter.devices) as observer:
        with meter.window("run") as window:
            code = run_command(command, stdout=stdout, environment=environment)
        return window.settle(), observer.steps(), code


def _rendered(
    measured: Measurement, reports: list[dict[str, Any]], observed: list[ObservedSteps], code: int
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
        steps = f"{report['steps']} step{'s' * (report['steps'] != 1)} reported"
        if not report.get("ended"):
            steps = "killed before it reported how many steps it took"
        lines.append(f"{name}{steps}; {_summary(report)}")
    if not reports:
        lines.append("the script reported no steps through joulery.Run, so nothing was changed")
        lines += [steps.advice for steps in observed]
    return "\n".join(lines) + "\n"


def _summary(report: dict[str, Any]) -> str:
    if report.get("summary"):
        return str(report["summary"])
    return str(report.get("tuning_skipped") or "it ended before a limit was chosen")
