"""``joulery report``: energy, carbon, cost and savings of a run, a job, a team or a month."""

from __future__ import annotations

import json
import math
import os
import webbrowser
from argparse import ArgumentTypeError
from collections import defaultdict
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery import client, metering, reports
from joulery.cli.dispatch import Output
from joulery.cli.jobs import STORE_OPTIONS, with_store
from joulery.cli.options import Action, count, file, flag, number, option, whole, write_file
from joulery.clock import REAL_CLOCK
from joulery.errors import FileError, JouleryError, UnknownRecordError, UsageError
from joulery.frontier import Frontier, OperatingPoint, Provenance
from joulery.objectives import OBJECTIVE_HELP, choose, parse_objective
from joulery.units import human, human_duration

if TYPE_CHECKING:
    import argparse

    from joulery.client import DecisionBackend
    from joulery.jobs import JobEntry, JobSummary, Saved
    from joulery.storage import JobHead

_CHUNK = 200  # jobs whose figures are added up at once
_REMEDY = "give an energy log, a frontier or a list of points"


def _run(arguments: argparse.Namespace) -> Output:
    names = ("job", "team", "month", "run_id")
    in_store = any(getattr(arguments, name) is not None for name in names)
    if in_store and arguments.file:
        remedy = "give FILE; or --job NAME, --team NAME or --month YYYY-MM for a store"
        raise UsageError("a file and a store at once", remedy=remedy)
    if in_store:
        return with_store(_stored)(arguments)
    if not arguments.file:
        return _overview(arguments)
    path = arguments.file
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
        return _log(path, metering.EnergyLog(path).totals_of(text.encode()), arguments)
    return _frontier_output(_frontier(path, text), arguments)


def _overview(arguments: argparse.Namespace) -> Output:
    """Energy and savings of all jobs of a store: the dashboard's pages as one."""
    from joulery import jobs, storage

    client.refuse_password(arguments.store)
    location = arguments.store or os.environ.get("JOULERY_STORE")
    if location and client.is_server(location):
        raise UsageError(f"{location} is a server", remedy=f"open {location}/ in a browser")
    if "://" not in (location or "") and not Path(location or storage.default_path()).is_file():
        where = f"no store at {location}" if location else "nothing to report on"
        raise FileError(where, remedy="give FILE, or --store of a store in which jobs have run")
    with storage.Store.open(location) as store, store.reading() as one:
        service = jobs.JobService(store)
        heads = storage.job_heads(one)
        parts = [heads[at : at + _CHUNK] for at in range(0, len(heads), _CHUNK)]
        figures = [figure for part in parts for figure in jobs.job_totals(one, part)]
        report = reports.store_report(
            figures,
            reports.electricity_price(arguments.region, arguments.co2, arguments.price),
            REAL_CLOCK.wall(),
            lambda job: (
                client.job_summary(service, jobs.job_entry(one.job(job))),
                jobs.job_beliefs(one, one.job(job)),
            ),
        )
    found = [
        {"team": one.head.team, **_document(one.head, one.recurrences, one.joules, one.saved)}
        for one in figures
    ]
    return _formed({"jobs": found}, report, arguments)


def _document(
    job: JobHead | JobEntry, runs: int, joules: float, saved: Saved | None
) -> dict[str, Any]:
    return {
        "name": job.name,
        "device": job.device,
        "version": job.version,
        "runs": runs,
        "joules": joules,
        "saved": None if saved is None else asdict(saved),
    }


def _frontier(path: Path, text: str) -> Frontier:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        why = f"{path} is neither an energy log nor valid JSON: {error}"
        raise FileError(why, remedy=_REMEDY) from None
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
    report = reports.frontier_report(frontier, title, chosen=chosen)
    return _formed(document, report, arguments)


def _formed(
    document: dict[str, Any], report: reports.Report, arguments: argparse.Namespace
) -> Output:
    """The report in the form that the options ask for."""
    if arguments.form not in (None, "markdown"):
        raise UsageError(
            f"this is no energy log, so it cannot be shown as {arguments.form}",
            remedy="give a log written with `joulery measure --log`, or --job, --team or --month",
        )
    page = arguments.html or (Path("joulery-report.html") if arguments.open else None)
    if page is not None:
        write_file(page, report.html(), "--html")
        if arguments.open:
            webbrowser.open(page.resolve().as_uri())
    if arguments.form == "markdown":
        return Output({"text": report.markdown()}, report.markdown())
    return Output(document, report)


def _disclosed(
    footprint: reports.Footprint,
    document: dict[str, Any],
    arguments: argparse.Namespace,
    *more: reports.Paragraph | reports.Table,
) -> Output:
    if arguments.form in (None, "markdown"):
        report = reports.footprint_report(footprint, *more)
        return _formed({**document, **footprint.to_dict()}, report, arguments)
    shown = reports.DISCLOSURES[arguments.form](footprint)
    return Output(shown, json.dumps(shown, indent=2, allow_nan=False))


def _log(path: Path, totals: metering.LogTotals, arguments: argparse.Namespace) -> Output:
    document = {
        **asdict(totals),
        "provenance": totals.provenance.origin.value,
        "relative_error": totals.provenance.relative_error,
    }
    unfinished = f", {totals.unfinished} of them unfinished" if totals.unfinished else ""
    sessions = f"{totals.sessions} session{'s' * (totals.sessions != 1)}{unfinished}"
    energy = "unknown" if totals.joules is None else human(totals.joules, "J")
    about = f"{sessions}: {human_duration(totals.seconds)}, {energy} ({totals.provenance})"
    if totals.damaged_lines:
        numbers = ", ".join(map(str, totals.damaged_lines))
        about += f"; lines that a crash damaged, left out: {numbers}"
    if totals.joules is None:
        if arguments.form is not None:
            remedy = "measure with a device that can be read"
            raise FileError(f"{path} has no energy", remedy=remedy)
        return Output(document, about)
    devices = reports.Table.of(
        totals.devices.items(),
        {"device": lambda one: one[0], ">energy": lambda one: human(one[1], "J")},
    )
    footprint = _footprint(
        arguments,
        path.stem,
        totals.joules,
        totals.seconds,
        totals.provenance,
        dict(arguments.hardware) or dict.fromkeys(totals.devices, 1),
    )
    return _disclosed(footprint, document, arguments, reports.Paragraph(about), devices)


def _footprint(
    arguments: argparse.Namespace,
    name: str,
    joules: float,
    seconds: float,
    provenance: Provenance,
    devices: dict[str, int],
    **more: Any,
) -> reports.Footprint:
    """The footprint, with all that the options state."""
    from joulery.grid import static_intensity

    intensity, source = arguments.co2, ""
    if intensity is None and arguments.region is not None:
        signal = static_intensity(arguments.region)
        intensity, source = signal.at(0.0), signal.source
    phases = (*more.pop("phases", ()), *(_phase(*one) for one in arguments.phase))
    return reports.Footprint(
        arguments.name or name,
        joules,
        seconds,
        provenance,
        devices,
        intensity,
        source,
        arguments.region or "",
        arguments.pue,
        None if arguments.embodied_kg is None else 1000 * arguments.embodied_kg,
        arguments.flops,
        price=arguments.price,
        units=arguments.units,
        unit=arguments.unit,
        phases=phases,
        **more,
    )


def _phase(name: str, path: str) -> reports.Figure:
    """A part of the model's life from the energy log of it."""
    try:
        totals = metering.EnergyLog(path).totals_of(Path(path).read_bytes())
    except OSError as error:
        remedy = "give logs written with `joulery measure --log`"
        raise FileError(f"cannot read {path}: {error.strerror}", remedy=remedy) from None
    if totals.joules is None:
        raise FileError(f"{path} has no energy", remedy="measure with a device that can be read")
    return reports.phase_figure(name, totals.joules, totals.provenance)


def _stored(backend: DecisionBackend, arguments: argparse.Namespace) -> Output:
    """Energy that jobs of a store used."""
    from joulery import jobs

    period, since, until = arguments.month or ("", -math.inf, math.inf)
    found = client.usage(backend, arguments.job, arguments.run_id, since, until)
    if not found:
        remedy = "choose another --month, or leave it out"
        raise UnknownRecordError("nothing was reported in that time", remedy=remedy)
    joules = sum(one.joules for one in found)
    exploring = sum(one.exploring_joules for one in found)
    provenance = jobs.energy_provenance(found)
    devices: dict[str, int] = defaultdict(int)
    used: dict[str, float] = defaultdict(float)
    for one in found:
        kind, seconds = one.entry.device, one.accelerator_seconds
        devices[kind] = max(devices[kind], len(seconds))
        used[kind] += sum(seconds.values()) or one.seconds
    team = f"team {client.team_of(arguments.team)}"
    name = arguments.job or team
    if arguments.run_id:
        name = f"run {arguments.run_id} of {found[0].entry.name}"
    footprint = _footprint(
        arguments,
        name,
        joules,
        sum(one.seconds for one in found),
        provenance,
        dict(arguments.hardware) or {kind: max(1, many) for kind, many in devices.items()},
        period=period,
        saved=jobs.saved_energy(found),
        saved_method="runs against those of the default batch size, exploring included",
        phases=(
            reports.phase_figure("experiments", exploring, provenance),
            reports.phase_figure("training", joules - exploring, provenance),
        ),
        device_seconds=None if arguments.hardware else used,
    )
    table = reports.Table.of(
        found,
        {
            "job": lambda one: f"{one.entry.name}, version {one.entry.version}",
            "device": lambda one: one.entry.device,
            ">runs": lambda one: str(len(one.outcomes)),
            ">time": lambda one: human_duration(one.seconds),
            ">energy": lambda one: human(one.joules, "J"),
            ">energy saved": lambda one: reports.saved_text(_saved(one)),
            "obtained": lambda one: str(one.provenance),
        },
    )
    document = {"jobs": [_usage_document(one) for one in found]}
    return _disclosed(footprint, document, arguments, table)


def _usage_document(one: JobSummary) -> dict[str, Any]:
    return {
        **_document(one.entry, len(one.outcomes), one.joules, _saved(one)),
        "seconds": one.seconds,
        "exploring_joules": one.exploring_joules,
        "provenance": one.provenance.origin.value,
        "source": one.provenance.source,
        "relative_error": one.provenance.relative_error,
        "default_runs": 0 if one.saved is None else one.saved.default_runs,
    }


def _saved(one: JobSummary) -> Saved | None:
    return None if one.saved is None else one.saved.energy


def _hardware(text: str) -> tuple[str, int]:
    name, _, many = text.rpartition("=")
    if not name:
        raise ArgumentTypeError(f"{text!r} names no accelerators: write H100=8")
    return name, whole(1, 10**9)(many)


def _named_file(text: str) -> tuple[str, str]:
    name, equals, path = text.partition("=")
    if not (name and equals and path):
        raise ArgumentTypeError(f"{text!r} is no phase: write inference=FILE")
    return name, path


def _month(text: str) -> tuple[str, float, float]:
    """A month, and the Unix times of its ends in UTC."""
    try:
        first = datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is no month: write 2026-10") from None
    after = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    return text, first.timestamp(), after.timestamp()


def _units(text: str) -> float:
    value = count(text)
    if not value:
        raise ArgumentTypeError("there must be more than 0 units")
    return value


COMMAND = Action(
    _run,
    (
        file("file", "energy log, frontier or points", nargs="?"),
        option("--job", "report on a job of a store", "NAME"),
        option("--run", "with --job: on one run, by the id of its decision", "ID", dest="run_id"),
        option("--month", "only what was reported in a month (UTC), such as 2026-10", "M", _month),
        *STORE_OPTIONS,
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
            "Markdown; of energy also: emissions of a Hugging Face model card, energy fields of "
            "the EU's model documentation form, or the energy block of a bill of materials",
            dest="form",
            choices=("markdown", *reports.DISCLOSURES),
        ),
        file("--html", "write a page to print or to send"),
        flag("--open", "show the page in a browser; ./joulery-report.html without --html"),
        option("--name", "name of the model"),
        option("--region", "region whose yearly mean carbon intensity applies"),
        option("--co2", "carbon intensity in gCO2/kWh", "G", number(0.0)),
        option("--price", "price of a kWh", "P", number(0.0)),
        option("--pue", "power usage effectiveness", read=number(1.0), default=1.0),
        option("--embodied-kg", "CO2 of making the hardware; else by the catalog", "KG", number(0)),
        option("--flops", "operations of the training", read=number(0.0)),
        option("--units", "functional units, for figures per unit, such as 2T", "N", _units),
        option("--unit", "name of such a unit: token, step, model (model)", default="model"),
        option("--hardware", "accelerators", "NAME=COUNT", _hardware, action="append", default=[]),
        option(
            "--phase",
            "log of another part of the model's life: data, experiments, inference, …",
            "NAME=FILE",
            _named_file,
            action="append",
            default=[],
        ),
    ),
    usage=(
        "joulery report [FILE] [options]\n"
        "       joulery report --job NAME | --team NAME | --month M [options]"
    ),
    epilog="""\
FILE is an energy log (`joulery measure --log`), a frontier (JSON), or a cloud of
points: a JSON list of {"seconds": …, "joules": …, "setting": {…}}, of which the Pareto
set is kept. Without a FILE: what all jobs of a store used and saved.

examples:
  joulery report --open
  joulery report frontier.json --objective least-energy:slowdown=5%
  joulery report energy.jsonl --region FR --hardware H100=8 --units 2T --unit token --open
  joulery report --job resnet-nightly --month 2026-10 --price 0.2 --html october.html""",
)
