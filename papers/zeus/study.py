"""The simulations behind each figure, with Zeus's policy and with Joulery's."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from joulery.errors import FileError, InvalidValueError
from joulery.jobs.policies import ZeusPolicy, make_policy
from joulery.simulate import SimulationConfig, read_traces, replay, simulate
from papers.zeus import policies, settings
from papers.zeus.ablation import WithoutProfiling, WithoutPruning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from joulery.simulate import JobGroups, SimulationLog, TracedWorkload, Traces
    from papers.zeus.tables import Figure

POLICIES = ("grid", "zeus", "joulery")
BETA = 2.0
CLUSTER_FIGURE = 9
# The order in which the publication lists its GPUs and workloads.
GPUS = ("v100", "a40", "rtx6000", "p100")
DATASETS = ("librispeech", "squad", "sentiment140", "imagenet", "cifar100", "movielens-1m")
TRAIN_FILE = "summary_train.csv"
SOURCE = (
    "take it from the public artifact of Zeus (NSDI'23): folder trace of github.com/ml-energy/zeus"
)


@dataclass(frozen=True, slots=True)
class Effort:
    """Amount of simulation.

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
        workloads: Workloads from the traces.
        effort: Amount of simulation.
        groups: Jobs of a cluster, for Fig. 9; None leaves it out.
        on_progress: Function called with what is being simulated, and the share that is done.
    """

    def __init__(
        self,
        workloads: Sequence[TracedWorkload],
        effort: Effort = FULL,
        groups: JobGroups | None = None,
        on_progress: Callable[[str, float], None] = lambda _what, _share: None,
    ) -> None:
        self._loads = in_published_order(with_distinct_names(workloads))
        self._effort = effort
        self._groups = groups
        self._on_progress = on_progress

    def figures(self, numbers: Sequence[int] = ()) -> Iterator[Figure]:
        """The figures with the given numbers in the publication, or all of them.

        Raises:
            InvalidValueError: A number is none that can be made here.
        """
        makers = self.makers()
        available = sorted({number for figure in makers for number in figure})
        for number in numbers:
            if number not in available:
                raise InvalidValueError(
                    f"Fig. {number} cannot be made here",
                    remedy="give the jobs of a cluster with --groups or --jobs"
                    if number == CLUSTER_FIGURE
                    else f"choose from {', '.join(map(str, available))}",
                )
        for figure, make in makers.items():
            if not numbers or set(figure) & set(numbers):
                yield make()

    def makers(self) -> dict[tuple[int, ...], Callable[[], Figure]]:
        """Functions that make each figure, by its numbers in the publication."""
        surfaces = [settings.Surface(load) for load in self._loads]
        makers: dict[tuple[int, ...], Callable[[], Figure]] = {
            (6, 23): self._last_five,
            (7, 19): lambda: policies.cumulative_regret(self._logs),
            (10,): self._drift,
            (14,): lambda: policies.mean_by_gpu(self._last_five()),
            (8, 20, 21): self._paths,
            (11, 22): self._etas,
            (12,): self._betas,
            (13,): self._ablation,
            (1, 15): partial(settings.savings_potential, surfaces),
            (): partial(settings.optima, surfaces),
            (2, 16): partial(settings.fronts, surfaces),
            (5, 17): partial(settings.energy_by_batch_size, surfaces),
            (18,): partial(settings.energy_by_limit, surfaces),
        }
        if self._groups is not None:
            makers[CLUSTER_FIGURE,] = partial(self._cluster, self._groups)
        return makers

    def _simulate(self, what: str, policy: Any, seeds: int, **options: Any) -> SimulationLog:
        chosen = SimulationConfig(on_progress=partial(self._on_progress, what), **options)
        return simulate(self._loads, policy, None, range(seeds), chosen)

    @cached_property
    def _logs(self) -> dict[str, SimulationLog]:
        seeds = self._effort.seeds
        return {name: self._simulate(name, make_policy(name), seeds) for name in POLICIES}

    def _last_five(self) -> Figure:
        return policies.last_five(self._logs)

    def _paths(self) -> Figure:
        return policies.search_paths(
            {
                name: self._simulate(f"path of {name}", make_policy(name), 1, keep_actions=True)
                for name in POLICIES
            }
        )

    def _etas(self) -> Figure:
        seeds = self._effort.sweep_seeds
        return policies.eta_sweep(
            {
                (name, eta): self._simulate(
                    f"{name}, eta {eta:g}", make_policy(name), seeds, eta=eta
                )
                for name in POLICIES[1:]
                for eta in self._effort.etas
            }
        )

    def _betas(self) -> Figure:
        seeds = self._effort.sweep_seeds
        return policies.beta_sweep(
            {
                beta: self._simulate(f"zeus, beta {beta:g}", ZeusPolicy(beta), seeds)
                for beta in self._effort.betas
            },
            BETA,
        )

    def _ablation(self) -> Figure:
        variants = {
            "zeus": ZeusPolicy(),
            "no early stopping": ZeusPolicy(math.inf),
            "no pruning": WithoutPruning(),
            "no just-in-time profiling": WithoutProfiling(),
        }
        seeds = self._effort.sweep_seeds
        return policies.ablation(
            {name: self._simulate(name, policy, seeds) for name, policy in variants.items()}
        )

    def _drift(self) -> Figure:
        seeds, logs = range(self._effort.sweep_seeds), {}
        for kind, change in policies.DRIFTS.items():
            loads = [change(load) for load in self._loads]
            for policy in (ZeusPolicy(window=policies.DRIFT_WINDOW), make_policy("joulery")):
                show = partial(self._on_progress, f"{policy.name}, drift: {kind}")
                options = SimulationConfig(on_progress=show)
                log = simulate(loads, policy, policies.DRIFT_RECURRENCES, seeds, options)
                logs[kind, policy.name] = log
        return policies.drifting(logs)

    def _cluster(self, groups: JobGroups) -> Figure:
        replays = []
        for gpu in dict.fromkeys(load.gpu for load in self._loads):
            loads = [load for load in self._loads if load.gpu == gpu]
            logs = {}
            for name in ("default", *POLICIES):
                show = partial(self._on_progress, f"cluster on {gpu}, {name}")
                logs[name] = replay(groups, loads, make_policy(name), on_progress=show)
            replays.append((logs, loads))
        return policies.cluster(replays, groups.remark)


def in_published_order(workloads: Sequence[TracedWorkload]) -> tuple[TracedWorkload, ...]:
    """Workloads as the publication lists GPUs and workloads; others follow by name."""

    def place(names: tuple[str, ...], name: str) -> tuple[int, str]:
        return (names.index(name) if name in names else len(names), name)

    return tuple(
        sorted(workloads, key=lambda load: (place(GPUS, load.gpu), place(DATASETS, load.dataset)))
    )


def with_distinct_names(workloads: Sequence[TracedWorkload]) -> tuple[TracedWorkload, ...]:
    """Workloads with network and optimizer in the name where they share GPU and dataset."""
    named = Counter((load.gpu, load.dataset) for load in workloads)
    return tuple(
        replace(load, dataset=f"{load.dataset} {load.network} {load.optimizer}")
        if named[load.gpu, load.dataset] > 1
        else load
        for load in workloads
    )


def published_traces(folder: Path) -> Traces:
    """Read the traces of ``folder``, in the layout of the artifact.

    Raises:
        FileError: The training trace or all power traces are missing, or one is wrong.
    """
    nested = folder / "zeus"
    source = nested if (nested / TRAIN_FILE).exists() else folder
    if not (source / TRAIN_FILE).exists():
        raise FileError(f"{source / TRAIN_FILE} is missing (epochs to the target)", remedy=SOURCE)
    if not list(source.glob("summary_power_*.csv")):
        missing = source / f"summary_power_{GPUS[0]}.csv"
        raise FileError(f"{missing} is missing (time and power; any GPU will do)", remedy=SOURCE)
    return read_traces(source)


def missing_parts(
    workloads: Sequence[TracedWorkload], *, own_groups: bool, some_groups: bool
) -> list[str]:
    """One line per missing trace.

    Args:
        workloads: Workloads that are there.
        own_groups: Whether a cluster's groups were given.
        some_groups: Whether there are any groups at all.
    """
    here = list(dict.fromkeys(load.gpu for load in workloads))
    lines = [
        f"{gpu.upper()} (Fig. 14, 15, 23): summary_power_{gpu}.csv; {SOURCE}"
        for gpu in GPUS
        if gpu not in here
    ]
    for gpu in here:
        traced = {load.dataset for load in workloads if load.gpu == gpu}
        absent = [dataset for dataset in DATASETS if dataset not in traced]
        if absent:
            lines.append(
                f"{gpu.upper()}: {', '.join(absent)} in {TRAIN_FILE} or summary_power_{gpu}.csv; "
                f"{SOURCE}"
            )
    lines.append(
        "Capriccio (Fig. 10): traces of training on its slices; drift is synthetic here instead"
    )
    if not own_groups:
        instead = "groups are synthetic here instead" if some_groups else "Fig. 9 is left out"
        lines.append(
            "Alibaba (Fig. 9): a table of its recurring groups (group, submit_seconds, "
            f"duration_seconds) for --groups; {instead}"
        )
    return lines
