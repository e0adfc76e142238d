"""Program ``nvidia-smi`` on an emulated node: boards and power limits through the real binding."""

from __future__ import annotations

import argparse
import sys
from typing import Any, NoReturn

import pynvml

_USAGE = "nvidia-smi [-L] [-i INDEX,INDEX] [-pl WATTS]"
_UNDERSTOOD = f"this nvidia-smi, emulated by Joulery, understands only {_USAGE}"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{message}; {_UNDERSTOOD}\n")


def main() -> int:
    """Do what the command line says; the exit code is NVML's code, as that of the real program."""
    parser = _Parser("nvidia-smi", usage=_USAGE, description=_UNDERSTOOD, allow_abbrev=False)
    parser.add_argument("-L", "--list-gpus", action="store_true", help="list names and ids")
    parser.add_argument("-i", "--id", metavar="INDEX,INDEX", help="boards; all unless given")
    parser.add_argument("-pl", "--power-limit", metavar="WATTS", type=float, help="set the limit")
    arguments = parser.parse_args()
    try:
        pynvml.nvmlInit()
        if arguments.id is None:
            indices = list(range(pynvml.nvmlDeviceGetCount()))
        else:
            indices = [int(index) for index in arguments.id.split(",")]
        boards = {index: pynvml.nvmlDeviceGetHandleByIndex(index) for index in indices}
        if arguments.power_limit is not None:
            _set_limit(boards, arguments.power_limit)
        elif arguments.list_gpus:
            _list(boards)
        else:
            _show(boards)
    except ValueError:
        parser.error(f"{arguments.id!r} are no indices of boards")
    except pynvml.NVMLError as error:
        sys.stderr.write(f"nvidia-smi: {error}\n")
        return int(error.value)
    return 0


def _set_limit(boards: dict[int, Any], watts: float) -> None:
    for index, board in boards.items():
        least, most = pynvml.nvmlDeviceGetPowerManagementLimitConstraints(board)
        if not least <= 1000 * watts <= most:
            sys.stderr.write(f"GPU {index} takes {least / 1000:g} to {most / 1000:g} W\n")
            raise pynvml.NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        before = pynvml.nvmlDeviceGetPowerManagementLimit(board) / 1000
        pynvml.nvmlDeviceSetPowerManagementLimit(board, round(1000 * watts))
        _say(f"Power limit for GPU {index} was set to {watts:.2f} W from {before:.2f} W.")


def _list(boards: dict[int, Any]) -> None:
    for index, board in boards.items():
        name, uuid = pynvml.nvmlDeviceGetName(board), pynvml.nvmlDeviceGetUUID(board)
        _say(f"GPU {index}: {name} (UUID: {uuid})")


def _show(boards: dict[int, Any]) -> None:
    _say(f"NVIDIA-SMI emulated by Joulery   driver {pynvml.nvmlSystemGetDriverVersion()}")
    _say(f"{'GPU':>3}  {'name':<20}  {'power':>7}  {'limit':>7}  utilisation")
    for index, board in boards.items():
        watts = pynvml.nvmlDeviceGetPowerUsage(board) / 1000
        limit = pynvml.nvmlDeviceGetPowerManagementLimit(board) / 1000
        busy = pynvml.nvmlDeviceGetUtilizationRates(board).gpu
        name = pynvml.nvmlDeviceGetName(board)
        _say(f"{index:>3}  {name:<20}  {watts:>5.0f} W  {limit:>5.0f} W  {busy:>9} %")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")


if __name__ == "__main__":
    sys.exit(main())
