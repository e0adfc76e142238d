"""Replay traces of training with the same policies that decide for real jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.simulate._drift import (
        discarded_becomes_best,
        optimum_moves,
        parse_drift,
        scale_epochs,
    )
    from joulery.simulate._environment import Environment, Moment, Slices
    from joulery.simulate._job_groups import JobGroups, generate_groups, read_groups
    from joulery.simulate._log import PolicySummary, SimulationLog, summaries, write_actions
    from joulery.simulate._recurring import SimulationOptions, horizon, make_oracle, simulate
    from joulery.simulate._recurring_cluster import (
        ALL_JOBS,
        ReplayLog,
        ReplaySummary,
        replay,
        summarize_replays,
    )
    from joulery.simulate._traces import Traces, read_traces
    from joulery.simulate._workload import TracedWorkload

__all__ = [
    "ALL_JOBS",
    "Environment",
    "JobGroups",
    "Moment",
    "PolicySummary",
    "ReplayLog",
    "ReplaySummary",
    "SimulationLog",
    "SimulationOptions",
    "Slices",
    "TracedWorkload",
    "Traces",
    "discarded_becomes_best",
    "generate_groups",
    "horizon",
    "make_oracle",
    "optimum_moves",
    "parse_drift",
    "read_groups",
    "read_traces",
    "replay",
    "scale_epochs",
    "simulate",
    "summaries",
    "summarize_replays",
    "write_actions",
]

__getattr__ = lazy(__name__)
