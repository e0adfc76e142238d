"""Reproduce the figures of Zeus (NSDI'23) from its traces, with its policy and with ours."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError
from joulery.jobs.policies.registry import make_policy
from joulery.jobs.policies.zeus import Zeus
from joulery.simulate import reproduce_drift as drifts
from joulery.simulate.cluster_replay import ReplayOptions, replay
from joulery.simulate.recurring import Options, simulate
from joulery.simulate.reproduce_ablation import WithoutProfiling, WithoutPruning
from joulery.simulate.reproduce_cluster import cluster
from joulery.simulate.reproduce_fronts import energy_by_batch_size, energy_by_limit, fronts
from joulery.simulate.reproduce_order import in_their_order, told_apart
from joulery.simulate.reproduce_paths import search_paths
from joulery.simulate.reproduce_potential import optima, savings_potential
from joulery.simulate.reproduce_recurrences import cumulative_regret, last_five, mean_by_gpu
from joulery.simulate.reproduce_sensitivity import ablation, beta_sweep, eta_sweep
from joulery.simulate.reproduce_surface import Surface

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from joulery.simulate.cluster_groups import Groups
    from joulery.simulate.log import SimulationLog
    from joulery.simulate.reproduce_rows import FigureData
    from joulery.simulate.workload import TracedWorkload

POLICIES = ("grid", "zeus", "joulery")
ETA = 0.5
BETA = 2.0
_CLUSTER = 9


@dataclass(frozen=True, slots=True)
class Effort:
    """How much to simulate.

    Attributes:
        seeds: Jobs per workload where policies are compared.
        sweep_seeds: Jobs per workload and setting of a sweep.
        etas: Weights of energy to sweep.
        betas: Thresholds of early stopping to sweep; the usual one is among them.
    """

    seeds: int = 100
    sweep_seeds: int = 10
    etas: tuple[float, ...] = (0.0, 0.25, 0.5, 0.75, 1.0)
    betas: tuple[float, ...] = (1.5, 2.0, 2.5, 3.0, 4.0, 5.0)


FULL = Effort()
QUICK = Effort(seeds=10, sweep_seeds=4, etas=(0.0, 0.5, 1.0), betas=(1.5, BETA, 3.0))


class Study:
    """The figures of one set of traces; each simulation is made once, when first needed.

    Args:
        workloads: From the traces.
        effort: How much to simulate.
        groups: A cluster's jobs, for Fig. 9; None leaves it out.
        on_progress: Called with what is being simulated, and the share of it that is done.
    """

    def __init__(
        self,
        workloads: Sequence[TracedWorkload],
        effort: Effort = FULL,
        groups: Groups | None = None,
        on_progress: Callable[[str, float], None] = lambda _what, _share: None,
    ) -> None:
        self._loads = in_their_order(told_apart(workloads))
        self._effort = effort
        self._groups = groups
        self._on_progress = on_progress
        self._surfaces = [Surface(load) for load in self._loads]

    def figures(self, numbers: Sequence[int] = ()) -> Iterator[FigureData]:
        """Those with the given numbers in the publication, or all of them.

        Raises:
            InvalidValueError: A number is none that can be made here.
        """
        makers = self.makers()
        known = sorted({number for figure in makers for number in figure})
        for number in numbers:
            if number not in known:
                raise InvalidValueError(
                    f"Fig. {number} cannot be made here",
                    remedy="give the jobs of a cluster with --groups or --jobs"
                    if number == _CLUSTER
                    else f"choose from {', '.join(map(str, known))}",
                )
        for figure, make in makers.items():
            if not numbers or set(figure) & set(numbers):
                yield make()

    def makers(self) -> dict[tuple[int, ...], Callable[[], FigureData]]:
        """How to make each figure, by the numbers that it has in the publication."""
        makers: dict[tuple[int, ...], Callable[[], FigureData]] = {
            (6, 23): self._last_five,
            (7, 19): lambda: cumulative_regret(self._logs),
            (10,): self._drift,
            (14,): lambda: mean_by_gpu(self._last_five()),
            (8, 20, 21): self._paths,
            (11, 22): self._etas,
            (12,): self._betas,
            (13,): self._ablation,
            (1, 15): lambda: savings_potential(self._surfaces),
            (): lambda: optima(self._surfaces, ETA),
            (2, 16): lambda: fronts(self._surfaces),
            (5, 17): lambda: energy_by_batch_size(self._surfaces),
            (18,): lambda: energy_by_limit(self._surfaces),
        }
        if self._groups is not None:
            makers[_CLUSTER,] = partial(self._cluster, self._groups)
        return makers

    def _simulate(self, what: str, policy: Any, seeds: int, **options: Any) -> SimulationLog:
        chosen = Options(on_progress=partial(self._on_progress, what), **options)
        return simulate(self._loads, policy, None, range(seeds), chosen)

    @cached_property
    def _logs(self) -> dict[str, SimulationLog]:
        return {
            name: self._simulate(name, make_policy(name), self._effort.seeds, eta=ETA)
            for name in POLICIES
        }

    def _last_five(self) -> FigureData:
        return last_five(self._logs)

    def _paths(self) -> FigureData:
        return search_paths(
            {
                name: self._simulate(f"path of {name}", make_policy(name), 1, keep_deeds=True)
                for name in POLICIES
            }
        )

    def _etas(self) -> FigureData:
        seeds = self._effort.sweep_seeds
        return eta_sweep(
            {
                (name, eta): self._simulate(
                    f"{name}, eta {eta:g}", make_policy(name), seeds, eta=eta
                )
                for name in POLICIES[1:]
                for eta in self._effort.etas
            }
        )

    def _betas(self) -> FigureData:
        seeds = self._effort.sweep_seeds
        return beta_sweep(
            {
                beta: self._simulate(f"zeus, beta {beta:g}", Zeus(beta), seeds)
                for beta in self._effort.betas
            },
            BETA,
        )

    def _ablation(self) -> FigureData:
        variants = {
            "zeus": Zeus(),
            "no early stopping": Zeus(math.inf),
            "no pruning": WithoutPruning(),
            "no just-in-time profiling": WithoutProfiling(),
        }
        seeds = self._effort.sweep_seeds
        return ablation(
            {name: self._simulate(name, policy, seeds) for name, policy in variants.items()}
        )

    def _drift(self) -> FigureData:
        logs = {}
        for kind, change in drifts.KINDS.items():
            for policy in (Zeus(window=drifts.WINDOW), make_policy("joulery")):
                what = f"{policy.name}, drift: {kind}"
                options = Options(drift=change, on_progress=partial(self._on_progress, what))
                seeds = range(self._effort.sweep_seeds)
                logs[kind, policy.name] = simulate(
                    self._loads, policy, drifts.RECURRENCES, seeds, options
                )
        return drifts.drifting(logs)

    def _cluster(self, groups: Groups) -> FigureData:
        replays = []
        for gpu in dict.fromkeys(load.gpu for load in self._loads):
            loads = [load for load in self._loads if load.gpu == gpu]
            logs = {}
            for name in ("default", *POLICIES):
                what = f"cluster on {gpu}, {name}"
                options = ReplayOptions(eta=ETA, on_progress=partial(self._on_progress, what))
                logs[name] = replay(groups, loads, make_policy(name), options)
            replays.append((logs, loads))
        return cluster(replays, groups.remark)
