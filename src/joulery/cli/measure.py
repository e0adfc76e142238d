"""``joulery measure``: the energy of a command and everything it starts."""

from __future__ import annotations

import math
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

from joulery import metering
from joulery.cli.dispatch import Output
from joulery.cli.options import COMMAND_OPTION, Action, file, given_command, number, option
from joulery.cli.progress import Progress
from joulery.reports import table_of
from joulery.units import grams_co2, human, human_duration, money, per_cent

if TYPE_CHECKING:
    import argparse


def _run(arguments: argparse.Namespace) -> Output:
    command = given_command(arguments)
    metering.check_command(command)
    measured, code = _measured(command, arguments)
    costs = _costs(measured, arguments)
    document = {**measured.to_dict(), **costs, "command": command, "exit_code": code}
    return Output(document, lambda: _text(measured, costs, code), code, aside=True)


def _measured(
    command: list[str], arguments: argparse.Namespace
) -> tuple[metering.Measurement, int]:
    progress = Progress(silent_seconds=2.0)
    stdout = sys.stderr.fileno() if arguments.json else None
    with metering.Meter(arguments.device) as meter:
        window = meter.begin("command")
        label = " ".join(command)
        log = (
            metering.EnergyLog(arguments.log).recording(window, label)
            if arguments.log
            else nullcontext()
        )

        def show() -> None:
            so_far = window.measurement
            progress.show(
                f"joulery: {human_duration(so_far.seconds)}  {human(so_far.joules, 'J')}  "
                f"{human(so_far.mean_watts, 'W')} mean  ({so_far.provenance.origin})"
            )

        with log:
            try:
                code = metering.run_command(command, stdout=stdout, on_wait=show)
            finally:
                meter.end(window)
                window.settle()
        progress.done()
        return window.measurement, code


def _costs(measured: metering.Measurement, arguments: argparse.Namespace) -> dict[str, float]:
    costs: dict[str, float] = {}
    if math.isnan(measured.joules):
        return costs
    if arguments.co2 is not None:
        costs["grams_co2"] = grams_co2(measured.joules, arguments.co2)
    if arguments.price is not None:
        costs["money"] = money(measured.joules, arguments.price)
    return costs


def _text(measured: metering.Measurement, costs: dict[str, float], code: int) -> str:
    lines = [
        "",
        (
            f"{human_duration(measured.seconds)}, {human(measured.joules, 'J')} "
            f"{error_bar(measured.relative_error)}, {human(measured.mean_watts, 'W')} mean, "
            f"{human(measured.peak_watts, 'W')} peak: {measured.provenance.origin}; "
            f"exit code {code}"
        ),
    ]
    if "grams_co2" in costs:
        lines.append(f"{human(costs['grams_co2'], 'g')} CO2 at the intensity given")
    if "money" in costs:
        lines.append(f"{costs['money']:.4g} at the price given")
    if measured.flags:
        lines.append("faults: " + ", ".join(sorted(measured.flags)))
    if not measured.devices:
        lines.append("nothing here can be measured; see `joulery doctor` for how to change that")
        return "\n".join(lines)
    devices = table_of(
        measured.devices,
        {
            "device": lambda one: one.info.name,
            ">energy": lambda one: human(one.joules, "J"),
            ">±": lambda one: error_bar(one.relative_error),
            ">mean": lambda one: human(one.joules / measured.seconds, "W"),
            ">peak": lambda one: human(one.peak_watts, "W"),
            ">while idle": lambda one: human(one.idle_joules, "J"),
            "provenance": lambda one: one.provenance.origin.value,
            "source": lambda one: one.provenance.source,
        },
    )
    return "\n".join([*lines, "", devices])


def error_bar(relative_error: float | None) -> str:
    """One standard error in per cent, as ± means everywhere."""
    return "± ?" if relative_error is None else f"± {per_cent(relative_error)}"


DEVICE_OPTION = option(
    "--device",
    "only this device (gpu, gpu:0, cpu, an id …); repeat for several; default: all of this job's",
    "NAME",
    action="append",
)
COMMAND = Action(
    _run,
    (
        COMMAND_OPTION,
        DEVICE_OPTION,
        file("--log", "append running totals to an energy log"),
        option("--co2", "grid intensity in gCO2/kWh, to print the carbon", "G", number(0.0)),
        option("--price", "price of a kWh, to print the money", "P", number(0.0)),
    ),
    measures=True,
    usage="joulery measure [options] -- COMMAND [ARGUMENTS...]",
    epilog="""\
The figures go to standard error, so that the command's own output stays clean. With
--json they go to standard output as one document, and the command's output to standard
error. The exit code is the command's own.

example: joulery measure --co2 380 -- python train.py""",
)
