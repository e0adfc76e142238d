"""Replay a cluster's trace under a power budget."""

from joulery.simulate.cluster._engine import ClusterReplay, Site, budget_steps, simulate
from joulery.simulate.cluster._summary import summarize
from joulery.simulate.cluster._traces import Trace, TracedJob, read_trace, read_traced_jobs

__all__ = [
    "ClusterReplay",
    "Site",
    "Trace",
    "TracedJob",
    "budget_steps",
    "read_trace",
    "read_traced_jobs",
    "simulate",
    "summarize",
]
