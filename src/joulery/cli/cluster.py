"""``joulery cluster``: many jobs under one power budget, allocated, simulated and on Slurm."""

from __future__ import annotations

import math
import sys
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from itertools import count
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import msgspec

from joulery import cluster, grid
from joulery.cli.dispatch import Output
from joulery.cli.options import (
    GRID_OPTION,
    Action,
    duration,
    file,
    flag,
    number,
    option,
    share,
    watts,
    whole,
    write_file,
)
from joulery.clock import REAL_CLOCK
from joulery.errors import FileError, InvalidValueError, NotPossibleHereError, UnknownRecordError
from joulery.reports import agent_report, cluster_report, table_of
from joulery.units import JOULES_PER_KILOWATT_HOUR

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Mapping
    from datetime import tzinfo
    from pathlib import Path

_RECOVERY_SECONDS = 900.0
# Samples in the chart of `status --watch`, one a second.
_WATCHED = 600
_EPILOG = """\
examples:
  joulery cluster allocate --jobs jobs.json --budget 20kW
  joulery cluster simulate --trace trace.csv --jobs jobs.json --gpus 64 --budget 20kW
  joulery cluster agent --settings agent.toml
  joulery cluster event --state state --id peak --reduce 25% --duration 1h
  joulery cluster status --state state --watch
"""
_PROLOG = """\
#!/bin/sh
# Slurm runs this as root before a job starts on a node. Without watts the job goes back.
if [ -e "{state}/no-watts" ]; then
    scontrol requeue "$SLURM_JOB_ID"
fi
exit 0
"""


def _zone(text: str) -> tzinfo:
    try:
        return ZoneInfo(text)
    except (KeyError, ValueError, OSError):
        raise InvalidValueError(f"no zone {text!r}", remedy="give UTC or Europe/Berlin") from None


def _gpus(text: str) -> int | dict[str, int]:
    """A number, or one by type."""
    if "=" not in text:
        return whole(1, 10**9)(text)
    pairs = (part.partition("=") for part in text.split(","))
    return {name: whole(0, 10**9)(amount) for name, _, amount in pairs}


def _budget_steps(text: str) -> list[tuple[float, float]]:
    """A power, or times and powers in steps."""
    pairs = [part.rpartition(":") for part in text.split(",")]
    return [(duration(time or "0"), watts(power)) for time, _, power in pairs]


def _moment(text: str) -> float:
    """A time as seconds since 1970 UTC."""
    try:
        if text.startswith("+"):
            return REAL_CLOCK.wall() + duration(text[1:])
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidValueError(
            f"{text!r} is not a time", remedy="give +30min or an ISO time"
        ) from None
    if time.tzinfo is None:
        raise InvalidValueError(f"{text!r} has no time zone", remedy="add Z or +02:00")
    return time.timestamp()


def _clock_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().isoformat(timespec="seconds")


def _allocate(arguments: argparse.Namespace) -> Output:
    jobs = cluster.read_jobs(arguments.jobs)
    shares = cluster.allocate(
        jobs,
        arguments.budget,
        arguments.policy,
        budget=cluster.read_budget(arguments.tree) if arguments.tree else None,
        alpha=arguments.alpha,
        may_pause=arguments.pause,
    )
    price = cluster.flexibility_price(jobs, shares)
    document = {**shares.to_dict(), "gpu_hours_of_delay_per_megawatt_hour": price}
    return Output(document, lambda: _allocation_text(document))


def _allocation_text(document: Mapping[str, Any]) -> str:
    price = document.get("gpu_hours_of_delay_per_megawatt_hour")
    head = (
        f"{document['policy']}: {document['used_watts']:.0f} of {document['budget_watts']:.0f} W, "
        f"weighted performance {100 * document['weighted_performance']:.1f} %, "
        f"worst {100 * document['worst_performance']:.1f} %"
    )
    cost = "" if price is None else f"a MWh not used costs {price:.0f} GPU-hours of delay\n"
    shares = table_of(
        document["jobs"],
        {
            "job": lambda job: job["id"],
            ">power": lambda job: f"{job['watts']:.1f} W",
            ">performance": lambda job: f"{100 * job['performance']:.1f} %",
        },
    )
    return f"{head}\n{cost}\n{shares}"


def _simulate(arguments: argparse.Namespace) -> Output:
    from joulery.simulate.cluster import Site, budget_steps, read_trace, simulate, summarize

    curves = {job.id: job.curve for job in cluster.read_jobs(arguments.jobs)}
    trace = read_trace(arguments.trace, curves)
    budget = arguments.budget or []
    if arguments.events:
        if len(budget) != 1:
            raise InvalidValueError("--events needs one --budget", remedy="give --budget 20kW")
        budget = budget_steps(budget[0][1], grid.read_events(arguments.events), trace.origin)
    site = Site(
        gpus=arguments.gpus,
        budget=budget,
        policy=arguments.policy,
        queue=arguments.queue,
        overhead_watts=arguments.overhead,
        idle_watts=arguments.idle,
        rotation_seconds=arguments.rotate,
        recovery_seconds=_RECOVERY_SECONDS if arguments.recover else math.inf,
        alpha=arguments.alpha,
    )
    carbon = None
    if arguments.grid:
        carbon = grid.carbon_intensity(arguments.grid, zone=arguments.zone)
    price = grid.read_signal(arguments.price, zone=arguments.zone) if arguments.price else None
    summary = summarize(simulate(trace, site), carbon, price)
    report = cluster_report(summary, f"{arguments.trace.name}: {site.policy}, {site.queue}")
    document = {"policy": site.policy, "queue": site.queue, **summary}
    return Output(document, report, page=arguments.html)


def _replay(arguments: argparse.Namespace) -> Output:
    jobs = cluster.read_jobs(arguments.jobs)
    series = grid.read_signal(arguments.power, arguments.column, zone=arguments.zone)
    mean = cluster.replay(jobs, series.values, arguments.policy, arguments.alpha)
    steps = {"steps": len(series.values), "step_seconds": series.step_seconds}
    document = {**steps, **mean.to_dict()}
    return Output(document, lambda: _allocation_text(document))


def _shape(arguments: argparse.Namespace) -> Output:
    site, _ = cluster.aggregate(cluster.read_jobs(arguments.jobs))
    signal = grid.carbon_intensity(arguments.signal, zone=arguments.zone)
    start, work = arguments.start, arguments.work
    plan = cluster.plan_work(
        site.curve, work, signal, start, start + arguments.deadline, may_pause=arguments.pause
    )
    _, seconds, values = signal.window(start, start + work)
    at_once = float(seconds @ values) * site.curve.most_watts / JOULES_PER_KILOWATT_HOUR
    document = {**plan.to_dict(), "amount_at_once": at_once}
    if arguments.out:
        budget = plan.budget(min(signal.step_seconds, 3600.0))
        times = (budget.start + budget.step_seconds * n for n in count())
        rows = [f"{_clock_time(t)},{w:.3f}" for t, w in zip(times, budget.values, strict=False)]
        write_file(arguments.out, "\n".join(["timestamp,watts", *rows, ""]), "--out")
    return Output(document, lambda: _shape_text(document))


def _shape_text(document: Mapping[str, Any]) -> str:
    saving = 1 - document["amount"] / document["amount_at_once"]
    steps = table_of(
        document["steps"],
        {
            "from": lambda step: _clock_time(step["start"]),
            ">power": lambda step: f"{step['watts']:.0f} W",
            ">performance": lambda step: f"{100 * step['performance']:.1f} %",
        },
    )
    end = _clock_time(document["end"])
    return f"{100 * saving:.1f} % less than at once and at full speed; done {end}\n\n{steps}"


def _secret(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        remedy = "write a secret there"
        raise FileError(f"cannot read token {path}: {error}", remedy=remedy) from None


def _agent(arguments: argparse.Namespace) -> int:
    import ssl

    from joulery.governor import parse_address

    settings = cluster.read_agent_settings(arguments.settings)
    if settings.token_file is None:
        raise InvalidValueError("no token_file in the settings", remedy="name the nodes' token")
    secret = _secret(settings.token_file)
    try:
        tls = ssl.create_default_context(cafile=settings.ca_file) if settings.ca_file else None
    except OSError as error:
        remedy = "name the authority that signed the nodes' certificates"
        raise FileError(f"cannot read {settings.ca_file}: {error}", remedy=remedy) from None
    nodes = {
        name: cluster.NodeClient.at(parse_address(address), secret, tls)
        for name, address in settings.nodes.items()
    }
    engine: cluster.Slurm | cluster.SlurmRest = cluster.Slurm()
    if settings.slurmrestd:
        engine = cluster.SlurmRest(
            settings.slurmrestd, settings.slurmrestd_user, settings.slurmrestd_token_file
        )
    printed: set[str] = set()

    def show(report: dict[str, Any]) -> None:
        """Print a report as JSON, and each message when it is new."""
        if arguments.json:
            Output(report, "").announce(as_json=True)
        messages = report["messages"]
        sys.stderr.writelines(f"joulery: {text}\n" for text in messages if text not in printed)
        printed.clear()
        printed.update(messages)

    with ExitStack() as stack:
        find = _profiles(settings.store, stack) if settings.store else lambda _: None
        cluster.Agent(settings, engine, nodes, find=find).run(arguments.ticks, show)
    return 0


def _profiles(location: str, stack: ExitStack) -> Callable[[str], cluster.PowerCurve | None]:
    """Function that finds a job's curve in a store, or on a server, by the job's name."""
    from joulery.client import open_backend

    backend = stack.enter_context(closing(open_backend(location)))

    def find(name: str) -> cluster.PowerCurve | None:
        try:
            profiles = backend.profiles(backend.job(name).id)
        except UnknownRecordError:
            return None
        if not profiles:
            return None
        newest = max(profiles, key=lambda profile: profile.wall_seconds or 0.0)
        gpus = newest.frontier.fastest.setting.devices or 1
        return cluster.PowerCurve.from_frontier(newest.frontier, gpus)

    return find


def _status(arguments: argparse.Namespace) -> Output:
    history: list[tuple[float, float, float]] = []
    while True:
        output = _status_output(arguments.state, history)
        if not arguments.watch:
            return output
        if not arguments.json:
            sys.stdout.write("\x1b[2J\x1b[H")
        output.announce(as_json=arguments.json)
        REAL_CLOCK.sleep(1.0)


def _status_output(state: Path, history: list[tuple[float, float, float]]) -> Output:
    """The status with its age, and a report with the power seen so far."""
    now = REAL_CLOCK.wall()
    status = cluster.read_status(state)
    history.append((status.at, status.power_watts, status.budget_watts))
    del history[:-_WATCHED]
    document = msgspec.to_builtins(status) | {"age_seconds": now - status.at}
    return Output(document, agent_report(status, history, now))


def _event(arguments: argparse.Namespace) -> Output:
    if arguments.cancel:
        cluster.withdraw(arguments.state, arguments.id)
        return Output({"cancelled": arguments.id}, f"event {arguments.id} is cancelled")
    if arguments.duration is None:
        raise InvalidValueError("an event without an end", remedy="give --duration 1h")
    now = REAL_CLOCK.wall()
    start = now if arguments.start is None else arguments.start
    end = start + arguments.duration
    event = grid.GridEvent(arguments.id, start, end, arguments.budget, arguments.reduce, now)
    cluster.announce(arguments.state, event)
    return Output(event.to_dict(), f"event {event.id} is announced")


def _listen(arguments: argparse.Namespace) -> int:
    client = grid.OpenAdr(arguments.openadr, arguments.client, _secret(arguments.secret))
    mirrored: dict[str, grid.GridEvent] = {}
    for calls in count(1):
        try:
            events = client.events(arguments.program)
            for event in cluster.mirror_events(arguments.state, events, mirrored, REAL_CLOCK):
                Output(event.to_dict(), f"event {event.id}").announce(as_json=arguments.json)
        except NotPossibleHereError as error:  # what was announced before stays in force
            if calls == arguments.times:
                raise
            sys.stderr.write(f"joulery: {error.message}\n  → {error.remedy}\n")
        for message in client.malformed:
            sys.stderr.write(f"joulery: {message}\n")
        if calls == arguments.times:
            break
        REAL_CLOCK.sleep(arguments.every)
    return 0


def _prolog(arguments: argparse.Namespace) -> Output:
    script = _PROLOG.format(state=arguments.state.resolve())
    return Output({"prolog": script}, script)


def _read_policy(text: str) -> str:
    """Name of a policy, checked when it is read: help must not wait for NumPy."""
    if text not in cluster.POLICIES:
        raise InvalidValueError(
            f"{text!r} is not a policy", remedy=f"use one of {', '.join(cluster.POLICIES)}"
        )
    return text


_POLICY = (
    option("--policy", "rule of the shares (fair)", "NAME", _read_policy, default="fair"),
    option("--alpha", "for alpha-fair", read=number(0.0), default=2.0),
)
_JOBS = file("--jobs", "jobs as JSON", required=True)
_ZONE = option("--zone", "of times without one, such as UTC", "NAME", _zone)
_STATE = file("--state", "of the agent", "DIR", required=True)
_ALLOCATE = (
    _JOBS,
    option("--budget", "IT power of the cluster, such as 20kW", "W", watts),
    file("--tree", "nested caps as JSON"),
    flag("--pause", "jobs may be paused if floors demand"),
    *_POLICY,
)
_SIMULATE = (
    file("--trace", "CSV or Parquet", required=True),
    _JOBS,
    option("--gpus", "number, or a100=64,h100=32", "N", _gpus, required=True),
    option("--budget", "power, or steps such as 0:20kW,1h:15kW", "W", _budget_steps),
    file("--events", "grid events as JSON"),
    option("--queue", "order of jobs", choices=("fifo", "backfill", "sjf"), default="fifo"),
    option("--overhead", "hosts, network", "W", watts, default=0.0),
    option("--idle", "of a GPU without job", "W", watts, default=0.0),
    option("--rotate", "paused jobs take turns after so long", "TIME", duration, default=math.inf),
    flag("--recover", "give jobs back what they ran below the mean"),
    GRID_OPTION,
    file("--price", "series of a price per kWh"),
    _ZONE,
    file("--html", "write a page with the figures and the chart"),
    *_POLICY,
)
_REPLAY = (
    _JOBS,
    file("--power", "series of watts", required=True),
    option("--column", "column of the watts", "NAME"),
    _ZONE,
    *_POLICY,
)
_SHAPE = (
    _JOBS,
    option("--signal", "carbon or price per kWh", "FILE", required=True),
    option("--start", "ISO with zone", "TIME", _moment, required=True),
    option("--deadline", "from the start, such as 12h", "TIME", duration, required=True),
    option("--work", "at full speed, such as 4h", "TIME", duration, required=True),
    flag("--pause", "all jobs may be paused together"),
    _ZONE,
    file("--out", "budget as CSV, for the agent"),
)
_AGENT = (
    file("--settings", "as TOML", required=True),
    option("--ticks", "stop after N decisions", "N", whole(0, 10**12)),
)
_EVENT = (
    _STATE,
    option("--id", "name of the event", required=True),
    option("--reduce", "such as 25%%", "SHARE", share),
    option("--budget", "highest IT power, instead of a share", "W", watts),
    option("--start", "+30min, or ISO with zone; now unless given", "TIME", _moment),
    option("--duration", "such as 1h", "TIME", duration),
    flag("--cancel", "cancel the event of that name"),
)
_LISTEN = (
    _STATE,
    option("--openadr", "server of OpenADR 3", "URL", required=True),
    option("--client", "name of the account", "ID", required=True),
    file("--secret", "its secret", required=True),
    option("--program", "only events of one program", "ID"),
    option("--every", "time between calls (30s)", "TIME", duration, default=30.0),
    option("--times", "stop after N calls", "N", whole(1, 10**12)),
)
_WATCH = (_STATE, flag("--watch", "show it anew every second"))
COMMAND = Action(
    epilog=_EPILOG,
    actions={
        "allocate": Action(_allocate, _ALLOCATE, "share a power budget over jobs, once"),
        "simulate": Action(_simulate, _SIMULATE, "what a budget would have done to a trace"),
        "replay": Action(_replay, _REPLAY, "jobs under a recorded power, step by step"),
        "shape": Action(_shape, _SHAPE, "power over time, when the grid is best"),
        "agent": Action(_agent, _AGENT, "keep a Slurm cluster under its budget"),
        "status": Action(_status, _WATCH, "power against budget, and every job's share"),
        "event": Action(_event, _EVENT, "announce a demand-response event to the agent"),
        "listen": Action(_listen, _LISTEN, "announce the events of an OpenADR 3 server"),
        "prolog": Action(_prolog, (_STATE,), "print the script that Slurm runs before a job"),
    },
)
