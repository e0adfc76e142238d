"""``joulery top``: what draws power on this machine now, and which runs are under way."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from typing import TYPE_CHECKING

from joulery import client, metering
from joulery.cli.dispatch import Output
from joulery.cli.measure import DEVICE_OPTION
from joulery.cli.options import Action, flag, option, quantity
from joulery.clock import REAL_CLOCK
from joulery.errors import JouleryError
from joulery.reports import run_state, table_of
from joulery.training import LiveReader
from joulery.units import human, human_duration

if TYPE_CHECKING:
    import argparse

    from joulery.jobs import LiveState, RunEntry

_CLEAR = "\x1b[H\x1b[J"  # to the top, and clear what is below
_SHORTEST_SECONDS = 0.2  # between two readings (by hand: two refreshes of a counter)


def _run(arguments: argparse.Namespace) -> Output:
    seconds = arguments.interval
    with metering.Meter(arguments.device) as meter:
        window = meter.begin("top")
        REAL_CLOCK.sleep(_SHORTEST_SECONDS)  # an estimate knows nothing before its second reading
        reader = LiveReader(meter.devices, REAL_CLOCK, window.measurement, 0)
        origins = {
            reader.names[device.info.id]: device.provenance.origin.value
            for device in meter.devices
            if device.info.id in reader.names
        }
        try:
            while True:
                REAL_CLOCK.sleep(seconds)
                measured = window.measurement
                state = reader.read(measured, 0, measured.seconds, "")
                runs = _runs_under_way()
                if arguments.once or arguments.json or not sys.stdout.isatty():
                    return Output(_document(state, runs, origins), _text(state, runs, origins))
                sys.stdout.write(_CLEAR + _text(state, runs, origins) + "\n")
                sys.stdout.flush()
        finally:
            reader.close()


def _runs_under_way() -> list[RunEntry]:
    """Runs of the team in the store that are under way; none without one, or if it fails."""
    if not os.environ.get(client.STORE_VARIABLE):
        return []
    try:
        with closing(client.open_backend()) as backend:
            entries, _ = backend.runs(limit=100, open_only=True)
    except JouleryError:
        return []  # power matters here, and a store that is down must not hide it
    now = REAL_CLOCK.wall()
    return [entry for entry in entries if run_state(entry, now) == "under way"]


def _document(state: LiveState, runs: list[RunEntry], origins: dict[str, str]) -> dict[str, object]:
    runs_now = [
        {"id": run.id, "name": run.name, "watts": run.mean_watts, "origin": run.origin}
        for run in runs
    ]
    devices = state.to_document()["devices"]
    return {
        "devices": [device | {"provenance": origins[device["name"]]} for device in devices],
        "runs": runs_now,
    }


def _text(state: LiveState, runs: list[RunEntry], origins: dict[str, str]) -> str:
    known = [device.watts for device in state.devices if device.watts is not None]
    lines = [f"{human(sum(known), 'W')} in all, mean since the last reading" if known else ""]
    if not state.devices:
        lines = ["nothing here can be measured; see `joulery doctor` for how to change that"]
    ordered = sorted(state.devices, key=lambda device: -(device.watts or 0.0))
    lines.append(
        table_of(
            ordered,
            {
                "device": lambda device: device.name,
                ">power": lambda device: _or_dash(device.watts, "W"),
                ">limit": lambda device: _or_dash(device.limit_watts, "W"),
                ">clock": lambda device: (
                    "–" if device.clock_hertz is None else f"{device.clock_hertz / 1e6:.0f} MHz"
                ),
                "obtained": lambda device: origins[device.name],
            },
        )
    )
    if runs:
        columns = {
            ">run": lambda run: str(run.id),
            "name": lambda run: run.name,
            ">for": lambda run: human_duration(run.seconds),
            ">mean power": lambda run: _or_dash(run.mean_watts, "W"),
            "obtained": lambda run: run.origin,
            "host": lambda run: run.host,
        }
        lines += ["", table_of(runs, columns)]
    return "\n".join(lines)


def _or_dash(value: float | None, unit: str) -> str:
    return "–" if value is None else human(value, unit)


COMMAND = Action(
    _run,
    (
        DEVICE_OPTION,
        option(
            "--interval",
            "time between two readings (1s)",
            "TIME",
            quantity("s", _SHORTEST_SECONDS, 3600.0),
            default=1.0,
        ),
        flag("--once", "print one reading and end"),
    ),
    measures=True,
    epilog="example: joulery top --interval 5s",
)
