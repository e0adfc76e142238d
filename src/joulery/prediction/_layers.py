"""Kernels of a transformer's layers on one device: of a training step, or of a forward pass."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from joulery.prediction._bayes import fitted_cache
from joulery.prediction._devices import BYTES, accelerator
from joulery.prediction._kernels import (
    ATTENTION,
    MATMUL,
    STREAM,
    Kernels,
    kernel_constants,
    kernel_times,
    kernel_use,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.prediction._devices import Accelerator
    from joulery.prediction._graph import Graph
    from joulery.prediction._model import Transformer
    from joulery.prediction._plan import Plan

# Traffic of the element-wise work around one block, in tensors of the residual's size, forward:
# two norms (read, write, statistics), two residual additions, rotary embedding; counted, with
# fused kernels and as PyTorch runs it operator by operator.
_PASSES = {"megatron": 12.0, "compile": 12.0, "replay": 12.0, "eager": 20.0, "transformers": 40.0}
# Further passes over a block's inner activation without fused kernels; counted.
_BLOCK_PASSES = {"eager": 1.0, "transformers": 3.0}
EAGER = tuple(_BLOCK_PASSES)
# Tensors that an element-wise operator touches, which stay in the cache if they are small: one in,
# one out.
_OPERANDS = 2.0
# Traffic of the loss per logit: 32-bit copy, softmax, gradient, cast.
_LOSS_BYTES = 24.0
# Traffic of unfused scores: scaled and masked softmax, then dropout with its mask, both ways.
_SCORE_PASSES = (2.0, 2.5, 2.5, 3.0)


@dataclass(frozen=True, slots=True)
class Batch:
    """What a layer works on at once.

    Attributes:
        tokens: Tokens on the device.
        sequences: Sequences that they belong to.
        queries: Tokens of one sequence that attend.
        keys: Tokens that each attends to at most.
        seen: Share of ``keys`` that a token attends to on average.
        tensor: Devices that share each matrix.
        expert: Devices that share the experts.
        precision: Precision of the matrix products.
        backward: ``whole`` for all gradients, ``frozen`` for those of activations only, or
            empty for a forward pass.
        framework: Framework, which decides how much element-wise work is fused.
        fused_attention: Whether the scores of attention never reach memory.
        weight_bytes: Bytes of a weight in memory where it is narrower than the products.
    """

    tokens: float
    sequences: float
    queries: float
    keys: float
    seen: float
    tensor: int = 1
    expert: int = 1
    precision: str = "bf16"
    backward: str = ""
    framework: str = "megatron"
    fused_attention: bool = True
    weight_bytes: float = 0.0


def plan_batch(model: Transformer, plan: Plan, *, forward: bool = False) -> Batch:
    """One micro-batch of a plan."""
    task, seen = plan.task, model.seen_share
    if task.example_tokens:
        seen = min(seen, (0.5 if model.causal else 1.0) * task.example_tokens / model.sequence)
    return Batch(
        tokens=plan.tokens(model.sequence),
        sequences=plan.micro_batch,
        queries=model.sequence / plan.context,
        keys=model.sequence,
        seen=seen,
        tensor=plan.tensor,
        expert=plan.expert,
        precision=plan.precision,
        backward="" if forward else "frozen" if task.adapter else "whole",
        framework=plan.framework,
        fused_attention=plan.fused_attention,
        weight_bytes=0.56 if task.adapter == "qlora" else 0.0,
    )


class _Rows:
    """Kernels in the making."""

    def __init__(self, device: Accelerator, batch: Batch) -> None:
        self._rows: list[tuple[float, ...]] = []
        self._batch = batch
        self._element = BYTES[batch.precision]
        wide = batch.precision if self._element >= 2.0 else "bf16"
        self._rates, self._wide = device.rates(batch.precision), device.rates(wide)
        self._wide_element = BYTES[wide]

    def product(self, shape: tuple[float, ...], *, wide: bool = False, weight: bool = True) -> None:
        """A matrix product with the gradients that the step needs."""
        batch, rows, columns, inner = shape
        element, rates = (self._wide_element, self._wide) if wide else (self._element, self._rates)
        sides = [(rows, columns, inner), (rows, inner, columns), (inner, columns, rows)]
        frozen = 2 if weight else 3
        sides = sides[: {"": 1, "frozen": frozen, "whole": 3}[self._batch.backward]]
        for m, n, k in sides:
            weights = batch * columns * inner * element
            activations = batch * rows * (columns + inner) * max(2.0, element)
            cost = (2 * batch * m * n * k, weights, activations, np.inf)
            self._rows.append((MATMUL, batch, m, n, k, *cost, *rates, 1.0))
        if element < 2.0:  # narrow formats cost a pass to convert each operand
            # Weights that do not change are converted once.
            weights = columns * inner if self._batch.backward else 0.0
            self.stream(batch * (rows * (columns + inner) + weights) * len(sides))
        if weight and self._batch.weight_bytes:  # weights are widened before each use
            self.stream(batch * columns * inner * (self._batch.weight_bytes + 2.0) * 2)

    def attention(self, heads: float, width: float, key_heads: float) -> None:
        """Fused attention: forward once, two and a half times that backward."""
        batch = self._batch
        operations = 4.0 * heads * batch.queries * batch.keys * width * batch.seen
        element = self._wide_element
        traffic = 2.0 * (heads * batch.queries + key_heads * batch.keys) * width * element
        for times in (1.0, 2.5) if batch.backward else (1.0,):
            shape = (heads, batch.queries, width, batch.keys)
            cost = (operations * times, 0.0, traffic * times, np.inf)
            self._rows.append((ATTENTION, *shape, *cost, *self._wide, 1.0))

    def stream(self, traffic: float, footprint: float = np.inf) -> None:
        """Element-wise work of ``traffic`` bytes, over so many bytes at a time."""
        self._rows.append((STREAM, 1, 0, 0, 0, 0, traffic, 0, footprint, 1, 1, 1))

    def both_ways(self, elements: float, passes: float) -> None:
        """Element-wise passes over a tensor forward, and twice as many backward."""
        size = elements * max(2.0, self._element)
        for direction in (1.0, 2.0) if self._batch.backward else (1.0,):
            self.stream(direction * passes * size, _OPERANDS * size)

    def kernels(self) -> Kernels:
        """Columns of all rows."""
        return Kernels(*np.array(self._rows, float).T)


def attention_kernels(model: Transformer, batch: Batch, device: Accelerator) -> Kernels:
    """One block without its feed-forward part."""
    rows = _Rows(device, batch)
    tokens, width, value = batch.tokens, model.head_width, model.value_width
    heads = model.heads / batch.tensor
    if model.kv_rank:
        rank = model.query_rank or model.hidden
        if model.query_rank:
            rows.product((1, tokens, model.query_rank, model.hidden))
        rows.product((1, tokens, heads * width, rank))
        rows.product((1, tokens, model.kv_rank + model.rope_dim, model.hidden))
        rows.product((1, tokens, heads * 2 * value, model.kv_rank))
    else:
        columns = (model.heads + 2 * model.key_heads) * value / batch.tensor
        rows.product((1, tokens, columns, model.hidden))
    groups = batch.sequences * heads
    if batch.fused_attention:
        keys = batch.sequences * max(model.key_heads / batch.tensor, 1.0)
        if model.kv_rank and batch.queries == 1:  # the compressed cache is read as it is
            keys = batch.sequences * (model.kv_rank + model.rope_dim) / (width + value)
        rows.attention(groups, (width + value) / 2, keys)
    else:
        rows.product((groups, batch.queries, batch.keys, width), wide=True, weight=False)
        rows.product((groups, batch.queries, value, batch.keys), wide=True, weight=False)
        for passes in _SCORE_PASSES if batch.backward else _SCORE_PASSES[:2]:
            rows.stream(passes * groups * batch.queries * batch.keys * 2.0)
    rows.product((1, tokens, model.hidden, heads * value))
    rows.both_ways(tokens * model.hidden / batch.tensor, _PASSES[batch.framework])
    return rows.kernels()


def feedforward_kernels(
    model: Transformer, batch: Batch, device: Accelerator, *, experts: bool
) -> Kernels:
    """One block's feed-forward part, dense or with experts."""
    rows = _Rows(device, batch)
    wide = 2 if model.gated else 1
    further = _BLOCK_PASSES.get(batch.framework, 0.0)

    def block(groups: float, visitors: float, inner: float) -> None:
        rows.product((groups, visitors, wide * inner, model.hidden))
        rows.product((groups, visitors, model.hidden, inner))
        rows.both_ways(groups * visitors * inner, wide + 1 + further)

    if not experts:
        block(1, batch.tokens, model.feedforward / batch.tensor)
        return rows.kernels()
    if model.shared_feedforward:
        block(1, batch.tokens, model.shared_feedforward / batch.tensor)
    rows.product((1, batch.tokens / batch.tensor, model.experts, model.hidden), wide=True)
    visits = batch.tokens * model.experts_per_token / batch.tensor
    # Few tokens visit few of the experts.
    local = model.experts / batch.expert
    local = max(1.0, local * -np.expm1(-visits / local))
    block(local, visits / local, model.expert_feedforward)
    for _ in range(4 if batch.backward else 2):  # permute and restore, forward and backward
        rows.stream(2.0 * visits * model.hidden * 2.0)
    return rows.kernels()


def head_kernels(model: Transformer, batch: Batch, device: Accelerator) -> Kernels:
    """The output embedding and the loss, never in narrow formats."""
    rows = _Rows(device, batch)
    rows.product((1, batch.tokens, model.vocabulary / batch.tensor, model.hidden), wide=True)
    if batch.backward:
        rows.stream(batch.tokens * model.vocabulary / batch.tensor * _LOSS_BYTES)
    return rows.kernels()


class LayerCost(NamedTuple):
    """Seconds of kernels of one layer, and what they draw."""

    seconds: float  # of all but fused attention
    attention: float  # of fused attention
    kernels: int
    operations: float  # seconds times the use of the arithmetic units
    bandwidth: float  # seconds times the use of the memory's bandwidth
    traffic: float
    arithmetic: float

    def __add__(self, other: object) -> LayerCost:
        assert isinstance(other, LayerCost)  # noqa: S101 - tuples add up otherwise
        return LayerCost(*(a + b for a, b in zip(self, other, strict=True)))  # type: ignore[arg-type]

    def times(self, factor: float) -> LayerCost:
        """Cost of so many layers."""
        return LayerCost(*(factor * value for value in self))  # type: ignore[arg-type]


@fitted_cache
def layer_costs(
    model: Transformer, batch: Batch, device: Accelerator
) -> tuple[LayerCost, LayerCost, LayerCost, LayerCost]:
    """Costs of a block around its feed-forward part, of that part, of experts, of the head."""

    def cost(kernels: Kernels) -> LayerCost:
        return layer_cost(kernels, device, batch.precision)

    mlp = cost(feedforward_kernels(model, batch, device, experts=False))
    moe = cost(feedforward_kernels(model, batch, device, experts=True)) if model.experts else mlp
    around = cost(attention_kernels(model, batch, device))
    return around, mlp, moe, cost(head_kernels(model, batch, device))


def layer_cost(kernels: Kernels, device: Accelerator, precision: str) -> LayerCost:
    """Cost of kernels one after the other."""
    constants = kernel_constants(device, precision)
    seconds, compute, traffic = kernel_times(constants, device, kernels)
    operations, bandwidth = kernel_use(device, kernels, seconds)
    fused, count = kernels.kind == ATTENTION, kernels.count
    return LayerCost(
        float((seconds * count)[~fused].sum()),
        float((seconds * count)[fused].sum()),
        int(count.sum()),
        float((operations * seconds * count).sum()),
        float((bandwidth * seconds * count).sum()),
        float((traffic * count).sum()),
        float((compute * count).sum()),
    )


def operator_seconds(graph: Graph, device: str | Accelerator) -> NDArray[np.float64]:
    """Seconds of each operator of a graph that runs alone, as in a replayed CUDA graph.

    Args:
        graph: Operators.
        device: Name in the catalog, TOML file, or accelerator.
    """
    board = accelerator(device)
    constants = kernel_constants(board, graph.precision)
    return kernel_times(constants, board, graph.kernels(board))[0]
