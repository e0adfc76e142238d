"""Time of a training step under a parallel plan, from kernels, collectives and the schedule.

A plan's step is cut into physical parts (``plan_parts``), each in seconds at nominal speed:
kernels of the fullest pipeline stage, collectives over the links they cross, the optimizer, what
the host takes to launch. ``plan_seconds`` weighs them with the constants of a system and its
software, which a few measured runs sharpen.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from joulery.prediction._bayes import fitted_belief
from joulery.prediction._kernels import ATTENTION, kernel_times
from joulery.prediction._layers import attention_kernels, feedforward_kernels, head_kernels
from joulery.prediction._plan import expert_parameters, local_parameters

if TYPE_CHECKING:
    from joulery.prediction._bayes import Array
    from joulery.prediction._devices import Accelerator
    from joulery.prediction._kernels import Kernels
    from joulery.prediction._model import Transformer
    from joulery.prediction._plan import Plan

PARTS = (
    "dense",  # seconds of kernels outside the experts, attention apart
    "attention",  # seconds of fused attention
    "experts",  # seconds of kernels of the experts
    "recompute",  # seconds of forward kernels that run again
    "tensor",  # seconds of collectives within the tensor group
    "expert_links",  # seconds of all-to-all among the experts
    "context",  # seconds of keys and values between context neighbours
    "data",  # seconds of gradients and parameters between copies
    "optimizer",  # seconds of the optimizer's traffic
    "host",  # seconds that the host takes to launch the kernels
    "bubble",  # idle share of the pipeline schedule, relative to its work
    "overlappable",  # seconds of backward kernels that can hide collectives of the data group
    "calls",  # hops of collective calls that block, in millions
    *("is_bf16", "is_mxfp8", "is_nvfp4"),  # 1 for plans in that precision
)
PLAN_CONSTANTS = (
    *("dense", "attention", "experts"),  # factors of the parts of that name
    *("tensor", "expert_links", "context", "data", "bubble", "optimizer", "host"),
    "latency",  # microseconds of a hop of a blocking collective call
    *("bf16", "mxfp8", "nvfp4"),  # factor of kernels in that precision
)
# Seconds of the host per kernel counted here; each stands for a few small ones around it; by
# hand.
_HOST_SECONDS = 20e-6
# Grouped products are launched expert by expert; chosen on Megatron-Bridge's tables, leaving each
# system and model out in turn.
_EXPERT_LAUNCHES = 3.0
# How well the host's launches hide behind kernels, how collectives' hops grow with the group
# (between a tree and a ring), and which share of gradient traffic hides behind the backward pass;
# chosen on vTrain's plans on one node.
_ASIDE, _HOPS, _HIDDEN = 3.0, 0.85, 0.9
# Share of a collective's nominal bandwidth that large messages reach; NCCL tables of five systems.
_LINK_SHARE = 0.8
# Bandwidth between nodes per device: one network card of 400 Gb/s each; 200 before Hopper.
_NETWORK = {"Hopper": 50e9, "Blackwell": 50e9, "Blackwell Ultra": 100e9, "CDNA3": 50e9}
_OLD_NETWORK = 25e9
# Bytes of a parameter's gradient, master copy and two moments that an optimizer step moves.
_OPTIMIZER_TRAFFIC = 30.0


def plan_parts(model: Transformer, plan: Plan, device: Accelerator) -> Array:
    """Physical parts of a step, in the order of ``PARTS``."""
    runs = plan.micro_batches
    # Where layers do not divide, the last stage, which has the head as well, gets fewer.
    dense_layers = (model.layers - model.expert_layers) / plan.pipeline
    expert_layers = model.expert_layers / plan.pipeline
    block, attention, mlp, moe, head = layer_seconds(model, plan, device)
    layers = dense_layers + expert_layers
    dense = runs * (layers * block[0] + dense_layers * mlp[0] + head[0])  # on the last stage
    experts = runs * expert_layers * moe[0]
    fused = runs * layers * attention
    again = 1 / 3 if plan.recompute else 0.0
    recompute = again * (dense + experts + fused)
    launches = moe[1] + _EXPERT_LAUNCHES * model.experts / plan.expert
    calls = runs * (layers * (block[1] + 2) + dense_layers * mlp[1] + expert_layers * launches)
    hops = (plan.tensor - 1) ** _HOPS
    blocking = 4 * runs * (layers * hops + expert_layers * (plan.expert > 1))
    return np.array(
        [
            dense,
            fused,
            experts,
            recompute,
            *_links(model, plan, device, layers, expert_layers),
            local_parameters(model, plan)
            * _OPTIMIZER_TRAFFIC
            / (plan.data * plan.context if plan.shard else 1)
            / device.bytes_per_second,
            calls * (1 + again) * _HOST_SECONDS,
            (plan.pipeline - 1) / (plan.chunks * runs),
            0.6 * (dense + experts + fused),
            blocking * 1e-6,
            *(float(plan.precision == name) for name in ("bf16", "mxfp8", "nvfp4")),
        ]
    )


def plan_seconds(constants: Array, parts: Array) -> Array:
    """Seconds of steps whose parts are the rows of ``parts``."""
    weight = dict(zip(PLAN_CONSTANTS, np.exp(constants), strict=True))
    part = dict(zip(PARTS, np.atleast_2d(parts).T, strict=True))
    kernels = (
        weight["dense"] * part["dense"]
        + weight["attention"] * part["attention"]
        + weight["experts"] * part["experts"]
        + weight["dense"] * part["recompute"]
    )
    for name in ("bf16", "mxfp8", "nvfp4"):
        kernels = kernels * weight[name] ** part[f"is_{name}"]
    links = (
        weight["tensor"] * part["tensor"]
        + weight["expert_links"] * part["expert_links"]
        + weight["context"] * part["context"]
        + weight["latency"] * part["calls"]
    )
    launches = weight["host"] * part["host"]
    stage = ((kernels + links) ** _ASIDE + launches**_ASIDE) ** (1 / _ASIDE)
    work = stage * (1 + weight["bubble"] * part["bubble"])
    synchronised = weight["data"] * part["data"]
    hidden = np.minimum(synchronised, part["overlappable"])
    exposed = synchronised - _HIDDEN * hidden
    return np.asarray(work + exposed + weight["optimizer"] * part["optimizer"])


_Layers = tuple[tuple[float, int], float, tuple[float, int], tuple[float, int], tuple[float, int]]


def layer_seconds(model: Transformer, plan: Plan, device: Accelerator) -> _Layers:
    """Seconds and kernels of a block, its fused attention, both kinds of feed-forward, the head."""
    # Kernels of one layer depend on less than the whole plan, which is what the cache lives from.
    alone = replace(
        plan, data=1, pipeline=1, chunks=1, global_batch=1, shard=1, shard_group=0, recompute=False
    )
    return _layer_seconds(model, alone, device)


@lru_cache(maxsize=100_000)
def _layer_seconds(model: Transformer, plan: Plan, device: Accelerator) -> _Layers:
    around = attention_kernels(model, plan, device)
    seconds = _kernel_seconds(around, device)
    fused = around.kind == ATTENTION
    mlp = feedforward_kernels(model, plan, device, experts=False)
    moe = feedforward_kernels(model, plan, device, experts=True) if model.experts else mlp
    head = head_kernels(model, plan, device)
    return (
        (float(seconds[~fused].sum()), len(around)),
        float(seconds[fused].sum()),
        (float(_kernel_seconds(mlp, device).sum()), len(mlp)),
        (float(_kernel_seconds(moe, device).sum()), len(moe)),
        (float(_kernel_seconds(head, device).sum()), len(head)),
    )


def _kernel_seconds(kernels: Kernels, device: Accelerator) -> Array:
    """Seconds of each kernel by the fitted constants."""
    return kernel_times(fitted_belief("kernels").mean, device, kernels)[0]


def _links(
    model: Transformer, plan: Plan, device: Accelerator, layers: float, expert_layers: float
) -> tuple[float, float, float, float]:
    """Seconds of tensor, expert, context and data collectives at nominal bandwidth."""
    tokens = plan.tokens(model.sequence)
    activation = tokens * model.hidden * 2.0
    runs, inside = plan.micro_batches, plan.tensor
    tensor = experts = context = 0.0
    if plan.tensor > 1:
        traffic = 2.0 * (plan.tensor - 1) / plan.tensor * activation
        tensor = runs * layers * 4 * traffic / _rate(device, inside)
    inside *= plan.context
    if plan.context > 1:
        keys = 2.0 * tokens * model.key_heads * model.value_width * 2.0
        traffic = 3.0 * (plan.context - 1) * keys / plan.tensor
        context = runs * layers * traffic / _rate(device, inside)
    if plan.expert > 1:
        seconds = _all_to_all(model, plan, device, activation / plan.tensor)
        experts = 4.0 * runs * expert_layers * seconds
    return tensor, experts, context, _data_seconds(model, plan, device)


def _all_to_all(model: Transformer, plan: Plan, device: Accelerator, activation: float) -> float:
    """Seconds to send every token to its experts: once per node over the network, then inside."""
    inside = activation * model.experts_per_token * (plan.expert - 1) / plan.expert
    nodes = max(1, round(plan.expert / device.link_domain))
    nodes_reached = (nodes - 1) * (1 - (1 - 1 / nodes) ** model.experts_per_token)
    within, across = _rate(device, 1), _rate(device, device.link_domain + 1)
    return max(inside / within, activation * nodes_reached / across)


def _data_seconds(model: Transformer, plan: Plan, device: Accelerator) -> float:
    """Seconds to add up gradients and hand out parameters between copies."""
    copies = plan.data * plan.context
    experts = max(expert_parameters(model, plan, stage) for stage in {0, plan.pipeline - 1})
    dense = local_parameters(model, plan) - experts
    # Experts that are spread over the copies have fewer of them, further apart.
    expert_copies = max(1, copies * plan.tensor // plan.expert)
    far = _rate(device, plan.tensor * copies)
    if plan.shard < 3:
        return 6.0 * (_others(copies) * dense + _others(expert_copies) * experts) / far
    group = plan.shard_group or copies
    replicas, expert_group = copies // group, min(group, expert_copies)
    gathered = _others(group) * dense + _others(expert_group) * experts
    again = _others(replicas) * (dense + experts) / group
    return 8.0 * (plan.micro_batches * gathered / _rate(device, plan.tensor * group) + again / far)


def _others(copies: int) -> float:
    """Share of a tensor that comes from the other copies."""
    return (copies - 1) / copies


def _rate(device: Accelerator, group: int) -> float:
    """Bytes per second and device of a collective over ``group`` neighbouring devices."""
    if group <= device.link_domain:
        return _LINK_SHARE * device.link_bytes_per_second
    network = _NETWORK.get(device.architecture, _OLD_NETWORK)
    # A ring over nodes crosses the network once per node: each device's card carries its share.
    return _LINK_SHARE * min(device.link_bytes_per_second, network)
