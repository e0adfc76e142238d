"""Policies that choose the batch size and power limit of a recurring job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.jobs.policies._base import (
        ActionKind,
        Actions,
        EstimatesCosts,
        Outcomes,
        Policy,
        RunEnd,
    )
    from joulery.jobs.policies._counter_rng import CounterRng, Floats, Seeds, mix, unit_interval
    from joulery.jobs.policies._default import DefaultPolicy, OraclePolicy
    from joulery.jobs.policies._grid import GridSearchPolicy
    from joulery.jobs.policies._job_batch import JobBatch
    from joulery.jobs.policies._registry import make_policy, policy_names
    from joulery.jobs.policies._zeus import Exploration, ZeusBeliefs, ZeusPolicy
    from joulery.jobs.policies.bayesian._beliefs import BayesianBeliefs
    from joulery.jobs.policies.bayesian._policy import BayesianPolicy
    from joulery.jobs.policies.bayesian._warm_start import WarmStart

__all__ = [
    "ActionKind",
    "Actions",
    "BayesianBeliefs",
    "BayesianPolicy",
    "CounterRng",
    "DefaultPolicy",
    "EstimatesCosts",
    "Exploration",
    "Floats",
    "GridSearchPolicy",
    "JobBatch",
    "OraclePolicy",
    "Outcomes",
    "Policy",
    "RunEnd",
    "Seeds",
    "WarmStart",
    "ZeusBeliefs",
    "ZeusPolicy",
    "make_policy",
    "mix",
    "policy_names",
    "unit_interval",
]

__getattr__ = lazy(__name__)
