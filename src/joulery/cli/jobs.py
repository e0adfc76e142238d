"""``joulery jobs``: recurring jobs, what was decided for them, and what that saved."""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from joulery.client import DecisionBackend
    from joulery.jobs import JobEntry

# People wait longer than trainings do.
_SECONDS = 30.0
_PAGE = 500
_MOST_DECISIONS = 1000

_EXAMPLES = """\
examples:
  joulery jobs list
  joulery jobs show resnet-nightly
  joulery jobs frontier resnet-nightly --batch-size 128 --out frontier.json
  joulery jobs pause resnet-nightly --store https://joulery.example.org --team vision
  joulery jobs delete resnet-nightly --device "NVIDIA A40"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the options."""
    parser.epilog = f"Every action takes --json.\n\n{_EXAMPLES}"
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    shown = actions.add_parser("list", help="all jobs of a team")
    shown.add_argument("--all", action="store_true", help="with versions that were replaced")
    show = actions.add_parser("show", help="what was decided for a job, why, and what it saved")
    show.add_argument("--last", default="10", metavar="N", help="decisions to show (10)")
    frontier = actions.add_parser("frontier", help="what an epoch costs under each power limit")
    frontier.add_argument("--batch-size", metavar="N", help="if several were measured")
    frontier.add_argument("--out", metavar="FILE", help="where to write it; stdout unless given")
    pause = actions.add_parser("pause", help="make no more decisions: runs take their default")
    resume = actions.add_parser("resume", help="make decisions again")
    delete = actions.add_parser("delete", help="delete a job with all that was learned")
    delete.add_argument("--yes", action="store_true", help="without asking")
    for action in (show, frontier, pause, resume, delete):
        action.add_argument("name", metavar="NAME", help="of the job")
        action.add_argument("--device", metavar="NAME", help="kind of device it runs on")
    for action in (shown, show, frontier, pause, resume, delete):
        action.add_argument(
            "--store",
            metavar="LOCATION",
            help="path, postgresql://… or http(s)://…; $JOULERY_STORE, else your own",
        )
        action.add_argument("--team", metavar="NAME", help="$JOULERY_TEAM, else default")
        action.add_argument("--token", metavar="TEXT", help="for a server; better: $JOULERY_TOKEN")
        action.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked."""
    from joulery.client import open_backend

    actions = {
        "list": _list,
        "show": _show,
        "frontier": _frontier,
        "pause": _pause,
        "resume": _pause,
        "delete": _delete,
    }
    _check_team(arguments.team)
    _check_there(arguments.store or os.environ.get("JOULERY_STORE"))
    backend = open_backend(arguments.store, arguments.team, arguments.token, seconds=_SECONDS)
    with closing(backend):
        actions[arguments.action](backend, arguments)
    return 0


def _check_team(team: str | None) -> None:
    """Refuse an empty name, as a shell variable that is not set gives."""
    from joulery.errors import InvalidValueError

    if team is not None and not team.strip():
        raise InvalidValueError(
            "--team has no name",
            remedy="give one, or leave --team out for $JOULERY_TEAM or default",
        )


def _check_there(location: str | None) -> None:
    """Refuse a path without a store, so that a typo makes none."""
    from joulery.errors import FileError

    if location and "://" not in location and not Path(location).is_file():
        raise FileError(f"no store at {location}", remedy="give the path of one, or http(s)://…")


def _list(backend: DecisionBackend, arguments: argparse.Namespace) -> None:
    from joulery.cli.jobs_view import list_text

    entries = list(_all_jobs(backend))
    if not arguments.all:
        newest = {(entry.name, entry.device): entry for entry in entries}
        entries = sorted(newest.values(), key=lambda entry: (entry.name, entry.device))
    document = {"jobs": [entry.to_document() for entry in entries]}
    _print(arguments, document, list_text(entries))


def _show(backend: DecisionBackend, arguments: argparse.Namespace) -> None:
    from joulery.cli.checked import whole_number
    from joulery.cli.jobs_summary import summary_of
    from joulery.cli.jobs_view import show_text, summary_document
    from joulery.clock import REAL_CLOCK

    last = whole_number(arguments.last, "--last", 0, _MOST_DECISIONS)
    job = backend.job(arguments.name, arguments.device)
    versions = [entry for entry in _all_jobs(backend) if entry.name == job.name]
    summary = summary_of(job, versions, backend)
    document = summary_document(summary, last)
    _print(arguments, document, show_text(summary, last, REAL_CLOCK.wall()))


def _frontier(backend: DecisionBackend, arguments: argparse.Namespace) -> None:
    from joulery.cli.checked import whole_number
    from joulery.cli.jobs_summary import chosen_profile

    size = arguments.batch_size
    wanted = None if size is None else whole_number(size, "--batch-size", 1, 2**40)
    job = backend.job(arguments.name, arguments.device)
    frontier = chosen_profile(backend.profiles(job.id), wanted).frontier
    if arguments.out is None:
        sys.stdout.write(frontier.to_json() + "\n")
        return
    _write(Path(arguments.out), frontier.to_json() + "\n")
    document = {"file": arguments.out, "work": frontier.work, "points": len(frontier)}
    text = f"{arguments.out}: {frontier.work}, {len(frontier)} points (see `joulery report`)\n"
    _print(arguments, document, text)


def _write(path: Path, text: str) -> None:
    from joulery.errors import FileError

    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise FileError(
            f"cannot write {path}: {error.strerror or error}", remedy="choose another --out"
        ) from None


def _pause(backend: DecisionBackend, arguments: argparse.Namespace) -> None:
    job = _only(backend, arguments)[-1]
    paused = arguments.action == "pause"
    backend.pause(job.id, paused=paused)
    state = "paused: its runs take their default" if paused else "active again"
    document = {"job": job.id, "name": job.name, "device": job.device, "paused": paused}
    _print(arguments, document, f"{_named(job)} is {state}.\n")


def _delete(backend: DecisionBackend, arguments: argparse.Namespace) -> None:
    versions = _only(backend, arguments)
    runs = sum(entry.recurrences for entry in versions)
    job = versions[-1]
    if not arguments.yes:
        _confirm(f"Delete {_named(job)} with {len(versions)} versions and {runs} recurrences?")
    for entry in versions:
        backend.delete(entry.id)
    document = {
        "name": job.name,
        "device": job.device,
        "deleted": [entry.id for entry in versions],
        "recurrences": runs,
    }
    _print(arguments, document, f"{_named(job)} is deleted, with {runs} recurrences.\n")


def _confirm(question: str) -> None:
    from joulery.errors import UsageError

    if not sys.stdin.isatty():
        raise UsageError("stdin is no terminal to ask for confirmation on", remedy="give --yes")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was deleted", remedy="answer y, or give --yes")


def _only(backend: DecisionBackend, arguments: argparse.Namespace) -> list[JobEntry]:
    """All versions of the one job that is meant."""
    from joulery.errors import UsageError

    job = backend.job(arguments.name, arguments.device)
    same = [entry for entry in _all_jobs(backend) if entry.name == job.name]
    devices = sorted({entry.device for entry in same})
    if arguments.device is None and len(devices) > 1:
        raise UsageError(
            f"{job.name!r} runs on several devices",
            remedy=f"give --device: {', '.join(map(repr, devices))}",
        )
    return [entry for entry in same if entry.device == job.device]


def _all_jobs(backend: DecisionBackend) -> Iterator[JobEntry]:
    after: int | None = 0
    while after is not None:
        entries, after = backend.jobs(after, _PAGE)
        yield from entries


def _named(job: JobEntry) -> str:
    return f"{job.name} on {job.device}" if job.device else job.name


def _print(arguments: argparse.Namespace, document: dict[str, Any], text: str) -> None:
    sys.stdout.write(json.dumps(document) + "\n" if arguments.json else text)
