"""Peak memory of one device under a parallel plan.

Parameters, gradients and optimizer state as the plan shards them, activations of every
micro-batch in flight in the precision of the products that need them, and temporaries: logits and
their gradient on the last stage, and one tensor of the largest weight's shape that the backward
pass holds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulery.prediction._devices import BYTES
from joulery.prediction._plan import (
    RECOMPUTE,
    expert_parameters,
    local_parameters,
    stage_layers,
)
from joulery.prediction._plan_time import trained_share

if TYPE_CHECKING:
    from joulery.prediction._devices import Accelerator
    from joulery.prediction._model import Transformer
    from joulery.prediction._plan import Plan

# Bytes of two moments by their bits, and of the master copy of 16-bit parameters, which moments of
# 16 bit come without. PyTorch's own mixed precision casts 32-bit parameters instead of keeping
# 16-bit ones beside them: 16 bytes per parameter in all, Megatron-Core has 18.
_MOMENT_BYTES, _MASTER_BYTES = {32: 8.0, 16: 4.0, 8: 2.0}, 4.0
_CASTING = ("compile", "eager", "transformers")
# Bytes of frozen weights in four bits, with their scales (QLoRA).
_FOUR_BITS = 0.56
# Shares of a device's memory: a plan that reserves less than the first fits (reserved bytes were up
# to 5 % above the prediction on B200, SimuMax data, and contexts of other processes take some); one
# whose tensors alone take more than the second does not. The second is the largest error of
# predicted tensors there, 1.3 %. Published plans that ran and say what they recompute stay within
# it: MPT's 139 up to 0.95, Llama 3.1 405B up to 0.99, torchtitan's but for one of two eager ones
# (1.05). What is reserved says less: it was up to 1.18 for them, since the allocator gives back
# what tensors do not take.
FITS_SHARE, _TIGHT_SHARE = 0.92, 1.013
# What the framework, the communication library and the allocator hold beside tensors; by hand.
CONTEXT_BYTES = 0.3e9
# The allocator keeps freed blocks: share of the activations that is reserved but not allocated;
# by hand on SimuMax's plans.
_FRAGMENTED_SHARE, _RESERVED_BYTES = 0.2, 1.0e9
# Intermediate tensors that fused kernels do not keep, as a factor of activations: gpt2-xl in eager
# mode at batch sizes 1 and 128 (gpu_power_benchmark) keeps 1.6 times what fused kernels would;
# FSDP's users fuse attention and norms, taken to be half way.
_KEPT = {"megatron": 1.0, "compile": 1.0, "replay": 1.0, "eager": 1.3, "transformers": 1.6}
# Bytes per logit at the peak: Megatron's fused loss works in place; others hold a 32-bit copy, its
# softmax and gradient.
_LOGIT_BYTES = {"megatron": 4.0, "compile": 8.0, "eager": 12.0, "transformers": 14.0, "replay": 4.0}
# Layers whose activations and their gradients live while a layer is recomputed; counted.
_WORKING_LAYERS = 2.0


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on the fullest device.

    Attributes:
        parameters: Parameters.
        gradients: Gradients.
        optimizer: Master copy and moments.
        activations: Tensors that the forward pass keeps for the backward pass.
        temporaries: Tensors that live within one operator.
        measured: What a measured peak adds to all of these.
    """

    parameters: float
    gradients: float
    optimizer: float
    activations: float
    temporaries: float
    measured: float = 0.0

    @property
    def allocated(self) -> float:
        """Peak of the bytes that tensors take."""
        state = self.parameters + self.gradients + self.optimizer
        return state + self.activations + self.temporaries + self.measured + CONTEXT_BYTES

    @property
    def reserved(self) -> float:
        """Peak of the bytes that the allocator takes from the device."""
        return self.allocated + _FRAGMENTED_SHARE * self.activations + _RESERVED_BYTES

    def corrected(self, factor: float) -> Memory:
        """The same with a reserved peak of so many times this."""
        return replace(self, measured=self.measured + (factor - 1) * self.reserved)


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
    share, (weight, gradient, moments) = trained_share(model, plan), _bytes_per_parameter(plan)
    copies_held = 2.0 if plan.task.holds_reference or plan.schedule == "dualpipe" else 1.0
    adapters = 2.0 * share * parameters if plan.task.adapter else 0.0
    return Memory(
        weight * copies_held * parameters + adapters,
        gradient * share * gradients,
        0.0 if plan.offload else moments * share * optimizer,
        _activations(model, plan, stage),
        _temporaries(model, plan, last=stage == plan.pipeline - 1),
    )


def memory_verdict(
    model: Transformer, plan: Plan, board: Accelerator, factor: float = 1.0
) -> tuple[Memory, str]:
    """Memory of the fullest stage, and whether it ``fits``, is ``tight`` or ``does not fit``.

    Args:
        model: Description of the model.
        plan: Parallel plan.
        board: Device.
        factor: Measured peak over predicted.
    """
    memory = plan_memory(model, plan).corrected(factor)
    return memory, judge_memory(memory, board)


def judge_memory(memory: Memory, board: Accelerator) -> str:
    """Whether memory ``fits``, is ``tight`` or ``does not fit``.

    It fits where the allocator's peak leaves 8 % of the device free. It is tight where tensors fit,
    but not what the allocator keeps beside them, which it gives back when it is short of memory.
    """
    if memory.reserved <= FITS_SHARE * board.memory_bytes:
        return "fits"
    return "tight" if memory.allocated <= _TIGHT_SHARE * board.memory_bytes else "does not fit"


def lean_variant(
    model: Transformer, plan: Plan, board: Accelerator, factor: float = 1.0
) -> Plan | None:
    """The variant of a plan that costs least time and fits, or is tight; None where none does.

    Variants recompute activations and compute logits a part at a time.
    """
    levels = RECOMPUTE[RECOMPUTE.index(plan.recompute) :]
    variants = [
        replace(plan, recompute=recompute, chunked_loss=chunked or plan.chunked_loss)
        for recompute in levels
        for chunked in (False, True)
    ]
    for wanted in ("fits", "tight"):
        for variant in variants:
            if memory_verdict(model, variant, board, factor)[1] == wanted:
                return variant
    return None


def _bytes_per_parameter(plan: Plan) -> tuple[float, float, float]:
    """Bytes of a parameter, its gradient and its share of the optimizer's state."""
    moments = _MOMENT_BYTES[plan.state_bits]
    weight = _FOUR_BITS if plan.task.adapter == "qlora" else 2.0
    if plan.precision in ("fp32", "tf32"):
        weight, gradient = 4.0, 4.0
    elif plan.state_bits == 16 or not plan.master:
        gradient = 2.0
    else:
        gradient = 4.0
        moments += _MASTER_BYTES - (2.0 if plan.framework in _CASTING else 0.0)
    return weight, 0.0 if plan.fused_backward else gradient, moments


def _activations(model: Transformer, plan: Plan, stage: int) -> float:
    tokens = plan.tokens(model.sequence)
    waiting = float(plan.pipeline - stage)
    if plan.chunks > 1:  # interleaving keeps more in flight, by a part of the model each
        further = 2 * (plan.pipeline - stage - 1) + (plan.chunks - 1) * plan.pipeline + 1
        waiting = further / plan.chunks
    if plan.schedule == "dualpipe":  # micro-batches from both ends
        waiting = plan.pipeline + 1.0
    in_flight = min(waiting, plan.micro_batches)
    dense_layers, experts = stage_layers(model, plan, stage)
    layers = dense_layers + experts
    around = _attention_bytes(model, plan)
    dense = _block_bytes(model, plan, model.feedforward)
    boundary = _wide_bytes(plan) * model.hidden
    # Dispatched copies of the input, and the routed outputs before they are summed.
    routed = _block_bytes(model, plan, model.expert_feedforward) + 2 * boundary
    moe = model.experts_per_token * routed + 4.0 * model.experts
    moe += _block_bytes(model, plan, model.shared_feedforward)
    total = layers * around + dense_layers * dense + experts * moe
    if plan.recompute == "full":
        working = _KEPT[plan.framework] * _WORKING_LAYERS * total / max(layers, 1)
        return float(tokens * (in_flight * layers * boundary + working) / plan.tensor)
    return float(_KEPT[plan.framework] * in_flight * tokens * total / plan.tensor)


def _wide_bytes(plan: Plan) -> float:
    """Bytes of an element that no narrow product needs."""
    return max(2.0, BYTES[plan.precision])


def _attention_bytes(model: Transformer, plan: Plan) -> float:
    """Bytes per token that a block keeps outside its feed-forward part."""
    value, wide, narrow = model.value_width, _wide_bytes(plan), BYTES[plan.precision]
    if model.kv_rank:
        latent = (model.query_rank or 0) * 2 + 2 * model.kv_rank + model.rope_dim
        keys = model.heads * (2 * model.head_width + value) + latent
    else:
        keys = (model.heads + 2 * model.key_heads) * value
    output = model.heads * value
    # Inputs of both norms, queries and keys and values, and the statistics of attention; outputs of
    # the norms and of attention are inputs of products.
    norms = 0.0 if plan.recompute == "selective" else narrow * 2 * model.hidden
    return wide * (2 * model.hidden + keys) + narrow * output + norms + 4.0 * model.heads


def _block_bytes(model: Transformer, plan: Plan, inner: int) -> float:
    """Bytes per token that a feed-forward block keeps."""
    activated = 0.0 if plan.recompute == "selective" else BYTES[plan.precision]
    return (_wide_bytes(plan) * (2 if model.gated else 1) + activated) * inner


def _temporaries(model: Transformer, plan: Plan, *, last: bool) -> float:
    tokens = plan.tokens(model.sequence)
    logits = tokens * model.vocabulary / plan.tensor
    # Frozen embeddings have no gradient.
    weight = 0.0 if plan.task.adapter else model.embedding_parameters() / plan.tensor
    held = 0.0 if plan.chunked_loss else _LOGIT_BYTES[plan.framework]
    return held * logits * last + 2.0 * weight
