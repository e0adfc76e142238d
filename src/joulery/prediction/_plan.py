"""Parallel plans: how a training step is spread over devices, and the part of the model on each."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError

if TYPE_CHECKING:
    from joulery.prediction._model import Transformer

_SIDES = {
    "dp": "data",
    "tp": "tensor",
    "pp": "pipeline",
    "cp": "context",
    "ep": "expert",
    "vp": "chunks",
}
_WORDS = {**_SIDES, "mb": "micro_batch", "zero": "shard"}


@dataclass(frozen=True, slots=True)
class Plan:
    """A parallel plan: how a training step is spread over devices.

    Attributes:
        data: Copies of the model that see different sequences.
        tensor: Devices that share each matrix, and the norms along the sequence.
        pipeline: Stages.
        context: Devices that share each sequence.
        expert: Devices that share the experts, out of data × tensor × context.
        chunks: Parts of the model per stage, visited in turn (interleaved schedule).
        micro_batch: Sequences at a time.
        global_batch: Sequences per step.
        shard: State that data-parallel copies share: 0 nothing, 1 optimizer state, 2 gradients too,
            3 parameters too (ZeRO stages; 3 is FSDP).
        shard_group: Copies that share among each other; all of them where 0.
        recompute: Whether all activations are computed again in the backward pass.
        precision: Precision of the matrix products.
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
    recompute: bool = False
    precision: str = "bf16"
    fused_attention: bool = True

    def __post_init__(self) -> None:
        for name in (*_SIDES.values(), "micro_batch", "global_batch"):
            if getattr(self, name) < 1:
                raise InvalidValueError(
                    f"{name.replace('_', ' ')} of a plan must be at least 1, not "
                    f"{getattr(self, name)}",
                    remedy="leave out what is not split",
                )
        if self.shard not in (0, 1, 2, 3):
            raise InvalidValueError(f"no sharding zero{self.shard}", remedy="zero0 to zero3")

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.data * self.tensor * self.pipeline * self.context

    @property
    def micro_batches(self) -> int:
        """Micro-batches per pipeline and step."""
        return self.global_batch // (self.data * self.micro_batch)

    def fullest_layers(self, model: Transformer) -> int:
        """Layers of every pipeline stage but the last, which may have fewer."""
        return math.ceil(model.layers / (self.pipeline * self.chunks)) * self.chunks

    def tokens(self, sequence: int) -> float:
        """Tokens of one micro-batch on one device."""
        return self.micro_batch * sequence / self.context

    def __str__(self) -> str:
        sides = {word: getattr(self, name) for word, name in _SIDES.items()}
        words = [f"{word}{size}" for word, size in sides.items() if size > 1] or ["dp1"]
        words.append(f"mb{self.micro_batch}")
        if self.shard != 1:
            words.append(f"zero{self.shard}")
        if self.recompute:
            words.append("full-recompute")
        return "-".join(words)

    @classmethod
    def parse(cls, text: str, global_batch: int, precision: str = "bf16") -> Plan:
        """A plan from its text form, such as ``dp8-tp2-mb1-zero3``.

        Raises:
            InvalidValueError: A word is not understood.
        """
        words = text.replace("full-recompute", "recompute").split("-")
        values: dict[str, Any] = {}
        for word in words:
            match = re.fullmatch(rf"({'|'.join(_WORDS)})(\d+)", word)
            if match and _WORDS[match[1]] not in values:
                values[_WORDS[match[1]]] = int(match[2])
            elif word != "recompute":
                raise InvalidValueError(
                    f"{word!r} in plan {text!r} is not understood, or there twice",
                    remedy="write it like dp8-tp2-pp4-mb1-zero3-full-recompute",
                )
        again = "recompute" in words
        return cls(**values, global_batch=global_batch, recompute=again, precision=precision)

    def check(self, model: Transformer) -> None:
        """Refuse a plan that does not divide.

        Raises:
            InvalidValueError: Some size does not divide what it splits.
        """
        at_once, group = self.data * self.micro_batch, self.data * self.tensor * self.context
        rules = (
            (self.global_batch, at_once, "global batch", "data × micro-batch"),
            (model.heads, self.tensor, "heads", "tensor"),
            (model.sequence, self.context, "sequence", "context"),
            (max(model.experts, 1), self.expert, "experts", "expert"),
            (group, self.expert, "data × tensor × context", "expert"),
        )
        for total, part, of_what, by_what in rules:
            if total % part or total < part:
                raise InvalidValueError(
                    f"{of_what} {total} does not divide by {by_what} {part}",
                    remedy=f"choose a {by_what} that divides {total}",
                )
        if self.fullest_layers(model) * (self.pipeline - 1) >= model.layers:
            raise InvalidValueError(
                f"{model.layers} layers leave one of {self.pipeline} pipeline stages of "
                f"{self.chunks} chunks empty",
                remedy="choose fewer stages or chunks",
            )


def local_parameters(model: Transformer, plan: Plan, stage: int | None = None) -> float:
    """Parameters that one device of a stage, or of the fullest, holds before they are sharded."""
    if stage is None:
        return max(local_parameters(model, plan, end) for end in {0, plan.pipeline - 1})
    dense, experts = stage_layers(model, plan, stage)
    shared = model.block_parameters(model.shared_feedforward) + model.hidden * model.experts
    embeddings = (stage == 0) + (stage == plan.pipeline - 1)
    if plan.pipeline == 1 and model.tied:
        embeddings = 1
    parameters = (
        (dense + experts) * model.attention_parameters()
        + dense * model.block_parameters(model.feedforward)
        + experts * shared
        + embeddings * model.embedding_parameters()
    )
    return float(parameters / plan.tensor) + expert_parameters(model, plan, stage)


def expert_parameters(model: Transformer, plan: Plan, stage: int) -> float:
    """Parameters of the experts that one device of a stage holds."""
    _, layers = stage_layers(model, plan, stage)
    experts = model.experts * model.block_parameters(model.expert_feedforward)
    return layers * experts / plan.expert


def stage_layers(model: Transformer, plan: Plan, stage: int) -> tuple[int, int]:
    """Layers without and with experts of a pipeline stage; the dense ones come first."""
    fullest = plan.fullest_layers(model)
    layers = min(fullest, model.layers - stage * fullest)
    if not model.experts:
        return layers, 0
    dense = min(max(model.dense_layers - stage * fullest, 0), layers)
    return dense, layers - dense
