"""Kill holders and governors, and count what was not given back."""

from __future__ import annotations

import random
import signal
import statistics
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.clock import REAL_CLOCK
from joulery.errors import JouleryError
from joulery.governor import Connection
from joulery.hardware import Workload
from support.governor.nursery import DEADLY

if TYPE_CHECKING:
    from collections.abc import Callable

    from support.governor.node import GovernedNode

_LOAD = Workload("step", compute_seconds=0.08, memory_seconds=0.03, host_seconds=0.01)


@dataclass(frozen=True, slots=True)
class KillReport:
    """What became of the devices of killed holders.

    Attributes:
        kills: How many were killed.
        caught_holding: How many of them had changed the limit at that moment.
        unrestored: How many devices did not come back.
        latencies: Seconds from each kill to the restored limit, of those caught holding.
    """

    kills: int
    caught_holding: int
    unrestored: int
    latencies: tuple[float, ...]

    def percentile(self, per_cent: int) -> float:
        """A percentile of the latencies, in seconds."""
        return statistics.quantiles(self.latencies, n=100, method="inclusive")[per_cent - 1]


def kill_holders(
    governed: GovernedNode,
    count: int,
    seed: int = 0,
    on_kill: Callable[[int], None] | None = None,
) -> KillReport:
    """Kill ``count`` holders by every deadly signal at random moments.

    The cap that the administrator has set changes from time to time.
    """
    chance = random.Random(seed)  # noqa: S311 - no secret
    device, latencies, unrestored = governed.devices[0], [], 0
    cap = governed.node.power_limit(0)
    for number in range(count):
        if chance.random() < 0.1:
            cap = float(chance.randrange(300, 400)) + 0.25
            governed.node.set_power_limit(0, cap)
        holder = governed.nursery.hold(
            socket=str(governed.socket),
            device=device,
            limits_watts=[150.0, 180.5, 220.125, 290.0],
            seed=chance.randrange(2**32),
        )
        REAL_CLOCK.sleep(chance.random() * 0.008)
        governed.nursery.kill(holder, DEADLY[number % len(DEADLY)])
        held = governed.node.power_limit(0) != cap
        seconds = governed.restored_after(0, cap)
        if seconds is None:
            unrestored += 1
            governed.node.set_power_limit(0, cap)
        elif held:
            latencies.append(seconds)
        if on_kill is not None:
            on_kill(number)
    return KillReport(count, len(latencies), unrestored, tuple(latencies))


@dataclass(frozen=True, slots=True)
class CrashReport:
    """What governors left behind that died at a boundary.

    Attributes:
        boundaries: How many boundaries there were.
        off_baseline: Boundaries after which some device was not back.
        slowest_seconds: The longest time from starting again to everything being back.
    """

    boundaries: int
    off_baseline: tuple[int, ...]
    slowest_seconds: float


def crash_everywhere(governed: GovernedNode, *, step: int = 1, seed: int = 0) -> CrashReport:
    """Kill the governor at each boundary between it and its disk or hardware.

    Args:
        governed: Its governor is started again and again.
        step: Try every ``step``-th boundary only.
        seed: Decides at which boundary of its repair the next governor dies as well.
    """
    chance = random.Random(seed)  # noqa: S311 - no secret
    governed.node.set_load(0, _LOAD)  # so that a clock left pinned shows
    truth, slowest, off, boundary = governed.node.truth(0), 0.0, [], 1
    governed.stop(signal.SIGTERM)
    while True:
        governed.start(die_at=boundary)
        survived = _survives_use(governed)
        if survived:
            governed.stop(signal.SIGKILL)
        else:
            # The one that repairs may die as well.
            governed.start(die_at=chance.randrange(1, 40))
            governed.stop(signal.SIGKILL)
        began = REAL_CLOCK.now()
        governed.start()
        slowest = max(slowest, REAL_CLOCK.now() - began)
        now = governed.node.truth(0)
        if (now.limit_watts, now.steady) != (truth.limit_watts, truth.steady):
            off.append(boundary)
            governed.node.set_power_limit(0, truth.limit_watts)
        governed.stop(signal.SIGTERM)
        if survived:
            governed.start()
            return CrashReport(boundary, tuple(off), slowest)
        boundary += step


def _survives_use(governed: GovernedNode) -> bool:
    """Whether a governor still runs after everything that makes one write."""
    try:
        _use(governed)
    except (OSError, JouleryError):  # it is dying; a busy machine takes its time to end it
        return not governed.wait_until_ended(governed.pid, 20.0)
    return not governed.wait_until_ended(governed.pid, 0.02)


def _use(governed: GovernedNode) -> None:
    """Everything that makes a governor write."""
    device = governed.devices[0]
    with closing(Connection(governed.socket)) as connection:
        lease = connection.ask("acquire", device=device, watts=200, ttl_seconds=30)["lease"]
        connection.ask("set", lease=lease, watts=150)
        connection.ask("set", lease=lease, hertz=1.0e9)
        connection.ask("release", lease=lease)
    with closing(Connection(governed.socket)) as connection:
        connection.ask("acquire", device=device, watts=180, ttl_seconds=30)
    with closing(Connection(governed.socket)) as connection:
        deadline = REAL_CLOCK.now() + 20.0
        while connection.ask("status")["devices"][0]["held"]:  # until the hang-up was worked off
            assert REAL_CLOCK.now() < deadline, "a lease outlives its holder"
