"""Time of a training step, from kernels, collectives and the schedule.

A step, of a described model under a plan or of captured operators, is cut into physical parts
(``step_parts``), each in seconds at nominal speed: kernels of a pipeline stage, collectives over
the links they cross, the optimizer, what the host takes to launch. ``plan_seconds`` weighs them
with the constants of a system and its software, which a few measured steps sharpen.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from joulery.prediction._graph import Graph
from joulery.prediction._inference import rollout_seconds
from joulery.prediction._layers import EAGER, LayerCost, layer_cost, layer_costs, plan_batch
from joulery.prediction._links import (
    copy_seconds,
    gather_seconds,
    group_rate,
    layer_links,
    others,
)
from joulery.prediction._plan import FRAMEWORKS, local_parameters

if TYPE_CHECKING:
    from joulery.prediction._bayes import Array
    from joulery.prediction._devices import Accelerator
    from joulery.prediction._model import Transformer
    from joulery.prediction._plan import Plan

# Precisions and frameworks with a factor of their own, beside 16 bit in Megatron.
_PRECISIONS = ("fp32", "fp8", "mxfp8", "nvfp4")
_FRAMEWORKS = FRAMEWORKS[1:]
_SOFTWARE = (*_PRECISIONS, *_FRAMEWORKS, "unfused")
PARTS = (
    "dense",  # seconds of kernels outside the experts, attention apart
    "attention",  # seconds of fused attention
    "experts",  # seconds of kernels of the experts
    "recompute",  # seconds of forward kernels that run again, or of a reference model
    "tensor",  # seconds of collectives within the tensor group
    "expert_links",  # seconds of all-to-all among the experts
    "context",  # seconds of keys and values between context neighbours
    "data",  # seconds of gradients and parameters between copies
    "optimizer",  # seconds of the optimizer's traffic
    "host",  # seconds that the host takes to launch the kernels
    "bubble",  # idle share of the pipeline schedule, relative to its work
    "overlappable",  # seconds of kernels that can hide collectives of the data group
    "operations",  # seconds of the kernels, each times the use of the arithmetic units in it
    "bandwidth",  # seconds of the kernels, each times the use of the memory's bandwidth in it
    "rollout",  # seconds of decoding the answers that are trained on
    "traffic",  # seconds of the kernels' memory traffic alone
    "arithmetic",  # seconds of the kernels' arithmetic alone
    "uneven",  # seconds of kernels, of the head, that a mean stage has less than the last
    *(f"is_{name}" for name in (*_PRECISIONS, *_FRAMEWORKS)),  # 1 for such plans
    "is_unfused",  # 1 for software of before 2023, whose attention is not fused
    "is_gated",  # 1 for gated blocks whose operators are launched one by one
    "is_narrow",  # 1 for 16-bit plans whose operators are launched one by one
)
PLAN_CONSTANTS = (
    *("dense", "attention", "experts"),  # factors of the parts of that name
    *("tensor", "expert_links", "context", "data", "bubble", "optimizer", "host"),
    *_PRECISIONS,  # factor of kernels in that precision
    *_FRAMEWORKS,  # factor of kernels in that framework
    "unfused",  # factor of software without fused attention
    *("gated", "narrow"),  # factors of launches one by one of such plans
)
# Seconds of the host per kernel; by hand.
_HOST_SECONDS = 20e-6
# Launches per kernel counted here, each of which stands for small ones around it: fused kernels,
# compiled graphs, and operators one by one as an eager capture of a block counts them; and those
# of a step whatever the layers (data loading, optimizer, gradient norm).
_LAUNCHES = {"megatron": 1.0, "compile": 0.7, "eager": 3.0, "transformers": 3.0, "replay": 0.0}
_STEP_LAUNCHES = {"megatron": 100.0, "compile": 100.0, "eager": 250.0, "transformers": 250.0}
# Launches per captured operator; compiled graphs fuse most of them.
_OPERATOR_LAUNCHES = {"megatron": 0.3, "compile": 0.3, "replay": 0.0}
# Grouped products are launched expert by expert; chosen on Megatron-Bridge's tables, leaving each
# system and model out in turn.
_EXPERT_LAUNCHES = 3.0
# Idle share of schedules that compute the gradients of weights apart, relative to 1F1B, where they,
# those of activations, the forward pass and its recomputation take equally long: (F + R + B - W) /
# (F + R + B + W), without R and with it (Qi et al., 2023, ZB-H1; DeepSeek-V3's report, table 2);
# share of the units that move data while DualPipe computes (20 of 132, section 3.2.2).
_SPLIT_BACKWARD, _SPLIT_RECOMPUTED, _MOVING_UNITS = 1 / 3, 1 / 2, 20 / 132
# How well the host's launches hide behind kernels, and which share of gradient traffic hides behind
# them; chosen on vTrain's plans on one node.
_ASIDE, _HIDDEN = 3.0, 0.9
# Bytes of a parameter's gradient, master copy and two moments that an optimizer step moves: 30 in
# mixed precision, seven passes where all are of one kind.
_OPTIMIZER_TRAFFIC = {32: 30.0, 16: 14.0, 8: 16.0}
# Parameters of a layer of a captured model, which does not say where one ends: FSDP's default of
# what it wraps as a whole.
_LAYER_PARAMETERS = 1e8
# Bandwidth between device and host, one direction, where the optimizer's state lies there.
_HOST_LINK = 25e9


class StageCost(NamedTuple):
    """Cost of the kernels of a pipeline stage with the head for one micro-batch."""

    around: LayerCost  # everything outside the experts
    experts: LayerCost
    head_seconds: float


def step_parts(model: Transformer | Graph, plan: Plan, device: Accelerator) -> Array:
    """Physical parts of a step, in the order of ``PARTS``."""
    if isinstance(model, Graph):
        return _graph_parts(model, plan, device)
    runs = plan.micro_batches
    train, forward = (_stage_cost(model, plan, device, forward=flag) for flag in (False, True))
    layers, expert_layers = model.layers / plan.pipeline, model.expert_layers / plan.pipeline
    again = (plan.recompute == "full") + plan.task.reference_forwards
    whole = forward.around + forward.experts
    repeated = again * (whole.seconds + whole.attention)
    if plan.recompute == "selective":
        repeated += _SELECTIVE * (train.around.seconds + train.experts.seconds)
    every = (train.around + train.experts) + whole.times(again)
    launches = every.kernels + _EXPERT_LAUNCHES * expert_layers * model.experts / plan.expert
    tensor, experts, context = (runs * value for value in layer_links(model, plan, device))
    both = train.around + train.experts
    busy = both.seconds + both.attention
    expert_links = expert_layers * experts
    if plan.schedule == "dualpipe":
        expert_links = _MOVING_UNITS * expert_links + max(0.0, expert_links - runs * busy)
    bubble = (plan.pipeline - 1) / (plan.chunks * runs)
    if plan.schedule != "1f1b":
        bubble *= _SPLIT_RECOMPUTED if plan.recompute == "full" else _SPLIT_BACKWARD
    return _parts(
        plan,
        dense=runs * train.around.seconds,
        attention=runs * both.attention,
        experts=runs * train.experts.seconds,
        recompute=runs * repeated,
        tensor=layers * tensor,
        expert_links=expert_links,
        context=layers * context,
        data=_copy_seconds(model, plan, device),
        optimizer=_optimizer_seconds(model, plan, device),
        host=_host_seconds(plan, runs * launches),
        bubble=bubble,
        overlappable=runs * (busy if plan.shard == 3 else 0.6 * busy),
        operations=runs * every.operations,
        bandwidth=runs * every.bandwidth,
        rollout=rollout_seconds(model, plan, device),
        traffic=runs * every.traffic,
        arithmetic=runs * every.arithmetic,
        uneven=runs * (train.head_seconds + again * forward.head_seconds) * (1 - 1 / plan.pipeline),
        is_gated=float(model.gated and plan.framework in EAGER),
        is_narrow=float(plan.precision in ("bf16", "fp16") and plan.framework in EAGER),
    )


# Share of the kernels' time that selective recomputation repeats: norms and activation functions;
# by hand.
_SELECTIVE = 0.03


def _parts(plan: Plan, **parts: float) -> Array:
    parts |= {f"is_{name}": float(plan.precision == name) for name in _PRECISIONS}
    parts = {f"is_{name}": float(plan.framework == name) for name in _FRAMEWORKS} | parts
    parts["is_unfused"] = float(not plan.fused_attention)
    return np.array([parts[name] for name in PARTS], float)


def tf32_seconds(model: Transformer | Graph, plan: Plan, device: Accelerator) -> float:
    """Seconds of a step in convolutions that run in TF32."""
    if not isinstance(model, Graph):
        return 0.0
    precision = _asked_precision(model, plan)
    rows = model.convolutions_in_tf32(device, precision)
    kernels = model.kernels(device, precision).take(rows)
    seconds = layer_cost(kernels, device, plan.precision).seconds if rows.any() else 0.0
    return float(plan.micro_batches * seconds)


def _asked_precision(graph: Graph, plan: Plan) -> str | None:
    """Precision of the products of a captured step where a plan asks for another; else None."""
    return None if plan.precision in ("", graph.precision) else plan.precision


def _graph_parts(graph: Graph, plan: Plan, device: Accelerator) -> Array:
    """Parts of a captured step on each of ``plan.data`` devices; a micro-batch is what it holds."""
    kernels = graph.kernels(device, _asked_precision(graph, plan))
    updates = np.array([operator.phase == "optimizer" for operator in graph.operators])
    runs = plan.micro_batches
    cost = layer_cost(kernels.take(~updates), device, plan.precision)
    update = kernels.take(updates)
    moved = float((update.count * (update.weight_bytes + update.activation_bytes)).sum())
    group = plan.shard_group or plan.data
    if plan.shard < 3:
        traffic = others(plan.data) * graph.parameters / group_rate(device, plan.data)
        data = 2.0 * graph.gradient_bytes / max(graph.parameters, 1) * traffic
    else:
        sharded = graph.parameters, graph.parameters / _LAYER_PARAMETERS
        data = gather_seconds(device, plan, sharded, group, plan.data // group)
    launches = float(kernels.count.sum()) * _OPERATOR_LAUNCHES.get(plan.framework, 1.0)
    return _parts(
        plan,
        dense=runs * cost.seconds,
        attention=runs * cost.attention,
        experts=0.0,
        recompute=0.0,
        tensor=0.0,
        expert_links=0.0,
        context=0.0,
        data=data,
        optimizer=moved / (plan.data if plan.shard else 1) / device.bytes_per_second,
        host=(runs * launches + _STEP_LAUNCHES.get(plan.framework, 0.0)) * _HOST_SECONDS,
        bubble=0.0,
        overlappable=runs * (cost.seconds + cost.attention) * (1.0 if plan.shard == 3 else 0.6),
        operations=runs * cost.operations,
        bandwidth=runs * cost.bandwidth,
        rollout=0.0,
        traffic=runs * cost.traffic,
        arithmetic=runs * cost.arithmetic,
        uneven=0.0,
        is_gated=0.0,
        is_narrow=0.0,
        is_eager=0.0,  # the operators are those that run
    )


def least_seconds(model: Transformer | Graph, plan: Plan, device: Accelerator) -> float:
    """Seconds that the arithmetic of a step takes at the device's nominal peak."""
    if isinstance(model, Graph):
        return model.operations * plan.micro_batches / max(device.peaks.values())
    tokens = plan.batch_size * model.sequence * plan.task.useful_share(model.sequence)
    seen = plan_batch(model, plan).seen * model.sequence
    scores = 2.0 * model.layers * model.heads * model.value_width * seen
    passes = 2.0 if plan.task.adapter else 3.0
    operations = 2.0 * passes * tokens * (model.active_parameters() + scores)
    return operations / (plan.devices * device.peak(plan.precision))


def plan_seconds(constants: Array, parts: Array) -> Array:
    """Seconds of steps whose parts are the rows of ``parts``."""
    weight = dict(zip(PLAN_CONSTANTS, np.exp(constants), strict=True))
    part = dict(zip(PARTS, np.atleast_2d(parts).T, strict=True))
    _, stage = stage_seconds(constants, parts)
    work = stage * (1 + weight["bubble"] * part["bubble"])
    synchronised = weight["data"] * part["data"]
    hidden = np.minimum(synchronised, part["overlappable"])
    exposed = synchronised - _HIDDEN * hidden
    update = weight["optimizer"] * part["optimizer"]
    return np.asarray(work + exposed + update + part["rollout"])


def stage_seconds(constants: Array, parts: Array) -> tuple[Array, Array]:
    """Seconds of the last stage's kernels in steps, and with its links and launches."""
    weight = dict(zip(PLAN_CONSTANTS, np.exp(constants), strict=True))
    part = dict(zip(PARTS, np.atleast_2d(parts).T, strict=True))
    kernels = _kernel_seconds(weight, part)
    links = (
        weight["tensor"] * part["tensor"]
        + weight["expert_links"] * part["expert_links"]
        + weight["context"] * part["context"]
    )
    launches = weight["host"] * part["host"]
    launches = (
        launches * weight["gated"] ** part["is_gated"] * weight["narrow"] ** part["is_narrow"]
    )
    links = links * weight["unfused"] ** part["is_unfused"]
    stage = ((kernels + links) ** _ASIDE + launches**_ASIDE) ** (1 / _ASIDE)
    return kernels, np.asarray(stage)


def busy_seconds(constants: Array, parts: Array) -> Array:
    """Time in kernels and the optimizer of steps whose parts are the rows of ``parts``."""
    weight = dict(zip(PLAN_CONSTANTS, np.exp(constants), strict=True))
    part = dict(zip(PARTS, np.atleast_2d(parts).T, strict=True))
    kernels = _kernel_seconds(weight, part)
    return np.asarray(kernels + weight["optimizer"] * part["optimizer"] + part["rollout"])


def uneven_share(constants: Array, parts: Array) -> float:
    """Share of the last stage's kernels, which set the pace, that a mean stage waits instead."""
    weight = dict(zip(PLAN_CONSTANTS, np.exp(constants).tolist(), strict=True))
    part = dict(zip(PARTS, np.atleast_2d(parts).T, strict=True))
    kernels = _kernel_seconds(weight, part)
    fewer = part | {"dense": part["dense"] - part["uneven"]}
    return float(1 - (_kernel_seconds(weight, fewer) / np.maximum(kernels, 1e-12))[0])


def _kernel_seconds(weight: dict[str, float], part: dict[str, Array]) -> Array:
    return _software_factor(weight, part) * (
        weight["dense"] * (part["dense"] + part["recompute"])
        + weight["attention"] * part["attention"]
        + weight["experts"] * part["experts"]
    )


def _software_factor(weight: dict[str, float], part: dict[str, Array]) -> Array:
    logs = [np.log(weight[name]) * part[f"is_{name}"] for name in _SOFTWARE]
    return np.asarray(np.exp(sum(logs)))


def _stage_cost(model: Transformer, plan: Plan, device: Accelerator, *, forward: bool) -> StageCost:
    block, mlp, moe, head = layer_costs(model, plan_batch(model, plan, forward=forward), device)
    dense = (model.layers - model.expert_layers) / plan.pipeline
    experts = model.expert_layers / plan.pipeline
    # The last stage, which sets the pace, has the head.
    around = block.times(dense + experts) + mlp.times(dense) + head
    return StageCost(around, moe.times(experts), head.seconds)


def _host_seconds(plan: Plan, kernels: float) -> float:
    launches = _LAUNCHES[plan.framework] * kernels
    return (launches + _STEP_LAUNCHES.get(plan.framework, 0.0)) * _HOST_SECONDS


def trained_share(model: Transformer, plan: Plan) -> float:
    """Share of the parameters that the optimizer updates: all, or the adapters beside them."""
    task = plan.task
    if not task.adapter:
        return 1.0
    layer = model.attention_parameters() + model.block_parameters(model.feedforward)
    # An adapter of rank r beside each of seven matrices, of about the residual's width.
    adapter = task.rank * (9 * model.hidden + 3 * model.feedforward)
    return min(1.0, adapter / layer)


def _copy_seconds(model: Transformer, plan: Plan, device: Accelerator) -> float:
    whole = copy_seconds(model, plan, device)
    # Frozen parameters are gathered where they are sharded, but have no gradients.
    share = trained_share(model, plan)
    return whole * (share if plan.shard < 3 else max(share, 0.5))


def _optimizer_seconds(model: Transformer, plan: Plan, device: Accelerator) -> float:
    parameters = local_parameters(model, plan) * trained_share(model, plan)
    if plan.shard:
        parameters /= plan.data * plan.context
    bytes_moved = _OPTIMIZER_TRAFFIC[plan.state_bits]
    if plan.precision in ("fp32", "tf32"):
        bytes_moved = 28.0
    rate = min(_HOST_LINK, device.bytes_per_second) if plan.offload else device.bytes_per_second
    return parameters * bytes_moved / rate
