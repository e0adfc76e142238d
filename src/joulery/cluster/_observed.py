"""What running jobs show about themselves: the power that they draw, and their GPUs' speed."""

from __future__ import annotations

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
# What a job that draws less than its cap may have beyond what it draws.
_HEADROOM = 1.1
# Weight of the newest reading in the mean share of its cap that a job draws.
_NEWEST = 0.02


@dataclass(slots=True)
class _Mean:
    """Means of the readings under one cap, for one GPU."""

    count: int = 0
    cap_watts: float = 0.0
    watts: float = 0.0
    speed_hertz: float = 0.0

    def add(self, cap_watts: float, watts: float, speed_hertz: float) -> None:
        """Add a reading."""
        self.count += 1
        self.cap_watts += (cap_watts - self.cap_watts) / self.count
        self.watts += (watts - self.watts) / self.count
        self.speed_hertz += (speed_hertz - self.speed_hertz) / self.count


class ObservedJobs:
    """Curves of jobs without a frontier, from what their GPUs do under the caps in force.

    Speed is the clock times the share of time busy. A job that waits for memory or data loses
    less than its clock does, so the curve overstates what a lower cap costs it. A job that draws
    less than its cap keeps some headroom, and is profiled anew once it uses that up.
    """

    def __init__(self) -> None:
        self._means: dict[str, dict[float, _Mean]] = {}
        self._under: dict[str, tuple[float, int]] = {}

    def note(self, jobs: Mapping[str, Sequence[DeviceState]]) -> None:
        """Add a reading of the GPUs of every running job; others are forgotten."""
        self._means = {name: self._means.get(name, {}) for name in jobs}
        self._under = {name: self._under.get(name, (0.0, 0)) for name in jobs}
        for name, devices in jobs.items():
            cap = sum(device.cap_watts for device in devices) / len(devices)
            watts = sum(device.watts for device in devices) / len(devices)
            most = min(device.most_watts for device in devices)
            before, age = self._under[name]
            age = age + 1 if abs(cap - before) < _SAME_SHARE * most else 0
            self._under[name] = (cap, age)
            speeds = [each.speed_hertz for each in devices if each.speed_hertz is not None]
            if age < _SETTLING or len(speeds) < len(devices):
                continue
            self._forget_outgrown(name, cap, watts, SHARES[0] * most)
            for share in SHARES:
                if abs(cap - share * most) < _SAME_SHARE * most:
                    self._means[name].setdefault(share, _Mean()).add(cap, watts, min(speeds))

    def next_share(self, job: str) -> float:
        """Share of the most cap under which a job should run next."""
        means = self._means.get(job, {})
        untried = (s for s in SHARES if s not in means or means[s].count < _READINGS)
        return next(untried, SHARES[0])

    def curve(self, job: str) -> PowerCurve | None:
        """The job's curve; None until all shares were tried."""
        means = [mean for mean in self._means.get(job, {}).values() if mean.count >= _READINGS]
        if len(means) < len(SHARES) or not any(mean.speed_hertz for mean in means):
            return None
        return PowerCurve.from_points(
            (min(mean.cap_watts, _HEADROOM * mean.watts), mean.speed_hertz) for mean in means
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
