"""Where recurring jobs change or overlap: how policies come through."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.jobs.policies.registry import make_policy
from joulery.simulate import drift
from joulery.simulate.recurring import Options, simulate

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulery.simulate.drift import Drift
    from joulery.simulate.log import SimulationLog
    from joulery.simulate.workload import TracedWorkload

AT = 50
OVERLAP = 10
AFTER = 100
# Settled: five recurrences in a row whose setting is expected to cost at most a tenth more.
RUN, WITHIN = 5, 0.10

DRIFTS: dict[str, Callable[[TracedWorkload], Drift]] = {
    "all need twice the epochs": lambda load: drift.scaled(load, AT, 2.0),
    "the optimum moves": lambda load: drift.optimum_moves(load, AT),
    "the optimum moves unannounced": lambda load: drift.optimum_moves(load, AT, announced=False),
    "a discarded size becomes best": lambda load: drift.discarded_becomes_best(load, AT),
    "a discarded size becomes best unannounced": lambda load: drift.discarded_becomes_best(
        load, AT, others=1.0
    ),
}


def drift_scene(
    loads: Sequence[TracedWorkload], name: str, policy: str, seeds: int
) -> dict[str, Any]:
    """Regret after the change, and recurrences until settled."""
    options = Options(drift=DRIFTS[name])
    log = simulate(loads, make_policy(policy), AT + AFTER, range(seeds), options)
    after = (log.cost / log.optimal - 1.0)[:, AT:].sum(axis=1)
    settled = _settled(log)
    return {
        "scene": name,
        "policy": policy,
        "regret_after": float(after.mean()),
        "settled_median": float(np.median(settled)),
        "settled_p90": float(np.quantile(settled, 0.9)),
        "never": float((settled >= AFTER).mean()),
        "failed": float((~log.reached[:, AT:]).mean()),
    }


def _settled(log: SimulationLog) -> Any:
    """(lanes,), recurrences after the change until settled; AFTER where never."""
    ratio = log.expected[:, AT:] / log.optimal[:, AT:]
    good = (ratio <= 1 + WITHIN) & log.reached[:, AT:]
    runs = np.lib.stride_tricks.sliding_window_view(good, RUN, axis=1).all(axis=2)
    return np.where(runs.any(axis=1), runs.argmax(axis=1), AFTER)


def overlap_scene(loads: Sequence[TracedWorkload], policy: str, seeds: int) -> dict[str, Any]:
    """Regret with overlapping submissions."""
    log = simulate(loads, make_policy(policy), None, range(seeds), Options(overlap=OVERLAP))
    return {
        "scene": "ten overlapping submissions",
        "policy": policy,
        "regret": [float(part.final_regret().mean()) for part in log.by_workload()],
        "failed": float(1.0 - np.mean([part.reached.mean() for part in log.by_workload()])),
    }
