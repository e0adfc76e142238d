"""``joulery report``: show an energy log or a frontier, and choose a point from it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from joulery import metering, reports
from joulery.cli.dispatch import Output
from joulery.cli.options import Action, number, option
from joulery.errors import FileError, InvalidValueError, JouleryError, UsageError
from joulery.frontier import Frontier, OperatingPoint
from joulery.objectives import OBJECTIVE_HELP, choose, parse_objective
from joulery.units import human, human_duration

if TYPE_CHECKING:
    import argparse

_REMEDY = "give an energy log, a frontier or a list of points"


def _run(arguments: argparse.Namespace) -> Output:
    path = Path(arguments.file)
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}", remedy=_REMEDY) from None
    if f'"{metering.SCHEMA}"' in text:
        if arguments.objective is not None:
            raise UsageError(
                f"{path} is an energy log, which has no points to choose from",
                remedy="leave out --objective, or give a frontier",
            )
        # What was read already: a pipe cannot be read twice.
        totals = metering.EnergyLog(path).totals_of(text.encode())
        return _log(totals) if arguments.form is None else _disclosure(totals, arguments)
    if arguments.form is not None:
        raise UsageError(
            f"{path} is no energy log, so it cannot be shown as {arguments.form}",
            remedy="give a log written with `joulery measure --log`",
        )
    return _frontier_output(_frontier(path, text), arguments)


def _frontier(path: Path, text: str) -> Frontier:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(
            f"{path} is neither an energy log nor valid JSON: {error}",
            remedy=_REMEDY,
        ) from None
    try:
        if isinstance(document, list):
            return Frontier.from_points([OperatingPoint.from_dict(item) for item in document])
        return Frontier.from_dict(document)
    except JouleryError as error:
        raise FileError(f"{path}: {error.message}", remedy=error.remedy) from None


def _frontier_output(frontier: Frontier, arguments: argparse.Namespace) -> Output:
    chosen = None
    if arguments.objective is not None:
        chosen = choose(parse_objective(arguments.objective, arguments.max_watts), frontier)
    document = {**frontier.to_dict(), "chosen": None if chosen is None else chosen.to_dict()}
    title = frontier.work or f"{len(frontier)} points of time and energy"
    return Output(document, lambda: reports.frontier_report(frontier, title, chosen=chosen))


def _log(totals: metering.LogTotals) -> Output:
    document = {
        "seconds": totals.seconds,
        "joules": totals.joules,
        "devices": totals.devices,
        "sessions": totals.sessions,
        "unfinished": totals.unfinished,
        "damaged_lines": list(totals.damaged_lines),
        "provenance": totals.provenance.origin.value,
        "relative_error": totals.provenance.relative_error,
    }
    return Output(document, lambda: _log_text(totals))


def _log_text(totals: metering.LogTotals) -> str:
    joules = float("nan") if totals.joules is None else totals.joules
    unfinished = f", {totals.unfinished} of them unfinished" if totals.unfinished else ""
    sessions = f"{totals.sessions} session{'s' * (totals.sessions != 1)}{unfinished}"
    lines = [
        f"{sessions}: {human_duration(totals.seconds)}, {human(joules, 'J')} ({totals.provenance})"
    ]
    if totals.damaged_lines:
        numbers = ", ".join(map(str, totals.damaged_lines))
        lines.append(f"lines that a crash damaged, left out: {numbers}")
    devices = reports.table_of(
        totals.devices.items(),
        {"device": lambda one: one[0], ">energy": lambda one: human(one[1], "J")},
    )
    return "\n".join([*lines, "", devices])


def _disclosure(totals: metering.LogTotals, arguments: argparse.Namespace) -> Output:
    """The energy of a log as a document that others ask for."""
    from joulery.grid import static_intensity

    if totals.joules is None:
        remedy = "measure with a device that can be read"
        raise FileError(f"{arguments.file} has no energy", remedy=remedy)
    intensity, source = arguments.co2, ""
    if intensity is None and arguments.region is not None:
        signal = static_intensity(arguments.region)
        intensity, source = signal.at(0.0), signal.source
    footprint = reports.Footprint(
        arguments.name,
        totals.joules,
        totals.seconds,
        totals.provenance,
        _hardware(arguments.hardware) or dict.fromkeys(totals.devices, 1),
        intensity,
        source,
        arguments.region or "",
        arguments.pue,
        None if arguments.embodied_kg is None else 1000 * arguments.embodied_kg,
        arguments.flops,
    )
    shown = reports.DISCLOSURES[arguments.form](footprint)
    if isinstance(shown, str):
        return Output({"text": shown}, shown)
    return Output(shown, json.dumps(shown, indent=2, allow_nan=False))


def _hardware(texts: list[str]) -> dict[str, int]:
    found = {}
    for text in texts:
        name, _, count = text.rpartition("=")
        if not name or not count.isdecimal() or int(count) == 0:
            raise InvalidValueError(f"cannot read --hardware {text!r}", remedy="write it as H100=8")
        found[name] = int(count)
    return found


COMMAND = Action(
    _run,
    (
        option("file", "what to show", "FILE"),
        option("--objective", OBJECTIVE_HELP, "TEXT"),
        option(
            "--max-watts",
            "the most the devices can draw together, for the cost objective",
            "W",
            number(0.0),
            default=0.0,
        ),
        option(
            "--as",
            "of an energy log: a section for a model card, the card's emissions, energy fields "
            "of the EU's model documentation form, or the energy block of a bill of materials",
            dest="form",
            choices=("markdown", "huggingface", "eu", "cyclonedx", "spdx"),
        ),
        option("--name", "name of the model, for --as", default="model"),
        option("--region", "region whose yearly mean carbon intensity applies"),
        option("--co2", "carbon intensity in gCO2/kWh", "G", float),
        option("--pue", "power usage effectiveness", read=float, default=1.0),
        option("--embodied-kg", "embodied emissions", "KG", float),
        option("--flops", "operations of the training", read=float),
        option("--hardware", "accelerators", "NAME=COUNT", action="append", default=[]),
    ),
    epilog="""\
FILE is an energy log (`joulery measure --log`), a frontier (JSON), or a cloud of
points: a JSON list of {"seconds": …, "joules": …, "setting": {…}}, of which the Pareto
set is kept.

example: joulery report frontier.json --objective least-energy:slowdown=5%""",
)
