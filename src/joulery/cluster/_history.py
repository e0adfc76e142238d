"""Records of jobs from earlier ticks: performance they are owed, power and speed under caps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from joulery.cluster._draws import BoardDraws
from joulery.cluster._jobs import PowerCurve

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from joulery.cluster._nodes import DeviceState
    from joulery.cluster._slurm import EngineJob

# A job is owed, or owes, at most this much of its performance at any time; by hand.
MOST_CREDIT = 0.25
# Time within which a deficit is to be repaid; by hand: a shift.
_HORIZON_SECONDS = 4 * 3600.0
# Credits move in steps, so that jobs with nearly the same stay in one class; by
# hand.
CREDIT_STEP = 1 / 64
# Caps to try on an unknown job, as shares of the most that it got, which is tried first; by hand.
SHARES = (1.0, 0.75, 0.5)
# Readings under one cap before the next is tried, at one reading a tick; by hand.
_READINGS = 10
# Readings of the first ticks after a change still show the cap before.
_SETTLING = 3
# A cap has not changed within this share of the most power; by hand: boards round caps.
_SAME_SHARE = 0.03
# Readings are kept by cap in steps of this share of the most power; by hand.
_BIN = 0.05
# A board that draws this share of its cap is held back by it.
_BOUND = 0.95
# A promised power is broken by a mean above it by this share, with this time constant; by hand:
# single readings of a second may be higher, and caps come back within a few ticks.
_PROMISE_TOLERANCE, _PROMISE_SECONDS = 0.05, 5.0
# Share of a promised power that a job is taken to draw before it was seen; by hand.
_PROMISE_START = 0.9
# What a job that draws less than its cap may have beyond what it draws; by hand.
_HEADROOM = 1.1


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


class ObservedJobs:
    """Curves of jobs without a frontier, from what their GPUs do under the caps in force.

    Speed is the clock times the share of time busy. A job that waits for memory or data loses
    less than its clock does, so the curve overstates what a lower cap costs it. A job that draws
    less than its cap keeps some headroom, and is profiled anew once it uses that up. Above the
    highest cap that a budget left it, speed is taken to rise with the root of the power.
    """

    def __init__(self) -> None:
        # By job and share of the most cap: number of readings; mean cap, draw and speed of a GPU.
        self._means: dict[str, dict[float, tuple[int, np.ndarray]]] = {}
        self._under: dict[str, tuple[float, int]] = {}
        self._most: dict[str, float] = {}

    def note(self, jobs: Mapping[str, Sequence[DeviceState]]) -> None:
        """Add a reading of the GPUs of every running job; others are forgotten."""
        self._means = {name: self._means.get(name, {}) for name in jobs}
        self._under = {name: self._under.get(name, (0.0, 0)) for name in jobs}
        for name, devices in jobs.items():
            cap = sum(device.cap_watts for device in devices) / len(devices)
            watts = sum(device.watts for device in devices) / len(devices)
            self._most[name] = highest = min(device.most_watts for device in devices)
            before, age = self._under[name]
            age = age + 1 if abs(cap - before) < _SAME_SHARE * highest else 0
            self._under[name] = (cap, age)
            speeds = [device.speed_hertz for device in devices if device.speed_hertz is not None]
            if age < _SETTLING or len(speeds) < len(devices):
                continue
            self._forget_outgrown(name, cap, watts)
            share = round(cap / highest / _BIN) * _BIN
            count, mean = self._means[name].get(share, (0, np.zeros(3)))
            mean = mean + (np.array([cap, watts, min(speeds)]) - mean) / (count + 1)
            self._means[name][share] = count + 1, mean

    def next_share(self, job: str) -> float:
        """Share of the most cap under which a job should run next, if there are watts for it."""
        shares = self._tried(job)
        return SHARES[min(len(shares), len(SHARES) - 1)] * max(shares, default=1.0)

    def curve(self, job: str) -> PowerCurve | None:
        """The job's curve; None until enough caps were tried."""
        shares = self._tried(job)
        means = [self._means[job][share][1].tolist() for share in shares]
        if len(means) < len(SHARES) or not any(speed for _, _, speed in means):
            return None
        points = [(min(cap, _HEADROOM * watts), speed) for cap, watts, speed in means]
        cap, watts, speed = max(means)
        if watts > _BOUND * cap and self._most[job] > cap:
            points.append((self._most[job], speed * (self._most[job] / cap) ** 0.5))
        return PowerCurve.from_points(points)

    def _tried(self, job: str) -> list[float]:
        """Shares of the most cap under which there are enough readings."""
        means = self._means.get(job, {})
        return [share for share, (count, _) in means.items() if count >= _READINGS]

    def _forget_outgrown(self, job: str, cap: float, watts: float) -> None:
        """Forget a job that drew less than its caps when profiled, and now draws all of one."""
        curve = self.curve(job)
        top = max((mean[0] for _, mean in self._means[job].values()), default=0.0)
        was_light = curve is not None and curve.most_watts < (1 - _SAME_SHARE) * top
        if was_light and watts > (1 - _SAME_SHARE) * cap:
            self._means[job] = {}


class PromiseWatch:
    """Whether jobs that promise a power keep to it, by what their GPUs draw.

    Only what they draw while no cap holds them tells that: the mean over such times counts.

    Attributes:
        broken: Jobs that drew more, which are not believed any more.
    """

    def __init__(self) -> None:
        self.broken: set[str] = set()
        # Mean share of the promised power that each job draws.
        self._means: dict[str, float] = {}

    def note(self, jobs: Mapping[str, Sequence[DeviceState]], seconds: float) -> list[str]:
        """Add a reading of the GPUs of every running job; jobs whose promise is broken now."""
        self.broken &= jobs.keys()
        means, self._means, before = self._means, {}, set(self.broken)
        for name, devices in jobs.items():
            if promised := promised_watts(devices):
                mean = means.get(name, _PROMISE_START)
                if all(
                    device.cap_watts >= (1 - _SAME_SHARE) * device.most_watts for device in devices
                ):
                    share = sum(device.watts for device in devices) / promised
                    mean += min(1.0, seconds / _PROMISE_SECONDS) * (share - mean)
                self._means[name] = mean
                if mean > 1 + _PROMISE_TOLERANCE:
                    self.broken.add(name)
        return sorted(self.broken - before)


def promised_watts(devices: Sequence[DeviceState]) -> float | None:
    """Power that a job promises to keep to; None unless it does so for all its GPUs."""
    watts = [device.promised_watts for device in devices if device.promised_watts is not None]
    return sum(watts) if watts and len(watts) == len(devices) else None


@dataclass(frozen=True, slots=True)
class JobHistory:
    """What is known of jobs from earlier ticks.

    Attributes:
        ledger: Performance that jobs are owed.
        observed: Curves of jobs as their caps and speeds show them.
        draws: What boards draw beside what their caps say.
        promises: Whether jobs keep to the power that they promise.
        frontiers: Curves by name of a job, of the administrator and from the store.
    """

    ledger: DeficitLedger = field(default_factory=DeficitLedger)
    observed: ObservedJobs = field(default_factory=ObservedJobs)
    draws: BoardDraws = field(default_factory=BoardDraws)
    promises: PromiseWatch = field(default_factory=PromiseWatch)
    frontiers: dict[str, PowerCurve] = field(default_factory=dict)

    def curve(self, job: EngineJob) -> PowerCurve | None:
        """The curve of a job, by name or as observed; None where neither is known."""
        return self.frontiers.get(job.frontier_name) or self.observed.curve(job.id)
