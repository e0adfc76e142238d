"""Policies that choose the batch size and power limit of a recurring job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.jobs.policies._base import (
        ActionKind as ActionKind,
        Actions as Actions,
        CarriesOver as CarriesOver,
        ChoosesLimits as ChoosesLimits,
        EstimatesCosts as EstimatesCosts,
        Outcomes as Outcomes,
        Policy as Policy,
        RunEnd as RunEnd,
    )
    from joulery.jobs.policies._counter_rng import (
        CounterRng as CounterRng,
        Floats as Floats,
        Seeds as Seeds,
        mix as mix,
        unit_interval as unit_interval,
    )
    from joulery.jobs.policies._default import (
        DefaultPolicy as DefaultPolicy,
        OraclePolicy as OraclePolicy,
    )
    from joulery.jobs.policies._grid import GridSearchPolicy as GridSearchPolicy
    from joulery.jobs.policies._job_batch import JobBatch as JobBatch
    from joulery.jobs.policies._registry import (
        find_policy as find_policy,
        make_policy as make_policy,
        policy_names as policy_names,
        policy_parameters as policy_parameters,
        register_policy as register_policy,
    )
    from joulery.jobs.policies._scalar import (
        BatchChoice as BatchChoice,
        ScalarAdapter as ScalarAdapter,
        ScalarPolicy as ScalarPolicy,
        SearchSpace as SearchSpace,
        TrainedRun as TrainedRun,
    )
    from joulery.jobs.policies._zeus import (
        Exploration as Exploration,
        ZeusBeliefs as ZeusBeliefs,
        ZeusPolicy as ZeusPolicy,
    )
    from joulery.jobs.policies.bayesian._beliefs import BayesianBeliefs as BayesianBeliefs
    from joulery.jobs.policies.bayesian._policy import BayesianPolicy as BayesianPolicy
    from joulery.jobs.policies.bayesian._warm_start import WarmStart as WarmStart


__getattr__, __dir__ = lazy(__name__)
