"""Replay traces of training on the code that decides in earnest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.simulate._drift import Drift, no_drift, parse_drift
    from joulery.simulate._environment import Environment, Moment, Slices
    from joulery.simulate._job_groups import JobGroups, generate_groups, read_groups
    from joulery.simulate._log import PolicySummary, SimulationLog, summaries, write_actions
    from joulery.simulate._recurring import SimulationOptions, horizon, make_oracle, simulate
    from joulery.simulate._recurring_cluster import (
        ALL_JOBS,
        ReplayLog,
        ReplayOptions,
        ReplaySummary,
        replay,
        summarize_replays,
    )
    from joulery.simulate._workload import TracedWorkload
    from joulery.simulate.traces._reader import Traces, read_traces

__all__ = [
    "ALL_JOBS",
    "Drift",
    "Environment",
    "JobGroups",
    "Moment",
    "PolicySummary",
    "ReplayLog",
    "ReplayOptions",
    "ReplaySummary",
    "SimulationLog",
    "SimulationOptions",
    "Slices",
    "TracedWorkload",
    "Traces",
    "generate_groups",
    "horizon",
    "make_oracle",
    "no_drift",
    "parse_drift",
    "read_groups",
    "read_traces",
    "replay",
    "simulate",
    "summaries",
    "summarize_replays",
    "write_actions",
]

__getattr__ = lazy(__name__)
