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
        BACKWARD as BACKWARD,
        BACKWARD_INPUT as BACKWARD_INPUT,
        BACKWARD_WEIGHT as BACKWARD_WEIGHT,
        FORWARD as FORWARD,
        LETTERS as LETTERS,
        OPTIMIZER as OPTIMIZER,
        REDUCE as REDUCE,
        Instruction as Instruction,
    )
    from joulery.pipeline._savings import (
        Saving as Saving,
        budget_saving as budget_saving,
        plan_saving as plan_saving,
    )
    from joulery.pipeline._search import (
        ScheduleCandidate as ScheduleCandidate,
        ScheduleComparison as ScheduleComparison,
        ScheduleSearch as ScheduleSearch,
        plan_pipeline as plan_pipeline,
        search_schedules as search_schedules,
    )
    from joulery.pipeline.planning._holding import (
        MINIMUM_HOLD_SECONDS as MINIMUM_HOLD_SECONDS,
        HeldPlan as HeldPlan,
        hold_clocks as hold_clocks,
    )
    from joulery.pipeline.planning._planner import (
        ClockPlan as ClockPlan,
        PipelinePlan as PipelinePlan,
        Timetable as Timetable,
        load_plan as load_plan,
    )
    from joulery.pipeline.planning._problem import (
        ClockChoices as ClockChoices,
        PipelineConfig as PipelineConfig,
        PipelineProblem as PipelineProblem,
        build_problem as build_problem,
    )
    from joulery.pipeline.planning._rank_plan import (
        RankPlan as RankPlan,
        RankStep as RankStep,
        load_rank_plan as load_rank_plan,
    )
    from joulery.pipeline.profiles._profiler import (
        ClockProfiler as ClockProfiler,
        write_profile as write_profile,
    )
    from joulery.pipeline.profiles._read import (
        Profiles as Profiles,
        profiles_from_rows as profiles_from_rows,
        read_profiles as read_profiles,
    )
    from joulery.pipeline.runtime._client import CoordinatorClient as CoordinatorClient
    from joulery.pipeline.runtime._clock_setter import ClockSetter as ClockSetter
    from joulery.pipeline.runtime._controller import (
        ClockController as ClockController,
        IterationTimes as IterationTimes,
    )
    from joulery.pipeline.runtime._coordinator import (
        Coordinator as Coordinator,
        CoordinatorState as CoordinatorState,
        hold_pace as hold_pace,
    )
    from joulery.pipeline.runtime._plan_cache import PlanCache as PlanCache
    from joulery.pipeline.runtime._straggler import StragglerPolicy as StragglerPolicy
    from joulery.pipeline.schedules._check import dependencies as dependencies
    from joulery.pipeline.schedules._custom import (
        custom_schedule as custom_schedule,
        read_schedule as read_schedule,
    )
    from joulery.pipeline.schedules._schedule import (
        SCHEDULES as SCHEDULES,
        Schedule as Schedule,
        make_schedule as make_schedule,
    )


__getattr__, __dir__ = lazy(__name__)
