"""``joulery report``: energy, carbon, cost and savings of a run, a job, a team or a month."""

from __future__ import annotations

import json
import math
import os
import webbrowser
from argparse import ArgumentTypeError
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery import client, grid, metering, reports
from joulery.cli.dispatch import Output
from joulery.cli.jobs import STORE_OPTIONS, with_store
from joulery.cli.options import (
    GRID_OPTION,
    Action,
    file,
    flag,
    number,
    option,
    page_option,
    watts,
    write_file,
    written,
)
from joulery.clock import REAL_CLOCK
from joulery.errors import (
    FileError,
    JouleryError,
    UnknownRecordError,
    UsageError,
    document_errors,
)
from joulery.frontier import Frontier, OperatingPoint, Origin, Provenance
from joulery.objectives import OBJECTIVE_HELP, choose, parse_objective
from joulery.units import human_duration

if TYPE_CHECKING:
    import argparse

    from joulery.client import DecisionBackend
    from joulery.jobs import JobEntry, JobSummary, RunEntry, Saved
    from joulery.storage import JobHead

_CHUNK = 200  # jobs added up in one query: below SQLite's limit of variables
_REMEDY = "give an energy log, a frontier or a list of points"
_STORE_ARGUMENTS = ("job", "team", "month", "run_id")


@dataclass(frozen=True, slots=True)
class EnergySource:
    """What a log or the jobs of a store used, as reports and disclosures take it.

    Attributes:
        footprint: Energy, time and savings.
        document: What else ``--json`` prints.
        blocks: What else the report shows.
    """

    footprint: reports.Footprint
    document: dict[str, Any]
    blocks: tuple[reports.Block, ...]


def is_of_store(arguments: argparse.Namespace) -> bool:
    """Whether the options name jobs of a store, rather than a file.

    Raises:
        UsageError: They name both.
    """
    of_store = any(getattr(arguments, name) is not None for name in _STORE_ARGUMENTS)
    if of_store and arguments.file:
        remedy = "give FILE; or --job NAME, --team NAME or --month YYYY-MM for a store"
        raise UsageError("a file and a store at once", remedy=remedy)
    return of_store


def read_text(path: Path, remedy: str = _REMEDY) -> str:
    """Content of a file, whatever it holds."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise FileError(f"cannot read {path}: {error.strerror}", remedy=remedy) from None


def read_log(path: Path, text: str) -> metering.LogTotals | None:
    """Sums of an energy log; None where the text is something else."""
    # What was read already: a pipe cannot be read twice.
    is_log = f'"{metering.SCHEMA}"' in text
    return metering.EnergyLog(path).totals_of(text.encode()) if is_log else None


def source_of_log(path: Path, totals: metering.LogTotals, text: str) -> EnergySource:
    """Energy of a log, with its power over time."""
    devices = reports.Table.of(
        totals.devices.items(),
        {
            "device": lambda item: _device_label(item[0], totals.names),
            ">energy": lambda item: reports.energy_text(item[1]),
            "obtained": lambda item: str(totals.provenances.get(item[0], "")),
        },
    )
    most = max(totals.devices.values(), default=0.0) or 1.0
    bars = [(joules / most, 0.0) for joules in totals.devices.values()]
    curves = metering.EnergyLog(path).power_curves(text.encode())
    blocks: list[reports.Block] = [
        reports.Paragraph(_describe_log(totals)),
        reports.Heading("Energy by device"),
        replace(devices, bars=bars),
    ]
    if chart := reports.power_chart(curves):
        blocks.append(chart)
    footprint = reports.log_footprint(totals, path.stem)
    return EnergySource(footprint, _log_document(totals), tuple(blocks))


def _device_label(device: str, names: dict[str, str]) -> str:
    """Name of a device, and the beginning of its id where others have it; else the id."""
    name = names.get(device, device)
    return f"{name} ({device[:8]})" if list(names.values()).count(name) > 1 else name


def source_of_jobs(backend: DecisionBackend, arguments: argparse.Namespace) -> EnergySource:
    """Energy that a job of a store used, or all jobs and runs of a team."""
    period, since, until = arguments.month or ("", -math.inf, math.inf)
    runs: list[RunEntry] = []
    if arguments.job or arguments.run_id:
        summaries = client.usage(backend, arguments.job, arguments.run_id, since, until)
    else:
        summaries, runs = client.team_usage(backend, since, until)
    if not (summaries or runs):
        remedy = "choose another --month, or leave it out"
        raise UnknownRecordError("nothing was reported in that time", remedy=remedy)
    owner = runs[0].team if runs else summaries[0].entry.team
    name = arguments.job or f"team {owner}"
    if arguments.run_id:
        name = f"run {arguments.run_id} of {summaries[0].entry.name}"
    table = reports.Table.of(
        summaries,
        {
            "job": lambda summary: f"{summary.entry.name}, version {summary.entry.version}",
            "device": lambda summary: summary.entry.device,
            ">runs": lambda summary: f"{len(summary.outcomes):,}",
            ">time": lambda summary: human_duration(summary.seconds),
            ">energy": lambda summary: reports.energy_text(summary.joules),
            ">energy saved": lambda summary: reports.saved_text(_saved(summary)),
            "obtained": lambda summary: str(summary.provenance),
        },
    )
    document = {"jobs": [_summary_document(summary) for summary in summaries]}
    if not arguments.job:
        document["runs"] = [_run_document(run) for run in runs]
    footprint = reports.jobs_footprint(summaries, name, period or _days(summaries, runs), runs)
    blocks: list[reports.Block] = []
    if summaries:
        blocks += [reports.Heading("Recurring jobs"), table]
    if runs:
        blocks += [reports.Heading("Other runs"), reports.runs_table(runs)]
    return EnergySource(footprint, document, (*blocks, *_charts(summaries, arguments)))


def _days(summaries: list[JobSummary], runs: list[RunEntry]) -> str:
    """First and last day of what was reported."""
    entries = (entry for summary in summaries for entry in summary.decisions)
    moments = [entry.reported_wall_seconds for entry in entries if entry.reported_wall_seconds]
    moments += [run.started_wall_seconds + part for run in runs for part in (0.0, run.seconds)]
    days = [f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d}" for moment in moments]
    return f"{min(days)} to {max(days)} UTC" if days else ""


def _charts(
    summaries: list[JobSummary], arguments: argparse.Namespace
) -> tuple[reports.Chart, ...]:
    if arguments.run_id or not summaries:
        return ()
    if not arguments.job:
        return (reports.jobs_chart(summaries),)
    return tuple(chart for part in reports.job_report(summaries[-1]) for chart in part.charts)


def _run_document(run: RunEntry) -> dict[str, Any]:
    """A run that is not of a job, with the joules that count."""
    names = ("id", "name", "host", "started_wall_seconds", "seconds", "joules", "origin")
    return {name: getattr(run, name) for name in names}


def with_electricity(
    footprint: reports.Footprint, arguments: argparse.Namespace
) -> reports.Footprint:
    """The footprint with the carbon, price and building that the options state."""
    source = arguments.grid
    stated = replace(footprint, pue=arguments.pue, price=arguments.price)
    if source is None:
        return stated
    electricity = grid.electricity_price(source)
    return replace(
        stated,
        intensity=electricity.grams,
        intensity_source=electricity.grams_source,
        location=source.upper() if source.upper() in grid.REGIONS else "",
    )


def show_report(
    document: dict[str, Any], report: reports.Report, arguments: argparse.Namespace
) -> Output:
    """The report in the form that the options ask for.

    Raises:
        UsageError: The options ask for two forms on standard output.
    """
    if arguments.latex and arguments.markdown:
        remedy = "give one of them in each call"
        raise UsageError("--latex and --markdown at once", remedy=remedy)
    page = arguments.html or (Path("joulery-report.html") if arguments.open else None)
    if page is not None:
        write_file(page, report.html(), "--html")
        if arguments.open:
            webbrowser.open(page.resolve().as_uri())
    if arguments.charts is not None:
        _write_charts(report, arguments.charts)
    if arguments.latex:
        return Output({"text": report.latex()}, report.latex())
    if arguments.markdown:
        return Output({"text": report.markdown()}, report.markdown())
    return Output(document, report)


def source_of_slurm(arguments: argparse.Namespace) -> EnergySource:
    """Energy that epilogs wrote into the comments of Slurm's jobs."""
    from joulery import cluster

    period, since, until = arguments.month or ("", -math.inf, math.inf)
    window = None
    if period:
        first, last = (datetime.fromtimestamp(time, UTC) for time in (since, until))
        window = f"{first:%Y-%m-%d}", f"{last:%Y-%m-%d}"
    records = cluster.job_records(
        cluster.run_command, job=arguments.slurm, account=arguments.account, window=window
    )
    if not records:
        remedy = "install `joulery cluster epilog`, and AccountingStoreFlags=job_comment"
        raise UnknownRecordError("no energy in the comments of such jobs", remedy=remedy)
    table = reports.Table.of(
        records,
        {
            "job": lambda record: record.id,
            "name": lambda record: record.name,
            "account": lambda record: record.account,
            ">measured": lambda record: human_duration(record.seconds),
            ">energy": lambda record: reports.energy_text(record.joules),
        },
    )
    name = f"job {arguments.slurm}" if arguments.slurm else f"account {arguments.account}"
    footprint = reports.Footprint(
        name,
        sum(record.joules for record in records),
        sum(record.seconds for record in records),
        Provenance(Origin.MEASURED, "boards' power once a tick, while an agent led"),
        {},
        period=period,
    )
    blocks = (reports.Heading("Energy by job"), table)
    return EnergySource(footprint, {"jobs": [asdict(record) for record in records]}, blocks)


def _write_charts(report: reports.Report, path: Path) -> None:
    """Write the charts of a report in the format that the file's name ends with."""
    if path.suffix not in (".png", ".pdf", ".svg"):
        raise UsageError(f"no charts in {path.name}", remedy="end it with .png, .pdf or .svg")
    if not report.charts:
        raise UsageError("this report has no charts", remedy="leave out --charts")
    reports.write_png([reports.draw(chart) for chart in report.charts], path)


def _run(arguments: argparse.Namespace) -> Output:
    if arguments.slurm or arguments.account:
        return _show_usage(source_of_slurm(arguments), arguments)
    if is_of_store(arguments):
        return with_store(
            lambda backend, arguments: _show_usage(source_of_jobs(backend, arguments), arguments)
        )(arguments)
    if not arguments.file:
        return _overview(arguments)
    path, text = arguments.file, read_text(arguments.file)
    totals = read_log(path, text)
    if totals is None:
        return _show_frontier(_frontier(path, text), arguments)
    if arguments.objective is not None:
        raise UsageError(
            f"{path} is an energy log, which has no points to choose from",
            remedy="leave out --objective, or give a frontier",
        )
    if totals.joules is None:
        return Output(_log_document(totals), _describe_log(totals))
    return _show_usage(source_of_log(path, totals, text), arguments)


def _show_usage(source: EnergySource, arguments: argparse.Namespace) -> Output:
    footprint = with_electricity(source.footprint, arguments)
    figures = [figure.to_dict() for figure in footprint.usage_figures]
    document = {**source.document, "name": footprint.name, "period": footprint.period}
    report = reports.usage_report(footprint, *source.blocks)
    return show_report({**document, "figures": figures}, report, arguments)


def _overview(arguments: argparse.Namespace) -> Output:
    """Energy and savings of all jobs of a store: the dashboard's pages as one."""
    from joulery import jobs, storage

    location = arguments.store or os.environ.get("JOULERY_STORE")
    if location and client.is_server(location):
        raise UsageError(f"{location} is a server", remedy=f"open {location}/ in a browser")
    if "://" not in (location or "") and not Path(location or storage.default_path()).is_file():
        reason = f"no store at {location}" if location else "nothing to report on"
        raise FileError(reason, remedy="give FILE, or --store of a store in which jobs have run")
    with storage.Store.open(location) as store, store.reading() as reading:
        service = jobs.JobService(store)
        heads = storage.job_heads(reading)
        parts = [heads[at : at + _CHUNK] for at in range(0, len(heads), _CHUNK)]
        totals = [job for part in parts for job in jobs.job_totals(reading, part)]
        report = reports.store_report(
            totals,
            grid.electricity_price(arguments.grid, arguments.price),
            REAL_CLOCK.wall(),
            lambda job: (
                client.job_summary(service, jobs.job_entry(reading.job(job))),
                jobs.job_beliefs(reading, reading.job(job)),
            ),
            zone=datetime.now().astimezone().tzinfo,
            others=reports.OtherRuns(
                storage.other_energy(reading, None),
                storage.other_energy(reading, None, by_time=True),
            ),
        )
        runs, joules = storage.run_totals(reading, None, 0.0, math.inf)
    documents = [
        {"team": job.head.team, **_job_document(job.head, job.recurrences, job.joules, job.saved)}
        for job in totals
    ]
    document = {"jobs": documents, "runs": {"runs": runs, "joules": joules}}
    return show_report(document, report, arguments)


def _job_document(
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


def _summary_document(summary: JobSummary) -> dict[str, Any]:
    joules, saved = summary.joules, _saved(summary)
    return {
        **_job_document(summary.entry, len(summary.outcomes), joules, saved),
        "seconds": summary.seconds,
        "exploring_joules": summary.exploring_joules,
        "provenance": summary.provenance.origin.value,
        "source": summary.provenance.source,
        "relative_error": summary.provenance.relative_error,
        "default_runs": 0 if summary.saved is None else summary.saved.default_runs,
    }


def _saved(summary: JobSummary) -> Saved | None:
    return None if summary.saved is None else summary.saved.energy


def _log_document(totals: metering.LogTotals) -> dict[str, Any]:
    return {
        **asdict(totals),
        "provenance": totals.provenance.origin.value,
        "relative_error": totals.provenance.relative_error,
    }


def _describe_log(totals: metering.LogTotals) -> str:
    unfinished = f", {totals.unfinished} of them unfinished" if totals.unfinished else ""
    sessions = f"{totals.sessions:,} session{'s' * (totals.sessions != 1)}{unfinished}"
    energy = "unknown" if totals.joules is None else reports.energy_text(totals.joules)
    text = f"{sessions}: {human_duration(totals.seconds)}, {energy} ({totals.provenance})"
    if totals.started_wall_seconds is not None:
        text += f"; begun {reports.date_text(totals.started_wall_seconds)} UTC"
    if totals.damaged_lines:
        lines = ", ".join(map(str, totals.damaged_lines))
        text += f"; lines that a crash damaged, left out: {lines}"
    return text


def _frontier(path: Path, text: str) -> Frontier:
    statement = f"{path} is neither an energy log nor valid JSON"
    with document_errors(statement, remedy=_REMEDY):
        document = json.loads(text)
    try:
        if isinstance(document, list):
            return Frontier.from_points([OperatingPoint.from_dict(item) for item in document])
        return Frontier.from_dict(document)
    except JouleryError as error:
        raise FileError(f"{path}: {error.message}", remedy=error.remedy) from None


def _show_frontier(frontier: Frontier, arguments: argparse.Namespace) -> Output:
    point = None
    if arguments.objective is not None:
        point = choose(parse_objective(arguments.objective, arguments.max_power), frontier)
    document = {**frontier.to_dict(), "chosen": None if point is None else point.to_dict()}
    title = frontier.work or f"{len(frontier):,} points of time and energy"
    report = reports.frontier_report(frontier, title, chosen=point)
    return show_report(document, report, arguments)


def _month(text: str) -> tuple[str, float, float]:
    """A month, and the Unix times of its ends in UTC."""
    try:
        first = datetime.strptime(text, "%Y-%m").replace(tzinfo=UTC)
    except ValueError:
        raise ArgumentTypeError(f"{text!r} is not a month: write 2026-10") from None
    after = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    return text, first.timestamp(), after.timestamp()


SOURCE_OPTIONS = (
    option("--job", "a job of a store", "NAME"),
    option("--run", "with --job: one run, by the id of its decision", "ID", dest="run_id"),
    option("--month", "only what was reported in a month (UTC), such as 2026-10", "M", _month),
    *STORE_OPTIONS,
)
FORM_OPTIONS = (
    flag("--markdown", "print Markdown, for a model card or a paper"),
    flag("--latex", "print the tables for a paper, as LaTeX"),
    page_option("write a page to print or to send"),
    written("--charts", "write the charts, as .png, .pdf or .svg", ".png", ".pdf", ".svg"),
    flag("--open", "show the page in a browser; ./joulery-report.html without --html"),
    GRID_OPTION,
    option("--price", "price of a kWh", "P", number(0.0)),
    option("--pue", "power usage effectiveness", read=number(1.0), default=1.0),
)
COMMAND = Action(
    _run,
    (
        file("file", "energy log, frontier or points", nargs="?"),
        *SOURCE_OPTIONS,
        option("--slurm", "a job of Slurm, by the joules in its comment", "JOB"),
        option("--account", "all such jobs of an account of Slurm", "NAME"),
        option("--objective", OBJECTIVE_HELP, "TEXT"),
        option(
            "--max-power",
            "highest power of all devices together, for the cost objective",
            "W",
            watts,
            default=0.0,
        ),
        *FORM_OPTIONS,
    ),
    usage=(
        "joulery report [FILE] [options]\n"
        "       joulery report --job NAME | --team NAME | --month M [options]"
    ),
    epilog="""\
FILE is an energy log (`joulery measure --log`), a frontier (JSON), or a cloud of
points: a JSON list of {"seconds": …, "joules": …, "setting": {…}}, of which the Pareto
set is kept. Without a FILE: what all jobs of a store used and saved. Forms for model
cards, regulators and bills of materials: `joulery disclose`.

examples:
  joulery report --open
  joulery report frontier.json --objective least-energy:slowdown=5%
  joulery report energy.jsonl --grid FR --price 0.2
  joulery report --job resnet-nightly --month 2026-10 --price 0.2 --html october.html""",
)
