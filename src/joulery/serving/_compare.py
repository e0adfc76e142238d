"""Policies side by side on the same simulated requests; capacity, frontier and idle time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from joulery.frontier import Frontier, OperatingPoint, Origin, Provenance, Setting
from joulery.serving._controller import ServingController, knob_curves
from joulery.serving._ledger import idle_gaps
from joulery.serving._policies import ReactiveLadder, oracle
from joulery.serving._requests import at_rate
from joulery.serving._simulator import EngineConfig, ServingSimulation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.serving._boards import ServingBoard
    from joulery.serving._controller import KnobCurves, LatencyObjective
    from joulery.serving._model import ServedModel
    from joulery.serving._requests import ServedRequest
    from joulery.serving._simulator import ServingPolicy, ServingRun

# Clocks to choose from: fewer cost energy, more cost time (simulated boards of the catalog).
_POSITIONS, _LOWEST_SHARE = 14, 0.42
# A service is at its capacity when fewer requests than this keep their bounds.
_ATTAINED = 0.98
# Largest loss of attainment that a fixed setting may have to count as good.
_TOLERANCE = 0.005
POLICIES = ("full", "fixed", "ladder", "tuner", "oracle")


def clock_settings(
    board: ServingBoard, positions: int = _POSITIONS
) -> list[tuple[float, float | None]]:
    """Power limit and locked clock of each position, slowest first; the last locks none."""
    shares = np.linspace(max(_LOWEST_SHARE, board.min_share), 1.0, positions)[:-1]
    locked = [(board.limit_watts, float(share) * board.max_clock_hertz) for share in shares]
    return [*locked, (board.limit_watts, None)]


def limit_settings(
    board: ServingBoard, positions: int = _POSITIONS
) -> list[tuple[float, float | None]]:
    """The same for power limits, which lock no clock."""
    limits = np.linspace(board.min_limit_watts, board.limit_watts, positions)
    return [(float(watts), None) for watts in limits]


@dataclass(frozen=True, slots=True)
class PolicyOutcome:
    """What a policy makes of a trace.

    Attributes:
        policy: Name of the policy.
        joules: Energy of all boards.
        saved: Share of the energy saved against full power.
        attained: Share of the requests that kept both bounds.
        lost: Share that full power keeps and the policy does not, net of the reverse.
        mean_watts: Mean power of all boards.
        ttft_seconds: Median and 99th percentile of the time to first token.
        tpot_seconds: Median and 99th percentile of the time per output token.
        setting: Setting, where the policy has a single one.
    """

    policy: str
    joules: float
    saved: float
    attained: float
    lost: float
    mean_watts: float
    ttft_seconds: tuple[float, float]
    tpot_seconds: tuple[float, float]
    setting: str = ""


@dataclass(frozen=True)
class ServingCase:
    """A service to compare policies on.

    Attributes:
        requests: Requests in order of arrival.
        model: Served model.
        board: Board it runs on.
        objective: Bounds to keep.
        engine: Settings of the engine.
        settings: Power limit and locked clock of each position; clocks by default.
        prior: Board as the tuner believes it to be; the same by default.
        tick_seconds: Time between two decisions.
        lag_seconds: Time until a decision is in force.
    """

    requests: Sequence[ServedRequest]
    model: ServedModel
    board: ServingBoard
    objective: LatencyObjective
    engine: EngineConfig = field(default_factory=EngineConfig)
    settings: Sequence[tuple[float, float | None]] = ()
    prior: ServingBoard | None = None
    tick_seconds: float = 0.1
    lag_seconds: float = 0.0

    def positions(self) -> Sequence[tuple[float, float | None]]:
        """Power limit and locked clock of each position."""
        return self.settings or clock_settings(self.board)

    def curves(self) -> KnobCurves:
        """Effect of each position as the tuner believes it to be."""
        return knob_curves(self.prior or self.board, self.positions())

    def run(self, policy: ServingPolicy) -> ServingRun:
        """The requests served under a policy."""
        return ServingSimulation(
            self.requests,
            self.model,
            [self.board.within(*setting) for setting in self.positions()],
            engine=self.engine,
            policy=policy,
            tick_seconds=self.tick_seconds,
            lag_seconds=self.lag_seconds,
        ).run()

    def run_at(self, position: int) -> ServingRun:
        """The requests served at one position throughout."""
        table = self.board.within(*self.positions()[position])
        return ServingSimulation(self.requests, self.model, [table], engine=self.engine).run()


def compare_policies(
    case: ServingCase, policies: Sequence[str] = POLICIES
) -> dict[str, PolicyOutcome]:
    """Outcome of each policy.

    They are full power, the best fixed position in hindsight, a reactive ladder, the tuner's
    controller, and an oracle that knows the future.
    """
    top = len(case.positions()) - 1
    full = case.run_at(top)
    runs = {"full": full}
    settings = {}
    if {"fixed", "oracle"} & set(policies):
        fixed = [case.run_at(position) for position in range(top)] + [full]
        best = _best_fixed(case, fixed)
        limit_watts, clock_hertz = case.positions()[best]
        settings["fixed"] = str(Setting(limit_watts if clock_hertz is None else None, clock_hertz))
        runs["fixed"] = fixed[best]
    if "ladder" in policies:
        runs["ladder"] = case.run(ReactiveLadder(case.objective, top + 1))
    if "tuner" in policies:
        runs["tuner"] = case.run(ServingController(case.objective, case.curves()))
    if "oracle" in policies:
        runs["oracle"] = oracle(case.run, fixed, case.objective)
    return {
        name: _outcome(name, runs[name], full, case.objective, settings.get(name, ""))
        for name in policies
    }


def _best_fixed(case: ServingCase, runs: Sequence[ServingRun]) -> int:
    """Cheapest position that costs next to no attainment."""
    bounds = case.objective.ttft_seconds, case.objective.tpot_seconds
    attained = [float(run.attained(*bounds).mean()) for run in runs]
    good = [n for n, share in enumerate(attained) if share >= attained[-1] - _TOLERANCE]
    return min(good, key=lambda position: runs[position].joules)


def _outcome(
    name: str, run: ServingRun, full: ServingRun, objective: LatencyObjective, setting: str
) -> PolicyOutcome:
    bounds = objective.ttft_seconds, objective.tpot_seconds
    attained = float(run.attained(*bounds).mean())
    ttft, tpot = (np.quantile(times, (0.5, 0.99)) for times in (run.ttft_seconds, run.tpot_seconds))
    return PolicyOutcome(
        name,
        run.joules,
        1 - run.joules / full.joules,
        attained,
        float(full.attained(*bounds).mean()) - attained,
        run.joules / run.seconds,
        (float(ttft[0]), float(ttft[1])),
        (float(tpot[0]), float(tpot[1])),
        setting,
    )


def capacity(case: ServingCase, position: int = -1, rounds: int = 7) -> float:
    """Factor by which the requests may come faster until too few keep their bounds.

    Arrivals are compressed in time; the answer is found by bisection.
    """
    bounds = case.objective.ttft_seconds, case.objective.tpot_seconds
    low, high = 0.0, 1.0
    while high < 1e4 and _keeps(
        replace(case, requests=at_rate(case.requests, high)), position, bounds
    ):
        low, high = high, 4 * high
    for _ in range(rounds):
        middle = 0.5 * (low + high)
        faster = replace(case, requests=at_rate(case.requests, middle))
        low, high = (middle, high) if _keeps(faster, position, bounds) else (low, middle)
    return low


def _keeps(case: ServingCase, position: int, bounds: tuple[float, float]) -> bool:
    top = len(case.positions())
    return bool(case.run_at(position % top).attained(*bounds).mean() >= _ATTAINED)


def served_frontier(case: ServingCase) -> Frontier:
    """Time and energy of one request at the capacity of each setting, under the objective.

    The frontier is a job's curve for a cluster under a power budget: the objective is its floor.
    """
    points = []
    source = f"simulated {case.model.name} on {case.model.boards} × {case.board.name}"
    for position, (limit_watts, clock_hertz) in enumerate(case.positions()):
        factor = capacity(case, position)
        if factor <= 0:
            continue
        run = replace(case, requests=at_rate(case.requests, factor)).run_at(position)
        count = len(case.requests)
        setting = Setting(
            power_limit_watts=limit_watts if clock_hertz is None else None,
            clock_hertz=clock_hertz,
            device=case.board.name,
            devices=case.model.boards,
        )
        provenance = Provenance(Origin.SIMULATED, source)
        points.append(OperatingPoint(run.seconds / count, run.joules / count, setting, provenance))
    return Frontier.from_points(points, "one request at its objective")


def sleep_advice(
    run: ServingRun, waiting_watts: float, asleep_watts: float, wake_seconds: float
) -> dict[str, float]:
    """What waiting costs on a trace, and what sleeping through long gaps would save.

    Args:
        run: Run of the trace.
        waiting_watts: Power of the boards while they hold the model and wait.
        asleep_watts: Power of the boards while they sleep.
        wake_seconds: Time to load the model again, at waiting power.
    """
    gaps = np.array(idle_gaps(run.finish_seconds.tolist(), run.arrival_seconds.tolist()))
    difference = waiting_watts - asleep_watts
    pays_seconds = wake_seconds * waiting_watts / difference if difference > 0 else np.inf
    long = gaps[gaps > pays_seconds]
    saved = float((difference * long).sum() - len(long) * wake_seconds * waiting_watts)
    return {
        "waiting_watts": waiting_watts,
        "waiting_joules": waiting_watts * run.idle_seconds,
        "idle_share": run.idle_seconds / run.seconds,
        "pays_from_seconds": float(pays_seconds),
        "gaps_that_pay": float(len(long)),
        "saved_joules": max(0.0, saved),
        "delayed_requests": float(len(long)),
    }
