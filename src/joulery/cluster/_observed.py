"""What running jobs show about themselves: the power that they draw, and their GPUs' speed."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from joulery.cluster._fairness import DeficitLedger, oversubscribed_watts
from joulery.cluster._jobs import PowerCurve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulery.cluster._nodes import DeviceState

# Caps to try on an unknown job, as shares of the most; the first is also the conservative one
# under which it waits for its frontier.
SHARES = (0.75, 0.6, 0.5)
# Readings under one cap before the next is tried, at one reading a tick.
_READINGS = 10
# Readings of the first ticks after a change still show the cap before.
_SETTLING = 3
_SAME_SHARE = 0.03
# Weight of the newest reading in the mean share of its cap that a job draws.
_NEWEST = 0.02


class ObservedJobs:
    """Curves of jobs without a frontier, from what their GPUs do under the caps in force.

    Speed is the clock times the share of time busy. A job that waits for memory or data loses
    less than its clock does, so the curve overstates what a lower cap costs it.
    """

    def __init__(self) -> None:
        self._sums: dict[str, dict[float, tuple[int, float, float]]] = defaultdict(dict)
        self._under: dict[str, tuple[float, int]] = {}

    def note(self, jobs: Mapping[str, Sequence[DeviceState]]) -> None:
        """Add a reading of the GPUs of every running job; others are forgotten."""
        self._sums = defaultdict(dict, {n: self._sums[n] for n in jobs if n in self._sums})
        for name, devices in jobs.items():
            speeds = [device.speed_hertz for device in devices]
            cap = sum(device.cap_watts for device in devices) / len(devices)
            share = cap / min(device.most_watts for device in devices)
            before, age = self._under.get(name, (share, 0))
            age = age + 1 if abs(share - before) < _SAME_SHARE else 0
            self._under[name] = (share, age)
            if age < _SETTLING or None in speeds:
                continue
            watts = sum(device.watts for device in devices) / len(devices)
            speed = min(speed for speed in speeds if speed is not None)
            key = min(SHARES, key=lambda known: abs(known - share))
            count, total_watts, total_speed = self._sums[name].get(key, (0, 0.0, 0.0))
            self._sums[name][key] = (count + 1, total_watts + watts, total_speed + speed)

    def next_share(self, job: str) -> float:
        """Share of the most cap under which a job should run next."""
        for share in SHARES:
            if self._sums[job].get(share, (0, 0.0, 0.0))[0] < _READINGS:
                return share
        return SHARES[0]

    def curve(self, job: str) -> PowerCurve | None:
        """The job's curve; None until all shares were tried."""
        sums = self._sums.get(job, {})
        if any(sums.get(share, (0, 0.0, 0.0))[0] < _READINGS for share in SHARES):
            return None
        points = [(watts / n, speed / n) for n, watts, speed in sums.values()]
        return PowerCurve.from_points(points) if max(s for _, s in points) > 0 else None


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
        """Sum of caps that may be handed out under a budget, see :func:`oversubscribed_watts`.

        Args:
            budget_watts: Power of all GPUs that may be exceeded with a probability of ``risk``.
            caps: Caps in force of each job, and of GPUs without one under other names.
            risk: Largest probability of exceeding the budget; 0 for none.
        """
        if not risk or not caps or budget_watts <= 0:
            return budget_watts
        draws = [(cap, self._shares.get(name, 1.0)) for name, cap in caps.items()]
        return oversubscribed_watts(budget_watts, draws, risk)


@dataclass(frozen=True, slots=True)
class JobHistory:
    """What is known of jobs from earlier ticks.

    Attributes:
        ledger: What jobs are owed.
        observed: Curves of jobs without a frontier.
        drawn: Shares of their caps that jobs draw.
    """

    ledger: DeficitLedger = field(default_factory=DeficitLedger)
    observed: ObservedJobs = field(default_factory=ObservedJobs)
    drawn: DrawnShares = field(default_factory=DrawnShares)
