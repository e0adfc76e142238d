"""``joulery calibrate``: gains and offsets of board sensors, against a meter of the whole node."""

from __future__ import annotations

import signal
import sys
import textwrap
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING

from joulery import metering
from joulery.cli.dispatch import Output
from joulery.cli.measure import DEVICE_OPTION
from joulery.cli.options import (
    COMMAND_OPTION,
    Action,
    flag,
    given_command,
    option,
    quantity,
    share,
    watts,
)
from joulery.cli.progress import Progress
from joulery.clock import REAL_CLOCK
from joulery.errors import JouleryError, MissingHardwareError, UsageError
from joulery.reports import table_of
from joulery.units import human_duration, per_cent

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping, Sequence

    from joulery.clock import Clock
    from joulery.hardware import Device
    from joulery.metering import LearnedCalibration, NodePower, SensorCalibration

_EPILOG = """\
A node meter is named by JOULERY_NODE_METER (visa:…, ipmi:, redfish:https://…), or is a plug-in.
COMMAND is a load that uses the boards, such as a training; it is ended after --duration. Without
one, PyTorch multiplies matrices. Where this user may set power limits, they are lowered and
restored meanwhile, which tells boards apart. The other users of the node should be idle.

Power supplies lose some of what the meter sees. Unless --efficiency is given, 90 to 100 % arrive
at the boards, and that doubt stays in the gain's error. Offsets are learned only where
--host-power states what the node draws without its boards.

examples:
  JOULERY_NODE_METER=ipmi: joulery calibrate --efficiency 94% -- python train.py
  joulery calibrate --show
"""
_STATED_EFFICIENCY_ERROR = 0.005  # by hand
_LEAST_SECONDS, _SECONDS_PER_BOARD = 240.0, 60.0  # by hand


def _run(arguments: argparse.Namespace) -> Output:
    if arguments.show:
        return _show(metering.load_calibrations())
    node_power = metering.NodePower(rest_watts=arguments.host_power)
    if arguments.efficiency is not None:
        node_power = metering.NodePower(
            arguments.efficiency, _STATED_EFFICIENCY_ERROR, arguments.host_power
        )
    command = given_command(arguments)
    node, boards, others = _devices(arguments.meter, arguments.device)
    seconds = arguments.duration
    if seconds is None:
        seconds = max(_LEAST_SECONDS, _SECONDS_PER_BOARD * len(boards))
    metering.load_calibrations()  # refused now rather than after minutes of load
    load = _Load(command, seconds)
    result = metering.calibrate(node, boards, load, hosts=others, supply=node_power)
    path = metering.save_calibrations(result.calibrations)
    document = {**asdict(result), "known": asdict(node_power), "file": str(path)}
    return Output(document, lambda: _text(result, boards, node_power, str(path)))


def _devices(
    meter: str, names: Sequence[str] | None
) -> tuple[Device, list[Device], tuple[Device, ...]]:
    """The node meter, the boards, and processors and memory with counters."""
    from joulery.frontier import Origin
    from joulery.hardware import Capability, DeviceKind, survey

    devices_here = survey()
    nodes = [device for device in devices_here.devices if device.info.kind is DeviceKind.NODE]
    if not nodes:
        for obstacle in devices_here.obstacles:
            if obstacle.subject.startswith("node meter "):
                message = f"{obstacle.subject} cannot be used: {obstacle.reason}"
                raise MissingHardwareError(message, remedy=obstacle.remedy)
        raise MissingHardwareError(
            "no meter of the whole node",
            remedy="name one in JOULERY_NODE_METER: visa:RESOURCE, ipmi:, or redfish:URL",
        )
    node = metering.select([meter], among=nodes)[0]
    kinds = (DeviceKind.CPU, DeviceKind.MEMORY)
    counters = [d for d in devices_here.devices if Capability.ENERGY in d.capabilities]
    boards = metering.select(names or ["gpu"], among=counters)
    others = [
        device
        for device in counters
        if device.info.kind in kinds
        and device.info.parent is None
        and device.provenance.origin is Origin.MEASURED
    ]
    return node, boards, tuple(others)


class _Load:
    """The load: a command that is ended after so many seconds."""

    def __init__(self, command: Sequence[str], seconds: float, clock: Clock = REAL_CLOCK) -> None:
        if not command:
            if find_spec("torch") is None:
                raise UsageError(
                    "no load given, and PyTorch is not installed",
                    remedy="give one: joulery calibrate -- python train.py",
                )
            command = [sys.executable, "-m", "joulery.cli.calibrate_load"]
        metering.check_command(command, "joulery calibrate")
        self._command, self._seconds, self._clock = command, seconds, clock

    def __call__(self, on_wait: Callable[[], None]) -> None:
        progress, began, ended = Progress(), self._clock.now(), False

        def wait() -> None:
            nonlocal ended
            passed = self._clock.now() - began
            progress.show(f"{human_duration(passed)} of {human_duration(self._seconds)}")
            if passed < self._seconds:
                on_wait()
            elif not ended:
                ended = True
                signal.raise_signal(signal.SIGTERM)  # passed on to the command

        try:
            code = metering.run_command(self._command, stdout=2, on_wait=wait)
        finally:
            progress.done()
        if code != 0 and not ended:
            raise JouleryError(
                f"the load ended with exit code {code}, so nothing was calibrated",
                remedy=f"see that it runs by itself: {' '.join(self._command)}",
            )


def _text(
    result: LearnedCalibration, boards: Sequence[Device], node_power: NodePower, path: str
) -> str:
    names = {
        board.info.id: f"{board.info.kind}:{board.info.index} {board.info.name}" for board in boards
    }
    share = f"{per_cent(node_power.efficiency)} ± {per_cent(node_power.efficiency_error)}"
    about = (
        f"The node meter is {result.delay_seconds:g} s late, averages over "
        f"{result.averaging_seconds:g} s, and is off the fit by {result.residual_watts:.1f} W. "
        f"Of its watts {share} arrive at the boards."
    )
    lines = [_table(result.calibrations, names), "", *textwrap.wrap(about, 80)]
    if node_power.rest_watts is None:
        lines.append("Offsets are assumed: state --host-power to have them learned.")
    if result.unchanged:
        lines.append(f"Power hardly changed, so not calibrated: {', '.join(result.unchanged)}")
    lines += [f"Warning: {warning}." for warning in result.warnings]
    return "\n".join([*lines, f"Kept in {path}; measurements use it from now on."])


def _show(calibrations: Mapping[str, SensorCalibration]) -> Output:
    path = metering.calibrations_file()
    document = {
        "calibrations": [asdict(calibration) for calibration in calibrations.values()],
        "file": str(path),
    }
    text = _table(tuple(calibrations.values()), {}) if calibrations else "no calibrations yet"
    return Output(document, f"{text}\n\nfile: {path}")


def _table(calibrations: Sequence[SensorCalibration], names: Mapping[str, str]) -> str:
    return table_of(
        calibrations,
        {
            "device": lambda calibration: names.get(calibration.device_id, calibration.device_id),
            ">gain": lambda calibration: f"{calibration.gain:.4f}",
            ">± sd": lambda calibration: f"± {calibration.gain_error:.4f}",
            ">offset": lambda calibration: f"{calibration.offset_watts:.1f} W",
            "> ± sd": lambda calibration: f"± {calibration.offset_error_watts:.1f} W",
            "date": lambda calibration: calibration.learned_at[:10],
            "meter": lambda calibration: calibration.meter,
        },
    )


COMMAND = Action(
    _run,
    (
        COMMAND_OPTION,
        option("--meter", "node meter, by default the first", "NAME", default="node"),
        DEVICE_OPTION,
        option("--duration", "default: 60s per board, 4min at least", "TIME", quantity("s", 30.0)),
        option("--efficiency", "of the power supplies, such as 94%%", "SHARE", share),
        option("--host-power", "node meter's power without the boards", "W", watts),
        flag("--show", "print the calibrations that are kept, and end"),
    ),
    measures=True,
    usage="joulery calibrate [options] [-- COMMAND [ARGUMENTS...]]",
    epilog=_EPILOG,
)
