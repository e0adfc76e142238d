"""Plan the clock of every instruction of a pipeline-parallel training iteration, and run the plan.

Examples:
    >>> from joulery.pipeline import plan_pipeline
    >>> plan = plan_pipeline("gpt3.csv", schedule="1f1b", microbatches=32)     # doctest: +SKIP
    >>> plan.for_straggler(1.1).joules                                         # doctest: +SKIP
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from joulery.lazy import lazy

if TYPE_CHECKING:
    from joulery.pipeline._instructions import (
        BACKWARD,
        BACKWARD_INPUT,
        BACKWARD_WEIGHT,
        FORWARD,
        LETTERS,
        OPTIMIZER,
        REDUCE,
        Instruction,
    )
    from joulery.pipeline._savings import Saving, plan_saving
    from joulery.pipeline._search import (
        ScheduleCandidate,
        ScheduleComparison,
        ScheduleSearch,
        plan_pipeline,
        search_schedules,
    )
    from joulery.pipeline.planning._planner import (
        ClockPlan,
        PipelinePlan,
        Timetable,
        load_plan,
    )
    from joulery.pipeline.planning._problem import (
        ClockChoices,
        PipelineConfig,
        PipelineProblem,
        build_problem,
    )
    from joulery.pipeline.planning._rank_plan import RankPlan, RankStep, load_rank_plan
    from joulery.pipeline.profiles._profiler import ClockProfiler, write_profile
    from joulery.pipeline.profiles._read import Profiles, profiles_from_rows, read_profiles
    from joulery.pipeline.runtime._client import CoordinatorClient
    from joulery.pipeline.runtime._clock_setter import ClockSetter
    from joulery.pipeline.runtime._controller import ClockController, IterationTimes
    from joulery.pipeline.runtime._coordinator import Coordinator
    from joulery.pipeline.runtime._plan_cache import PlanCache
    from joulery.pipeline.runtime._straggler import StragglerPolicy
    from joulery.pipeline.schedules._check import dependencies
    from joulery.pipeline.schedules._custom import custom_schedule, read_schedule
    from joulery.pipeline.schedules._schedule import SCHEDULES, Schedule, make_schedule

__all__ = [
    "BACKWARD",
    "BACKWARD_INPUT",
    "BACKWARD_WEIGHT",
    "FORWARD",
    "LETTERS",
    "OPTIMIZER",
    "REDUCE",
    "SCHEDULES",
    "ClockChoices",
    "ClockController",
    "ClockPlan",
    "ClockProfiler",
    "ClockSetter",
    "Coordinator",
    "CoordinatorClient",
    "Instruction",
    "IterationTimes",
    "PipelineConfig",
    "PipelinePlan",
    "PipelineProblem",
    "PlanCache",
    "Profiles",
    "RankPlan",
    "RankStep",
    "Saving",
    "Schedule",
    "ScheduleCandidate",
    "ScheduleComparison",
    "ScheduleSearch",
    "StragglerPolicy",
    "Timetable",
    "build_problem",
    "custom_schedule",
    "dependencies",
    "load_plan",
    "load_rank_plan",
    "make_schedule",
    "plan_pipeline",
    "plan_saving",
    "profiles_from_rows",
    "read_profiles",
    "read_schedule",
    "search_schedules",
    "write_profile",
]

__getattr__ = lazy(__name__)
