"""``joulery runs``: every run that reported to a store or server, recurring or not."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from joulery import client, reports
from joulery.cli.dispatch import Output
from joulery.cli.jobs import STORE_OPTIONS, with_store
from joulery.cli.options import Action, option, page_option, whole
from joulery.clock import REAL_CLOCK
from joulery.documents import LARGEST_ID
from joulery.reports import table_of
from joulery.units import human_duration, per_cent

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from joulery.client import DecisionBackend
    from joulery.jobs import RunEntry

_SAVED_OF_JOBS = """

Saved by tuning: of this run, by its power limit or clock. What a job saved by its batch sizes
too: `joulery report --job NAME`."""
_MOST = 1000  # runs of a list, as of a page of the server


def _list(backend: DecisionBackend, arguments: argparse.Namespace) -> Output:
    entries, following = backend.runs(arguments.text or "", limit=arguments.limit)
    documents = [_listed(entry) for entry in entries]

    def text() -> str:
        if not entries:
            return _no_runs(arguments)
        more = f"\nThere are more: these are the latest {len(entries):,}; --limit shows others."
        of_jobs = any(entry.decision for entry in entries)
        return _table(entries) + _SAVED_OF_JOBS * of_jobs + more * (following is not None)

    return Output({"runs": documents, "complete": following is None}, text)


def _listed(entry: RunEntry) -> dict[str, object]:
    document = entry.to_document()
    del document["curves"]
    return document


def _no_runs(arguments: argparse.Namespace) -> str:
    team = client.team_of(arguments.team)
    other = "--team or JOULERY_TEAM names another team."
    if arguments.text:
        return f"No run of team {team} contains {arguments.text!r}; {other}"
    if arguments.store or os.environ.get(client.STORE_VARIABLE):
        return f"No runs of team {team} in this store; {other}"
    return "No runs. Set JOULERY_STORE, and every joulery.Run and `joulery measure` is kept."


def _saved(run: RunEntry) -> str:
    if run.energy_saving is None:
        return "by its job" if run.decision else "–"
    return f"{per_cent(run.energy_saving)}, {reports.slowdown_text(run)}"


def _table(entries: Sequence[RunEntry]) -> str:
    now = REAL_CLOCK.wall()
    return table_of(
        entries,
        {
            ">run": lambda run: str(run.id),
            "name": lambda run: run.name,
            "state": lambda run: reports.run_state(run, now),
            "begun (UTC)": lambda run: reports.date_text(run.started_wall_seconds),
            ">time": lambda run: human_duration(run.seconds),
            ">energy": lambda run: "–" if run.joules is None else reports.energy_text(run.joules),
            "obtained": lambda run: run.origin + ", part of another" * bool(run.part_of),
            ">saved by tuning": _saved,
            "boards": lambda run: run.boards,
        },
    )


def _show(backend: DecisionBackend, arguments: argparse.Namespace) -> Output:
    entry = backend.run(arguments.number)
    report = reports.logged_run_report(entry, REAL_CLOCK.wall())
    return Output(entry.to_document(), report, page=arguments.html)


_RUN_NUMBER = whole(1, LARGEST_ID, "`joulery runs list` shows the runs and their numbers")
COMMAND = Action(
    epilog="""\
A joulery.Run, a framework's callback and `joulery measure` report to $JOULERY_STORE: the
path of a store, or the address of a server. JOULERY_TAGS=lr=0.1,night adds tags.

examples:
  joulery runs list resnet
  joulery runs show 12
  joulery compare 12 14
""",
    actions={
        "list": Action(
            with_store(_list),
            (
                option("text", "text in name, host, boards or tags", "TEXT", nargs="?"),
                option("--limit", "most runs (50)", "N", whole(1, _MOST), default=50),
                *STORE_OPTIONS,
            ),
            "runs of a team, the latest first",
        ),
        "show": Action(
            with_store(_show),
            (
                option("number", "its number, from the list", "RUN", _RUN_NUMBER),
                page_option("write a page to print or to send"),
                *STORE_OPTIONS,
            ),
            "power over time, energy by device and setting of a run",
        ),
    },
)
