"""``joulery compare``: runs of a store and energy logs beside each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery import metering, reports
from joulery.cli.dispatch import Output
from joulery.cli.jobs import STORE_OPTIONS, with_store
from joulery.cli.options import Action, option, page_option
from joulery.clock import REAL_CLOCK
from joulery.errors import UsageError
from joulery.frontier import Provenance

if TYPE_CHECKING:
    import argparse

    from joulery.client import DecisionBackend
    from joulery.jobs import RunEntry

_MOST = 5  # columns that fit a page (by hand)


def _run(arguments: argparse.Namespace) -> Output:
    names = [arguments.first, *arguments.others]
    if len(names) > _MOST:
        raise UsageError(
            f"{len(names)} runs to compare",
            remedy=f"give two to {_MOST} numbers of `joulery runs list`, or energy logs",
        )
    entries = {name: _read_log(Path(name)) for name in names if not name.isdecimal()}
    if len(entries) < len(set(names)):
        entries |= with_store_entries(arguments, [name for name in names if name.isdecimal()])
    runs = [entries[name] for name in names]
    report = reports.comparison_report(runs, REAL_CLOCK.wall())
    document = {"runs": [run.to_document() | {"curves": None} for run in runs]}
    return Output(document, report, page=arguments.html)


def with_store_entries(arguments: argparse.Namespace, names: list[str]) -> dict[str, RunEntry]:
    """Runs of the store that the options name, by the text of their numbers."""
    entries: dict[str, RunEntry] = {}

    def read(backend: DecisionBackend, _: argparse.Namespace) -> Output:
        entries.update({name: backend.run(int(name)) for name in names})
        return Output({}, "")

    with_store(read)(arguments)
    return entries


def _read_log(path: Path) -> RunEntry:
    from joulery.jobs import RunDevice, RunEntry

    totals = metering.EnergyLog(path).totals()

    def device(name: str, joules: float) -> RunDevice:
        obtained = totals.provenances.get(name, Provenance(totals.provenance.origin))
        origin: Any = obtained.origin.value
        label, error = totals.names.get(name, name), obtained.relative_error
        return RunDevice(label, joules, origin=origin, relative_error=error)

    origin: Any = totals.provenance.origin.value
    return RunEntry(
        key=str(path),
        name=path.stem,
        started_wall_seconds=totals.started_wall_seconds or 0.0,
        seconds=totals.seconds,
        joules=totals.joules,
        ended=True,
        kind="log",
        origin=origin,
        relative_error=totals.provenance.relative_error,
        devices=tuple(device(name, joules) for name, joules in totals.devices.items()),
    )


COMMAND = Action(
    _run,
    (
        option("first", "number of a run, or an energy log", "RUN"),
        option("others", "those to compare with it", "RUN", nargs="+"),
        page_option("write a page to print or to send"),
        *STORE_OPTIONS,
    ),
    epilog="""\
Differences are against the first. Numbers are those of `joulery runs list`.

examples:
  joulery compare 12 14
  joulery compare before.jsonl after.jsonl --html compare.html
""",
)
