"""Parallel plans on systems and models that were left out; memory, node energy, convergence."""

from __future__ import annotations

import csv
import re
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from predict_fitting import best_probes
from predict_kernels import known_device
from predict_scores import Score, scored

from joulery.prediction import (
    Convergence,
    Plan,
    Transformer,
    accelerator,
    plan_memory,
    transformer,
)
from joulery.prediction.models import (
    PLAN_CONSTANTS,
    PLAN_NOISE,
    Belief,
    condition,
    fitted_belief,
    fitted_on,
    krige,
    node_watts,
    on_another_system,
    plan_parts,
    plan_seconds,
    unexplained,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    Array = NDArray[np.float64]

# In the order of PLAN_CONSTANTS. Chosen on vTrain's node (first) and on Megatron-Bridge's
# systems (second), leaving one system or model out at a time. MXFP8 against FP8: rows that state
# both, of which the second figures are not scored.
NODE_START = Belief.independent(
    np.log([1.1, 1.2, 1.2, 1.0, 1.2, 0.5, 0.8, 1.0, 1.2, 4.0, 60.0, 1.0, 1.0, 1.0]),
    np.array([0.12, 0.4, 0.3, 0.5, 0.5, 0.7, 0.4, 0.15, 0.4, 0.6, 0.7, 0.01, 0.1, 0.1]),
)
CLUSTER_START = Belief.independent(
    np.log([1.2, 1.4, 2.0, 0.6, 0.7, 0.5, 0.8, 1.0, 1.2, 1.5, 15.0, 1.0, 1.06, 1.05]),
    np.array([0.15, 0.3, 0.3, 0.4, 0.5, 0.7, 0.5, 0.15, 0.4, 0.6, 0.7, 0.15, 0.05, 0.15]),
)
# Releases differ by what they mend: hardly for dense models, much for experts.
_DENSE_RELEASE, _EXPERT_RELEASE = 0.04, 0.15
# The same step again.
_SAME_STEP = 0.01
NODE_NOISE = 0.08
NODE_PROBES, CLUSTER_PROBES = 20, 5

_LLAMA = {"kv_heads": 8, "vocabulary": 128256}
_LATENT = {"head_dim": 128, "query_rank": 1536, "kv_rank": 512, "rope_dim": 64, "heads": 128}
_QWEN = {"vocabulary": 151936, "kv_heads": 4, "head_dim": 128, "experts": 128}
MODELS: dict[str, dict[str, int]] = {
    "llama3_8b": {"layers": 32, "hidden": 4096, "heads": 32, "feedforward": 14336, **_LLAMA},
    "llama3_70b": {"layers": 80, "hidden": 8192, "heads": 64, "feedforward": 28672, **_LLAMA},
    "llama3.1_405b": {"layers": 126, "hidden": 16384, "heads": 128, "feedforward": 53248} | _LLAMA,
    "deepseekv3": {"layers": 61, "hidden": 7168, "feedforward": 18432, "vocabulary": 129280}
    | {"experts": 256, "experts_per_token": 8, "expert_feedforward": 2048}
    | {"shared_feedforward": 2048, "dense_layers": 3}
    | _LATENT,
    "deepseekv2": {"layers": 60, "hidden": 5120, "feedforward": 12288, "vocabulary": 102400}
    | {"experts": 160, "experts_per_token": 6, "expert_feedforward": 1536}
    | {"shared_feedforward": 3072, "dense_layers": 1}
    | _LATENT,
    "gpt oss 120b": {"layers": 36, "hidden": 2880, "heads": 64, "kv_heads": 8, "head_dim": 64}
    | {"feedforward": 2880, "vocabulary": 201088, "experts": 128, "experts_per_token": 4}
    | {"expert_feedforward": 2880, "window": 128, "windowed_layers": 18},
    "gpt oss 20b": {"layers": 24, "hidden": 2880, "heads": 64, "kv_heads": 8, "head_dim": 64}
    | {"feedforward": 2880, "vocabulary": 201088, "experts": 32, "experts_per_token": 4}
    | {"expert_feedforward": 2880, "window": 128, "windowed_layers": 12},
    "qwen3_30b_a3b": {"layers": 48, "hidden": 2048, "heads": 32, "feedforward": 6144}
    | {"experts_per_token": 8, "expert_feedforward": 768}
    | _QWEN,
    "qwen3_235b_a22b": {"layers": 94, "hidden": 4096, "heads": 64, "feedforward": 12288}
    | {"experts_per_token": 8, "expert_feedforward": 1536}
    | _QWEN,
    "mixtral 8x7b": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "vocabulary": 32000}
    | {"feedforward": 14336, "experts": 8, "experts_per_token": 2, "expert_feedforward": 14336},
    "mixtral 8x22b": {"layers": 56, "hidden": 6144, "heads": 48, "kv_heads": 8}
    | {"vocabulary": 32768, "feedforward": 16384}
    | {"experts": 8, "experts_per_token": 2, "expert_feedforward": 16384},
    "nemotron4_15b": {"layers": 32, "hidden": 6144, "heads": 48, "kv_heads": 8, "gated": 0}
    | {"feedforward": 24576, "vocabulary": 256000},
    "nemotron4_340b": {"layers": 96, "hidden": 18432, "heads": 96, "kv_heads": 8, "gated": 0}
    | {"feedforward": 73728, "vocabulary": 256000},
    "gpt3_175b": {"layers": 96, "hidden": 12288, "heads": 96, "gated": 0}
    | {"feedforward": 49152, "vocabulary": 51200},
}


def described(name: str, sequence: int, layers: int = 0) -> Transformer | None:
    """Description of a published model by the name that a table gives it."""
    key = re.sub(r"\s*\(.*", "", name).lower().replace("-", "_")
    document = MODELS.get(key) or MODELS.get(key.replace("_", " "))
    if document is None:
        return None
    wanted = {**document, "sequence": sequence, "name": key}
    if layers:
        wanted["layers"] = layers
    return transformer(wanted)


class Runs(NamedTuple):
    """Measured plans as columns."""

    parts: Array
    seconds: Array
    groups: dict[str, Array]

    def model(self, rows: Array) -> Callable[[Array], Array]:
        """Log-seconds of some plans from log-constants, with offsets per release behind them."""
        size = len(PLAN_CONSTANTS)
        offset = self.groups.get("offset")

        def seconds(constants: Array) -> Array:
            plain = np.log(plan_seconds(constants[:size], self.parts[rows]))
            return plain if offset is None else plain + constants[size:][offset[rows]]

        return seconds


# One node: vTrain.


def node_runs(data: Path) -> tuple[Runs, list[tuple[int, ...]]] | None:
    """Megatron iterations on up to eight A100, and what each row has in common with its rivals."""
    file = data / "devices/vtrain/ground_truth_single.csv"
    if not file.exists():
        return None
    parts, seconds, cases = [], [], []
    board = accelerator("a100")
    with file.open(encoding="utf-8-sig") as lines:
        for row in csv.DictReader(lines):
            hidden, layers = int(row["hidden size"]), int(row["# layers"])
            model = Transformer(
                layers=layers,
                hidden=hidden,
                heads=int(row["attention heads"]),
                feedforward=4 * hidden,
                vocabulary=51200,
                sequence=int(row["sequence length"]),
                gated=False,
                tied=True,
            )
            plan = Plan(
                data=int(row["data parallelism"]),
                tensor=int(row["tensor parallelism"]),
                pipeline=int(row["pipeline parallelism"]),
                micro_batch=int(row["micro batch"]),
                global_batch=int(row["global batch"]),
                shard=0,
                recompute=True,
                fused_attention=False,
            )
            parts.append(plan_parts(model, plan, board))
            seconds.append(float(row["iteration time (ms)"]) * 1e-3)
            cases.append((hidden, layers, int(row["# GPUs"]), plan.global_batch))
    return Runs(np.array(parts), np.array(seconds), {}), cases


def node_scores(data: Path, *, quick: bool) -> Iterator[Score]:
    """Plans on one node after some calibration runs, and the regret of the plan chosen."""
    del quick
    found = node_runs(data)
    if found is None:
        return
    runs, cases = found
    measured, every = np.log(runs.seconds), np.arange(len(runs.seconds))
    rivals: dict[tuple[int, ...], list[int]] = {}
    for row, case in enumerate(cases):
        rivals.setdefault(case, []).append(row)
    model = runs.model(every)
    probes = best_probes(NODE_START.covariance_of(model), NODE_PROBES, NODE_NOISE)
    rest = np.setdiff1d(every, probes)
    after = NODE_START.update(runs.model(np.array(probes)), measured[probes], NODE_NOISE)
    predicted = model(after.mean)
    spread = np.hypot(after.spread(model), NODE_NOISE)
    labels = ("plans on one node", f"{NODE_PROBES} probes", "A100")
    yield scored((*labels, "ours"), predicted[rest], measured[rest], spread[rest])
    mean = np.full(len(rest), measured[probes].mean())
    yield scored((*labels, "mean of the probes"), mean, measured[rest])
    chosen = [group[int(np.argmin(predicted[group]))] for group in rivals.values()]
    best = [measured[group].min() for group in rivals.values()]
    labels = ("regret of the plan chosen", f"{NODE_PROBES} probes", "A100", "ours")
    yield scored(labels, measured[chosen], np.array(best))


# Clusters: Megatron-Bridge.

_PRECISIONS = {"fp8": "fp8", "mxfp8": "mxfp8", "fp8-mx": "mxfp8", "nvfp4": "nvfp4", "bf16": "bf16"}


def _number(text: str) -> float:
    found = re.match(r"[\d.]+", text or "")
    return float(found[0]) if found else 0.0


def cluster_runs(data: Path) -> Runs | None:
    """Published pre-training plans on whole systems."""
    file = data / "devices/megatron_bridge/pretraining.csv"
    if not file.exists():
        return None
    parts, seconds, systems, models, expert, release = [], [], [], [], [], []
    with file.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            model = described(row["model"], int(row["sequence_length"]))
            board = known_device(row["system"])
            if model is None or board is None or not row["task"].startswith("Pre"):
                continue
            plan = _published_plan(row, model)
            rate = _number(row["tokens_per_second_per_gpu"]) * plan.devices
            parts.append(plan_parts(model, plan, board))
            seconds.append(plan.global_batch * model.sequence / rate)
            systems.append(row["system"])
            models.append(model.name)
            expert.append(bool(model.experts))
            release.append(".".join(row["release"].split()[0].split(".")[:2]))
    names = sorted(set(release))
    offset = [
        names.index(one) + len(names) * kind for one, kind in zip(release, expert, strict=True)
    ]
    groups = {
        "system": np.array(systems),
        "model": np.array(models),
        "experts": np.array(expert),
        "offset": np.array(offset),
        "releases": np.array(names),
    }
    return Runs(np.array(parts), np.array(seconds), groups)


def _published_plan(row: dict[str, str], model: Transformer) -> Plan:
    tensor, pipeline, context, chunks, expert = (
        int(_number(row[name])) or 1 for name in ("tp", "pp", "cp", "vp", "ep")
    )
    copies = int(row["gpus"]) // (tensor * pipeline * context)
    sharded = int(_number(row["fsdp"]))
    plain = row["precision"].lower().split(" ")[0].removesuffix("-cs")
    return Plan(
        data=copies,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        expert=expert if model.experts else 1,
        chunks=chunks,
        micro_batch=int(row["micro_batch"]),
        global_batch=int(row["global_batch"]),
        shard=3 if sharded else 1,
        shard_group=max(1, min(sharded // tensor, copies * context)) if sharded else 0,
        precision=_PRECISIONS.get(plain, "fp8"),
    )


def cluster_start(runs: Runs) -> Belief:
    """First guess, with an offset per release for dense models and for those with experts."""
    size, count = len(PLAN_CONSTANTS), len(runs.groups["releases"])
    behind = fitted_on("plans")
    shipped = behind and not behind & set(runs.groups["system"])
    first = fitted_belief("plans") if shipped else CLUSTER_START
    deviation = np.repeat([_DENSE_RELEASE, _EXPERT_RELEASE], count)
    found = Belief.independent(
        np.concatenate([first.mean, np.zeros(2 * count)]), np.append(first.deviation, deviation)
    )
    found.covariance[:size, :size] = first.covariance
    return found


def fit_cluster(runs: Runs, rows: Array) -> Belief:
    """Belief in the constants of systems like those of ``rows``."""
    return cluster_start(runs).update(runs.model(rows), np.log(runs.seconds[rows]), PLAN_NOISE)


def cluster_scores(data: Path, *, quick: bool) -> Iterator[Score]:
    """A system or a model left out, with and without probes on it."""
    del quick
    runs = cluster_runs(data)
    if runs is None:
        return
    measured = np.log(runs.seconds)
    for kind in ("system", "model"):
        names = runs.groups[kind]
        for name in np.unique(names):
            inside, outside = np.flatnonzero(names == name), np.flatnonzero(names != name)
            if not len(outside) and name in fitted_on("plans"):
                continue
            belief = fit_cluster(runs, outside)
            further = on_another_system(belief)
            spread = np.hypot(further.spread(runs.model(inside)), PLAN_NOISE)
            predicted = runs.model(inside)(belief.mean)
            task = f"plans on a new {kind}"
            yield scored(
                (task, "elsewhere", str(name), "ours"), predicted, measured[inside], spread
            )
            if len(outside):
                flops = np.log(runs.parts[:, :3].sum(axis=1))
                simple = flops[inside] + np.median((measured - flops)[outside])
                labels = (task, "elsewhere", str(name), "constant efficiency")
                yield scored(labels, simple, measured[inside])
            if kind == "system" and len(inside) > 2 * CLUSTER_PROBES:
                wider = on_another_system(belief)
                shared = _unexplained(runs)
                covariance = wider.covariance_of(runs.model(inside)) + shared[inside][:, inside]
                probes = inside[best_probes(covariance, CLUSTER_PROBES, _SAME_STEP)]
                rest = np.setdiff1d(inside, probes)
                found = _after(runs, wider, shared, probes, rest)
                labels = (task, f"{CLUSTER_PROBES} probes", str(name), "ours")
                yield scored(labels, found[0], measured[rest], found[1])
                yield from _measured_models(runs, wider, shared, inside, str(name))


def _unexplained(runs: Runs) -> Array:
    cases = [(model, row) for row, model in enumerate(runs.groups["model"])]
    return unexplained(cases, cases)


def _after(
    runs: Runs, belief: Belief, shared: Array, probes: Array, rest: Array
) -> tuple[Array, Array]:
    """Log-predictions of some plans and their deviations once others were measured."""
    measured = np.log(runs.seconds[probes])
    after = belief.update(runs.model(probes), measured, PLAN_NOISE)
    off = measured - runs.model(probes)(after.mean)
    among, towards = shared[probes][:, probes], shared[rest][:, probes]
    shift, _ = krige(off, among, towards, _SAME_STEP)
    total = belief.covariance_of(runs.model(np.arange(len(shared)))) + shared
    left = np.diag(condition(total, probes.tolist(), _SAME_STEP))
    return runs.model(rest)(after.mean) + shift, np.sqrt(left[rest])


def _measured_models(
    runs: Runs, belief: Belief, shared: Array, inside: Array, name: str
) -> Iterator[Score]:
    """Other plans and releases of a model after one measured step of it on the new system."""
    measured = np.log(runs.seconds)
    parts = []
    for model in np.unique(runs.groups["model"][inside]):
        rows = inside[runs.groups["model"][inside] == model]
        for probe in rows if len(rows) > 2 else ():
            rest = rows[rows != probe]
            found = _after(runs, belief, shared, np.array([probe]), rest)
            parts.append([found[0], measured[rest], found[1]])
    if parts:
        predicted, real, spread = np.concatenate(parts, axis=1)
        labels = ("plans of a measured model", "1 probe", name, "ours")
        yield scored(labels, predicted, real, spread)


# Memory: SimuMax's plans.


def memory_scores(data: Path, *, quick: bool) -> Iterator[Score]:
    """Peak memory of measured plans."""
    del quick
    for file in sorted(data.glob("devices/simumax/*_plans.csv")):
        found: dict[str, list[tuple[float, float]]] = {}
        seen = set()
        with file.open(encoding="utf-8") as lines:
            for row in csv.DictReader(lines):
                case = _memory_plan(row)
                if (
                    case is None
                    or (key := (row["model"], row["parallel"], case[0].sequence)) in seen
                ):
                    continue
                seen.add(key)
                memory = plan_memory(*case)
                pairs = (memory.allocated, "real_alloc_gib"), (memory.reserved, "max_reserved_gib")
                for bytes_, column in pairs:
                    found.setdefault(column, []).append((bytes_, float(row[column]) * 2**30))
                if row.get("simumax_alloc_gib"):
                    theirs = float(row["simumax_alloc_gib"]) * 2**30
                    found.setdefault("SimuMax", []).append(
                        (theirs, float(row["real_alloc_gib"]) * 2**30)
                    )
        names = {
            "real_alloc_gib": ("memory allocated", "ours"),
            "max_reserved_gib": ("memory reserved", "ours"),
            "SimuMax": ("memory allocated", "SimuMax, calibrated there"),
        }
        for column, pairs in found.items():
            task, method = names[column]
            predicted, real = np.log(np.array(pairs)).T
            yield scored((task, "specs", file.stem.split("_")[0], method), predicted, real, 0.015)


def _memory_plan(row: dict[str, str]) -> tuple[Transformer, Plan] | None:
    sequence = re.search(r"seq(\d+)", row["case"])
    model = described(
        row["model"].replace("-", "_"), int(sequence[1]) if sequence else 4096, int(row["layers"])
    )
    if model is None:
        return None

    def side(name: str) -> int:
        match = re.search(rf"{name}(\d+)", row["parallel"])
        return int(match[1]) if match else 1

    tensor, pipeline, context = side("tp"), side("pp"), side("cp")
    copies = int(row["gpus_hint"] or 8) // (tensor * pipeline * context)
    plan = Plan(
        data=copies,
        tensor=tensor,
        pipeline=pipeline,
        context=context,
        expert=side("ep"),
        global_batch=copies * int(row["microbatches"]),
    )
    return model, plan


# Node power and energy against the number of nodes: MLPerf.


def energy_scores(data: Path, *, quick: bool) -> Iterator[Score]:
    """Energy of a run on several nodes from its power on one and the two times."""
    del quick
    file = data / "devices/mlperf/power_runs.csv"
    if not file.exists():
        return
    rows: dict[tuple[str, str, int], list[tuple[float, float]]] = {}
    with file.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            if row["status"] == "success":
                key = row["submitter"], row["benchmark"], int(_number(row["nodes_total_hint"]))
                rows.setdefault(key, []).append((float(row["seconds"]), float(row["avg_node_W"])))
    for (submitter, benchmark, nodes), found in rows.items():
        single = rows.get((submitter, benchmark, 1))
        if nodes == 1 or not single:
            continue
        (one_seconds, one_watts), (seconds, watts) = np.mean(single, axis=0), np.mean(found, axis=0)
        efficiency = one_seconds / (nodes * seconds)
        measured = np.log([nodes * seconds * watts])
        labels = ("node energy against nodes", "1 probe", f"{submitter} {benchmark}")
        ours = np.log([nodes * seconds * node_watts(one_watts, efficiency)])
        yield scored((*labels, "ours"), ours, measured, 0.05)
        yield scored((*labels, "same power"), np.log([nodes * seconds * one_watts]), measured)


# Samples to converge against batch size: MLPerf's reference points.


def convergence_scores(data: Path, *, quick: bool) -> Iterator[Score]:
    """Samples to the target at a batch size that was left out."""
    del quick
    file = data / "devices/mlperf/convergence_points.csv"
    if not file.exists():
        return
    found: dict[str, dict[tuple[str, float], float]] = {}
    with file.open(encoding="utf-8") as lines:
        for row in csv.DictReader(lines):
            key = row["suite"], float(row["batch_size"])
            found.setdefault(row["benchmark"], {})[key] = float(row["epochs_or_samples_mean"])
    for name, by_suite in found.items():
        suite = max(
            {one for one, _ in by_suite}, key=lambda s: (sum(k[0] == s for k in by_suite), s)
        )
        points = sorted((batch, value) for (one, batch), value in by_suite.items() if one == suite)
        if len(points) < 4:
            continue
        batch, value = np.array(points).T
        measured = np.log(value)
        ours, simple = [], []
        for left in range(len(batch)):
            rest = np.delete(np.arange(len(batch)), left)
            found_ = Convergence.fit(list(zip(batch[rest], value[rest], strict=True)))
            level = [np.log(found_.factor(one, batch[left])) for one in batch[rest]]
            ours.append(np.mean(measured[rest] - level))
            simple.append(measured[rest].mean())
        labels = ("samples to converge", "other batches", name)
        yield scored((*labels, "ours"), np.array(ours), measured, 0.1)
        yield scored((*labels, "constant"), np.array(simple), measured)
