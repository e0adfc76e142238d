"""Decide which plan each pipeline follows, from how long its iterations take.

Data-parallel pipelines wait for each other after every iteration. How late one is shows in the time
at which its own instructions end, compared with its plan. Only lateness relative to the most
punctual pipeline counts: a model that is short for all pipelines makes none late. Where single
instructions take other times than profiled, the profile has drifted and the pipeline is planned
anew, as a whole.

Slowing down waits for several iterations to agree, since single ones are often slow by chance.
Speeding up does not: nothing runs too fast by chance, and a job that waits for a pipeline which has
recovered loses time.

A report costs the same however many pipelines there are, and decisions are made once per iteration.
Numbers of iterations are compared for equality only, so that they may restart at any time.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from joulery.errors import InfeasibleError, InvalidValueError
from joulery.pipeline.runtime._plan_cache import PlanCache
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from joulery.pipeline.planning._problem import PipelineProblem
    from joulery.pipeline.planning._rank_plan import RankPlan
    from joulery.pipeline.runtime._controller import IterationTimes

    Work = tuple[int, str]

# Iterations whose median decides whether a pipeline is late, and how many of them are needed; by
# hand.
_WINDOW, _LEAST = 5, 3
# Share behind the others from which on a pipeline is late, and below which it no longer is; by
# hand.
_LATE, _PUNCTUAL = 0.03, 0.015
# Share by which the slowdown must change before new plans are given out; by hand.
_STEP = 0.01
# Iterations between a report and the first one of a new plan, so that every rank has it in time; by
# hand.
_LEAD_ITERATIONS = 2
# Iterations whose reports may be incomplete at a time; the first of them is given up; by hand.
_MAX_OPEN = 64
# Iterations of the others without a complete one of its own after which a pipeline is taken to be
# gone; by hand: one lost report or two must not count.
_LEASE_ITERATIONS = 3
# A number this far below the newest is that of a run which counts from 0 again; by hand.
_RESTART = 64
# Reports per iteration whose instructions are looked at for drift: keeps the cost of large jobs
# within milliseconds; by hand.
_MAX_LOOKS = 256
# Ratios of measured to planned time that are kept, and needed, before drift is looked for; by hand.
_DRIFT_WINDOW, _DRIFT_LEAST = 64, 12
# Beyond this share, and beyond chance by so many standard errors of all ratios or of the latest, a
# profile is out of date; by hand.
_DRIFT_SHARE, _DRIFT_SIGMAS, _LATEST_SIGMAS = 0.03, 4.0, 6.0
# From the median absolute deviation to a standard error of the median, for normal noise.
_SIGMA_OF_MAD, _MEDIAN_PENALTY = 1.4826, 1.2533


class LatenessTracker:
    """Lateness of each pipeline.

    Args:
        pipelines: Number of pipelines.
    """

    def __init__(self, pipelines: int) -> None:
        if pipelines < 1:
            raise InvalidValueError(f"cannot run {pipelines} pipelines", remedy="give 1 or more")
        self._factors = [1.0] * pipelines
        self._usual: list[float | None] = [None] * pipelines
        self._stale = False
        self._ratios: list[deque[float]] = [deque(maxlen=_WINDOW) for _ in range(pipelines)]
        self._late = [False] * pipelines
        # Iterations until measurements may overrule a notice, which may come before its cause.
        self._noticed = [0] * pipelines

    @property
    def factors(self) -> list[float]:
        """Ratio of actual to planned time of each pipeline; 1 for those in time."""
        if self._stale:
            self._update()
        return self._factors

    def observe(self, pipeline: int, ratio: float) -> None:
        """Add how many times as long as planned a pipeline's instructions took."""
        ratios = self._ratios[pipeline]
        if self._noticed[pipeline]:
            self._noticed[pipeline] -= 1
        elif self._late[pipeline] and ratio < (1 - _PUNCTUAL) * statistics.median(ratios):
            ratios.clear()
            ratios.extend([ratio] * (_LEAST - 1))
        ratios.append(ratio)
        self._stale = True

    def latest(self, pipeline: int) -> float:
        """Lateness of a pipeline in its latest iteration alone, as a factor from 1 on."""
        factor, usual = self.factors[pipeline], self._usual[pipeline]
        if not self._ratios[pipeline] or usual is None or self._noticed[pipeline]:
            return factor
        return max(factor, self._ratios[pipeline][-1] / usual)

    def notice(self, pipeline: int, factor: float) -> None:
        """Set a pipeline's slowdown until measurements take over; 1 when it has recovered."""
        if not 0 <= pipeline < len(self._ratios):
            raise InvalidValueError(
                f"there is no pipeline {pipeline}",
                remedy=f"they are numbered 0 to {len(self._ratios) - 1}",
            )
        if finite(factor, "factor of a straggler", minimum=0.0) < 1:
            raise InvalidValueError(
                f"slowdown factor {factor:g} is below 1", remedy="give a factor from 1 on"
            )
        self._update()
        usual = self._usual[pipeline] or 1.0
        self._ratios[pipeline].clear()
        if factor > 1:
            self._ratios[pipeline].extend([usual * factor] * _WINDOW)
        self._late[pipeline] = factor > 1
        self._noticed[pipeline] = _LEAST if factor > 1 else 0
        self._stale = True

    def _update(self) -> None:
        self._stale = False
        medians = [statistics.median(r) if len(r) >= _LEAST else math.inf for r in self._ratios]
        best = min(range(len(medians)), key=medians.__getitem__)
        second = min((m for p, m in enumerate(medians) if p != best), default=math.inf)
        for pipeline, median in enumerate(medians):
            # The most punctual of the others.
            usual = second if pipeline == best else medians[best]
            self._usual[pipeline] = usual if math.isfinite(usual) else None
            factor = 1.0
            if math.isfinite(median):
                # Without another pipeline to compare with, only a notice counts.
                alone = median if self._late[pipeline] else 1.0
                factor = median / usual if math.isfinite(usual) else alone
            self._late[pipeline] = factor > 1 + (_PUNCTUAL if self._late[pipeline] else _LATE)
            if not self._late[pipeline]:
                self._factors[pipeline] = 1.0
            elif abs(factor / self._factors[pipeline] - 1) > _STEP:
                self._factors[pipeline] = factor


def _drift(ratios: Sequence[float]) -> float:
    """The median ratio of measured to planned times if it differs beyond chance, else 1."""
    latest = [ratios[k] for k in range(-min(_DRIFT_LEAST, len(ratios)), 0)]
    if abs(statistics.median(latest) - 1) <= _DRIFT_SHARE / 2:
        return 1.0  # whatever it was, it is over; most work ends here
    factor = _beyond_chance(latest, _LATEST_SIGMAS)
    return factor if factor != 1.0 else _beyond_chance(ratios, _DRIFT_SIGMAS)


def _beyond_chance(ratios: Collection[float], sigmas: float) -> float:
    middle = statistics.median(ratios)
    if abs(middle - 1) <= _DRIFT_SHARE:
        return 1.0
    spread = statistics.median([abs(ratio - middle) for ratio in ratios])
    error = _MEDIAN_PENALTY * _SIGMA_OF_MAD * spread / math.sqrt(len(ratios))
    return middle if abs(middle - 1) > sigmas * error else 1.0


def _factors(before: PipelineProblem, after: PipelineProblem) -> dict[Work, float]:
    """Ratio of the time of work in one problem to that in the other, where they match."""
    return {
        (item.stage, item.kind): after.profiles[profile].points[0].seconds
        / before.profiles[profile].points[0].seconds
        for item, profile in zip(before.instructions, before.profile_of.tolist(), strict=True)
        if profile < len(after.profiles)
    }


def _recovered(times: IterationTimes, factors: Mapping[Work, float]) -> bool:
    """Whether some work took less time than planned, were it planned ``factors`` times as long."""
    return any(
        _beyond_chance([ratio / factors.get(work, 1.0) for ratio in ratios], _DRIFT_SIGMAS) < 1
        for work, ratios in times.ratios.items()
        if ratios
    )


@dataclass(slots=True)
class _Pipeline:
    """State of one pipeline."""

    first: PlanCache
    plans: PlanCache
    # Seconds of the ranks that have reported, for iterations that are not complete.
    open: dict[int, dict[int, float]] = field(default_factory=dict)
    # Last complete iteration, and the round of the job in which that was.
    iteration: int = -1
    round: int = 0
    factor: float = 1.0
    waits: bool = True
    # First iteration that follows the plans, and how many times as long as before they take work
    # to be: earlier iterations are still measured by the plans before.
    since: int = 0
    # Iterations under the plans until others may slow it down: it may still be slow by itself.
    settling: int = 0
    factors: Mapping[Work, float] = field(default_factory=dict)
    # Measured over planned seconds of its latest instructions.
    ratios: defaultdict[Work, deque[float]] = field(
        default_factory=lambda: defaultdict(lambda: deque(maxlen=_DRIFT_WINDOW))
    )

    def is_early(self, number: int) -> bool:
        """Whether an iteration still followed the plans before."""
        return 0 < self.since - number <= _LEAD_ITERATIONS + 1


@dataclass(frozen=True, slots=True)
class PlanAssignment:
    """A pipeline's new plan, from an iteration on.

    Attributes:
        pipeline: Number of the pipeline.
        plans: Plans of which it follows one.
        factor: Slowdown of that plan.
        from_iteration: First iteration that follows it.
        waits: Whether others set the pace, so that the pipeline may also wait for them.
    """

    pipeline: int
    plans: PlanCache
    factor: float
    from_iteration: int
    waits: bool = True

    def rank_plan(self, rank: int) -> RankPlan:
        """The share of a rank."""
        return self.plans.ranks(self.factor, waits=self.waits)[rank]


class StragglerPolicy:
    """Keeps all pipelines at the pace of the slowest, or at one that was set from outside.

    Args:
        plans: Plans that all pipelines start with, or those of each pipeline.
        pipelines: Number of data-parallel copies, where they share plans.

    Attributes:
        newest_iteration: Latest iteration that a pipeline has completed; -1 before the first.
        pipelines: Number of data-parallel copies.
        ranks: Number of ranks of each.
        held_seconds: Iteration time that was set from outside; None without.
        share_watts: Power that others, such as a cluster's agent, leave a device, as ranks report
            it; None without.
        followed: Such a power, and the iteration time under it; None without.
        due: Whether ``decide`` has something to decide.
    """

    def __init__(self, plans: PlanCache | Sequence[PlanCache], pipelines: int = 1) -> None:
        caches = [plans] * pipelines if isinstance(plans, PlanCache) else list(plans)
        self._lateness = LatenessTracker(len(caches))
        if len({cache.problem.ranks for cache in caches}) > 1:
            raise InvalidValueError(
                "pipelines of one job differ in their ranks", remedy="plan equal numbers of stages"
            )
        self.pipelines = len(caches)
        self.ranks = caches[0].problem.ranks
        self.held_seconds: float | None = None
        self._first = caches
        self._stride = max(1, math.ceil(self.pipelines * self.ranks / _MAX_LOOKS))
        self.restart()

    def restart(self) -> None:
        """Begin anew, for a run whose ranks start with their first plans; a set pace stays."""
        self.newest_iteration = -1
        self.share_watts: float | None = None
        self.followed: tuple[float, float] | None = None
        self._lowest_share = math.inf
        self._shares: deque[float] = deque(maxlen=_WINDOW)
        self._capped_until = -1
        self._lateness = LatenessTracker(self.pipelines)
        self._all = [_Pipeline(plans, plans) for plans in self._first]
        self._returned: list[PlanAssignment] = []
        self._round = 0
        self._missing = 0
        self.due = self.held_seconds is not None

    @property
    def factors(self) -> tuple[float, ...]:
        """Slowdown of each pipeline against its fastest plan, to avoid waiting."""
        return tuple(state.factor for state in self._all)

    def current(self, pipeline: int) -> PlanAssignment | None:
        """The plan for a rank that joins late; None if that still is the first plan."""
        state = self._all[pipeline]
        if state.factor == 1.0 and state.plans is state.first:
            return None
        return PlanAssignment(pipeline, state.plans, state.factor, 0, state.waits)

    def report(self, pipeline: int, rank: int, times: IterationTimes) -> bool:
        """Add how an iteration went on one rank.

        Returns:
            Whether it is time to look for drift in the pipeline: all its ranks have reported the
            iteration now, and their instructions were looked at.

        Raises:
            InvalidValueError: There is no such rank.
        """
        # This runs for every rank of every pipeline: a call less is a millisecond less.
        if not (0 <= pipeline < self.pipelines and 0 <= rank < self.ranks):
            self.check_rank(pipeline, rank)
        state, number = self._all[pipeline], times.iteration
        by_rank = state.open.get(number)
        if by_rank is None:
            by_rank = state.open[number] = {}
            if len(state.open) > _MAX_OPEN:
                del state.open[next(iter(state.open))]
        by_rank[rank] = times.seconds
        if times.share_watts is not None and times.share_watts < self._lowest_share:
            self._lowest_share = times.share_watts
        is_capped = self._round <= self._capped_until
        looks = (number + pipeline) % self._stride == 0 and not is_capped
        if looks or (state.plans is not state.first and not is_capped):
            self._look(pipeline, state, times)
        if len(by_rank) < self.ranks:
            return False
        del state.open[number]
        # The rank that ends last determines how long the pipeline took.
        self._complete(pipeline, state, number, max(by_rank.values()) / times.planned_seconds)
        return looks

    def check_rank(self, pipeline: int, rank: int) -> None:
        """Raise InvalidValueError if there is no such rank."""
        if not (0 <= pipeline < self.pipelines and 0 <= rank < self.ranks):
            raise InvalidValueError(
                f"there is no rank {rank} of pipeline {pipeline}",
                remedy=f"{self.pipelines} pipelines of {self.ranks} ranks are numbered from 0",
            )

    def _look(self, pipeline: int, state: _Pipeline, times: IterationTimes) -> None:
        """Compare the times of instructions with the plan."""
        early = state.is_early(times.iteration)
        if state.plans is not state.first and _recovered(times, state.factors if early else {}):
            # What made it slow is over. Should some of it remain, it is found again.
            self._returned.append(self.replace_plans(pipeline, state.first))
            self.due = True
        elif not early:
            for work, ratios in times.ratios.items():
                state.ratios[work].extend([r for r in ratios if 0 < r < math.inf])

    def _complete(self, pipeline: int, state: _Pipeline, number: int, ratio: float) -> None:
        newest = self.newest_iteration
        if number > newest or newest - number > _RESTART:
            self._begin_round(number)
        state.iteration, state.round = number, self._round
        if not state.is_early(number) and self._round > self._capped_until:
            self._lateness.observe(pipeline, ratio)
            state.settling = max(0, state.settling - 1)
        self._missing -= 1
        self.due |= self._missing <= 0

    def _begin_round(self, number: int) -> None:
        """Note the first pipeline to complete an iteration; leave out those that vanished."""
        self.due |= self._missing > 0  # some have not completed the iteration before
        self.newest_iteration = number
        self._round += 1
        self._note_share()
        expired_round = self._round - _LEASE_ITERATIONS - 1
        for pipeline, state in enumerate(self._all):
            if state.round == expired_round:
                self._lateness.notice(pipeline, 1.0)
                state.plans, state.factor, state.waits = state.first, 1.0, True
        self._missing = sum(state.round > expired_round for state in self._all)

    def _note_share(self) -> None:
        """Note the lowest share of an iteration: it counts at once, a higher one once it lasts."""
        self._shares.append(self._lowest_share)
        self._lowest_share, share = math.inf, min(self._shares)
        steps = math.floor(math.log(share) / math.log1p(_STEP)) if share < math.inf else 0
        self.share_watts = (1 + _STEP) ** steps if share < math.inf else None
        if self.share_watts is not None and self._peak_watts() > (1 + _STEP) * share:
            # Caps make work slower than planned, which is neither drift nor lateness.
            self._capped_until = self._round + _LEAD_ITERATIONS + 2
            for state in self._all:
                state.ratios.clear()

    def _peak_watts(self) -> float:
        """Highest power of a device in any second under the plans that pipelines follow."""
        plans = {(s.plans, s.factor, s.waits) for s in self._all}
        ranks = [p for cache, factor, waits in plans for p in cache.ranks(factor, waits=waits)]
        return sum(plan.peak_watts or 0.0 for plan in ranks) / len(ranks)

    def pace_under(self, watts: float) -> float:
        """The iteration time at which no device draws more, with its plans; from any thread."""
        pace = max(plans.seconds_under(watts) for plans in set(self._first))
        for plans in set(self._first):
            if pace > plans.fastest_seconds * (1 + 1e-6):  # a little slower would be full speed
                pace = max(pace, (1 + 2 * _PUNCTUAL) * plans.fastest_seconds)
            plans.ranks(max(1.0, pace / plans.fastest_seconds), waits=False)
        return pace

    def follow(self, share: tuple[float, float] | None) -> None:
        """Keep to a power and the iteration time under it, from ``pace_under``; None for none."""
        self.followed = share
        self.due = True

    def notice(self, pipeline: int, factor: float) -> None:
        """Set that a pipeline is ``factor`` times as slow as planned; 1 if it recovered."""
        self._lateness.notice(pipeline, factor)
        self.due = True

    def hold(self, seconds: float | None) -> None:
        """Set the iteration time of the whole job from outside; None for as fast as it can.

        Raises:
            InfeasibleError: Clocks do not lead to it.
        """
        if seconds is not None:
            for plans in set(self._first):
                plans.reachable(seconds)
        self.held_seconds = seconds
        self.due = True

    def prepare_hold(self, seconds: float | None, watts: float | None = None) -> float | None:
        """The iteration time to hold for a request, with its plans made; from any thread.

        Raises:
            InvalidValueError: Both are given, or a figure is not positive.
            InfeasibleError: No clocks draw so little power, or lead to that time.
        """
        if seconds is not None and watts is not None:
            raise InvalidValueError(
                "both a time and a power are to be held", remedy="give one of them"
            )
        if watts is not None:
            seconds = self._seconds_for(finite(watts, "power", minimum=0.0))
        if seconds is not None:
            for plans in set(self._first):
                factor = plans.reachable(seconds) / plans.fastest_seconds
                plans.ranks(max(1.0, factor), waits=False)
        return seconds

    def _seconds_for(self, watts: float) -> float:
        """The shortest iteration time at which all pipelines together draw at most ``watts``."""
        counts = Counter(self._first)

        def power(seconds: float) -> float:
            return sum(count * plans.watts(seconds) for plans, count in counts.items())

        fastest = max(plans.fastest_seconds for plans in counts)
        paces = min((plans.paces(fastest) for plans in counts), key=lambda times: times[-1])
        # Searched by negative power, since that of longer iterations falls.
        first = bisect_left(paces, -watts, key=lambda seconds: -power(seconds))
        for seconds in paces[first:]:
            if power(seconds) <= watts:
                return seconds
        lowest = math.ceil(power(paces[-1]))
        raise InfeasibleError(
            f"no clocks keep all pipelines together below {watts:g} W",
            remedy=f"the lowest draw {lowest} W; allow at least that",
        )

    def planned_watts(self) -> float:
        """Mean power of all devices under the plans that pipelines follow, without waiting."""
        watts = 0.0
        for state in self._all:
            plan = state.plans.held(state.factor, waits=state.waits).plan
            watts += plan.joules / plan.seconds / state.plans.problem.config.replicas
        return watts

    def decide(self) -> list[PlanAssignment]:
        """The plans that change; none before an iteration is complete or something was set."""
        if not self.due:
            return []
        self.due = False
        factors = self._lateness.factors
        natural = [
            state.plans.fastest_seconds * factor
            for state, factor in zip(self._all, factors, strict=True)
        ]
        slowest = max(natural)
        pace = max(slowest, self.held_seconds or 0.0, self.followed[1] if self.followed else 0.0)
        waits = pace == slowest
        updates = []
        for pipeline, (state, seconds) in enumerate(zip(self._all, natural, strict=True)):
            factor = pace / seconds
            if state.settling and waits:
                factor = 1.0
            elif state.factor > 1:
                # One slow iteration is enough to hurry a pipeline that was slowed down.
                quick = state.plans.fastest_seconds * self._lateness.latest(pipeline)
                factor = pace / max(quick, seconds)
            updates.append(self._assign(pipeline, factor, waits=waits))
        returned, self._returned = self._returned, []
        return [*returned, *(assignment for assignment in updates if assignment is not None)]

    def drifted(self, pipeline: int) -> dict[Work, float]:
        """Factors of all work of a pipeline if some of it takes other times than planned.

        Work that was not measured is taken to be as slow as the slowest of its stage, or else of
        the pipeline: that way none is slowed down for lack of measurements.
        """
        state = self._all[pipeline]
        factors = {
            work: _drift(ratios)
            for work, ratios in state.ratios.items()
            if len(ratios) >= _DRIFT_LEAST
        }
        if all(factor == 1.0 for factor in factors.values()):
            return {}
        slowest = max(1.0, *factors.values())
        for item in state.plans.problem.instructions:
            work = item.stage, item.kind
            if work not in factors and item.microbatch >= 0:
                stage_factors = [f for (stage, _), f in factors.items() if stage == item.stage]
                factors[work] = max(stage_factors, default=slowest)
        return {work: factor for work, factor in factors.items() if factor != 1.0}

    def plans_of(self, pipeline: int) -> PlanCache:
        """The plans of a pipeline."""
        return self._all[pipeline].plans

    def replace_plans(self, pipeline: int, plans: PlanCache) -> PlanAssignment:
        """Use other plans for a pipeline, made for its profile as it is now."""
        state = self._all[pipeline]
        state.since = self._first_iteration(state)
        state.factors = _factors(state.plans.problem, plans.problem)
        state.plans, state.factor, state.waits = plans, 1.0, True
        state.settling = _LEAST
        state.ratios.clear()
        self._lateness.notice(pipeline, 1.0)
        self.due = True
        return PlanAssignment(pipeline, plans, 1.0, state.since)

    def _first_iteration(self, state: _Pipeline) -> int:
        """The first iteration that a new plan may hold from on all ranks of a pipeline."""
        newest = self.newest_iteration
        in_step = state.iteration < 0 or 0 <= newest - state.iteration <= _LEAD_ITERATIONS
        return (newest if in_step else state.iteration) + _LEAD_ITERATIONS

    def _assign(self, pipeline: int, factor: float, *, waits: bool) -> PlanAssignment | None:
        state = self._all[pipeline]
        # What differs by less than the noise of profiles is the same pace.
        target = state.plans.limit(factor, waits=waits) if factor > 1 + _PUNCTUAL else 1.0
        if target == state.factor or (
            target != 1.0
            and math.isclose(target, state.factor, rel_tol=_STEP)
            and waits == state.waits
        ):
            return None
        state.factor, state.waits = target, waits
        return PlanAssignment(
            pipeline, state.plans, target, self._first_iteration(state), waits=waits
        )
