"""Kernels of one training step's layers on one device of a parallel plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from joulery.prediction._devices import BYTES
from joulery.prediction._kernels import ATTENTION, MATMUL, STREAM, Kernels

if TYPE_CHECKING:
    from joulery.prediction._devices import Accelerator
    from joulery.prediction._model import Transformer
    from joulery.prediction._plan import Plan

# Traffic of the element-wise work around one block, in tensors of the residual's size, forward:
# two norms (read, write, statistics), two residual additions, rotary embedding; counted.
_BLOCK_PASSES = 12.0
# Traffic of the loss per logit: 32-bit copy, softmax, gradient, cast.
_LOSS_BYTES = 24.0
# Traffic of unfused scores: scaled and masked softmax, then dropout with its mask, both ways.
_SCORE_PASSES = (2.0, 2.5, 2.5, 3.0)


class _Rows:
    """Kernels in the making."""

    def __init__(self, device: Accelerator, precision: str) -> None:
        self._rows: list[tuple[float, ...]] = []
        self._element = BYTES[precision]
        self._rates, self._wide = device.rates(precision), device.rates("bf16")

    def product(self, shape: tuple[float, ...], *, wide: bool = False) -> None:
        """A matrix product with its two gradients."""
        batch, rows, columns, inner = shape
        element, rates = (2.0, self._wide) if wide else (self._element, self._rates)
        for m, n, k in ((rows, columns, inner), (rows, inner, columns), (inner, columns, rows)):
            weights = batch * columns * inner * element
            activations = batch * rows * (columns + inner) * 2.0
            cost = (2 * batch * m * n * k, weights, activations, np.inf, element)
            self._rows.append((MATMUL, batch, m, n, k, *cost, *rates, 1.0))
        if element < 2.0:  # narrow formats cost a pass to convert each operand
            self.stream(batch * (rows * (columns + inner) + columns * inner) * 3.0)

    def attention(
        self, heads: float, queries: float, keys: float, width: float, share: float
    ) -> None:
        """Fused attention: forward once, two and a half times that backward."""
        operations = 4.0 * heads * queries * keys * width * share
        traffic = 2.0 * heads * (queries + keys) * width * 2.0
        for times in (1.0, 2.5):
            shape = (heads, queries, width, keys)
            cost = (operations * times, 0.0, traffic * times, np.inf, 2.0)
            self._rows.append((ATTENTION, *shape, *cost, *self._wide, 1.0))

    def stream(self, traffic: float) -> None:
        """Element-wise work of ``traffic`` bytes."""
        self._rows.append((STREAM, 1, 0, 0, 0, 0, 0, traffic, np.inf, 1, 1, 1, 1))

    def kernels(self) -> Kernels:
        """Columns of everything so far."""
        return Kernels(*np.array(self._rows, float).T)


def attention_kernels(model: Transformer, plan: Plan, device: Accelerator) -> Kernels:
    """Forward and backward of one block without its feed-forward part."""
    rows = _Rows(device, plan.precision)
    tokens = plan.tokens(model.sequence)
    width, value = model.head_width, model.value_width
    heads = model.heads / plan.tensor
    if model.kv_rank:
        rank = model.query_rank or model.hidden
        if model.query_rank:
            rows.product((1, tokens, model.query_rank, model.hidden))
        rows.product((1, tokens, heads * width, rank))
        rows.product((1, tokens, model.kv_rank + model.rope_dim, model.hidden))
        rows.product((1, tokens, heads * 2 * value, model.kv_rank))
    else:
        columns = (model.heads + 2 * model.key_heads) * value / plan.tensor
        rows.product((1, tokens, columns, model.hidden))
    queries = model.sequence / plan.context
    groups = plan.micro_batch * heads
    if plan.fused_attention:
        rows.attention(groups, queries, model.sequence, (width + value) / 2, model.seen_share)
    else:
        rows.product((groups, queries, model.sequence, width), wide=True)
        rows.product((groups, queries, value, model.sequence), wide=True)
        for passes in _SCORE_PASSES:
            rows.stream(passes * groups * queries * model.sequence * 2.0)
    rows.product((1, tokens, model.hidden, heads * value))
    for direction in (1.0, 2.0):
        rows.stream(direction * _BLOCK_PASSES * tokens * model.hidden * 2.0 / plan.tensor)
    return rows.kernels()


def feedforward_kernels(
    model: Transformer, plan: Plan, device: Accelerator, *, experts: bool
) -> Kernels:
    """Forward and backward of one block's feed-forward part, dense or with experts."""
    rows = _Rows(device, plan.precision)
    tokens = plan.tokens(model.sequence)
    wide = 2 if model.gated else 1

    def block(batch: float, visitors: float, inner: float) -> None:
        rows.product((batch, visitors, wide * inner, model.hidden))
        rows.product((batch, visitors, model.hidden, inner))
        for direction in (1.0, 2.0):
            rows.stream(direction * (wide + 1) * batch * visitors * inner * 2.0)

    if not experts:
        block(1, tokens, model.feedforward / plan.tensor)
        return rows.kernels()
    if model.shared_feedforward:
        block(1, tokens, model.shared_feedforward / plan.tensor)
    rows.product((1, tokens / plan.tensor, model.experts, model.hidden), wide=True)
    local = model.experts / plan.expert
    visits = tokens * model.experts_per_token / plan.tensor
    block(local, visits / local, model.expert_feedforward)
    for _ in range(4):  # permute and restore, forward and backward
        rows.stream(2.0 * visits * model.hidden * 2.0)
    return rows.kernels()


def head_kernels(model: Transformer, plan: Plan, device: Accelerator) -> Kernels:
    """Forward and backward of the output embedding and the loss, never in narrow formats."""
    rows = _Rows(device, plan.precision)
    tokens = plan.tokens(model.sequence)
    rows.product((1, tokens, model.vocabulary / plan.tensor, model.hidden), wide=True)
    rows.stream(tokens * model.vocabulary / plan.tensor * _LOSS_BYTES)
    return rows.kernels()
