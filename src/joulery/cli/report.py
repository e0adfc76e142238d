"""``joulery report``: show an energy log or a frontier, and choose a point from it."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery.objectives import OBJECTIVE_HELP

if TYPE_CHECKING:
    import argparse

    from joulery.frontier import Frontier


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the options."""
    parser.epilog = (
        "FILE is an energy log (`joulery measure --log`), a frontier (JSON), or a cloud of\n"
        'points: a JSON list of {"seconds": …, "joules": …, "setting": {…}}, of which the Pareto\n'
        "set is kept.\n\n"
        "example: joulery report frontier.json --objective least-energy:slowdown=5%"
    )
    parser.add_argument("file", metavar="FILE", help="what to show")
    parser.add_argument("--objective", metavar="TEXT", help=OBJECTIVE_HELP)
    parser.add_argument(
        "--max-watts",
        type=float,
        default=0.0,
        metavar="W",
        help="the most the devices can draw together, for the cost objective",
    )
    parser.add_argument(
        "--as",
        dest="form",
        choices=("markdown", "huggingface", "eu", "cyclonedx", "spdx"),
        help="of an energy log: a section for a model card, the card's emissions, energy fields "
        "of the EU's model documentation form, or the energy block of a bill of materials",
    )
    parser.add_argument("--name", default="model", help="name of the model, for --as")
    parser.add_argument("--region", help="region whose yearly mean carbon intensity applies")
    parser.add_argument("--co2", type=float, metavar="G", help="carbon intensity in gCO2/kWh")
    parser.add_argument("--pue", type=float, default=1.0, help="power usage effectiveness")
    parser.add_argument("--embodied-kg", type=float, metavar="KG", help="embodied emissions")
    parser.add_argument("--flops", type=float, help="operations of the training")
    parser.add_argument(
        "--hardware", action="append", default=[], metavar="NAME=COUNT", help="accelerators"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Show the file."""
    from joulery.errors import UsageError

    path = Path(arguments.file)
    text = _read(path)
    if _is_log(text):
        if arguments.objective is not None:
            raise UsageError(
                f"{path} is an energy log, which has no points to choose from",
                remedy="leave out --objective, or give a frontier",
            )
        if arguments.form is not None:
            return _disclose(path, text, arguments)
        return _show_log(path, text, as_json=arguments.json)
    if arguments.form is not None:
        raise UsageError(
            f"{path} is no energy log, so it cannot be shown as {arguments.form}",
            remedy="give a log written with `joulery measure --log`",
        )
    return _show_frontier(_frontier(path, text), arguments)


def _read(path: Path) -> str:
    from joulery.errors import FileError

    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise FileError(
            f"cannot read {path}: {error.strerror or error}",
            remedy="give an energy log, a frontier or a list of points",
        ) from None


def _is_log(text: str) -> bool:
    from joulery.metering import SCHEMA

    return f'"{SCHEMA}"' in text


def _frontier(path: Path, text: str) -> Frontier:
    from joulery.errors import FileError, JouleryError
    from joulery.frontier import Frontier, OperatingPoint

    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise FileError(
            f"{path} is neither an energy log nor valid JSON: {error}",
            remedy="give an energy log, a frontier or a list of points",
        ) from None
    try:
        if isinstance(document, list):
            return Frontier.from_points([OperatingPoint.from_dict(item) for item in document])
        return Frontier.from_dict(document)
    except JouleryError as error:
        raise FileError(f"{path}: {error.message}", remedy=error.remedy) from None


def _show_log(path: Path, text: str, *, as_json: bool) -> int:
    from joulery.metering import EnergyLog
    from joulery.reports import table_text as table
    from joulery.units import human, human_duration

    # What was read already: a pipe cannot be read twice.
    totals = EnergyLog(path).totals_of(text.encode())
    if as_json:
        document: dict[str, Any] = {
            "seconds": totals.seconds,
            "joules": totals.joules,
            "devices": totals.devices,
            "sessions": totals.sessions,
            "unfinished": totals.unfinished,
            "damaged_lines": list(totals.damaged_lines),
            "provenance": totals.provenance.origin.value,
            "relative_error": totals.provenance.relative_error,
        }
        sys.stdout.write(json.dumps(document) + "\n")
        return 0
    joules = float("nan") if totals.joules is None else totals.joules
    unfinished = f", {totals.unfinished} of them unfinished" if totals.unfinished else ""
    sessions = f"{totals.sessions} session{'s' * (totals.sessions != 1)}{unfinished}"
    lines = [
        f"{sessions}: {human_duration(totals.seconds)}, {human(joules, 'J')} ({totals.provenance})"
    ]
    if totals.damaged_lines:
        numbers = ", ".join(map(str, totals.damaged_lines))
        lines.append(f"lines that a crash damaged, left out: {numbers}")
    rows = [[name, human(used, "J")] for name, used in totals.devices.items()]
    sys.stdout.write("\n".join([*lines, "", table(["device", "energy"], rows, "lr")]) + "\n")
    return 0


def _disclose(path: Path, text: str, arguments: argparse.Namespace) -> int:
    """The energy of a log as a document that others ask for."""
    from joulery.errors import FileError
    from joulery.grid import static_intensity
    from joulery.metering import EnergyLog
    from joulery.reports import DISCLOSURES, Footprint

    totals = EnergyLog(path).totals_of(text.encode())
    if totals.joules is None:
        raise FileError(f"{path} has no energy", remedy="measure with a device that can be read")
    intensity, source = arguments.co2, ""
    if intensity is None and arguments.region is not None:
        signal = static_intensity(arguments.region)
        intensity, source = signal.at(0.0), signal.source
    footprint = Footprint(
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
    shown = DISCLOSURES[arguments.form](footprint)
    if isinstance(shown, str) and not arguments.json:
        sys.stdout.write(shown)
    else:
        document = {"text": shown} if isinstance(shown, str) else shown
        sys.stdout.write(json.dumps(document, indent=2, allow_nan=False) + "\n")
    return 0


def _hardware(texts: list[str]) -> dict[str, int]:
    from joulery.errors import InvalidValueError

    found = {}
    for text in texts:
        name, _, count = text.rpartition("=")
        if not name or not count.isdecimal() or int(count) == 0:
            raise InvalidValueError(f"cannot read --hardware {text!r}", remedy="write it as H100=8")
        found[name] = int(count)
    return found


def _show_frontier(frontier: Frontier, arguments: argparse.Namespace) -> int:
    from joulery.objectives import choose, parse_objective

    chosen = None
    if arguments.objective is not None:
        chosen = choose(parse_objective(arguments.objective, arguments.max_watts), frontier)
    if arguments.json:
        document = frontier.to_dict()
        document["chosen"] = None if chosen is None else chosen.to_dict()
        sys.stdout.write(json.dumps(document, allow_nan=False) + "\n")
    else:
        from joulery.reports import Terminal, frontier_report

        title = frontier.work or f"{len(frontier)} points of time and energy"
        report = frontier_report(frontier, title, chosen=chosen)
        sys.stdout.write(report.text(Terminal.of()) + "\n")
    return 0
