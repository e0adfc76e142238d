"""``joulery doctor --selftest``: one board against what the catalog assumes about it."""

from __future__ import annotations

import os
import re
import sys
import threading
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Self

from joulery import __version__, hardware, metering
from joulery.cli.dispatch import Output
from joulery.cli.options import write_file
from joulery.cli.progress import Progress
from joulery.errors import MissingHardwareError
from joulery.hardware import Capability, DeviceKind
from joulery.reports import table_of
from joulery.units import human, human_duration

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path

    from joulery.hardware import Device, Steady
    from joulery.metering import BurstLoad, SelfTest
    from joulery.testing.emulator import EmulatedNode

SCHEMA = "joulery.selftest/1"
SECONDS = 600.0  # by hand: a hundred refreshes of every sensor for each check
_EMULATED = "JOULERY_EMULATOR_STATE"
_SIZE = 2048  # by hand: a product takes about a millisecond, the precision of an edge
_ADVICE = """\
No load can be switched here: PyTorch with CUDA is not installed. Keep the board busy meanwhile,
such as by a training; checks that need bursts are left out. `pip install torch` adds them."""


def run_selftest(arguments: argparse.Namespace) -> Output:
    """Run the check list, write its file and show it."""
    device = _board(arguments.device)
    seconds = arguments.duration or SECONDS
    progress = Progress(silent_seconds=0.0)
    with ExitStack() as stack:
        name, load = stack.enter_context(_load(device))
        if load is None:
            sys.stderr.write(_ADVICE + "\n")
        result = metering.selftest(
            device,
            load,
            seconds=seconds,
            on_phase=lambda phase: progress.show(
                f"self-test of {human_duration(seconds)}: {phase}"
            ),
        )
    progress.done()
    document = _document(device, result, name, seconds)
    path: Path = arguments.out
    write_file(path, _json(document), "--out")
    code = 1 if result.failures or result.restored is False else 0
    return Output(document | {"file": str(path)}, lambda: _text(result, path), code)


def _board(name: str | None) -> Device:
    """The board that is meant, or the first of this job's."""
    devices = hardware.visible_devices(hardware.survey().devices)
    boards = [
        device
        for device in devices
        if device.info.kind is DeviceKind.GPU
        and device.info.parent is None
        and Capability.POWER in device.capabilities
    ]
    if not boards:
        raise MissingHardwareError(
            "no GPU whose power can be read",
            remedy="see `joulery doctor`, or put `joulery emulate a100 --` in front to try it",
        )
    return metering.select([name or "gpu"], among=boards)[0]


@contextmanager
def _load(device: Device) -> Iterator[tuple[str, BurstLoad | None]]:
    """A load for the board: that of the emulator, PyTorch's, or none."""
    if os.environ.get(_EMULATED):
        from joulery.testing.emulator import EmulatedNode

        node = EmulatedNode.attached()
        with node.driven():
            yield "emulated", _EmulatedLoad(node, device.info.index)
        return
    if device.info.vendor == "nvidia":
        os.environ["CUDA_VISIBLE_DEVICES"] = device.info.id  # before torch looks
    if find_spec("torch") is not None:
        import torch

        if torch.cuda.is_available():
            with TorchLoad("cuda:0") as load:
                yield "torch", load
            return
    yield "none", None


class _EmulatedLoad:
    """A training step of the catalog, again and again, on an emulated board."""

    def __init__(self, node: EmulatedNode, index: int) -> None:
        board = node.specs[index].board
        workload = hardware.catalog.workload("resnet50", board)
        self._states: tuple[Steady, ...] = tuple(hardware.clock_states(board, workload))
        self._node, self._index = node, index

    def set_busy(self, busy: bool) -> None:  # noqa: FBT001 - a state, not an option
        """Start or stop to work."""
        self._node.set_table(self._index, self._states if busy else ())

    def steps(self) -> float:
        """Steps since the node was made."""
        return self._node.truth(self._index).steps


class TorchLoad:
    """Matrix products on a device of PyTorch, in a thread, while it is busy."""

    def __init__(self, device: str, size: int = _SIZE) -> None:
        self._device, self._size = device, size
        self._steps = 0
        self._busy, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._busy.set()
        self._thread.join()

    def set_busy(self, busy: bool) -> None:  # noqa: FBT001 - a state, not an option
        """Start or stop to work."""
        if busy:
            self._busy.set()
        else:
            self._busy.clear()

    def steps(self) -> float:
        """Products since the start."""
        return float(self._steps)

    def _work(self) -> None:
        import torch

        matrix = torch.randn(self._size, self._size, device=self._device) / self._size**0.5
        while self._busy.wait() and not self._ended.is_set():
            torch.mm(matrix, matrix)
            if matrix.is_cuda:
                torch.cuda.synchronize(matrix.device)
            self._steps += 1


def _document(device: Device, result: SelfTest, load: str, seconds: float) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "board": result.board,
        "vendor": device.info.vendor,
        "joulery": __version__,
        "provenance": device.provenance.origin.value,
        "source": device.provenance.source,
        "load": load,
        "seconds": seconds,
        "checks": [asdict(check) for check in result.checks],
        "sensor": _sensor(result),
        "specs": {name: round(watts, 1) for name, watts in result.specs.items()},
        "nearest_sensor": result.nearest,
        "counter": asdict(result.counter) if result.counter else None,
        "points": [asdict(point) for point in result.points],
        "restored": result.restored,
        "failures": result.failures,
    }


def _sensor(result: SelfTest) -> dict[str, Any] | None:
    """The board's sensor as an entry of the catalog (``sensors.toml``)."""
    fit = result.sensor
    if fit is None:
        return None
    return {
        "name": f"{result.board}, self-test",
        "boards": f"^{re.escape(result.board)}$",
        "period_seconds": round(fit.period_seconds, 4),
        "window_seconds": round(fit.window_seconds, 4),
        "lag_seconds": round(fit.lag_seconds, 4),
    }


def _json(document: dict[str, Any]) -> str:
    import json

    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def _text(result: SelfTest, path: Path) -> str:
    words = {True: "agrees", False: "DIFFERS", None: "–"}
    checks = table_of(
        result.checks,
        {
            "check": lambda check: check.name,
            "expected": lambda check: check.expected or "–",
            "observed": lambda check: check.observed,
            "": lambda check: words[check.agrees],
        },
    )
    counts = [sum(check.agrees is verdict for check in result.checks) for verdict in words]
    lines = [
        f"{result.board} against what Joulery assumes about it",
        *(f"FAILED: {failure}" for failure in result.failures),
        "",
        checks,
        "",
        f"{counts[0]} agree, {counts[1]} differ, {counts[2]} could not be compared.",
    ]
    if result.points:
        lines += ["", _points_table(result)]
    if result.restored is False:
        look = "see `nvidia-smi -q -d POWER,CLOCK`."
        lines += ["", f"The limit or clock is NOT as before, or cannot be read: {look}"]
    lines += [
        "",
        f"Written to {path}: `joulery predict --device {path}` uses the limits, measurements with",
        f"JOULERY_SENSORS={path} the sensor. Please send it, so that the catalog improves.",
    ]
    return "\n".join(lines)


def _points_table(result: SelfTest) -> str:
    return table_of(
        result.points,
        {
            ">limit": lambda point: human(point.limit_watts, "W"),
            ">mean power": lambda point: human(point.watts, "W"),
            ">steps a second": lambda point: (
                f"{point.steps_per_second:.3g}" if point.steps_per_second else "–"
            ),
            ">energy of a step": lambda point: (
                human(point.watts / point.steps_per_second, "J") if point.steps_per_second else "–"
            ),
        },
    )
