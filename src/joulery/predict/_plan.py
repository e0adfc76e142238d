"""Time of a training step under a parallel plan, from kernels, collectives and the schedule.

A plan's step is cut into physical parts (:func:`plan_parts`), each in seconds at nominal speed:
kernels of the fullest pipeline stage, collectives over the links they cross, the optimizer, what
the host takes to launch. :func:`plan_seconds` weighs them with the constants of a system and its
software, which a few measured runs sharpen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InvalidValueError
from joulery.predict._fitted import belief
from joulery.predict._kernels import ATTENTION, kernel_times
from joulery.predict._model import (
    Share,
    attention_kernels,
    feedforward_kernels,
    head_kernels,
)

if TYPE_CHECKING:
    from joulery.predict._bayes import Array
    from joulery.predict._devices import Accelerator
    from joulery.predict._kernels import Kernels
    from joulery.predict._model import Transformer

_WORDS = {
    "dp": "data",
    "tp": "tensor",
    "pp": "pipeline",
    "cp": "context",
    "ep": "expert",
    "vp": "chunks",
    "mb": "micro_batch",
    "zero": "shard",
}
RECOMPUTE = ("none", "selective", "full")


@dataclass(frozen=True, slots=True)
class Plan:
    """How a training step is spread over devices.

    Attributes:
        data: Copies of the model that see different sequences.
        tensor: Devices that share each matrix, and the norms along the sequence.
        pipeline: Stages.
        context: Devices that share each sequence.
        expert: Devices that share the experts, out of data × tensor × context.
        chunks: Parts of the model per stage, visited in turn (interleaved schedule).
        micro_batch: Sequences at a time.
        global_batch: Sequences per step.
        shard: What data-parallel copies share: 0 nothing, 1 optimizer state, 2 gradients too,
            3 parameters too (ZeRO stages; 3 is FSDP).
        shard_group: Copies that share among each other; all of them where 0.
        recompute: Activations computed again in the backward pass.
        precision: Of the matrix products.
        fused_attention: Whether the scores of attention never reach memory.
    """

    data: int = 1
    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    expert: int = 1
    chunks: int = 1
    micro_batch: int = 1
    global_batch: int = 1
    shard: int = 1
    shard_group: int = 0
    recompute: str = "none"
    precision: str = "bf16"
    fused_attention: bool = True

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def micro_batches(self) -> int:
        """Micro-batches per pipeline and step."""
        return self.global_batch // (self.data * self.micro_batch)

    @property
    def share(self) -> Share:
        """What one device computes at a time."""
        return Share(
            self.micro_batch,
            self.tensor,
            self.context,
            self.expert,
            self.precision,
            self.fused_attention,
        )

    def __str__(self) -> str:
        sides = {
            "dp": self.data,
            "tp": self.tensor,
            "pp": self.pipeline,
            "cp": self.context,
            "ep": self.expert,
            "vp": self.chunks,
        }
        words = [f"{name}{size}" for name, size in sides.items() if size > 1] or ["dp1"]
        words.append(f"mb{self.micro_batch}")
        if self.shard > 1:
            words.append(f"zero{self.shard}")
        if self.recompute != "none":
            words.append(f"{self.recompute}-recompute")
        return "-".join(words)

    @classmethod
    def parse(cls, text: str, global_batch: int, precision: str = "bf16") -> Plan:
        """A plan from its text form, such as ``dp8-tp2-mb1-zero3``.

        Raises:
            InvalidValueError: A word is not understood.
        """
        found: dict[str, int | str] = {}
        for word in text.split("-"):
            match = re.fullmatch(r"(dp|tp|pp|cp|ep|vp|mb|zero)(\d+)", word)
            if match:
                found[_WORDS[match[1]]] = int(match[2])
            elif word in ("full", "selective"):
                found["recompute"] = word
            elif word != "recompute":
                raise InvalidValueError(
                    f"{word!r} in plan {text!r} is not understood",
                    remedy="write it like dp8-tp2-pp4-mb1-zero3-full-recompute",
                )
        return cls(**found, global_batch=global_batch, precision=precision)  # type: ignore[arg-type]

    def check(self, model: Transformer) -> None:
        """Refuse a plan that does not divide.

        Raises:
            InvalidValueError: Some size does not divide what it splits.
        """
        rules = (
            (self.global_batch, self.data * self.micro_batch, "global batch", "data × micro-batch"),
            (model.heads, self.tensor, "heads", "tensor"),
            (model.layers, self.pipeline * self.chunks, "layers", "pipeline × chunks"),
            (model.sequence, self.context, "sequence", "context"),
            (max(model.experts, 1), self.expert, "experts", "expert"),
            (
                self.data * self.tensor * self.context,
                self.expert,
                "data × tensor × context",
                "expert",
            ),
        )
        for whole, part, of_what, by_what in rules:
            if whole % part or whole < part:
                raise InvalidValueError(
                    f"{of_what} {whole} does not divide by {by_what} {part}",
                    remedy=f"choose a {by_what} that divides {whole}",
                )
        if self.recompute not in RECOMPUTE or self.shard not in (0, 1, 2, 3):
            raise InvalidValueError(
                f"no recomputation {self.recompute!r} or sharding {self.shard}",
                remedy=f"recompute is one of {', '.join(RECOMPUTE)}; shard is 0 to 3",
            )


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
    "dense",
    "attention",
    "experts",
    "tensor",
    "expert_links",
    "context",
    "data",
    "bubble",
    "optimizer",
    "host",
    "latency",  # microseconds of a hop of a blocking collective call
    *("bf16", "mxfp8", "nvfp4"),  # factor of kernels in that precision
)
# Seconds of the host per kernel counted here; each stands for a few small ones around it.
_HOST_SECONDS = 20e-6
# How well the host's launches hide behind kernels, how collectives' hops grow with the group
# (between a tree and a ring), and which share of gradient traffic hides behind the backward pass;
# chosen on vTrain's plans on one node.
_ASIDE, _HOPS, _HIDDEN = 3.0, 0.85, 0.9
# Share of a collective's nominal bandwidth that large messages reach; NCCL tables of five systems.
_LINK_SHARE = 0.8
# Bandwidth between nodes per device: one network card of 400 Gb/s each; 200 before Hopper.
_NETWORK = {"Hopper": 50e9, "Blackwell": 50e9, "Blackwell Ultra": 100e9, "CDNA3": 50e9}
_OLD_NETWORK = 25e9
# Bytes of a parameter's gradient, master copy and two moments that one optimizer step moves.
_OPTIMIZER_TRAFFIC = 30.0


def plan_parts(model: Transformer, plan: Plan, device: Accelerator) -> Array:
    """Physical parts of a step, in the order of :data:`PARTS`."""
    runs = plan.micro_batches
    dense_layers = (model.layers - model.expert_layers) / plan.pipeline
    expert_layers = model.expert_layers / plan.pipeline
    block, attention, mlp, moe, head = _share_seconds(model, plan.share, device)
    layers = dense_layers + expert_layers
    dense = runs * (layers * block[0] + dense_layers * mlp[0] + head[0])  # on the last stage
    experts = runs * expert_layers * moe[0]
    fused = runs * layers * attention
    again = {"none": 0.0, "selective": 0.06, "full": 1 / 3}[plan.recompute]
    recompute = again * (dense + experts + fused)
    calls = runs * (layers * (block[1] + 2) + dense_layers * mlp[1] + expert_layers * moe[1])
    links = _links(model, plan, device, layers, expert_layers)
    hops = (plan.tensor - 1) ** _HOPS
    blocking = 4 * runs * (layers * hops + expert_layers * (plan.expert > 1))
    return np.array(
        [
            dense,
            fused,
            experts,
            recompute,
            links["tensor"],
            links["expert_links"],
            links["context"],
            links["data"],
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


def local_parameters(model: Transformer, plan: Plan, stage: int | None = None) -> float:
    """Parameters that one device holds before data-parallel sharding.

    Args:
        model: The model.
        plan: The plan.
        stage: Pipeline stage; the fullest where None.
    """
    if stage is None:
        ends = {0, plan.pipeline - 1}
        return max(local_parameters(model, plan, end) for end in ends)
    dense, experts = stage_layers(model, plan, stage)
    shared = model.block_parameters(model.shared_feedforward) + model.hidden * model.experts
    embeddings = (stage == 0) + (stage == plan.pipeline - 1)
    if plan.pipeline == 1 and model.tied:
        embeddings = 1
    rest = (
        (dense + experts) * model.attention_parameters()
        + dense * model.block_parameters(model.feedforward)
        + experts * shared
        + embeddings * model.embedding_parameters()
    )
    return float(rest / plan.tensor) + expert_parameters(model, plan, stage)


def expert_parameters(model: Transformer, plan: Plan, stage: int) -> float:
    """Parameters of the experts that one device of a stage holds."""
    _, layers = stage_layers(model, plan, stage)
    each = model.experts * model.block_parameters(model.expert_feedforward)
    return layers * each / plan.expert


def stage_layers(model: Transformer, plan: Plan, stage: int) -> tuple[float, float]:
    """Layers without and with experts of a pipeline stage; the dense ones come first."""
    layers = model.layers / plan.pipeline
    if not model.experts:
        return layers, 0.0
    dense = min(max(model.dense_layers - stage * layers, 0.0), layers)
    return dense, layers - dense


def _share_seconds(
    model: Transformer, share: Share, device: Accelerator
) -> tuple[tuple[float, int], float, tuple[float, int], tuple[float, int], tuple[float, int]]:
    return _cached_seconds(model, share, _Hashable(device))


class _Hashable:
    """A device as a key of a cache: its name says all."""

    def __init__(self, device: Accelerator) -> None:
        self.device = device

    def __hash__(self) -> int:
        return hash(self.device.name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Hashable) and self.device == other.device


@lru_cache(maxsize=100_000)
def _cached_seconds(
    model: Transformer, share: Share, key: _Hashable
) -> tuple[tuple[float, int], float, tuple[float, int], tuple[float, int], tuple[float, int]]:
    device = key.device
    around = attention_kernels(model, share, device)
    seconds = _seconds(around, device)
    fused = around.kind == ATTENTION
    mlp = feedforward_kernels(model, share, device, experts=False)
    moe = feedforward_kernels(model, share, device, experts=True) if model.experts else mlp
    head = head_kernels(model, share, device)
    return (
        (float(seconds[~fused].sum()), len(around)),
        float(seconds[fused].sum()),
        (float(_seconds(mlp, device).sum()), len(mlp)),
        (float(_seconds(moe, device).sum()), len(moe)),
        (float(_seconds(head, device).sum()), len(head)),
    )


def _seconds(kernels: Kernels, device: Accelerator) -> Array:
    return kernel_times(belief("kernels").mean, device, kernels)[0]


def _links(
    model: Transformer, plan: Plan, device: Accelerator, layers: float, expert_layers: float
) -> dict[str, float]:
    """Seconds of collectives at nominal bandwidth."""
    tokens = plan.micro_batch * model.sequence / plan.context
    activation = tokens * model.hidden * 2.0
    runs, inside = plan.micro_batches, plan.tensor
    found = dict.fromkeys(("tensor", "expert_links", "context", "data"), 0.0)
    if plan.tensor > 1:
        moved = 2.0 * (plan.tensor - 1) / plan.tensor * activation
        found["tensor"] = runs * layers * 4 * moved / _rate(device, inside)
    inside *= plan.context
    if plan.context > 1:
        keys = (
            2.0 * tokens * model.key_heads * (model.head_dim or model.hidden // model.heads) * 2.0
        )
        moved = 3.0 * (plan.context - 1) * keys / plan.tensor
        found["context"] = runs * layers * moved / _rate(device, inside)
    if plan.expert > 1:
        seconds = _all_to_all(model, plan, device, activation / plan.tensor)
        found["expert_links"] = 4.0 * runs * expert_layers * seconds
    found["data"] = _data_seconds(model, plan, device)
    return found


def _all_to_all(model: Transformer, plan: Plan, device: Accelerator, activation: float) -> float:
    """Seconds to send every token to its experts: once per node over the network, then inside."""
    inside = activation * model.experts_per_token * (plan.expert - 1) / plan.expert
    nodes = max(1, round(plan.expert / device.link_domain))
    reached = (nodes - 1) * (1 - (1 - 1 / nodes) ** model.experts_per_token)
    within, across = _rate(device, 1), _rate(device, device.link_domain + 1)
    return max(inside / within, activation * reached / across)


def _data_seconds(model: Transformer, plan: Plan, device: Accelerator) -> float:
    """Seconds to add up gradients and hand out parameters between copies."""
    copies = plan.data * plan.context
    held = local_parameters(model, plan)
    if copies == 1:
        return 0.0
    if plan.shard < 3:
        return 6.0 * (copies - 1) / copies * held / _rate(device, plan.tensor * copies)
    group = plan.shard_group or copies
    rate = _rate(device, plan.tensor * group)
    gathered = 8.0 * plan.micro_batches * (group - 1) / group * held / rate
    replicas = copies // group
    return gathered + 8.0 * (replicas - 1) / replicas * held / group / _rate(device, copies)


def _rate(device: Accelerator, group: int) -> float:
    """Bytes per second and device of a collective over ``group`` neighbouring devices."""
    if group <= device.link_domain:
        return _LINK_SHARE * device.link_bytes_per_second
    network = _NETWORK.get(device.architecture, _OLD_NETWORK)
    # A ring over nodes crosses the network once per node: each device's card carries its share.
    return _LINK_SHARE * min(device.link_bytes_per_second, network)
