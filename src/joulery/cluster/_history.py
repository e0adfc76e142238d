"""Records of jobs from earlier ticks: performance they are owed, power and speed under caps."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from joulery.cluster._jobs import PowerCurve
from joulery.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from joulery.cluster._nodes import DeviceState
    from joulery.cluster._slurm import EngineJob

# A job is owed, or owes, at most this much of its performance at any time; by hand.
MOST_CREDIT = 0.25
# Time within which a deficit is to be repaid; by hand: a shift.
_HORIZON_SECONDS = 4 * 3600.0
# Credits move in steps, so that jobs with nearly the same stay in one class; by
# hand.
CREDIT_STEP = 1 / 64
# Caps to try on an unknown job, as shares of the most; the first is also the conservative one
# under which it waits for its frontier; by hand.
SHARES = (0.75, 0.6, 0.5)
# Readings under one cap before the next is tried, at one reading a tick; by hand.
_READINGS = 10
# Readings of the first ticks after a change still show the cap before.
_SETTLING = 3
# A reading belongs to a share of the most power that is this near; by hand: boards round caps.
_SAME_SHARE = 0.03
# What a job that draws less than its cap may have beyond what it draws; by hand.
_HEADROOM = 1.1
# Weight of the newest reading in the mean share of its cap that a job draws; by hand: 50
# ticks.
_NEWEST = 0.02


class DeficitLedger:
    """Performance that jobs lost against their fair share, and get back later.

    A job's fair share is the mean performance of all jobs at the time, so deficits add up to zero.
    What a job runs below that (in a hot rack, paused, under a conservative cap while unknown)
    adds to its deficit; what it runs above takes away.

    Attributes:
        deficits: Seconds of full speed that each job is owed.
    """

    def __init__(self) -> None:
        self.deficits: dict[str, float] = {}

    def add(self, ids: Sequence[str], performance: np.ndarray, seconds: float) -> None:
        """Add an interval in which every job had some performance; others are forgotten."""
        share = float(performance.mean())
        rows = zip(ids, performance.tolist(), strict=True)
        highest = MOST_CREDIT * _HORIZON_SECONDS
        deficits = self.deficits
        self.deficits = {
            name: min(highest, max(-highest, deficits.get(name, 0.0) + (share - level) * seconds))
            for name, level in rows
        }

    def credit(self, job: str) -> float:
        """Extra performance that a job should get now; negative when it had more than its share."""
        owed = self.deficits.get(job, 0.0) / _HORIZON_SECONDS
        return round(owed / CREDIT_STEP) * CREDIT_STEP


def ramp(
    before: np.ndarray,
    targets: np.ndarray,
    seconds: float,
    *,
    up_watts_per_second: float = math.inf,
) -> np.ndarray:
    """Watts on the way from one allocation to the next, within a limit on the total's rise.

    Both ends keep every cap of a budget tree, so every mixture of them does, too.
    """
    change = float(targets.sum() - before.sum())
    step_watts = up_watts_per_second * seconds
    fraction = 1.0 if change <= step_watts else step_watts / change
    mixture: np.ndarray = before + fraction * (targets - before)
    return mixture


def oversubscribed_watts(
    budget_watts: float, draws: Iterable[tuple[float, float]], risk: float = 1e-4
) -> float:
    """Sum of caps that may be handed out although the budget is smaller.

    Jobs rarely draw their caps all at once. By Hoeffding's inequality the sum of independent
    draws, each between 0 and its cap, exceeds its mean by more than
    sqrt(ln(1/risk) / 2 · sum of caps²) with a probability of at most ``risk``, whatever their
    distributions. Caps are scaled together until mean plus that margin meets the budget.

    Args:
        budget_watts: Power that the draws may exceed with a probability of ``risk``.
        draws: Cap in watts and mean draw as a fraction of the cap, for each independent job.
        risk: Largest probability of exceeding the budget at any one time.
    """
    caps, means = (np.array(column, dtype=float) for column in zip(*draws, strict=True))
    if not 0 < risk < 1 or (means < 0).any() or (means > 1).any():
        raise InvalidValueError(
            "risk and mean draws must be fractions", remedy="give values between 0 and 1"
        )
    margin = math.sqrt(math.log(1 / risk) / 2 * float(caps @ caps))
    expected = float(caps @ means) + margin
    # Handing out the budget itself is never a risk.
    return max(budget_watts, float(caps.sum()) * budget_watts / expected)


class ObservedJobs:
    """Curves of jobs without a frontier, from what their GPUs do under the caps in force.

    Speed is the clock times the share of time busy. A job that waits for memory or data loses
    less than its clock does, so the curve overstates what a lower cap costs it. A job that draws
    less than its cap keeps some headroom, and is profiled anew once it uses that up.
    """

    def __init__(self) -> None:
        # By job and share: number of readings; mean cap, draw and speed of a GPU.
        self._means: dict[str, dict[float, tuple[int, np.ndarray]]] = {}
        self._under: dict[str, tuple[float, int]] = {}

    def note(self, jobs: Mapping[str, Sequence[DeviceState]]) -> None:
        """Add a reading of the GPUs of every running job; others are forgotten."""
        self._means = {name: self._means.get(name, {}) for name in jobs}
        self._under = {name: self._under.get(name, (0.0, 0)) for name in jobs}
        for name, devices in jobs.items():
            cap = sum(device.cap_watts for device in devices) / len(devices)
            watts = sum(device.watts for device in devices) / len(devices)
            highest = min(device.most_watts for device in devices)
            before, age = self._under[name]
            age = age + 1 if abs(cap - before) < _SAME_SHARE * highest else 0
            self._under[name] = (cap, age)
            speeds = [device.speed_hertz for device in devices if device.speed_hertz is not None]
            if age < _SETTLING or len(speeds) < len(devices):
                continue
            self._forget_outgrown(name, cap, watts, SHARES[0] * highest)
            for share in SHARES:
                if abs(cap - share * highest) < _SAME_SHARE * highest:
                    count, mean = self._means[name].get(share, (0, np.zeros(3)))
                    mean = mean + (np.array([cap, watts, min(speeds)]) - mean) / (count + 1)
                    self._means[name][share] = count + 1, mean

    def next_share(self, job: str) -> float:
        """Share of the most cap under which a job should run next."""
        means = self._means.get(job, {})
        untried = (s for s in SHARES if s not in means or means[s][0] < _READINGS)
        return next(untried, SHARES[0])

    def curve(self, job: str) -> PowerCurve | None:
        """The job's curve; None until all shares were tried."""
        shares = self._means.get(job, {}).values()
        means = [mean.tolist() for count, mean in shares if count >= _READINGS]
        if len(means) < len(SHARES) or not any(speed for _, _, speed in means):
            return None
        return PowerCurve.from_points(
            (min(cap, _HEADROOM * watts), speed) for cap, watts, speed in means
        )

    def _forget_outgrown(self, job: str, cap: float, watts: float, tried_watts: float) -> None:
        """Forget a job that drew less than its caps when profiled, and now draws all of one."""
        curve = self.curve(job)
        was_light = curve is not None and curve.most_watts < (1 - _SAME_SHARE) * tried_watts
        if was_light and watts > (1 - _SAME_SHARE) * cap:
            self._means[job] = {}


class DrawnShares:
    """Mean share of its cap that each job draws."""

    def __init__(self) -> None:
        self._shares: dict[str, float] = {}

    def note(self, jobs: Mapping[str, Sequence[DeviceState]]) -> None:
        """Add a reading of the GPUs of every running job; a new job counts as drawing its cap."""
        now = {
            name: min(1.0, sum(d.watts for d in devices) / sum(d.cap_watts for d in devices))
            for name, devices in jobs.items()
        }
        self._shares = {
            name: share if share > before else before + _NEWEST * (share - before)
            for name, share in now.items()
            for before in [self._shares.get(name, 1.0)]
        }

    def handed_out(self, budget_watts: float, caps: Mapping[str, float], risk: float) -> float:
        """Sum of caps that may be handed out under a budget, see ``oversubscribed_watts``.

        ``caps`` are those in force of each job, and of GPUs without one under other names.
        """
        if not risk or not caps or budget_watts <= 0:
            return budget_watts
        draws = [(cap, self._shares.get(name, 1.0)) for name, cap in caps.items()]
        return oversubscribed_watts(budget_watts, draws, risk)


@dataclass(frozen=True, slots=True)
class JobHistory:
    """What is known of jobs from earlier ticks.

    Attributes:
        ledger: Performance that jobs are owed.
        observed: Curves of jobs as their caps and speeds show them.
        drawn: Shares of their caps that jobs draw.
        frontiers: Curves by name of a job, of the administrator and from the store.
    """

    ledger: DeficitLedger = field(default_factory=DeficitLedger)
    observed: ObservedJobs = field(default_factory=ObservedJobs)
    drawn: DrawnShares = field(default_factory=DrawnShares)
    frontiers: dict[str, PowerCurve] = field(default_factory=dict)

    def curve(self, job: EngineJob) -> PowerCurve | None:
        """The curve of a job, by name or as observed; None where neither is known."""
        return self.frontiers.get(job.frontier_name) or self.observed.curve(job.id)
