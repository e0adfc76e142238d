"""The plant under all that `scripts/stress_cluster.py` does to a real Slurm, in virtual time.

Something breaks every 6 s: jobs arrive, are cancelled and suspended; nodes, their governors and the
agent die; slurmctld hangs; the feeder's meter fails or freezes; the grid asks for less. Each watt
that is unused while the budget binds is put down to its cause.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulery.cluster import Agent, EngineError, MeterReading, announce
from joulery.errors import NotPossibleHereError
from joulery.grid import GridEvent
from support.plant import LEAST, MOST, Plant

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.cluster._decide import CapDecision, ClusterView

DISTURBANCES = (
    *("arrive", "arrive", "arrive", "cancel", "suspend", "kill_node", "cut_governor"),
    *("kill_agent", "break_meter", "break_meter", "announce", "announce", "hang_slurmctld"),
)
FALLBACK = 150.0
# Slurm gives up a node that is silent for so long, and its jobs.
_SLURM_SECONDS = 5.0
_TTL_SECONDS = 5.0


class WatchedAgent(Agent):
    """An agent that keeps what it decided last, and on what."""

    view: ClusterView
    decision: CapDecision

    def _decide(self, view: ClusterView) -> CapDecision:
        self.view, self.decision = view, super()._decide(view)
        return self.decision


@dataclass
class Sample:
    """Power at a time, and why it is below what is allowed."""

    at: float
    watts: float
    allowed: float
    is_event: bool
    is_led: bool
    binds: bool
    causes: dict[str, float]


class DisturbedPlant(Plant):
    """A plant of four nodes in which something breaks every 6 s.

    Args:
        folder: State folder of the agent.
        seed: Seed of everything.
    """

    def __init__(self, folder, seed) -> None:
        options = {"ttl_seconds": _TTL_SECONDS, "meter_seconds": 10.0}
        super().__init__(folder, seed, nodes=4, budget=0.65, options=options)
        self.samples: list[Sample] = []
        self.disturbed: Counter[str] = Counter()
        self._held: set[str] = set()
        self._queue: list[tuple[str, int, int, str]] = []
        self._ends: list[tuple[float, Callable[[], object]]] = []
        self._events: list[tuple[float, float, float]] = []
        self._heard = dict.fromkeys(self.parts, 0.0)
        self._fault, self._is_hung, self._led_since = "", False, 0.0
        self._value = 0.0
        self._start_agent()

    def _start_agent(self) -> None:
        meters = {"cluster": self}
        settings = self.agent._settings
        self.agent = WatchedAgent(settings, self, self.parts, self.clock, meters=meters)
        self._led_since = self.clock.now() + 2.0

    def jobs(self):
        """Jobs that hold boards; a slurmctld that hangs does not answer."""
        if self._is_hung:
            raise EngineError("slurmctld hangs", remedy="wait")
        held = self.suspended | self._held
        return [replace(entry.job, is_suspended=n in held) for n, entry in self.waiting.items()]

    def read(self) -> MeterReading:
        """Power of the whole, unless the meter is broken."""
        if self._fault == "fails":
            raise NotPossibleHereError("the meter does not answer", remedy="wait")
        if self._fault != "freezes":
            self._value = self.power() * (1 + self.chance.gauss(0, 1e-3))
        return MeterReading(self._value, self.clock.wall())

    def run(self, seconds: float, *, churn: bool = True) -> None:
        """Run and disturb the agent for a while of virtual time."""
        for _ in range(6):
            self.arrive()
        until, disturbs_at = self.clock.now() + seconds, 0.0
        while (now := self.clock.now()) < until:
            for entry in sorted((e for e in self._ends if e[0] <= now), key=lambda e: e[0]):
                self._ends.remove(entry)
                entry[1]()
            if churn and now >= disturbs_at:
                kind = self.chance.choice(DISTURBANCES)
                self.disturbed[kind] += 1
                lasts = getattr(self, kind)() or 0.0
                disturbs_at = now + lasts + self.chance.expovariate(1 / 6)
            self._start_jobs()
            if self._led_since < float("inf"):
                self._heard |= {n: now for n, node in self.parts.items() if not node.is_cut}
                self.agent.tick()
            for _ in range(int(2 * self.tick_seconds)):
                stopped, self.suspended = self.suspended, self.suspended | self._held
                self.move(0.5)
                self.suspended = stopped & self.waiting.keys()
                self._lapse(0.5)
                self._note()

    def _later(self, seconds: float, action: Callable[[], object]) -> float:
        self._ends.append((self.clock.now() + seconds, action))
        return seconds

    def arrive(self) -> None:
        """Submit a job."""
        gpus, nodes = self.chance.choice([(1, 1), (2, 1), (4, 1), (4, 2)])
        comment = self.chance.choice(["", "joulery tier=flex-1", "joulery tier=flex-3"])
        self._queue.append((self.chance.choice(["compute", "memory"]), gpus, nodes, comment))

    def _start_jobs(self) -> None:
        held = {(n, i) for e in self.waiting.values() for n, at in e.job.gpus.items() for i in at}
        for entry in [] if self._is_hung else list(self._queue):
            name, gpus, nodes, self.comment = entry
            free = {n: [i for i in range(4) if (n, i) not in held] for n in self.parts}
            places = [n for n in free if len(free[n]) >= gpus and not self.parts[n].is_cut][:nodes]
            if len(places) == nodes:
                self._queue.remove(entry)
                self.submit(name, {n: tuple(free[n][:gpus]) for n in places}, 3600.0)
                held |= {(n, i) for n in places for i in free[n][:gpus]}

    def cancel(self) -> None:
        """Cancel a job."""
        self._end_jobs([self.chance.choice(sorted(self.waiting))] if self.waiting else [])

    def _end_jobs(self, names) -> None:
        for name in names:
            self.waiting.pop(name, None)
            self.suspended.discard(name)
            self._held.discard(name)

    def suspend(self, job: str | None = None) -> float | None:
        """Suspend a job: the agent the one that it names, an administrator any for a while."""
        if job is not None:
            super().suspend(job)
            return None
        names = sorted(self.waiting.keys() - self.suspended)
        if not names:
            return None
        name = self.chance.choice(names)
        self._held.add(name)
        return self._later(self.chance.uniform(1, 5), lambda: self._held.discard(name))

    def cut_governor(self, name: str | None = None) -> float:
        """Cut off a governor."""
        node = self.parts[name or self.chance.choice(list(self.parts))]
        node.is_cut = True
        return self._later(self.chance.uniform(1, 10), lambda: setattr(node, "is_cut", False))

    def kill_node(self) -> float:
        """Kill a node's daemon, and cut off its governor."""
        name = self.chance.choice(list(self.parts))
        seconds = self.cut_governor(name)
        jobs = [job for job, entry in self.waiting.items() if name in entry.job.gpus]
        if seconds > _SLURM_SECONDS:
            self._later(_SLURM_SECONDS, lambda: self._end_jobs(jobs))
        return seconds

    def kill_agent(self) -> float:
        """Kill the agent, and start it again."""
        self._led_since = float("inf")
        return self._later(self.chance.uniform(0, 8), self._start_agent)

    def hang_slurmctld(self) -> float:
        """Let slurmctld hang."""
        self._is_hung = True
        return self._later(self.chance.uniform(1, 6), lambda: setattr(self, "_is_hung", False))

    def break_meter(self) -> float:
        """Break the meter for a while."""
        self._fault = self.chance.choice(["fails", "freezes", "fails"])
        return self._later(self.chance.uniform(2, 15), lambda: setattr(self, "_fault", ""))

    def announce(self) -> None:
        """Announce a cut of 10 to 40 %."""
        start, wall = self.clock.now() + 5, self.clock.wall() + 5
        lasts, target = self.chance.uniform(10, 30), self.chance.uniform(0.6, 0.9)
        target *= self.budget_watts
        name = f"e{len(self._events)}"
        announce(self.folder, GridEvent(name, wall, wall + lasts, target), self.clock)
        self._events.append((start, start + lasts, target))

    def _lapse(self, seconds: float) -> None:
        """Lower the caps of nodes that no agent speaks to."""
        for name, node in self.parts.items():
            for board in node.boards:
                if self.clock.now() - self._heard[name] > _TTL_SECONDS:
                    lowered = max(FALLBACK, board.cap_watts * 0.9**seconds)
                    board.cap_watts = min(board.cap_watts, lowered)

    def _note(self) -> None:
        now, power = self.clock.now(), self.power()
        targets = [target for start, end, target in self._events if start <= now < end]
        allowed = min([self.budget_watts, *targets])
        binds = bool(self.suspended) or any(
            max(self.parts[n].boards[i].cap_watts for n, at in e.job.gpus.items() for i in at)
            < 0.99 * MOST
            for e in self.waiting.values()
        )
        is_led = self._led_since <= now
        causes = self._causes(allowed, power) if binds and is_led else {}
        self.samples.append(Sample(now, power, allowed, bool(targets), is_led, binds, causes))

    def _causes(self, allowed: float, power: float) -> dict[str, float]:
        """Watts below what is allowed, by cause; they add up to all of them."""
        view, decision = self.agent.view, self.agent.decision
        shares, causes = decision.allocation, defaultdict(float)
        causes["before events and after"] = allowed - view.budget_watts
        planned = dict(zip(shares.ids, shares.watts, strict=True)) if shares is not None else {}
        used = 0.0 if shares is None else shares.used_watts
        lost = self.parts.keys() - view.reachable.keys()
        lost_watts = sum(b.watts for n in lost for b in self.parts[n].boards)
        causes["nodes out of reach"] = sum(view.unreachable_watts.values()) - lost_watts
        entries = {entry.id: entry for entry in view.jobs}
        for name, watts in planned.items():
            boards = [
                self.parts[n].boards[i]
                for n, at in entries[name].gpus.items()
                if n in view.reachable
                for i in at
            ]
            drawn = sum(board.watts for board in boards)
            if not all(board.demand for board in boards) or name in decision.paused:
                causes["jobs that load or wait"] += watts - drawn
            elif max(board.cap_watts for board in boards) >= MOST or (
                max(board.cap_watts for board in boards) <= LEAST
            ):
                causes["boards at their limits"] += watts - drawn
        left = view.budget_watts - used - view.corrections.get("cluster", 0.0)
        causes["not shared"] = left
        causes["margin: hosts, boards, noise"] = allowed - power - sum(causes.values())
        return causes

    def figures(self, since: float = 60.0) -> tuple[dict[str, float], dict[bool, Counter[str]]]:
        """Shares of time above and of watts below what is allowed, and those by cause."""
        rows = [row for row in self.samples if row.at >= since]
        over = [row for row in rows if row.watts > 1.001 * row.allowed]
        parts: dict[bool, Counter[str]] = {}
        unused = {}
        for is_event in (False, True):
            bound = [row for row in rows if row.binds and row.is_led and row.is_event == is_event]
            parts[is_event] = Counter()
            for row in bound:
                for cause, watts in row.causes.items():
                    parts[is_event][cause] += watts / row.allowed / len(bound)
            gaps = [max(0.0, 1 - row.watts / row.allowed) for row in bound]
            unused[is_event] = sum(gaps) / max(1, len(gaps))
        share = sum(row.is_event for row in rows if row.binds) / sum(row.binds for row in rows)
        return {
            "over_share": sum(row.is_led for row in over) / len(rows),
            "over_without_agent_share": sum(not row.is_led for row in over) / len(rows),
            "unused_share": share * unused[True] + (1 - share) * unused[False],
            "over_delivery_share": unused[True],
        }, parts
