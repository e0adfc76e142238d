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
    from joulery.cluster._agent import Agent as Agent
    from joulery.cluster._aggregate import aggregate as aggregate
    from joulery.cluster._allocate import (
        POLICIES as POLICIES,
        Allocation as Allocation,
        Allocator as Allocator,
        allocate as allocate,
        replay as replay,
    )
    from joulery.cluster._budget import Budget as Budget, Cap as Cap, read_budget as read_budget
    from joulery.cluster._events import (
        announce as announce,
        mirror_events as mirror_events,
        withdraw as withdraw,
    )
    from joulery.cluster._flat import FlatAllocator as FlatAllocator
    from joulery.cluster._history import DeficitLedger as DeficitLedger
    from joulery.cluster._install import SitePlan as SitePlan, write_site as write_site
    from joulery.cluster._jobs import (
        ClusterJob as ClusterJob,
        Fleet as Fleet,
        PowerCurve as PowerCurve,
        flexibility_floor as flexibility_floor,
        read_jobs as read_jobs,
    )
    from joulery.cluster._meters import (
        FeederMeter as FeederMeter,
        MeterReading as MeterReading,
        PrometheusMeter as PrometheusMeter,
        open_feeder_meter as open_feeder_meter,
    )
    from joulery.cluster._nodes import (
        DeviceState as DeviceState,
        NodeClient as NodeClient,
        NodeUnreachableError as NodeUnreachableError,
    )
    from joulery.cluster._settings import (
        AgentSettings as AgentSettings,
        read_agent_settings as read_agent_settings,
    )
    from joulery.cluster._shaping import (
        StartPlan as StartPlan,
        WorkPlan as WorkPlan,
        best_start as best_start,
        correct_forecast as correct_forecast,
        flexibility_price as flexibility_price,
        follow_forecasts as follow_forecasts,
        plan_work as plan_work,
    )
    from joulery.cluster._slurm import (
        EngineError as EngineError,
        EngineJob as EngineJob,
        Slurm as Slurm,
        SlurmEnergy as SlurmEnergy,
        SlurmRest as SlurmRest,
        expand_hosts as expand_hosts,
        job_records as job_records,
        record_energy as record_energy,
        run_command as run_command,
    )
    from joulery.cluster._status import (
        AgentJob as AgentJob,
        AgentStatus as AgentStatus,
        metrics_text as metrics_text,
        read_job_energy as read_job_energy,
        read_status as read_status,
    )
    from joulery.cluster._swings import (
        PowerTrace as PowerTrace,
        SwingLimits as SwingLimits,
        read_power_trace as read_power_trace,
        read_swing_limits as read_swing_limits,
        swings_document as swings_document,
    )


__getattr__, __dir__ = lazy(__name__)
