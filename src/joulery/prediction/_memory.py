"""Peak memory of one device under a parallel plan.

Parameters, gradients and optimizer state as the plan shards them, activations of every
micro-batch in flight, and temporaries: logits and their gradient on the last stage, and one tensor
of the largest weight's shape that the backward pass holds. Mixed precision as Megatron and FSDP
do it: 16-bit parameters, 32-bit gradients, master copy and two moments.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from joulery.prediction._plan import expert_parameters, local_parameters, stage_layers

if TYPE_CHECKING:
    from joulery.prediction._model import Transformer
    from joulery.prediction._plan import Plan

# Mixed precision as in Megatron: 16-bit parameters, 32-bit gradients, master copy and two moments.
PARAMETER_BYTES, GRADIENT_BYTES, STATE_BYTES = 2.0, 4.0, 12.0
# Share of the device's memory that a plan may reserve: reserved bytes were up to 4.8 %
# above the prediction (SimuMax data).
MEMORY_SHARE = 0.95
# What the framework, the communication library and the allocator hold beside tensors; by hand.
CONTEXT_BYTES = 0.3e9
# The allocator keeps freed blocks: share of the activations that is reserved but not allocated;
# by hand.
_FRAGMENTED_SHARE, _RESERVED_BYTES = 0.2, 1.0e9


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the fullest device.

    Attributes:
        parameters: Parameters.
        gradients: Gradients.
        optimizer: Master copy and moments.
        activations: Tensors that the forward pass keeps for the backward pass.
        temporaries: Tensors that live within one operator.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    temporaries: float

    @property
    def allocated(self) -> float:
        """Peak of the bytes that tensors take."""
        state = self.parameters + self.gradients + self.optimizer
        return state + self.activations + self.temporaries + CONTEXT_BYTES

    @property
    def reserved(self) -> float:
        """Peak of the bytes that the allocator takes from the device."""
        return self.allocated + _FRAGMENTED_SHARE * self.activations + _RESERVED_BYTES


def plan_memory(model: Transformer, plan: Plan) -> Memory:
    """Memory of the fullest stage.

    Stages after the first that holds experts need less and less, but for the last one.
    """
    first = int(model.dense_layers * plan.pipeline / model.layers) if model.experts else 0
    stages = {0, min(first + 1, plan.pipeline - 1), plan.pipeline - 1}
    return max((stage_memory(model, plan, stage) for stage in stages), key=lambda m: m.reserved)


def stage_memories(model: Transformer, plan: Plan) -> tuple[Memory, ...]:
    """Memory of one device of every pipeline stage, first stage first."""
    return tuple(stage_memory(model, plan, stage) for stage in range(plan.pipeline))


def stage_memory(model: Transformer, plan: Plan, stage: int) -> Memory:
    """Memory of one device of a pipeline stage."""
    total, experts = local_parameters(model, plan, stage), expert_parameters(model, plan, stage)
    copies = (plan.shard_group or plan.data * plan.context) if plan.shard else 1
    # Experts have fewer copies than the rest, so there are fewer devices to shard them over.
    expert_copies = max(1, plan.data * plan.context * plan.tensor // plan.expert)
    if plan.expert == 1:
        expert_copies = copies
    state = (total - experts) / copies + experts / (expert_copies if plan.shard else 1)
    optimizer, gradients, parameters = (
        state if plan.shard >= level else total for level in (1, 2, 3)
    )
    if plan.shard == 3:  # two layers' parameters are whole at a time
        parameters += 2 * total / max(1, model.layers / plan.pipeline)
    last = stage == plan.pipeline - 1
    return Memory(
        PARAMETER_BYTES * parameters,
        GRADIENT_BYTES * gradients,
        STATE_BYTES * optimizer,
        _activations(model, plan, stage),
        _temporaries(model, plan, last=last),
    )


def _activations(model: Transformer, plan: Plan, stage: int) -> float:
    tokens = plan.tokens(model.sequence)
    waiting = float(plan.pipeline - stage)
    if plan.chunks > 1:  # interleaving keeps more in flight, by a part of the model each
        waiting += (plan.pipeline - 1) / plan.chunks
    in_flight = min(waiting, plan.micro_batches)
    dense_layers, experts = stage_layers(model, plan, stage)
    boundary = 2.0 * model.hidden
    if plan.recompute:
        return float(in_flight * (dense_layers + experts) * tokens * boundary / plan.tensor)
    around = _attention_bytes(model)
    dense = _block_bytes(model, model.feedforward)
    # Dispatched copies of the input, and the routed outputs before they are summed.
    routed = _block_bytes(model, model.expert_feedforward) + 2 * boundary
    moe = model.experts_per_token * routed + 4.0 * model.experts
    moe += _block_bytes(model, model.shared_feedforward)
    total = (dense_layers + experts) * around + dense_layers * dense + experts * moe
    return float(in_flight * tokens * total / plan.tensor)


def _attention_bytes(model: Transformer) -> float:
    """Bytes per token that a block keeps outside its feed-forward part."""
    value = model.value_width
    if model.kv_rank:
        latent = (model.query_rank or 0) * 2 + 2 * model.kv_rank + model.rope_dim
        keys = model.heads * (2 * model.head_width + value) + latent
    else:
        keys = (model.heads + 2 * model.key_heads) * value
    output = model.heads * value
    # Input of the norm, its output, queries and keys and values, attention's output, and the same
    # two of the second norm; the statistics of attention.
    return 2.0 * (4 * model.hidden + keys + output) + 4.0 * model.heads


def _block_bytes(model: Transformer, inner: int) -> float:
    """Bytes per token that a feed-forward block keeps."""
    return 2.0 * (3 if model.gated else 2) * inner


def _temporaries(model: Transformer, plan: Plan, *, last: bool) -> float:
    tokens = plan.tokens(model.sequence)
    logits = tokens * model.vocabulary / plan.tensor
    weight = model.embedding_parameters() / plan.tensor
    return 4.0 * logits * last + PARAMETER_BYTES * weight
