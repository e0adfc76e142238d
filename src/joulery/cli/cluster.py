"""``joulery cluster``: many jobs under one power budget, allocated, simulated and on Slurm."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from joulery import cluster, grid
from joulery.cli.cluster_site import SITE_ACTIONS, moment
from joulery.cli.dispatch import Output
from joulery.cli.options import (
    GRID_OPTION,
    Action,
    duration,
    file,
    flag,
    number,
    option,
    page_option,
    watts,
    whole,
    write_file,
    written,
)
from joulery.errors import InvalidValueError
from joulery.frontier import Origin
from joulery.reports import cluster_report, table_of
from joulery.units import JOULES_PER_KILOWATT_HOUR, human

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from datetime import tzinfo

_RECOVERY_SECONDS = 900.0  # by hand
_EPILOG = """\
examples:
  joulery cluster allocate --jobs jobs.json --budget 20kW
  joulery cluster simulate --trace trace.csv --jobs jobs.json --gpus 64 --budget 20kW
  joulery cluster agent --settings agent.toml
  joulery cluster event --state state --id peak --reduce 25% --duration 1h
  joulery cluster status --state state --watch
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
    pairs = [part.partition("=") for part in text.split(",")]
    _refuse_repeated([name for name, _, _ in pairs], text)
    return {name: whole(0, 10**9)(amount) for name, _, amount in pairs}


def _budget_steps(text: str) -> list[tuple[float, float]]:
    """A power, or times and powers in steps."""
    pairs = [part.rpartition(":") for part in text.split(",")]
    steps = [(duration(time or "0"), watts(power)) for time, _, power in pairs]
    _refuse_repeated([time for time, _ in steps], text)
    return steps


def _refuse_repeated(keys: list[Any], text: str) -> None:
    if len({*keys}) < len(keys):
        raise InvalidValueError(f"{text!r} gives the same twice", remedy="leave one of them out")


def _clock_time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).astimezone().isoformat(timespec="seconds")


def _allocate(arguments: argparse.Namespace) -> Output:
    jobs = cluster.read_jobs(arguments.jobs)
    tree = cluster.read_budget(arguments.tree) if arguments.tree else None
    if tree is None and arguments.budget is None:
        raise InvalidValueError("no budget", remedy="give --budget 20kW, or --tree FILE")
    if tree and arguments.budget not in (None, tree.caps[0].watts, math.inf):
        stated = tree.caps[0].watts
        if math.isfinite(stated):
            raise InvalidValueError(
                f"--budget {arguments.budget:g} W contradicts {arguments.tree}, "
                f"which gives {tree.names[0]} {stated:g} W",
                remedy="leave out one of them",
            )
    shares = cluster.allocate(
        jobs,
        arguments.budget,
        arguments.policy,
        budget=tree,
        alpha=_alpha(arguments),
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
    cost = "" if price is None else f"each MWh saved delays jobs by {price:.0f} GPU-hours\n"
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
        alpha=_alpha(arguments),
    )
    carbon = None
    if arguments.grid:
        carbon = grid.carbon_intensity(arguments.grid, zone=arguments.zone)
    price = None
    if arguments.price:
        price = grid.provider_signal(arguments.price)
        price = price or grid.read_signal(Path(arguments.price), zone=arguments.zone)
    summary = summarize(simulate(trace, site), carbon, price)
    report = cluster_report(summary, f"{arguments.trace.name}: {site.policy}, {site.queue}")
    document = {
        "provenance": Origin.SIMULATED.value,
        "policy": site.policy,
        "queue": site.queue,
        **summary,
    }
    return Output(document, report, page=arguments.html)


def _replay(arguments: argparse.Namespace) -> Output:
    jobs = cluster.read_jobs(arguments.jobs)
    series = grid.read_signal(arguments.power, arguments.column, zone=arguments.zone)
    mean = cluster.replay(jobs, series.values, arguments.policy, _alpha(arguments))
    steps = {"steps": len(series.values), "step_seconds": series.step_seconds}
    document = {**steps, **mean.to_dict()}
    return Output(document, lambda: _allocation_text(document))


def _shape(arguments: argparse.Namespace) -> Output:
    site, _ = cluster.aggregate(cluster.read_jobs(arguments.jobs))
    forecasts = [grid.carbon_intensity(text, zone=arguments.zone) for text in arguments.signal]
    forecasts.sort(key=lambda forecast: forecast.start)
    start, work = arguments.start, arguments.work
    deadline, may_pause = start + arguments.deadline, arguments.pause
    if arguments.actual:
        signal = grid.carbon_intensity(arguments.actual, zone=arguments.zone)
        plan = cluster.follow_forecasts(
            site.curve, work, signal, forecasts, start, deadline, may_pause=may_pause
        )
    else:
        signal = forecasts[-1]
        if arguments.now is not None:
            signal = cluster.correct_forecast(signal, arguments.now, start, deadline)
        plan = cluster.plan_work(site.curve, work, signal, start, deadline, may_pause=may_pause)
    _, seconds, values = signal.window(start, start + work)
    at_once = float(seconds @ values) * site.curve.most_watts / JOULES_PER_KILOWATT_HOUR
    document = {**plan.to_dict(), "amount_at_once": at_once}
    if arguments.out:
        budget = plan.budget(min(signal.step_seconds, 3600.0))
        _write_budget(arguments.out, budget, arguments.overhead)
    return Output(document, lambda: _shape_text(document))


def _write_budget(path: Path, budget: grid.Signal, overhead_watts: float) -> None:
    """Write a series of IT watts as the agent takes it, from those of jobs."""
    times = (budget.start + budget.step_seconds * n for n in count())
    watts = (overhead_watts + value for value in budget.values)
    rows = [f"{_clock_time(t)},{w:.3f}" for t, w in zip(times, watts, strict=False)]
    write_file(path, "\n".join(["timestamp,watts", *rows, ""]), "--out")


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


def _swings(arguments: argparse.Namespace) -> Output:
    limits = cluster.SwingLimits()
    if arguments.limits:
        limits = cluster.read_swing_limits(arguments.limits)
    trace = cluster.read_power_trace(arguments.trace)
    document = cluster.swings_document(trace, limits)
    code = 0 if document["is_within"] else 1
    return Output(document, lambda: _swings_text(document), code)


def _swings_text(document: Mapping[str, Any]) -> str:
    columns = {
        ">range": lambda row: human(row["range_watts"], "W"),
        ">ramp": lambda row: human(row["ramp_watts_per_second"], "W/s"),
        ">band": lambda row: human(row["band_watts"], "W"),
        ">strongest": lambda row: human(row["hertz"], "Hz"),
        "above": lambda row: ", ".join(n.partition("_")[0] for n in row["flaws"]) or "nothing",
    }
    swings = table_of(
        [{"name": name, **row} for name, row in document["swings"].items()],
        {"power of": lambda row: row["name"], ">mean": lambda r: human(r["mean_watts"], "W")}
        | columns,
    )
    swings += "".join(f"\n{text}" for text in document["messages"])
    if not document["remedies"]:
        return swings
    remedies = table_of(
        document["remedies"],
        {
            "remedy": lambda row: row["name"],
            ">at": lambda row: human(row["watts"], "W"),
            ">energy": lambda row: f"{100 * row['energy_share']:.1f} %",
        }
        | columns,
    )
    return f"{swings}\n\n{remedies}"


def _read_policy(text: str) -> str:
    """Name of a policy, checked when it is read: help must not wait for NumPy."""
    if text not in cluster.POLICIES:
        raise InvalidValueError(
            f"{text!r} is not a policy", remedy=f"use one of {', '.join(cluster.POLICIES)}"
        )
    return text


def _alpha(arguments: argparse.Namespace) -> float:
    if arguments.alpha is None:
        return 2.0
    if arguments.policy != "alpha-fair":
        raise InvalidValueError(
            f"--alpha with --policy {arguments.policy}", remedy="give --policy alpha-fair"
        )
    return float(arguments.alpha)


_POLICY = (
    option(
        "--policy",
        "rule of the shares: fair (default), max-min, throughput, equal-watts, equal-fraction or "
        "alpha-fair",
        "NAME",
        _read_policy,
        default="fair",
    ),
    option("--alpha", "for alpha-fair (2)", read=number(0.0)),
)
_JOBS = file("--jobs", "jobs as JSON", required=True)
_ZONE = option("--zone", "of times without one, such as UTC", "NAME", _zone)
_ALLOCATE_EXAMPLE = """\
FILE lists jobs with watts of one GPU and throughput: {"jobs": [{"id": "resnet", "gpus": 4,
"points": [[100, 0.60], [160, 0.97], [250, 1.0]]}]}. A frontier in "frontier" will do as well.

example: joulery cluster allocate --jobs jobs.json --budget 20kW
"""
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
    option("--price", "price per kWh: a series, or entsoe-prices:DE", "SOURCE"),
    _ZONE,
    page_option("write a page with the figures and the chart"),
    *_POLICY,
)
_REPLAY = (
    _JOBS,
    file("--power", "series of watts", required=True),
    option("--column", "column of the watts", "NAME"),
    _ZONE,
    *_POLICY,
)
_SWINGS = (
    file(
        "trace", "recorded power: CSV or Parquet, a column of times and one of watts for each job"
    ),
    file("--limits", "what the utility allows, as TOML"),
)
_SHAPE = (
    _JOBS,
    option(
        "--signal",
        "carbon or price per kWh, or each forecast of it: a series, or a provider",
        "SOURCE",
        action="append",
        required=True,
    ),
    option("--now", "its value at the start, by which the forecast is corrected", "X", number(0.0)),
    option("--actual", "what it turned out to be: says what following would have cost", "SOURCE"),
    option("--start", "ISO with zone", "TIME", moment, required=True),
    option("--deadline", "from the start, such as 12h", "TIME", duration, required=True),
    option("--work", "at full speed, such as 4h", "TIME", duration, required=True),
    flag("--pause", "all jobs may be paused together"),
    _ZONE,
    written("--out", "budget as CSV, for the agent", ".csv"),
    option(
        "--overhead",
        "hosts, network and GPUs without a job, which the budget in --out holds too",
        "W",
        watts,
        default=0.0,
    ),
)
COMMAND = Action(
    epilog=_EPILOG,
    actions={
        "allocate": Action(
            _allocate, _ALLOCATE, "share a power budget over jobs, once", _ALLOCATE_EXAMPLE
        ),
        "simulate": Action(_simulate, _SIMULATE, "what a budget would have done to a trace"),
        "replay": Action(_replay, _REPLAY, "jobs under a recorded power, step by step"),
        "shape": Action(_shape, _SHAPE, "power over time, when the grid is best"),
        "swings": Action(_swings, _SWINGS, "range, ramp and band of a recorded power"),
        **SITE_ACTIONS,
    },
)
