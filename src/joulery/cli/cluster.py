"""``joulery cluster``: many jobs under one power budget, allocated, simulated and on Slurm."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from joulery.errors import FileError, InvalidValueError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from datetime import tzinfo

    from joulery.cluster import PowerCurve
    from joulery.grid import Signal

_POLICIES = ("fair", "max-min", "throughput", "equal-watts", "equal-fraction", "alpha-fair")
_RECOVERY_SECONDS = 900.0
_EXAMPLES = """\
examples:
  joulery cluster allocate --jobs jobs.json --budget 20000
  joulery cluster simulate --trace trace.csv --curves jobs.json --gpus 64 --budget 20000
  joulery cluster agent --settings agent.toml
  joulery cluster event --state state --id peak --reduce 0.25 --minutes 60
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Define the options."""
    parser.epilog = f"Every action takes --json.\n\n{_EXAMPLES}"
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for name, (text, define) in _ACTIONS.items():
        action = actions.add_parser(name, help=text)
        define(action)
        action.add_argument("--json", action="store_true", help="print one JSON document")


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked."""
    _RUN[arguments.action](arguments)
    return 0


def _add_allocate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=Path, required=True, metavar="FILE", help="jobs as JSON")
    parser.add_argument("--budget", type=float, metavar="W", help="IT power of the cluster")
    parser.add_argument("--tree", type=Path, metavar="FILE", help="nested caps as JSON")
    parser.add_argument("--pause", action="store_true", help="jobs may be paused if floors demand")
    _add_policy(parser)


def _add_zone(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--zone", metavar="NAME", help="of times without one, such as UTC or Europe/Berlin"
    )


def _zone(name: str | None) -> tzinfo | None:
    from zoneinfo import ZoneInfo

    try:
        return ZoneInfo(name) if name else None
    except (KeyError, ValueError, OSError):
        raise InvalidValueError(f"--zone {name}", remedy="give UTC or Europe/Berlin") from None


def _add_policy(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", choices=_POLICIES, default="fair", help="default: fair")
    parser.add_argument("--alpha", type=float, default=2.0, help="for alpha-fair")


def _allocate(arguments: argparse.Namespace) -> None:
    from joulery.cluster import allocate, flexibility_price, read_budget, read_jobs

    jobs = read_jobs(arguments.jobs)
    shares = allocate(
        jobs,
        arguments.budget,
        arguments.policy,
        budget=read_budget(arguments.tree) if arguments.tree else None,
        alpha=arguments.alpha,
        may_pause=arguments.pause,
    )
    price = flexibility_price(jobs, shares)
    document = {**shares.to_dict(), "gpu_hours_of_delay_per_megawatt_hour": price}
    _show(arguments, document, _allocation_text)


def _allocation_text(document: dict[str, Any]) -> str:
    from joulery.reports import table_text as table

    rows = [
        [job["id"], f"{job['watts']:.1f} W", f"{100 * job['performance']:.1f} %"]
        for job in document["jobs"]
    ]
    return (
        f"{document['policy']}: {document['used_watts']:.0f} of {document['budget_watts']:.0f} W, "
        f"weighted performance {100 * document['weighted_performance']:.1f} %, "
        f"worst {100 * document['worst_performance']:.1f} %\n"
        f"{_price_text(document)}\n" + table(["job", "power", "performance"], rows, "lrr")
    )


def _price_text(document: dict[str, Any]) -> str:
    price = document.get("gpu_hours_of_delay_per_megawatt_hour")
    return "" if price is None else f"a MWh not used costs {price:.0f} GPU-hours of delay\n"


def _add_simulate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", type=Path, required=True, metavar="FILE", help="CSV or Parquet")
    parser.add_argument(
        "--curves", type=Path, required=True, metavar="FILE", help="frontiers, as a file of jobs"
    )
    parser.add_argument("--gpus", required=True, metavar="N", help="number, or a100=64,h100=32")
    parser.add_argument("--budget", metavar="W", help="watts, or seconds:watts,seconds:watts")
    parser.add_argument("--events", type=Path, metavar="FILE", help="grid events as JSON")
    parser.add_argument("--queue", choices=("fifo", "backfill", "sjf"), default="fifo")
    parser.add_argument("--overhead", type=float, default=0.0, metavar="W", help="hosts, network")
    parser.add_argument("--idle", type=float, default=0.0, metavar="W", help="of a GPU without job")
    parser.add_argument(
        "--rotate", type=float, metavar="MINUTES", help="let paused jobs take turns after so long"
    )
    parser.add_argument(
        "--recover", action="store_true", help="give jobs back what they ran below the mean"
    )
    parser.add_argument("--carbon", metavar="SOURCE", help="region, or a series as CSV or Parquet")
    parser.add_argument("--price", type=Path, metavar="FILE", help="series of a price per kWh")
    _add_zone(parser)
    parser.add_argument("--page", type=Path, metavar="FILE", help="write the report as HTML")
    _add_policy(parser)


def _simulate(arguments: argparse.Namespace) -> None:
    from joulery.cluster import read_jobs
    from joulery.grid import read_events, read_signal
    from joulery.reports import Terminal, cluster_report
    from joulery.simulate.cluster import Site, budget_steps, read_trace, simulate, summarize

    curves = {job.id: job.curve for job in read_jobs(arguments.curves)}
    trace = read_trace(arguments.trace, curves)
    budget = _budget_steps(arguments.budget)
    if arguments.events:
        if len(budget) != 1:
            raise InvalidValueError("--events needs one --budget", remedy="give --budget 20000")
        budget = budget_steps(budget[0][1], read_events(arguments.events), trace.origin)
    site = Site(
        gpus=_gpus(arguments.gpus),
        budget=budget,
        policy=arguments.policy,
        queue=arguments.queue,
        overhead_watts=arguments.overhead,
        idle_watts=arguments.idle,
        rotation_seconds=float("inf") if arguments.rotate is None else 60 * arguments.rotate,
        recovery_seconds=_RECOVERY_SECONDS if arguments.recover else float("inf"),
        alpha=arguments.alpha,
    )
    zone = _zone(arguments.zone)
    carbon = _carbon(arguments.carbon, zone) if arguments.carbon else None
    price = read_signal(arguments.price, zone=zone) if arguments.price else None
    found = summarize(simulate(trace, site), carbon, price)
    report = cluster_report(found, f"{arguments.trace.name}: {site.policy}, {site.queue}")
    if arguments.page:
        try:
            arguments.page.write_text(report.html(), encoding="utf-8")
        except OSError as error:
            remedy = "choose another place"
            raise FileError(f"cannot write {arguments.page}: {error}", remedy=remedy) from None
    document = {"policy": site.policy, "queue": site.queue, **found}
    _show(arguments, document, lambda _: report.text(Terminal.of()))


def _gpus(text: str) -> int | dict[str, int]:
    try:
        if "=" not in text:
            return int(text)
        pairs = (part.split("=", 1) for part in text.split(","))
        return {name: int(count) for name, count in pairs}
    except ValueError:
        raise InvalidValueError(f"--gpus {text}", remedy="give 64, or a100=64,h100=32") from None


def _budget_steps(text: str | None) -> list[tuple[float, float]]:
    if text is None:
        return []
    try:
        pairs = [part.rpartition(":") for part in text.split(",")]
        return [(float(time or 0.0), float(watts)) for time, _, watts in pairs]
    except ValueError:
        remedy = "give 20000, or 0:20000,3600:15000,7200:20000"
        raise InvalidValueError(f"--budget {text}", remedy=remedy) from None


def _carbon(source: str, zone: tzinfo | None) -> Signal:
    from joulery.grid import read_signal, static_intensity

    path = Path(source)
    if path.suffix in (".csv", ".parquet"):
        return read_signal(path, zone=zone)
    return static_intensity(source)


def _add_shape(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=Path, required=True, metavar="FILE", help="jobs as JSON")
    parser.add_argument("--signal", required=True, metavar="FILE", help="carbon or price per kWh")
    parser.add_argument("--start", required=True, metavar="TIME", help="ISO with zone")
    parser.add_argument("--hours", type=float, required=True, help="until the deadline")
    parser.add_argument("--work", type=float, required=True, metavar="HOURS", help="at full speed")
    parser.add_argument("--pause", action="store_true", help="all jobs may be paused together")
    _add_zone(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="budget as CSV, for the agent")


def _shape(arguments: argparse.Namespace) -> None:
    from joulery.cluster import aggregate, plan_work, read_jobs
    from joulery.units import JOULES_PER_KILOWATT_HOUR

    site, _ = aggregate(read_jobs(arguments.jobs))
    signal = _carbon(arguments.signal, _zone(arguments.zone))
    start = _moment(arguments.start, 0.0)
    work, deadline = 3600 * arguments.work, start + 3600 * arguments.hours
    plan = plan_work(site.curve, work, signal, start, deadline, may_pause=arguments.pause)
    _, seconds, values = signal.window(start, start + work)
    at_once = float(seconds @ values) * site.curve.most_watts / JOULES_PER_KILOWATT_HOUR
    columns = (plan.starts, plan.seconds, plan.watts, plan.performance)
    names = ("start", "seconds", "watts", "performance")
    steps = [
        dict(zip(names, row, strict=True))
        for row in zip(*(column.tolist() for column in columns), strict=True)
    ]
    document = {
        "amount": plan.amount,
        "amount_at_once": at_once,
        "end": plan.end,
        "amount_of_one_more_hour": 3600 * plan.price,
        "steps": steps,
    }
    if arguments.out:
        # Whole steps of the signal, so that the file is a series again.
        whole = [s["start"] - (s["start"] - signal.start) % signal.step_seconds for s in steps]
        rows = [f"{_clock_time(t)},{s['watts']:.3f}" for t, s in zip(whole, steps, strict=True)]
        arguments.out.write_text("\n".join(["timestamp,watts", *rows, ""]), encoding="utf-8")
    _show(arguments, document, _shape_text)


def _shape_text(document: dict[str, Any]) -> str:
    from joulery.reports import table_text as table

    saved = 1 - document["amount"] / document["amount_at_once"]
    rows = [
        [_clock_time(s["start"]), f"{s['watts']:.0f} W", f"{100 * s['performance']:.1f} %"]
        for s in document["steps"]
    ]
    return (
        f"{100 * saved:.1f} % less than at once and at full speed; done "
        f"{_clock_time(document['end'])}\n\n" + table(["from", "power", "performance"], rows, "lrr")
    )


def _secret(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise FileError(
            f"cannot read token {path}: {error}", remedy="write a secret there"
        ) from None


def _add_agent(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--settings", type=Path, required=True, metavar="FILE", help="as TOML")
    parser.add_argument("--ticks", type=int, metavar="N", help="stop after N decisions")


def _agent(arguments: argparse.Namespace) -> None:
    import ssl

    from joulery.cluster import Agent, NodeClient, Slurm, read_agent_settings
    from joulery.governor import parse_address

    settings = read_agent_settings(arguments.settings)
    if settings.token_file is None:
        raise InvalidValueError("no token_file in the settings", remedy="name the nodes' token")
    secret = _secret(settings.token_file)
    tls = ssl.create_default_context(cafile=settings.ca_file) if settings.ca_file else None
    nodes = {
        name: NodeClient.at(parse_address(place), secret, tls)
        for name, place in settings.nodes.items()
    }
    with ExitStack() as stack:
        find = _profiles(settings.store, stack) if settings.store else lambda _: None
        Agent(settings, Slurm(), nodes, find=find).run(arguments.ticks)


def _profiles(location: str, stack: ExitStack) -> Callable[[str], PowerCurve | None]:
    """Function that finds a job's curve in a store, or on a server, by the job's name."""
    from joulery.client import open_backend
    from joulery.cluster import PowerCurve
    from joulery.errors import UnknownRecordError

    backend = stack.enter_context(closing(open_backend(location)))

    def find(name: str) -> PowerCurve | None:
        try:
            profiles = backend.profiles(backend.job(name).id)
        except UnknownRecordError:
            return None
        newest = max(profiles, key=lambda one: one.wall_seconds or 0.0, default=None)
        return None if newest is None else PowerCurve.from_document(newest.frontier.to_dict())

    return find


def _add_status(parser: argparse.ArgumentParser) -> None:
    _add_state(parser)
    parser.add_argument("--watch", action="store_true", help="show it anew every second")


def _add_state(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state", type=Path, required=True, metavar="DIR", help="of the agent")


def _status(arguments: argparse.Namespace) -> None:
    from joulery.clock import REAL_CLOCK

    while True:
        try:
            document = json.loads((arguments.state / "status.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FileError(f"no status: {error}", remedy="start `joulery cluster agent`") from None
        document["age_seconds"] = REAL_CLOCK.wall() - document["at"]
        if arguments.watch:
            sys.stdout.write("\x1b[2J\x1b[H")
        _show(arguments, document, _status_text)
        if not arguments.watch:
            return
        sys.stdout.flush()
        REAL_CLOCK.sleep(1.0)


def _status_text(document: dict[str, Any]) -> str:
    from joulery.reports import table_text as table

    budget, power = document["budget_watts"], document["power_watts"]
    filled = round(40 * min(1.0, power / budget)) if budget else 0
    bar = "█" * filled + "░" * (40 - filled)
    caps, age = document["caps_watts"], document["age_seconds"]
    lines = [
        f"[{bar}] {power:.0f} of {budget:.0f} W, caps {caps:.0f} W, {age:.0f} s ago",
        *(f"event {event['id']} until {_clock_time(event['end'])}" for event in document["events"]),
        *(f"! {message}" for message in document["messages"]),
        "",
        table(
            ["job", "power", "performance"],
            [
                [job["id"], f"{job['watts']:.0f} W", f"{100 * job['performance']:.1f} %"]
                for job in document["jobs"]
            ],
            "lrr",
        ),
    ]
    return "\n".join(lines)


def _clock_time(seconds: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(seconds, UTC).astimezone().isoformat(timespec="seconds")


def _add_event(parser: argparse.ArgumentParser) -> None:
    _add_state(parser)
    parser.add_argument("--id", required=True, help="name of the event")
    amount = parser.add_mutually_exclusive_group(required=True)
    amount.add_argument("--reduce", type=float, metavar="SHARE", help="such as 0.25")
    amount.add_argument("--watts", type=float, metavar="W", help="most IT power")
    parser.add_argument("--start", default="+0", metavar="TIME", help="+seconds, or ISO with zone")
    parser.add_argument("--minutes", type=float, required=True, help="how long")


def _event(arguments: argparse.Namespace) -> None:
    from joulery.clock import REAL_CLOCK
    from joulery.cluster import announce
    from joulery.grid import GridEvent

    now = REAL_CLOCK.wall()
    start = _moment(arguments.start, now)
    end = start + 60 * arguments.minutes
    event = GridEvent(arguments.id, start, end, arguments.watts, arguments.reduce, now)
    announce(arguments.state, event)
    _show(arguments, event.to_dict(), lambda found: f"event {found['id']} is announced")


def _moment(text: str, now: float) -> float:
    from datetime import datetime

    try:
        if text.startswith("+"):
            return now + float(text)
        time = datetime.fromisoformat(text)
    except ValueError:
        raise InvalidValueError(f"--start {text}", remedy="give +30 or an ISO time") from None
    if time.tzinfo is None:
        raise InvalidValueError(f"--start {text} has no time zone", remedy="add Z or +02:00")
    return time.timestamp()


def _add_listen(parser: argparse.ArgumentParser) -> None:
    _add_state(parser)
    parser.add_argument("--openadr", required=True, metavar="URL", help="server of OpenADR 3")
    parser.add_argument("--client", required=True, metavar="ID", help="name of the account")
    parser.add_argument("--secret", type=Path, required=True, metavar="FILE")
    parser.add_argument("--program", metavar="ID", help="only events of one program")
    parser.add_argument("--every", type=float, default=30.0, metavar="S", help="time between calls")
    parser.add_argument("--times", type=int, metavar="N", help="stop after N calls")


def _listen(arguments: argparse.Namespace) -> None:
    from itertools import count

    from joulery.clock import REAL_CLOCK
    from joulery.cluster import announce
    from joulery.errors import NotPossibleHereError
    from joulery.grid import OpenAdr

    client = OpenAdr(arguments.openadr, arguments.client, _secret(arguments.secret))
    announced: set[str] = set()
    for number in count(1):
        try:
            events = client.events(arguments.program)
        except NotPossibleHereError as error:  # what was announced before stays in force
            sys.stderr.write(f"joulery: {error.message}\n  → {error.remedy}\n")
            events = []
        for message in client.malformed:
            sys.stderr.write(f"joulery: {message}\n")
        for event in events:
            if event.id not in announced and event.end > REAL_CLOCK.wall():
                announce(arguments.state, event)
                announced.add(event.id)
                _show(arguments, event.to_dict(), lambda found: f"event {found['id']}")
        if number == arguments.times:
            return
        REAL_CLOCK.sleep(arguments.every)


def _add_replay(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", type=Path, required=True, metavar="FILE", help="jobs as JSON")
    parser.add_argument("--power", type=Path, required=True, metavar="FILE", help="series of watts")
    parser.add_argument("--column", metavar="NAME", help="column of the watts")
    _add_zone(parser)
    _add_policy(parser)


def _replay(arguments: argparse.Namespace) -> None:
    import numpy as np

    from joulery.cluster import allocate, read_jobs
    from joulery.grid import read_signal

    jobs = read_jobs(arguments.jobs)
    series = read_signal(arguments.power, arguments.column, zone=_zone(arguments.zone))
    shares = [
        allocate(jobs, watts, arguments.policy, alpha=arguments.alpha, may_pause=True)
        for watts in series.values
    ]
    mean = np.mean([found.performance for found in shares], axis=0)
    used = np.array([found.used_watts for found in shares])
    whole = replace(
        shares[0],
        budget_watts=float(np.mean(series.values)),
        used_watts=float(used.mean()),
        watts=np.mean([found.watts for found in shares], axis=0),
        performance=mean,
        paused=mean == 0,
    )
    document = {"steps": len(shares), "step_seconds": series.step_seconds, **whole.to_dict()}
    _show(arguments, document, _allocation_text)


def _add_prolog(parser: argparse.ArgumentParser) -> None:
    _add_state(parser)


def _prolog(arguments: argparse.Namespace) -> None:
    script = _PROLOG.format(state=arguments.state.resolve())
    _show(arguments, {"prolog": script}, lambda found: str(found["prolog"]).rstrip("\n"))


def _show(
    arguments: argparse.Namespace, document: dict[str, Any], text: Callable[[dict[str, Any]], str]
) -> None:
    shown = json.dumps(document) if arguments.json else text(document)
    sys.stdout.write(shown + "\n")


_ACTIONS = {
    "allocate": ("share a power budget over jobs, once", _add_allocate),
    "simulate": ("what would have happened to a trace under a budget", _add_simulate),
    "replay": ("jobs under a recorded power, step by step", _add_replay),
    "shape": ("power of a cluster over time, when the grid is best", _add_shape),
    "agent": ("keep a Slurm cluster under its budget", _add_agent),
    "status": ("power against budget, and every job's share", _add_status),
    "event": ("announce a demand-response event to the agent", _add_event),
    "listen": ("announce the events of an OpenADR 3 server to the agent", _add_listen),
    "prolog": ("print the script that Slurm runs before a job", _add_prolog),
}
_RUN = {
    "allocate": _allocate,
    "simulate": _simulate,
    "replay": _replay,
    "shape": _shape,
    "agent": _agent,
    "status": _status,
    "event": _event,
    "listen": _listen,
    "prolog": _prolog,
}
