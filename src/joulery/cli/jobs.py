"""``joulery jobs``: recurring jobs, what was decided for them, and what that saved."""

from __future__ import annotations

import os
import sys
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from joulery import client
from joulery.cli.dispatch import Output
from joulery.cli.jobs_simulate import REPLAY, SIMULATE
from joulery.cli.options import Action, flag, location, option, whole, write_file, written
from joulery.clock import REAL_CLOCK
from joulery.errors import FileError, InvalidValueError, UnknownRecordError, UsageError
from joulery.frontier import origins
from joulery.objectives import objective_text
from joulery.reports import Heading, Paragraph, Report, Table, job_report, table_of
from joulery.units import human, human_age, human_duration

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator, Sequence

    from joulery.client import DecisionBackend
    from joulery.frontier import Frontier, OperatingPoint
    from joulery.jobs import BatchSizeSummary, JobEntry, JobSummary, ProfileEntry


def _list_text(entries: Sequence[JobEntry], team: str) -> str:
    """All jobs, one per line."""
    if not entries:
        return (
            f"No recurring jobs of team {team}. A joulery.Run with batch_sizes makes one; "
            "`joulery runs list` shows runs of every kind."
        )
    return table_of(
        entries,
        {
            "job": lambda entry: entry.name,
            "device": lambda entry: entry.device or "–",
            ">version": lambda entry: str(entry.version),
            "policy": lambda entry: entry.definition.policy,
            ">recurrences": lambda entry: str(entry.recurrences),
            "state": lambda entry: "paused" if entry.paused else "",
        },
    )


def _job_view(summary: JobSummary, now_wall_seconds: float) -> Report:
    """All about one job; the time is Unix time, for the ages of its profiles."""
    entry = summary.entry
    device, paused = f" on {entry.device}" * bool(entry.device), ", paused" * entry.paused
    figures, choice, history = job_report(summary)
    blocks = [*_about(summary), *figures.blocks, *choice.blocks]
    if summary.profiles:
        blocks += [Heading("Power limits"), _profiles(summary.profiles, now_wall_seconds)]
    title = f"{entry.name}{device}, version {entry.version}{paused}"
    return Report(title, "", (*blocks, *history.blocks))


def _about(summary: JobSummary) -> Iterator[Paragraph]:
    entry, job = summary.entry, summary.job
    sizes = ", ".join(f"{size}{' (default)' * (size == job.default)}" for size in job.batch_sizes)
    objective = "" if job.objective is None else f"Objective: {objective_text(job.objective)}. "
    yield Paragraph(
        f"Batch sizes: {sizes}. Policy: {entry.definition.policy}. Cost: eta {job.cost.eta:g}, "
        f"{human(job.cost.max_watts, 'W')}. {objective}Recurrences: {entry.recurrences}"
        f"{', of which the latest are shown' * summary.cut}."
    )
    if entry.warm_start:
        yield Paragraph(f"Warm start: {entry.warm_start}")
    for version in summary.versions:
        if version.id != entry.id:
            device = f" on {version.device}" * bool(version.device)
            yield Paragraph(
                f"Also: version {version.version}{device}, {version.recurrences} recurrences."
            )


def _summary_document(summary: JobSummary) -> dict[str, Any]:
    """A summary ready for JSON."""
    return {
        "job": summary.entry.to_document(),
        "versions": [entry.to_document() for entry in summary.versions],
        "batch_sizes": [_size_document(row) for row in summary.batch_sizes],
        "recurrences": [asdict(recurrence) for recurrence in summary.recurrences],
        "saved": None if summary.saved is None else asdict(summary.saved),
        "own_change": summary.own_change,
        "decisions": [entry.to_document() for entry in summary.decisions],
        "complete": not summary.cut,
        "energy": {
            "joules": sum(summary.origins.values()),
            "by_origin": summary.origins,
            "complete": not summary.energy_cut,
        },
        "profiles": [profile.to_document() for profile in summary.profiles],
    }


def _size_document(row: BatchSizeSummary) -> dict[str, Any]:
    return {
        "batch_size": row.batch_size,
        "ends": {end.name.lower(): count for end, count in row.ends.items()},
        "cost_joules": median(row.costs_joules) if row.costs_joules else None,
        "seconds": median(row.seconds) if row.seconds else None,
        "joules": median(row.joules) if row.joules else None,
        "limit_watts": row.limit_watts,
    }


def _profiles(profiles: Sequence[ProfileEntry], now_wall_seconds: float) -> Table:
    return Table.of(
        profiles,
        {
            ">batch size": lambda profile: str(profile.batch_size),
            ">fastest epoch": lambda profile: _point(profile.frontier.fastest),
            ">lowest-energy epoch": lambda profile: _point(profile.frontier.least_energy),
            ">limits": lambda profile: _limits(profile.frontier),
            "figures": lambda profile: origins(profile.frontier),
            ">age": lambda profile: human_age(
                now_wall_seconds - (profile.wall_seconds or now_wall_seconds)
            ),
        },
    )


def _point(point: OperatingPoint) -> str:
    watts = point.setting.power_limit_watts
    limit = "" if watts is None else f" at {human(watts, 'W')}"
    return f"{human_duration(point.seconds)}, {human(point.joules, 'J')}{limit}"


def _limits(frontier: Frontier) -> str:
    """Number of power limits on a frontier."""
    return str(sum(point.setting.power_limit_watts is not None for point in frontier) or "–")


# People wait longer than trainings do.
_SECONDS = 30.0


def with_store(
    act: Callable[[DecisionBackend, argparse.Namespace], Output],
) -> Callable[[argparse.Namespace], Output]:
    """The action on the store, or the server, that the options name."""

    def run(arguments: argparse.Namespace) -> Output:
        team, store = arguments.team, arguments.store or os.environ.get("JOULERY_STORE")
        if team is not None and not team.strip():  # as a shell variable that is not set gives
            raise InvalidValueError(
                "--team has no name",
                remedy="give one, or leave --team out for $JOULERY_TEAM or default",
            )
        if store and "://" not in store and not Path(store).is_file():
            remedy = "give the path of one, or http(s)://…"  # a typo is not to make one
            raise FileError(f"no store at {store}", remedy=remedy)
        backend = client.open_backend(arguments.store, team, arguments.token, seconds=_SECONDS)
        with closing(backend):
            return act(backend, arguments)

    return run


def _list(backend: DecisionBackend, arguments: argparse.Namespace) -> Output:
    entries = list(client.all_jobs(backend))
    if not arguments.all:
        newest = {(entry.name, entry.device): entry for entry in entries}
        entries = sorted(newest.values(), key=lambda entry: (entry.name, entry.device))
    return Output(
        {"jobs": [entry.to_document() for entry in entries]},
        _list_text(entries, client.team_of(arguments.team)),
    )


def _show(backend: DecisionBackend, arguments: argparse.Namespace) -> Output:
    job = backend.job(arguments.name, arguments.device)
    versions = tuple(entry for entry in client.all_jobs(backend) if entry.name == job.name)
    summary = client.job_summary(backend, job, versions)
    return Output(_summary_document(summary), lambda: _job_view(summary, REAL_CLOCK.wall()))


def _frontier(backend: DecisionBackend, arguments: argparse.Namespace) -> Output:
    job = backend.job(arguments.name, arguments.device)
    frontier = _choose_profile(backend.profiles(job.id), arguments.batch_size).frontier
    if arguments.out is None:
        return Output(frontier.to_dict(), frontier.to_json)
    write_file(arguments.out, frontier.to_json() + "\n", "--out")
    document = {"file": str(arguments.out), "work": frontier.work, "points": len(frontier)}
    text = f"{arguments.out}: {frontier.work}, {len(frontier)} points (see `joulery report`)"
    return Output(document, text)


def _pause(backend: DecisionBackend, arguments: argparse.Namespace) -> Output:
    job = _find_versions(backend, arguments)[-1]
    paused = arguments.action == "pause"
    backend.pause(job.id, paused=paused)
    state = "paused: its runs take their default" if paused else "active again"
    document = {"job": job.id, "name": job.name, "device": job.device, "paused": paused}
    return Output(document, f"{_named(job)} is {state}.")


def _delete(backend: DecisionBackend, arguments: argparse.Namespace) -> Output:
    versions = _find_versions(backend, arguments)
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
    return Output(document, f"{_named(job)} is deleted, with {runs} recurrences.")


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise UsageError("stdin is not a terminal to ask for confirmation on", remedy="give --yes")
    sys.stderr.write(f"{question} [y/N] ")
    sys.stderr.flush()
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was deleted", remedy="answer y, or give --yes")


def _find_versions(backend: DecisionBackend, arguments: argparse.Namespace) -> list[JobEntry]:
    """All versions of the one job that is meant."""
    job = backend.job(arguments.name, arguments.device)
    versions = [entry for entry in client.all_jobs(backend) if entry.name == job.name]
    devices = sorted({entry.device for entry in versions})
    if arguments.device is None and len(devices) > 1:
        raise UsageError(
            f"{job.name!r} runs on several devices",
            remedy=f"give --device: {', '.join(map(repr, devices))}",
        )
    return [entry for entry in versions if entry.device == job.device]


def _choose_profile(profiles: list[ProfileEntry], batch_size: int | None) -> ProfileEntry:
    """The profile of a batch size; where there is only one, it need not be named.

    Raises:
        UnknownRecordError: There is none.
        UsageError: There are several and none is named.
    """
    fitting = [profile for profile in profiles if batch_size in (None, profile.batch_size)]
    if not fitting:
        subject = "this job" if batch_size is None else f"batch size {batch_size}"
        sizes_measured = ", ".join(str(profile.batch_size) for profile in profiles)
        raise UnknownRecordError(
            f"no limit of {subject} has been measured yet",
            remedy=f"give --batch-size: {sizes_measured}" if sizes_measured else "run it once",
        )
    if len(fitting) > 1:
        sizes = ", ".join(str(profile.batch_size) for profile in fitting)
        raise UsageError("several batch sizes were measured", remedy=f"give --batch-size: {sizes}")
    return fitting[0]


def _named(job: JobEntry) -> str:
    return f"{job.name} on {job.device}" if job.device else job.name


STORE_OPTIONS = (
    option(
        "--store",
        "path, postgresql://… or http(s)://… ($JOULERY_STORE, or your own store)",
        "LOCATION",
        location,
    ),
    option("--team", "team ($JOULERY_TEAM, or default)", "NAME"),
    option("--token", "for a server; better: $JOULERY_TOKEN", "TEXT"),
)
_JOB = (
    option("name", "of the job", "NAME"),
    option("--device", "kind of device it runs on", "NAME"),
    *STORE_OPTIONS,
)
_FRONTIER = (
    option("--batch-size", "if several were measured", "N", whole(1, 2**40)),
    written("--out", "where to write it; stdout unless given", ".json"),
    *_JOB,
)
COMMAND = Action(
    epilog="""\
examples:
  joulery jobs list
  joulery jobs show resnet-nightly
  joulery jobs frontier resnet-nightly --batch-size 128 --out frontier.json
  joulery jobs pause resnet-nightly --store https://joulery.example.org --team vision
  joulery jobs delete resnet-nightly --device "NVIDIA A40"
  joulery jobs simulate --trace DIR --policy zeus,joulery --seeds 100
""",
    actions={
        "list": Action(
            with_store(_list),
            (flag("--all", "with versions that were replaced"), *STORE_OPTIONS),
            "all jobs of a team",
        ),
        "show": Action(
            with_store(_show), _JOB, "what was decided for a job, why, and what it saved"
        ),
        "frontier": Action(
            with_store(_frontier), _FRONTIER, "what an epoch costs under each power limit"
        ),
        "pause": Action(
            with_store(_pause), _JOB, "make no more decisions: runs take their default"
        ),
        "resume": Action(with_store(_pause), _JOB, "make decisions again"),
        "delete": Action(
            with_store(_delete),
            (flag("--yes", "without asking"), *_JOB),
            "delete a job with all that was learned",
        ),
        "simulate": SIMULATE,
        "replay": REPLAY,
    },
)
