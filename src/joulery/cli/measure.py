"""``joulery measure``: the energy of a command and everything it starts."""

from __future__ import annotations

import math
import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery import grid, metering
from joulery.cli.dispatch import Output
from joulery.cli.options import (
    COMMAND_OPTION,
    GRID_OPTION,
    Action,
    file,
    given_command,
    number,
    option,
)
from joulery.cli.progress import Progress
from joulery.clock import REAL_CLOCK
from joulery.reports import table_of
from joulery.units import grams_co2, human, human_duration, human_money, money, per_cent

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from joulery.clock import Clock
    from joulery.hardware import Device
    from joulery.training import DecisionService, RunLog, RunState


def _run(arguments: argparse.Namespace) -> Output:
    command = given_command(arguments)
    metering.check_command(command)
    intensity = None
    if arguments.grid is not None:  # refused before the command runs
        intensity = grid.carbon_intensity(arguments.grid).at(REAL_CLOCK.wall())
    measured, code = _measure(command, arguments)
    costs = _costs(measured, intensity, arguments.price)
    document = {**measured.to_dict(), **costs, "command": command, "exit_code": code}
    return Output(document, lambda: _text(measured, costs, code), code, aside=True)


def _measure(command: list[str], arguments: argparse.Namespace) -> tuple[metering.Measurement, int]:
    progress = Progress(silent_seconds=2.0)
    stdout = sys.stderr.fileno() if arguments.json else None
    service = reporting_service()  # loads what reports need: not within the window
    with metering.Meter(arguments.device) as meter:
        window = meter.begin("command")
        label = " ".join(command)
        log = (
            metering.EnergyLog(arguments.log).recording(window, label)
            if arguments.log
            else nullcontext()
        )

        def show() -> None:
            current = window.measurement
            progress.show(
                f"joulery: {human_duration(current.seconds)}  {human(current.joules, 'J')}  "
                f"{human(current.mean_watts, 'W')} mean  ({current.provenance.origin})"
            )

        run_log = begin_run_log(service, meter, window, label, "measure")
        environment = None if run_log is None else {**os.environ, **run_log.environment}
        with log:
            try:
                code = metering.run_command(
                    command, stdout=stdout, environment=environment, on_wait=show
                )
            finally:
                meter.end(window)
                window.settle()
                if run_log is not None:
                    run_log.end(window.measurement)
        progress.done()
        return window.measurement, code


@dataclass(frozen=True, slots=True)
class _WindowMeter:
    """A window as the meter of a run."""

    meter: metering.Meter
    window: metering.Window

    @property
    def clock(self) -> Clock:
        return self.meter.clock

    @property
    def devices(self) -> tuple[Device, ...]:
        return self.meter.devices

    def measure_here(self) -> metering.Measurement:
        return self.window.measurement


def reporting_service() -> DecisionService | None:
    """The store that runs are reported to; None without ``$JOULERY_STORE``.

    Of commands that a launcher starts once for each rank, the first of the machine reports.
    """
    if not os.environ.get("JOULERY_STORE") or os.environ.get("LOCAL_RANK", "0") != "0":
        return None
    from joulery import client  # noqa: F401 - slow to load
    from joulery.training import DecisionService

    return DecisionService()


def begin_run_log(
    service: DecisionService | None,
    meter: metering.Meter,
    window: metering.Window,
    name: str,
    kind: str,
    state: Callable[[], RunState] | None = None,
) -> RunLog | None:
    """The report of a window as a run to the store; None where there is none.

    Args:
        service: Store that it is reported to.
        meter: Meter of the window.
        window: Window that is reported.
        name: Name of the run.
        kind: Reporter, for people.
        state: Function that states what the window does not know.
    """
    if service is None:
        return None
    from joulery.training import RunLog, RunState

    run_log = RunLog(name, kind, service, _WindowMeter(meter, window), state or RunState)
    run_log.start()
    return run_log


def _costs(
    measured: metering.Measurement, intensity: float | None, price: float | None
) -> dict[str, float]:
    costs: dict[str, float] = {}
    if math.isnan(measured.joules):
        return costs
    if intensity is not None:
        costs["grams_co2"] = grams_co2(measured.joules, intensity)
    if price is not None:
        costs["money"] = money(measured.joules, price)
    return costs


def _text(measured: metering.Measurement, costs: dict[str, float], code: int) -> str:
    lines = [
        "",
        (
            f"{human_duration(measured.seconds)}, {measured.joules_text} "
            f"{error_bar(measured.relative_error)}, {human(measured.mean_watts, 'W')} mean, "
            f"{human(measured.peak_watts, 'W')} peak: {measured.provenance.origin}; "
            f"exit code {code}"
        ),
    ]
    if "grams_co2" in costs:
        lines.append(f"{human(costs['grams_co2'], 'g')} CO2 at the intensity given")
    if "money" in costs:
        lines.append(f"{human_money(costs['money'])} at the price given")
    if measured.flags:
        lines.append("faults: " + ", ".join(sorted(measured.flags)))
    if not measured.devices:
        lines.append("nothing here can be measured; see `joulery doctor` for how to change that")
        return "\n".join(lines)
    devices = table_of(
        measured.devices,
        {
            "device": lambda device: device.info.name,
            ">energy": lambda device: human(device.joules, "J"),
            ">±": lambda device: error_bar(device.relative_error),
            ">mean": lambda device: human(device.mean_watts(measured.seconds), "W"),
            ">peak": lambda device: human(device.peak_watts, "W"),
            ">while idle": lambda device: human(device.idle_joules, "J"),
            "provenance": lambda device: device.provenance.origin.value,
            "source": lambda device: device.provenance.source,
            **({"faults": _faults} if any(device.flags for device in measured.devices) else {}),
        },
    )
    return "\n".join([*lines, "", devices])


def _faults(device: metering.DeviceMeasurement) -> str:
    return ", ".join(sorted(device.flags))


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
        GRID_OPTION,
        option("--price", "price of a kWh, to print the money", "P", number(0.0)),
    ),
    measures=True,
    usage="joulery measure [options] -- COMMAND [ARGUMENTS...]",
    epilog="""\
The figures go to standard error, so that the command's own output stays clean. With
--json they go to standard output as one document, and the command's output to standard
error. The exit code is the command's own: also 128 plus the signal that ended it, and
127 where it cannot be run.

example: joulery measure --grid 380 -- python train.py""",
)
