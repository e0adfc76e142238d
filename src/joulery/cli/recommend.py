"""``joulery recommend``: device type, count, parallel plan and power limit before the run."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from joulery.cli.checked import whole_number
from joulery.cli.predict import add_calibration, calibration, days
from joulery.errors import FileError, InvalidValueError
from joulery.units import (
    count_from_text,
    human,
    human_duration,
    kilowatt_hours,
    seconds_from_text,
)

if TYPE_CHECKING:
    import argparse

    from joulery.predict import Choice, Recommendation

_EPILOG = """\
MODEL is a JSON file that describes a transformer; `joulery predict --help` lists its names.
The answer is the choice of least energy (or time, money, carbon) that keeps the deadline with 90 %
confidence, the Pareto set of time, energy, money and carbon, why, and what would change it.
Energy is that of the building: devices, hosts and cooling.

examples:
  joulery recommend --model llama.json --tokens 2T --deadline 30d --devices h100,b200,mi300x
  joulery recommend --model llama.json --tokens 300B --devices a100,h100 --max-gpus 64 \\
    --objective money --rent 2.5
"""
_MOST = 1_000_000
_ROWS = 12


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the options."""
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("--model", type=Path, required=True, metavar="MODEL", help="description of the model")
    add("--tokens", required=True, metavar="N", help="to train on, such as 2T or 300B")
    add("--devices", required=True, metavar="NAME,…", help="device types in the catalog")
    add("--max-gpus", default="512", metavar="N", help="largest number of devices, by default 512")
    add("--batch-size", default="1024", metavar="N", help="sequences per step, by default 1024")
    add("--precision", default="bf16", metavar="WORD", help="by default bf16; bf16 where it lacks")
    add("--deadline", metavar="TIME", help="such as 30d or 12h, kept with 90 %% confidence")
    add("--objective", default="energy", metavar="WORD", help="energy, time, money or carbon")
    add("--pue", type=float, metavar="X", help="energy of the building per energy of the machines")
    add("--grid", type=float, metavar="G", help="grams of CO2 per kilowatt-hour")
    add("--rent", metavar="USD|NAME=USD,…", help="dollars per device and hour, of all or by type")
    add("--critical-batch", metavar="N", help="sequences beyond which larger batches buy little")
    add_calibration(parser)
    add("--html", type=Path, metavar="FILE", help="write a page with the chart and the reasons")
    add("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Recommend and show."""
    from joulery.predict import Assumptions, Convergence, Work, recommend, transformer

    model = transformer(arguments.model)
    deadline, critical = arguments.deadline, arguments.critical_batch
    work = Work(
        count_from_text(arguments.tokens, "--tokens"),
        whole_number(arguments.batch_size, "--batch-size", 1, _MOST),
        arguments.precision,
        None if deadline is None else seconds_from_text(deadline, "--deadline"),
        None if critical is None else Convergence(count_from_text(critical, "--critical-batch")),
    )
    found = recommend(
        model,
        work,
        [name.strip() for name in arguments.devices.split(",") if name.strip()],
        max_devices=whole_number(arguments.max_gpus, "--max-gpus", 1, _MOST),
        objective=arguments.objective,
        assumptions=Assumptions(arguments.pue, arguments.grid, _rent(arguments.rent)),
        calibration=calibration(arguments, model),
    )
    if arguments.html is not None:
        _write_page(arguments.html, found, work.deadline_seconds)
    sys.stdout.write((json.dumps(found.to_dict()) if arguments.json else _text(found)) + "\n")
    return 0


def _rent(text: str | None) -> float | dict[str, float] | None:
    if text is None:
        return None
    try:
        if "=" not in text:
            return float(text)
        pairs = (word.split("=") for word in text.split(","))
        return {name.strip(): float(value) for name, value in pairs}
    except ValueError:
        raise InvalidValueError(
            f"--rent {text!r} is no price", remedy="write 2.5, or h100=2.5,b200=4"
        ) from None


def _write_page(path: Path, found: Recommendation, deadline: float | None) -> None:
    from joulery.reports import recommendation_report

    try:
        path.write_text(recommendation_report(found, deadline).html(), encoding="utf-8")
    except OSError as problem:
        raise FileError(
            f"cannot write {path}: {problem.strerror}", remedy="choose another file with --html"
        ) from None


def _text(found: Recommendation) -> str:
    from joulery.reports import table_text

    heads = ["", "devices", "plan", "batch", "limit", "time", "energy", "money", "CO2", "memory"]
    shown = sorted(found.pareto, key=lambda one: one.seconds)
    shown = shown[:: max(1, -(-len(shown) // _ROWS))]
    if found.best not in shown:
        shown = sorted([*shown, found.best], key=lambda one: one.seconds)
    rows = [["→" if one == found.best else "", *_cells(one)] for one in shown]
    lines = [
        table_text(heads, rows, "lllrrrrrrr"),
        "",
        _summary(found.best),
        *(f"why: {reason}" for reason in found.reasons),
        *(f"what would change it: {change}" for change in found.changes),
        f"measure next: {found.probe}",
        *(f"assumed: {word}" for word in found.assumed),
        f"{found.candidates} candidates",
    ]
    return "\n".join(lines)


def _summary(best: Choice) -> str:
    energy = best.interval("energy")
    return (
        f"best: {best.devices} × {best.device}, {best.plan}, {best.plan.precision}, "
        f"{best.plan.global_batch} sequences per step, limit {best.limit_watts:.0f} W\n"
        f"90 % within: {days(best.interval('time'))}, "
        f"{human(1000 * kilowatt_hours(energy.low), 'Wh')} – "
        f"{human(1000 * kilowatt_hours(energy.high), 'Wh')} ({best.source})"
    )


def _cells(one: Choice) -> list[str]:
    return [
        f"{one.devices} × {one.device}",
        str(one.plan),
        f"{one.plan.global_batch}",
        f"{one.limit_watts:.0f} W",
        human_duration(one.seconds) if one.seconds < 172800 else f"{one.seconds / 86400:.1f} d",
        human(1000 * kilowatt_hours(one.joules), "Wh"),
        f"${human(one.dollars, '')}".strip(),
        f"{one.grams / 1e6:.3g} t",
        f"{one.memory_bytes / 1e9:.0f} GB",
    ]
