"""Split a power budget over jobs by one of several policies, exactly.

Every policy raises one level for all jobs until the budget is spent; policies differ only in what
the level means. Along a curve's segment the level runs from one value to another:

- ``equal-watts``: watts per GPU; ``equal-fraction``: watts per most watts;
- ``max-min``: performance, so that all jobs slow down alike;
- ``alpha-fair``: performance / (weight · slope) ** (1 / alpha), the optimality condition of
  the sum of weight · performance ** (1 - alpha) / (1 - alpha);
- ``throughput``: the whole segment at once, steepest first (weight · slope).

A tree of caps needs no more: subtrees are filled from the leaves up, and a job's level is the
lowest of its ancestors'. The sum of concave utilities over nested caps is a polymatroid, so this
is the optimum of the linear program, not an approximation.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from joulery.cluster._budget import Budget
from joulery.cluster._jobs import (
    ClusterJob,
    Fleet,
    PowerCurve,
    at_performance,
    at_watts,
    segment_watts,
)
from joulery.cluster._subsets import choose_subset
from joulery.errors import InfeasibleError, InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Sequence

POLICIES = ("fair", "max-min", "throughput", "equal-watts", "equal-fraction", "alpha-fair")
# The default policy lets no job fall below this share of the max-min level; by hand.
FAIR_SHARE = 0.95
# A job that is owed a quarter of its performance, the most, counts twice; by hand.
_CREDIT_VALUE = 4.0
# Floors are relaxed to a part in a million of what is needed.
_HALVINGS = 20


def check_policy(name: str) -> None:
    """Refuse a name that is none of ``POLICIES``."""
    if name not in POLICIES:
        raise InvalidValueError(
            f"unknown policy {name!r}", remedy=f"use one of {', '.join(POLICIES)}"
        )


@dataclass(frozen=True, slots=True)
class Allocation:
    """Watts and performance of every job under a budget.

    Attributes:
        policy: Name of the policy.
        budget_watts: Most IT power of the cluster.
        used_watts: IT power that the allocation uses, with the overhead.
        watts: Power of each job over all its GPUs.
        performance: Performance of each job; 0 for paused jobs.
        weight: Importance of each job.
        paused: Jobs that must wait because the floors of all of them do not fit.
        ids: Names of the jobs, where they have any.
    """

    policy: str
    budget_watts: float
    used_watts: float
    watts: np.ndarray
    performance: np.ndarray
    weight: np.ndarray
    paused: np.ndarray
    ids: tuple[str, ...] = field(default=(), repr=False)

    @property
    def weighted_performance(self) -> float:
        """Mean performance of the jobs, by weight."""
        total = float(self.weight.sum())
        return float(self.weight @ self.performance) / total if total else 0.0

    @property
    def worst_performance(self) -> float:
        """Performance of the slowest job."""
        return float(self.performance.min())

    @property
    def paused_ids(self) -> list[str]:
        """Names of the jobs that must wait."""
        return [name for name, paused in zip(self.ids, self.paused, strict=True) if paused]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON; the documented machine output of ``joulery cluster allocate``."""
        rows = zip(self.ids, self.watts.tolist(), self.performance.tolist(), strict=True)
        return {
            "policy": self.policy,
            "budget_watts": self.budget_watts,
            "used_watts": self.used_watts,
            "weighted_performance": self.weighted_performance,
            "worst_performance": self.worst_performance,
            "paused": self.paused_ids,
            "jobs": [{"id": i, "watts": w, "performance": p} for i, w, p in rows],
        }


class Allocator:
    """Solves the same jobs again and again as the budget changes.

    Args:
        fleet: Jobs.
        budget: Caps; the cluster's own is replaced by what ``solve`` is given.
        policy: Name of the policy, one of ``POLICIES``.
        alpha: Aversion to unequal performance of ``alpha-fair``; 0 is throughput, and the
            larger, the nearer to max-min.
    """

    def __init__(
        self, fleet: Fleet, budget: Budget, policy: str = "fair", alpha: float = 2.0
    ) -> None:
        check_policy(policy)
        if policy == "alpha-fair" and not alpha >= 0:
            raise InvalidValueError(f"alpha is {alpha}", remedy="give 0 or more")
        # Levels span more than a float can hold below this, and the result is throughput's.
        self._policy = "throughput" if policy == "alpha-fair" and alpha < 0.01 else policy
        self._fleet, self._tree = fleet, _Tree(budget, fleet.node)
        self._floor_watts = at_performance(fleet, fleet.floor_performance)
        self._floor_totals = self._tree.totals(self._floor_watts * fleet.count)
        if self._policy in ("fair", "throughput"):
            steepness = fleet.weight / fleet.weight.max(initial=1e-300) * fleet.slope
            self._orders = self._tree.orders(-steepness, fleet.slope > 0)
        if self._policy != "throughput":
            ramp = policy_ramp(fleet, "max-min" if policy == "fair" else policy, alpha)
            # Caps below the cluster's own do not depend on its budget: solved once.
            room = np.maximum(self._tree.caps(None) - self._floor_totals, 0.0)
            self._ramp = ramp.below(self._tree.levels(ramp, fleet.count, room))
            self._levels, self._totals = _add_up_levels(self._ramp, fleet.count)

    def solve(self, watts: float | None = None) -> Allocation:
        """Allocate ``watts`` of IT power to the whole cluster (default: the budget's own).

        Raises:
            InfeasibleError: The floors of all jobs together do not fit.
        """
        fleet, tree = self._fleet, self._tree
        caps = tree.caps(watts)
        room = caps - self._floor_totals
        tree.check(room, caps)
        performance = self._performance(np.maximum(room, 0.0))
        row_watts = at_performance(fleet, performance)
        row = fleet.row
        return Allocation(
            policy=self._policy,
            budget_watts=float(caps[0] + tree.overhead[0]),
            used_watts=float(row_watts @ fleet.count + tree.overhead[0]),
            watts=row_watts[row] * fleet.gpus,
            performance=performance[row],
            weight=fleet.weights,
            paused=np.zeros(len(row), dtype=bool),
        )

    def _performance(self, room: np.ndarray) -> np.ndarray:
        """Performance of each row by the policy."""
        fleet = self._fleet
        if self._policy == "throughput":
            return self._steepest(fleet.floor_performance, room)
        if self._policy != "fair":
            return self._raise_level(room)
        level = self._raise_level(room)
        floor = np.maximum(fleet.floor_performance, FAIR_SHARE * level)
        extra = at_performance(fleet, floor) - self._floor_watts
        room = room - self._tree.totals(extra * fleet.count)
        return self._steepest(floor, np.maximum(room, 0.0))

    def _steepest(self, floor: np.ndarray, room: np.ndarray) -> np.ndarray:
        """Performance when the steepest segments above a floor are filled first."""
        fleet, tree = self._fleet, self._tree
        watts = segment_watts(fleet, floor)
        full = (watts * fleet.count).ravel()
        filled = tree.fill(full, self._orders, room).reshape(watts.shape)
        gain = (filled / fleet.count * fleet.slope).sum(axis=0)
        performance: np.ndarray = floor + gain
        return performance

    def _raise_level(self, room: np.ndarray) -> np.ndarray:
        """Performance when one level rises for all jobs of a part until it is full."""
        fleet = self._fleet
        if (
            self._policy == "alpha-fair"
        ):  # its levels span too many orders of magnitude to be added up
            everyone = np.zeros(len(fleet.count), dtype=np.int64)
            level = _common_level(self._ramp, fleet.count, everyone, room[:1])
        else:
            level = np.interp(room[:1], self._totals, self._levels)
        return at_watts(fleet, self._floor_watts + self._ramp.watts(level))


@dataclass(frozen=True, slots=True)
class _Ramp:
    """Watts above the floor of each segment of each row, as its level runs from low to high."""

    low: np.ndarray
    high: np.ndarray
    full: np.ndarray
    rate: np.ndarray

    def watts(self, level: np.ndarray) -> np.ndarray:
        """Watts above the floor of each row at its level."""
        totals: np.ndarray = np.clip((level - self.low) * self.rate, 0.0, self.full).sum(axis=0)
        return totals

    def slope(self, level: np.ndarray) -> np.ndarray:
        """Watts that each row takes more per unit of level."""
        within = (level >= self.low) & (level < self.high)
        totals: np.ndarray = (self.rate * within).sum(axis=0)
        return totals

    def take(self, rows: np.ndarray) -> _Ramp:
        """The ramps of some rows."""
        return _Ramp(*(column[:, rows] for column in (self.low, self.high, self.full, self.rate)))

    def below(self, level: np.ndarray) -> _Ramp:
        """The ramps up to a level of each row."""
        full = np.clip((level - self.low) * self.rate, 0.0, self.full)
        return _Ramp(np.minimum(self.low, level), np.minimum(self.high, level), full, self.rate)


def policy_ramp(fleet: Fleet, policy: str, alpha: float) -> _Ramp:
    """The range of a policy's level on every segment."""
    performance = np.clip(fleet.performance, fleet.floor_performance, fleet.most_performance)
    full = segment_watts(fleet, fleet.floor_performance)
    floor_watts = at_performance(fleet, fleet.floor_performance)
    watts = floor_watts + np.pad(np.cumsum(full, axis=0), ((1, 0), (0, 0)))
    scale: np.ndarray | float = 1.0
    if policy == "equal-watts":
        knots = watts
    elif policy == "equal-fraction":
        knots = watts / np.maximum(fleet.watts[-1], 1e-300)
    elif policy == "max-min":
        knots = performance - fleet.credit
    else:
        knots = performance
        steepness = fleet.weight * fleet.slope
        relative = np.maximum(steepness / max(float(steepness.max()), 1e-300), 1e-300)
        scale = np.exp(np.minimum(-np.log(relative) / alpha, 600.0))
    # Padding has no width; at the first knot's level it is out of the way.
    low = np.where(full > 0, knots[:-1] * scale, knots[0])
    high = np.where(full > 0, knots[1:] * scale, knots[0])
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = np.where(full > 0, full / (high - low), 0.0)
    return _Ramp(low, high, full, rate)


def _add_up_levels(ramp: _Ramp, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Levels at which the total of all rows changes its slope, and the total there."""
    positive = (ramp.full > 0).ravel()
    rate = (ramp.rate * count).ravel()[positive]
    level = np.concatenate([ramp.low.ravel()[positive], ramp.high.ravel()[positive]])
    if not len(level):
        return np.zeros(1), np.zeros(1)
    order = np.argsort(level)
    level = level[order]
    slope = np.cumsum(np.concatenate([rate, -rate])[order])
    totals = np.cumsum(np.maximum(slope[:-1], 0.0) * np.diff(level))
    return level, np.concatenate([[0.0], totals])


class _Order(NamedTuple):
    """Segments in the order in which the parts of one depth are filled."""

    segment: np.ndarray  # numbers of all segments, those of a part together
    part: np.ndarray  # number of each part
    first: np.ndarray  # place of each part's first segment
    length: np.ndarray  # number of each part's segments


class _Tree:
    """Caps as arrays, by depth, and where every row of jobs stands in them."""

    def __init__(self, budget: Budget, node: np.ndarray) -> None:
        positions = {cap.name: position for position, cap in enumerate(budget.caps)}
        parent = np.array([positions[c.parent] if c.parent else -1 for c in budget.caps])
        depth = np.zeros(len(parent), dtype=np.int64)
        self.overhead = np.array([float(cap.overhead_watts) for cap in budget.caps])
        for position in range(1, len(parent)):
            depth[position] = depth[parent[position]] + 1
        for position in range(len(parent) - 1, 0, -1):
            self.overhead[parent[position]] += self.overhead[position]
        self._names = budget.names
        self._caps = np.array([cap.watts for cap in budget.caps]) - self.overhead
        # For every depth that has a cap, deepest first: the part that each row is in. The last,
        # imaginary part is for rows that stand higher up in the tree.
        capped = sorted({0, *depth[np.isfinite(self._caps)].tolist()}, reverse=True)
        self.parts = []
        for level in capped:
            part = node.copy()
            while (deeper := depth[part] > level).any():
                part[deeper] = parent[part[deeper]]
            self.parts.append(np.where(depth[part] == level, part, len(parent)))

    def caps(self, watts: float | None) -> np.ndarray:
        """Watts for jobs in each part."""
        caps = np.append(self._caps, np.inf)
        if watts is not None:
            caps[0] = watts - self.overhead[0]
        return caps

    def needs(
        self, watts: np.ndarray, row: np.ndarray, room: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Watts that each job takes of each part with a cap, as jobs × parts, and their room."""
        needs = np.zeros((len(watts), len(self._caps) + 1))
        for part in self.parts:
            needs[np.arange(len(watts)), part[row]] += watts
        capped = np.flatnonzero((np.isfinite(room) & (needs > 0).any(axis=0)) | (room < 0))
        return needs[:, capped], room[capped]

    def totals(self, watts: np.ndarray) -> np.ndarray:
        """Sum over the rows in each part; 0 for parts at depths without any cap."""
        totals = np.zeros(len(self._caps) + 1)
        for part in self.parts:
            totals += np.bincount(part, watts, minlength=len(totals))
        return totals

    def check(self, room: np.ndarray, caps: np.ndarray) -> None:
        """Refuse a budget that is below what the jobs need at least."""
        short = room[:-1] + 1e-9 * np.abs(np.where(np.isfinite(caps), caps, 0.0))[:-1]
        worst = int(short.argmin())
        if short[worst] < 0:
            need = caps[worst] - room[worst] + self.overhead[worst]
            raise InfeasibleError(
                f"the jobs in {self._names[worst]} need at least {need:.6g} W, and the budget "
                f"gives {caps[worst] + self.overhead[worst]:.6g} W",
                remedy="raise the budget, lower the floors, or let jobs be paused (--pause)",
            )

    def orders(self, key: np.ndarray, mask: np.ndarray) -> list[_Order]:
        """Used segments by part and then by key, for every depth."""
        order = np.argsort(key, axis=None, kind="stable")
        order = order[mask.ravel()[order]]
        row = order % key.shape[1]
        sorted_orders = []
        for part in self.parts:
            rank = np.argsort(part[row], kind="stable")
            of = part[row][rank]
            first = np.flatnonzero(np.r_[True, of[1:] != of[:-1]][: len(of)])
            sorted_orders.append(
                _Order(order[rank], of[first], first, np.diff(np.r_[first, len(of)]))
            )
        return sorted_orders

    def fill(self, full: np.ndarray, orders: list[_Order], room: np.ndarray) -> np.ndarray:
        """Fill segments in order within every part, the deepest parts first."""
        amounts = full.copy()
        for order in orders:
            demand = amounts[order.segment]
            after = np.cumsum(demand)
            start = after[order.first] - demand[order.first]
            available = np.repeat(start + room[order.part], order.length) - after + demand
            amounts[order.segment] = np.clip(available, 0.0, demand)
        return amounts

    def levels(self, ramp: _Ramp, count: np.ndarray, room: np.ndarray) -> np.ndarray:
        """The level of each row: the lowest of all parts that it is in, but for the whole."""
        level = np.full(len(count), ramp.high.max())
        for part in self.parts[:-1]:
            limited = ramp.below(level)
            demand = np.bincount(part, count * limited.full.sum(axis=0), minlength=len(room))
            rows = np.flatnonzero((demand > room)[part])
            if len(rows):
                numbers, of = np.unique(part[rows], return_inverse=True)
                levels = _common_level(limited.take(rows), count[rows], of, room[numbers])
                level[rows] = np.minimum(level[rows], levels[of])
        return level


def _common_level(ramp: _Ramp, count: np.ndarray, of: np.ndarray, room: np.ndarray) -> np.ndarray:
    """The level at which each part is exactly full, by Newton's method inside a bracket.

    Watts are piecewise linear and increasing in the level, so once the bracket lies in one piece
    the next step is exact.
    """
    parts = len(room)
    low = np.full(parts, np.inf)
    high = np.full(parts, -np.inf)
    np.minimum.at(low, of, ramp.low.min(axis=0))
    np.maximum.at(high, of, ramp.high.max(axis=0))
    level = high.copy()
    for _ in range(200):
        total = np.bincount(of, count * ramp.watts(level[of]), minlength=parts)
        excess = total - room
        done = (np.abs(excess) <= 1e-12 * room) | (high - low <= 1e-15 * np.abs(high))
        if done.all():
            break
        high, low = np.where(excess > 0, level, high), np.where(excess > 0, low, level)
        slope = np.bincount(of, count * ramp.slope(level[of]), minlength=parts)
        with np.errstate(invalid="ignore", divide="ignore"):
            newton = level - excess / slope
        inside = (newton > low) & (newton < high)
        middle = np.where(low > 0, np.sqrt(np.abs(low)) * np.sqrt(np.abs(high)), (low + high) / 2)
        level = np.where(done, level, np.where(inside, newton, middle))
    return level


def allocate(
    jobs: Sequence[ClusterJob],
    budget_watts: float | None = None,
    policy: str = "fair",
    *,
    budget: Budget | None = None,
    alpha: float = 2.0,
    may_pause: bool = False,
) -> Allocation:
    """Split a power budget over jobs.

    Args:
        jobs: Jobs with their curves, weights and floors.
        budget_watts: Most IT power of the cluster.
        policy: Name of the policy, one of ``POLICIES``.
        budget: Tree of caps, and the overhead of hosts and network.
        alpha: Aversion to unequal performance, for ``alpha-fair``.
        may_pause: Whether jobs may be paused where the floors of all of them do not fit: as few
            as leave the most weighted performance, and in turns by what they are owed.

    Examples:
        >>> from joulery.cluster import PowerCurve, ClusterJob, allocate
        >>> steep = PowerCurve.from_points([(100, 25), (200, 60), (400, 100)])
        >>> flat = PowerCurve.from_points([(100, 90), (150, 98), (400, 100)])
        >>> jobs = [ClusterJob("compute", steep), ClusterJob("memory", flat)]
        >>> shares = allocate(jobs, budget_watts=500)
        >>> [round(watts) for watts in shares.watts]
        [400, 100]
    """
    if budget is None:
        if budget_watts is None:
            raise InvalidValueError("there is no budget", remedy="give budget_watts or budget")
        budget = Budget.flat(budget_watts)
    fleet = Fleet.from_jobs(jobs, budget.names)
    ids = tuple(job.id for job in jobs)
    try:
        allocation = Allocator(fleet, budget, policy, alpha).solve(budget_watts)
        return replace(allocation, ids=ids)
    except InfeasibleError:
        if not may_pause:
            raise
    runs = _running(jobs, budget, budget_watts)
    if not runs.any():
        raise InfeasibleError(
            "the budget cannot run a single job", remedy="raise the budget or lower the floors"
        )
    jobs_now = [
        job if is_running else pause(job, job.curve.idle_watts)
        for job, is_running in zip(jobs, runs, strict=True)
    ]
    fleet = Fleet.from_jobs(jobs_now, budget.names)
    allocation = Allocator(fleet, budget, policy, alpha).solve(budget_watts)
    return replace(allocation, paused=~runs, ids=ids)


def replay(
    jobs: Sequence[ClusterJob], budgets: Sequence[float], policy: str = "fair", alpha: float = 2.0
) -> Allocation:
    """Means over equal steps of time in which fixed jobs share one budget after the other.

    Jobs are paused in steps whose budget, in watts of IT power, is below the floors of all of them;
    ``allocate`` describes the policies.
    """
    shares = [allocate(jobs, watts, policy, alpha=alpha, may_pause=True) for watts in budgets]
    performance = np.mean([share.performance for share in shares], axis=0)
    return replace(
        shares[0],
        budget_watts=float(np.mean(budgets)),
        used_watts=float(np.mean([share.used_watts for share in shares])),
        watts=np.mean([share.watts for share in shares], axis=0),
        performance=performance,
        paused=performance == 0,
    )


def _running(jobs: Sequence[ClusterJob], budget: Budget, watts: float | None) -> np.ndarray:
    """Jobs that run: those of the most weighted performance at their floors that fit."""
    return choose_subset(*pause_problem(jobs, budget, watts))


def pause_problem(
    jobs: Sequence[ClusterJob], budget: Budget, watts: float | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Value of running each job, the watts that this takes of each part, and the parts' room.

    A job's value is its weighted performance at its floor, more where it is owed some; its need
    is what it draws there beyond its power while paused, which room is already without.
    """
    fleet = Fleet.from_jobs(jobs, budget.names)
    tree = _Tree(budget, fleet.node)
    floor = at_performance(fleet, fleet.floor_performance)
    room = tree.caps(watts) - tree.totals(fleet.idle_watts * fleet.count)
    need = np.maximum(floor - fleet.idle_watts, 0.0)[fleet.row] * fleet.gpus
    credit = np.array([job.credit for job in jobs])
    values = fleet.weights * fleet.floor_performance[fleet.row] * (1 + _CREDIT_VALUE * credit)
    return np.maximum(values, 1e-9), *tree.needs(need, fleet.row, room)


def lower_floors(jobs: Sequence[ClusterJob], budget: Budget, slack: float) -> list[ClusterJob]:
    """The jobs with floors that fit.

    All are lowered alike, by no more than needed and at most by a share ``slack``. Where that does
    not suffice, those jobs keep theirs that leave the most weighted performance, and the others
    get what is left.
    """
    fleet = Fleet.from_jobs(jobs, budget.names)
    tree = _Tree(budget, fleet.node)
    caps = tree.caps(None)
    room = caps + 1e-9 * np.where(np.isfinite(caps), np.abs(caps), 0.0)

    def watts(level: float) -> np.ndarray:
        floor = np.maximum(level * fleet.floor_performance, fleet.performance[0])
        return at_performance(fleet, floor)

    def fits(level: float) -> bool:
        return bool((tree.totals(watts(level) * fleet.count) <= room).all())

    if fits(1.0):
        return list(jobs)
    low, high = 1.0 - slack, 1.0
    if fits(low):
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if fits(middle) else (low, middle)
        return [replace(job, floor=low * job.floor) for job in jobs]
    need = (watts(low) - watts(0.0))[fleet.row] * fleet.gpus
    values = fleet.weights * fleet.floor_performance[fleet.row]
    values *= 1 + _CREDIT_VALUE * np.array([job.credit for job in jobs])
    room = caps - tree.totals(watts(0.0) * fleet.count)
    keeps = choose_subset(np.maximum(values, 1e-9), *tree.needs(need, fleet.row, room))
    return [
        replace(job, floor=low * job.floor if is_kept else 0.0)
        for job, is_kept in zip(jobs, keeps, strict=True)
    ]


def pause(job: ClusterJob, idle_watts: float) -> ClusterJob:
    """A job that only draws its idle power."""
    curve = PowerCurve((idle_watts,), (0.0,), idle_watts)
    return replace(job, curve=curve, floor=0.0, limit_watts=None)
