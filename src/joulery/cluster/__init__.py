"""Many jobs, one power budget: fair and exact shares of a cluster's watts.

Examples:
    >>> from joulery.cluster import PowerCurve, ClusterJob, allocate
    >>> curve = PowerCurve.from_points([(100, 30), (200, 80), (300, 100)])
    >>> job = ClusterJob("resnet", curve, gpus=4)
    >>> allocate([job], budget_watts=1000).worst_performance
    0.9
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.cluster._agent import Agent
    from joulery.cluster._aggregate import aggregate
    from joulery.cluster._allocate import (
        FAIR_SHARE,
        POLICIES,
        Allocation,
        Allocator,
        allocate,
        filling_path,
        replay,
    )
    from joulery.cluster._budget import Budget, Cap, read_budget
    from joulery.cluster._events import announce, mirror_events, withdraw
    from joulery.cluster._history import DeficitLedger, oversubscribed_watts, ramped
    from joulery.cluster._jobs import (
        ClusterJob,
        Fleet,
        PowerCurve,
        flexibility_floor,
        read_jobs,
    )
    from joulery.cluster._nodes import DeviceState, NodeClient
    from joulery.cluster._settings import AgentSettings, read_agent_settings
    from joulery.cluster._shaping import (
        StartPlan,
        WorkPlan,
        best_start,
        flexibility_price,
        plan_work,
    )
    from joulery.cluster._slurm import EngineJob, Slurm, SlurmRest

__all__ = [
    "FAIR_SHARE",
    "POLICIES",
    "Agent",
    "AgentSettings",
    "Allocation",
    "Allocator",
    "Budget",
    "Cap",
    "ClusterJob",
    "DeficitLedger",
    "DeviceState",
    "EngineJob",
    "Fleet",
    "NodeClient",
    "PowerCurve",
    "Slurm",
    "SlurmRest",
    "StartPlan",
    "WorkPlan",
    "aggregate",
    "allocate",
    "announce",
    "best_start",
    "filling_path",
    "flexibility_floor",
    "flexibility_price",
    "mirror_events",
    "oversubscribed_watts",
    "plan_work",
    "ramped",
    "read_agent_settings",
    "read_budget",
    "read_jobs",
    "replay",
    "withdraw",
]

__getattr__ = lazy(__name__)
