"""Replay traces of training with the same policies that decide for real jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.simulate._drift import (
        discarded_becomes_best as discarded_becomes_best,
        optimum_moves as optimum_moves,
        parse_drift as parse_drift,
        scale_epochs as scale_epochs,
    )
    from joulery.simulate._environment import (
        Environment as Environment,
        Moment as Moment,
        Slices as Slices,
    )
    from joulery.simulate._job_groups import (
        JobGroups as JobGroups,
        generate_groups as generate_groups,
        read_groups as read_groups,
    )
    from joulery.simulate._log import (
        PolicySummary as PolicySummary,
        SimulationLog as SimulationLog,
        summaries as summaries,
        write_actions as write_actions,
    )
    from joulery.simulate._recurring import (
        SimulationConfig as SimulationConfig,
        horizon as horizon,
        make_oracle as make_oracle,
        simulate as simulate,
    )
    from joulery.simulate._recurring_cluster import (
        ALL_JOBS as ALL_JOBS,
        ReplayLog as ReplayLog,
        ReplaySummary as ReplaySummary,
        replay as replay,
        summarize_replays as summarize_replays,
    )
    from joulery.simulate._traces import Traces as Traces, read_traces as read_traces
    from joulery.simulate._workload import TracedWorkload as TracedWorkload


__getattr__, __dir__ = lazy(__name__)
