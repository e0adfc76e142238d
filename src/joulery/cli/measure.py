"""``joulery measure``: the energy of a command and everything it starts."""

from __future__ import annotations

import json
import math
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING

from joulery.cli.checked import given_command

if TYPE_CHECKING:
    import argparse

    from joulery.metering import Measurement


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the options."""
    parser.usage = "joulery measure [options] -- COMMAND [ARGUMENTS...]"
    parser.epilog = (
        "The figures go to standard error, so that the command's own output stays clean. With\n"
        "--json they go to standard output as one document, and the command's output to standard\n"
        "error. The exit code is the command's own.\n\n"
        "example: joulery measure --co2 380 -- python train.py"
    )
    parser.add_argument("command", nargs="...", help="command to run, after `--`")
    parser.add_argument(
        "--device",
        action="append",
        metavar="NAME",
        help="measure only this device (gpu, gpu:0, cpu, an id …); repeat for several; "
        "default: all of this job's devices",
    )
    parser.add_argument("--log", metavar="FILE", help="append running totals to an energy log")
    parser.add_argument(
        "--co2", type=float, metavar="G", help="grid intensity in gCO2/kWh, to print the carbon"
    )
    parser.add_argument(
        "--price", type=float, metavar="P", help="price of a kWh, to print the money"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Measure the command."""
    from joulery.metering import check_command
    from joulery.units import finite

    command = given_command(arguments.command)
    check_command(command)
    for value, name in ((arguments.co2, "--co2"), (arguments.price, "--price")):
        if value is not None:
            finite(value, name, minimum=0.0)
    measured, code = _measured(command, arguments)
    costs = _costs(measured, arguments)
    if arguments.json:
        document = {**measured.to_dict(), **costs, "command": command, "exit_code": code}
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    else:
        sys.stderr.write(_rendered(measured, costs, code))
    return code


def _measured(command: list[str], arguments: argparse.Namespace) -> tuple[Measurement, int]:
    from joulery.cli.progress import Progress
    from joulery.metering import EnergyLog, Meter, run_command
    from joulery.units import human, human_duration

    progress = Progress(silent_seconds=2.0)
    stdout = sys.stderr.fileno() if arguments.json else None
    with Meter(arguments.device) as meter:
        window = meter.begin("command")
        label = " ".join(command)
        log = EnergyLog(arguments.log).recording(window, label) if arguments.log else nullcontext()

        def show() -> None:
            so_far = window.measurement
            progress.show(
                f"joulery: {human_duration(so_far.seconds)}  {human(so_far.joules, 'J')}  "
                f"{human(so_far.mean_watts, 'W')} mean  ({so_far.provenance.origin})"
            )

        with log:
            try:
                code = run_command(command, stdout=stdout, on_wait=show)
            finally:
                meter.end(window)
                window.settle()
        progress.done()
        return window.measurement, code


def _costs(measured: Measurement, arguments: argparse.Namespace) -> dict[str, float]:
    from joulery.units import grams_co2, money

    costs: dict[str, float] = {}
    if math.isnan(measured.joules):
        return costs
    if arguments.co2 is not None:
        costs["grams_co2"] = grams_co2(measured.joules, arguments.co2)
    if arguments.price is not None:
        costs["money"] = money(measured.joules, arguments.price)
    return costs


def _rendered(measured: Measurement, costs: dict[str, float], code: int) -> str:
    from joulery.reports import table_text as table
    from joulery.units import human, human_duration

    rows = [
        [
            device.info.name,
            human(device.joules, "J"),
            error_bar(device.relative_error),
            human(device.joules / measured.seconds, "W"),
            human(device.peak_watts, "W"),
            human(device.idle_joules, "J"),
            device.provenance.origin.value,
            device.provenance.source,
        ]
        for device in measured.devices
    ]
    headers = ["device", "energy", "±", "mean", "peak", "while idle", "provenance", "source"]
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
    else:
        lines += ["", table(headers, rows, "lrrrrrll")]
    return "\n".join(lines) + "\n"


def error_bar(relative_error: float | None) -> str:
    """One standard error in per cent, as ± means everywhere."""
    from joulery.units import per_cent

    return "± ?" if relative_error is None else f"± {per_cent(relative_error)}"
