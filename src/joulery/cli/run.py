"""``joulery run``: train under an objective, and print what that saved."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery import metering, power, training
from joulery.cli.dispatch import Output
from joulery.cli.measure import error_bar
from joulery.cli.options import (
    COMMAND_OPTION,
    Action,
    duration,
    flag,
    given_command,
    option,
    whole,
)
from joulery.clock import REAL_CLOCK
from joulery.errors import InvalidValueError
from joulery.hardware import DeviceKind
from joulery.objectives import OBJECTIVE_HELP, parse_objective
from joulery.units import human, human_duration

if TYPE_CHECKING:
    import argparse


def _run(arguments: argparse.Namespace) -> Output:
    command = given_command(arguments)
    metering.check_command(command, "joulery run")
    from joulery.integrations import torch_optimizers

    arguments.objective = (
        arguments.objective
        or os.environ.get(training.OBJECTIVE_VARIABLE)
        or training.DEFAULT_OBJECTIVE
    )
    # Refused before the training starts.
    objective = parse_objective(arguments.objective, max_watts=1.0)
    if arguments.steps or not os.environ.get(training.STEPS_VARIABLE):
        power.TunerConfig(work_steps=arguments.steps).check_length(objective)
    _wait(arguments)
    with tempfile.TemporaryDirectory(prefix="joulery-run-") as folder:
        measured, observed, code = _train(command, arguments, Path(folder))
        reports = training.read_reports(Path(folder))
        hints = torch_optimizers.read_hints(Path(folder))
    if not reports:
        hints = torch_optimizers.startup_hints(command) + hints
    document = {
        **measured.to_dict(),
        "objective": arguments.objective,
        "runs": reports,
        # A guess from the power, for want of reports.
        "observed_steps": [] if reports else [steps.to_dict() for steps in observed],
        "hints": hints,
        "command": command,
        "exit_code": code,
    }
    # The power of a command that failed says nothing of its steps.
    advice = hints or [steps.advice for steps in observed if code == 0]
    return Output(document, lambda: _text(measured, reports, advice, code), code, aside=True)


def _wait(arguments: argparse.Namespace) -> None:
    """Wait for the start that the options ask for."""
    from joulery.cluster import best_start
    from joulery.grid import provider_signal, read_signal

    options = ("deadline", "takes", "signal")
    presence = [getattr(arguments, name) is not None for name in options]
    if (arguments.when == "greener") != all(presence) or (
        arguments.when == "now" and any(presence)
    ):
        raise InvalidValueError(
            f"--when {arguments.when} with {sum(presence)} of its three options",
            remedy="give --when greener with all of --deadline, --takes and --signal, or none",
        )
    if arguments.when == "now":
        return
    now = REAL_CLOCK.wall()
    deadline = now + arguments.deadline
    signal = provider_signal(arguments.signal) or read_signal(Path(arguments.signal))
    plan = best_start(signal, arguments.takes, now, deadline)
    share = 1 - plan.value / plan.value_at_once if plan.value_at_once else 0.0
    sys.stderr.write(
        f"starts in {human_duration(plan.start - now)}: the signal is {plan.value:.4g} on average, "
        f"{100 * share:.1f} % less than at once\n"
    )
    while (seconds := plan.start - REAL_CLOCK.wall()) > 0:
        REAL_CLOCK.sleep(min(seconds, 60.0))  # the clock may be set meanwhile


def _train(
    command: list[str], arguments: argparse.Namespace, folder: Path
) -> tuple[metering.Measurement, list[power.ObservedSteps], int]:
    from joulery.integrations import torch_optimizers

    environment = {
        **os.environ,
        training.REPORTS_VARIABLE: str(folder),
        training.OBJECTIVE_VARIABLE: arguments.objective,
        **({training.STEPS_VARIABLE: str(arguments.steps)} if arguments.steps else {}),
        **({training.KNOB_VARIABLE: arguments.knob} if arguments.knob else {}),
        **({training.DRY_RUN_VARIABLE: "1"} if arguments.dry_run else {}),
        "PYTHONPATH": torch_optimizers.startup_path(folder, os.environ.get("PYTHONPATH", "")),
    }
    stdout = sys.stderr.fileno() if arguments.json else None
    with metering.Meter() as meter, power.PowerObserver(meter.devices) as observer:
        with meter.window("run") as window:
            code = metering.run_command(command, stdout=stdout, environment=environment)
        return window.settle(), observer.steps(), code


def _text(
    measured: metering.Measurement,
    reports: list[dict[str, Any]],
    advice: list[str],
    code: int,
) -> str:
    lines = [
        "",
        (
            f"{human_duration(measured.seconds)}, {human(measured.joules, 'J')} "
            f"{error_bar(measured.relative_error)} of {measured.devices_text}"
            f"{_gpu_share(measured)}: "
            f"{measured.provenance.origin}; exit code {code}"
        ),
    ]
    for number, report in enumerate(reports, 1):
        name = f"run {number}" * (len(reports) > 1)
        name = ", ".join(filter(None, (name, report.get("name"))))
        name += ": " * bool(name)
        steps = f"{report['steps']} step{'s' * (report['steps'] != 1)} reported"
        if not report.get("tuning_skipped"):
            steps += f", tuned for {report['objective']}"
        if not report.get("ended"):
            steps = "killed before it reported how many steps it took"
        lines.append(f"{name}{steps}; {_summary(report)}")
    if not reports:
        lines.append("no step of an optimizer of torch or of joulery.Run was seen: nothing changed")
        lines += advice
    return "\n".join(lines) + "\n"


def _gpu_share(measured: metering.Measurement) -> str:
    """Energy of the GPUs, which is what tuning changes, where other devices count too."""
    gpus = [d.joules for d in measured.devices if d.info.kind is DeviceKind.GPU]
    if not gpus or len(gpus) == len(measured.devices):
        return ""
    return f", {human(sum(gpus), 'J')} of it in GPUs"


def _summary(report: dict[str, Any]) -> str:
    reasons = report.get("summary"), report.get("tuning_skipped")
    return str(next(filter(None, reasons), "ended before a limit was chosen"))


COMMAND = Action(
    _run,
    (
        COMMAND_OPTION,
        option(
            "--objective", f"{OBJECTIVE_HELP} (default: $JOULERY_OBJECTIVE or cost:eta=0.5)", "TEXT"
        ),
        option(
            "--steps",
            "steps of its optimizers that the command will take: a deadline or joules, which are "
            "those of all steps together, need it",
            "N",
            whole(1, 10**15),
        ),
        option(
            "--knob",
            "limit, clock, or auto: limits, and clocks where limits cannot save more (default: "
            "$JOULERY_KNOB or auto)",
            choices=("auto", "limit", "clock"),
        ),
        flag("--dry-run", "find out what could be saved: try limits for seconds, hold none"),
        option(
            "--when",
            "greener: start when the signal is lowest while the command runs",
            choices=("now", "greener"),
            default="now",
        ),
        option("--deadline", "from now until the end, such as 8h", "TIME", duration),
        option("--takes", "how long the command runs, such as 2h", "TIME", duration),
        option(
            "--signal",
            "forecast of carbon intensity or price until the deadline: CSV, Parquet, or a provider "
            "such as electricitymaps:DE",
            "SOURCE",
        ),
    ),
    measures=True,
    usage="joulery run [options] -- COMMAND [ARGUMENTS...]",
    epilog="""\
The power of a PyTorch script is tuned while it trains, without a change of its code:
every step of its optimizers counts. Other scripts report steps through joulery.Run or
a callback; without, they are measured, and their limits are left alone. Figures go to
standard error; with --json to standard output, and the command's output to standard
error. The exit code is the command's own: also 128 plus the signal that ended it, and
127 where it cannot be run.

example: joulery run --objective least-energy:slowdown=5% -- python train.py
         joulery run --when greener --deadline 8h --takes 2h --signal forecast.csv \\
             -- python train.py""",
)
