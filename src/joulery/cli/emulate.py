"""``joulery emulate``: emulated NVIDIA boards under any command."""

from __future__ import annotations

import re
import shutil
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from joulery import metering
from joulery.cli.dispatch import Output
from joulery.cli.options import COMMAND_OPTION, Action, Option, flag, given_command, option
from joulery.errors import InvalidValueError, UsageError
from joulery.hardware import catalog, sensor_of
from joulery.reports import table_of
from joulery.units import human, human_duration

if TYPE_CHECKING:
    import argparse
    from typing import Any

    from joulery.testing.emulator import BoardSpec, EmulatedNode

# By hand: compute, memory traffic and time on the host in about equal parts.
_WORKLOAD = "resnet50"


def _run(arguments: argparse.Namespace) -> Output | int:
    from joulery.testing.emulator import EmulatedNode, ProgramLoad

    command = given_command(arguments)
    if not command and shutil.which(arguments.boards):
        raise UsageError(
            f"no boards given, only the command {arguments.boards!r}",
            remedy=f"write `joulery emulate a100 -- {arguments.boards}`",
        )
    with (
        EmulatedNode(_specs(arguments.boards)) as node,
        ProgramLoad(node, arguments.workload, always_busy=arguments.always_busy) as load,
    ):
        if not node.specs:
            raise InvalidValueError("no boards given", remedy="name some, such as 2xa100")
        environment = node.env  # its PATH has a program more
        example = f"joulery emulate {arguments.boards}"
        metering.check_command(command, example, path=environment["PATH"])
        originals = [node.power_limit(index) for index in range(len(node.specs))]
        code = metering.run_command(
            command,
            stdout=sys.stderr.fileno() if arguments.json else None,
            environment=environment,
        )
        boards = [_board(node, index, limit) for index, limit in enumerate(originals)]
        seconds = node.truth(0).now_seconds
    if code == UsageError.exit_code and not arguments.json:
        return code  # the command's own error, just above, is all there is to read
    document = {
        "seconds": seconds,
        "busy_seconds": load.busy_seconds,
        "paused_seconds": load.paused_seconds,
        "workload": arguments.workload,
        "boards": boards,
        "provenance": "simulated",
        "source": "the emulator's own account",
        "command": command,
        "exit_code": code,
    }
    return Output(document, lambda: _text(document), code, aside=True)


def _specs(text: str) -> list[BoardSpec]:
    """Boards of a list such as ``v100,8xa100``."""
    specs: list[BoardSpec] = []
    for entry in filter(None, text.split(",")):
        several = re.fullmatch(r"(\d{1,6})x(.+)", entry)
        specs += [_spec(several[2])] * int(several[1]) if several else [_spec(entry)]
    return specs


def _spec(name: str) -> BoardSpec:
    """A board of the catalog whose power sensor is the catalog's, too."""
    from joulery.testing.emulator import BoardSpec

    board = catalog.board(name)
    sensor = sensor_of(board.name)
    return BoardSpec(
        replace(board, counter_period_seconds=sensor.period_seconds),
        window_seconds=sensor.window_seconds,
        sensor_lag_seconds=sensor.lag_seconds,
    )


def _board(node: EmulatedNode, index: int, original_watts: float) -> dict[str, Any]:
    """What a board really did, which no program on it can see."""
    truth = node.truth(index)
    return {
        "name": node.specs[index].board.name,
        "joules": truth.joules,
        "limit_watts": truth.limit_watts,
        "original_limit_watts": original_watts,
    }


def _text(document: dict[str, Any]) -> str:
    seconds = document["seconds"]
    boards = table_of(
        document["boards"],
        {
            "emulated board": lambda board: board["name"],
            ">true energy": lambda board: human(board["joules"], "J"),
            ">mean": lambda board: human(board["joules"] / seconds, "W"),
            ">limit at the end": lambda board: human(board["limit_watts"], "W"),
        },
    )
    lines = [
        (
            f"{document['workload']} on every board, busy for "
            f"{human_duration(document['busy_seconds'])} of {human_duration(seconds)}, from the "
            "start of the command to its end: simulated"
        )
    ]
    if document["paused_seconds"]:
        pause = human_duration(document["paused_seconds"])
        lines.append(f"the command was held back for {pause}: {_SLOWER}")
    return "\n".join(["", boards, *lines])


_SLOWER = "steps take longer where a power limit, also the original one, or a clock binds"

COMMAND = Action(
    _run,
    (
        Option(("boards",), {"metavar": "BOARDS", "help": "boards, such as 2xa100 or a100,h100"}),
        COMMAND_OPTION,
        option(
            "--workload",
            f"what a step asks of a board ({_WORKLOAD}): {', '.join(catalog.workload_names())}",
            "NAME",
            choices=catalog.workload_names(),
            default=_WORKLOAD,
        ),
        flag("--always-busy", "boards work all the time, also while the command waits"),
    ),
    usage="joulery emulate [options] BOARDS -- COMMAND [ARGUMENTS...]",
    epilog="""\
The command and all that it starts see the boards through a real libnvidia-ml.so.1. Boards are
busy while the command uses the processor and idle while it waits; under a lower power limit or
clock they are slower, and the command is held back for the same share of its time. What the
boards really used goes to standard error at the end, to compare with what was measured.
The exit code is the command's own, 127 where it cannot be run.

example: joulery emulate a100,a100 -- joulery measure -- python train.py
         joulery emulate --json --workload bert 8xh100 -- python train.py""",
)
