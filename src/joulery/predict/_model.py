"""A transformer as a few numbers, and the kernels and bytes of its training step.

A description needs no framework: it is a JSON document with the names below. Models of any other
shape come through :func:`joulery.predict.capture`.
"""

from __future__ import annotations

import difflib
import json
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import FileError, InvalidValueError
from joulery.predict._devices import BYTES
from joulery.predict._kernels import ATTENTION, MATMUL, STREAM, Kernels

if TYPE_CHECKING:
    from joulery.predict._devices import Accelerator


@dataclass(frozen=True, slots=True)
class Transformer:
    """A decoder-only transformer, dense or with experts.

    Attributes:
        name: What people call it.
        layers: Number of blocks.
        hidden: Width of the residual stream.
        heads: Attention heads.
        feedforward: Inner width of a dense block.
        vocabulary: Number of tokens.
        sequence: Tokens per sequence in training.
        kv_heads: Heads of keys and values; as many as ``heads`` where 0.
        head_dim: Width of a head; ``hidden / heads`` where 0.
        gated: Whether the feed-forward block has a gate, hence three matrices.
        tied: Whether input and output embedding are one matrix.
        experts: Experts per layer; 0 for a dense model.
        experts_per_token: Experts that each token visits.
        expert_feedforward: Inner width of an expert.
        shared_feedforward: Inner width of the experts that every token visits.
        dense_layers: First blocks without experts.
        query_rank: Rank of the compressed queries (latent attention); 0 for none.
        kv_rank: Rank of the compressed keys and values (latent attention); 0 for none.
        rope_dim: Width of the part of a head that carries positions (latent attention).
        causal: Whether a token sees only those before it.
    """

    layers: int
    hidden: int
    heads: int
    feedforward: int
    vocabulary: int
    sequence: int
    name: str = ""
    kv_heads: int = 0
    head_dim: int = 0
    gated: bool = True
    tied: bool = False
    experts: int = 0
    experts_per_token: int = 0
    expert_feedforward: int = 0
    shared_feedforward: int = 0
    dense_layers: int = 0
    query_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    causal: bool = True

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "feedforward", "vocabulary", "sequence"):
            if not getattr(self, name) > 0:
                raise InvalidValueError(
                    f"{name} must be above 0, not {getattr(self, name)}",
                    remedy="describe a model with at least one layer, head and token",
                )
        if self.experts and not 0 < self.experts_per_token <= self.experts:
            raise InvalidValueError(
                f"{self.experts_per_token} of {self.experts} experts per token cannot be",
                remedy="give experts_per_token between 1 and experts",
            )

    @property
    def head_width(self) -> int:
        """Width of a head's queries and keys."""
        return (self.head_dim or self.hidden // self.heads) + self.rope_dim

    @property
    def key_heads(self) -> int:
        """Heads of keys and values."""
        return self.kv_heads or self.heads

    @property
    def expert_layers(self) -> int:
        """Number of blocks with experts."""
        return self.layers - self.dense_layers if self.experts else 0

    def attention_parameters(self) -> int:
        """Parameters of one block's attention."""
        value = self.head_dim or self.hidden // self.heads
        output = self.heads * value * self.hidden
        if not self.kv_rank:
            return self.hidden * (self.heads + 2 * self.key_heads) * value + output
        queries = self.heads * self.head_width
        query = (
            self.query_rank * (self.hidden + queries) if self.query_rank else self.hidden * queries
        )
        down = self.hidden * (self.kv_rank + self.rope_dim)
        return query + down + self.kv_rank * self.heads * 2 * value + output

    def block_parameters(self, inner: int) -> int:
        """Parameters of a feed-forward block of inner width ``inner``."""
        return (3 if self.gated else 2) * self.hidden * inner

    def parameters(self) -> int:
        """All parameters."""
        dense = (self.layers - self.expert_layers) * self.block_parameters(self.feedforward)
        experts = self.experts * self.block_parameters(self.expert_feedforward)
        shared = self.block_parameters(self.shared_feedforward) + self.hidden * self.experts
        return (
            self.layers * (self.attention_parameters() + 2 * self.hidden)
            + dense
            + self.expert_layers * (experts + shared)
            + self.embedding_parameters() * (1 if self.tied else 2)
        )

    def active_parameters(self) -> int:
        """Parameters that one token meets in matrix products."""
        dense = (self.layers - self.expert_layers) * self.block_parameters(self.feedforward)
        visited = self.experts_per_token * self.block_parameters(self.expert_feedforward)
        shared = self.block_parameters(self.shared_feedforward) + self.hidden * self.experts
        return (
            self.layers * self.attention_parameters()
            + dense
            + self.expert_layers * (visited + shared)
            + self.embedding_parameters()
        )

    def embedding_parameters(self) -> int:
        """Parameters of one embedding."""
        return self.vocabulary * self.hidden

    def step_operations(self, tokens: float = 1.0) -> float:
        """Operations of forward and backward for ``tokens``, without recomputation."""
        width = self.heads * (self.head_width + (self.head_dim or self.hidden // self.heads))
        attention = self.layers * width * self.sequence * (1.0 if self.causal else 2.0)
        return tokens * (6.0 * self.active_parameters() + 3.0 * attention)


def transformer(source: Transformer | dict[str, Any] | str | Path) -> Transformer:
    """A description from a document, a JSON file or a ready object.

    The names of ``transformers`` configurations (``num_hidden_layers`` and so on) are understood
    as well.

    Raises:
        FileError: The file cannot be read, or a name in it is unknown or missing.
    """
    if isinstance(source, Transformer):
        return source
    if not isinstance(source, dict):
        source = _read(Path(source))
    known = {field.name for field in fields(Transformer)}
    document = {_ALIASES.get(name, name): value for name, value in source.items()}
    if any(name in _ALIASES for name in source):  # a foreign file says more than we need
        document = {name: value for name, value in document.items() if name in known and value}
    for name in document:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            raise FileError(
                f"unknown name {name!r} in the description of a model",
                remedy=f"did you mean {near[0]}"
                if near
                else f"known are {', '.join(sorted(known))}",
            )
    needed = [field.name for field in fields(Transformer) if field.default is MISSING]
    missing = [name for name in needed if name not in document]
    if missing:
        raise FileError(
            f"the description of a model lacks {', '.join(missing)}",
            remedy=f"give {', '.join(needed)}",
        )
    for name, value in document.items():
        if name != "name" and not isinstance(value, int):
            raise FileError(
                f"{name} must be a whole number, not {value!r}", remedy="write it without quotes"
            )
    return Transformer(**document)


_ALIASES = {
    "num_hidden_layers": "layers",
    "hidden_size": "hidden",
    "num_attention_heads": "heads",
    "num_key_value_heads": "kv_heads",
    "intermediate_size": "feedforward",
    "vocab_size": "vocabulary",
    "max_position_embeddings": "sequence",
    "num_experts": "experts",
    "num_local_experts": "experts",
    "n_routed_experts": "experts",
    "num_experts_per_tok": "experts_per_token",
    "moe_intermediate_size": "expert_feedforward",
    "first_k_dense_replace": "dense_layers",
    "tie_word_embeddings": "tied",
    "_name_or_path": "name",
    "q_lora_rank": "query_rank",
    "kv_lora_rank": "kv_rank",
    "qk_rope_head_dim": "rope_dim",
    "n_layer": "layers",
    "n_embd": "hidden",
    "n_head": "heads",
    "n_positions": "sequence",
    "n_inner": "feedforward",
}


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise FileError(
            f"cannot read {path}: {problem.strerror}", remedy="give the path of a JSON file"
        ) from None
    except ValueError as problem:
        raise FileError(f"{path} is not JSON: {problem}", remedy="write one JSON object") from None
    if not isinstance(document, dict):
        raise FileError(f"{path} holds no object", remedy='write {"layers": 32, …}')
    return document


@dataclass(frozen=True, slots=True)
class Share:
    """The part of a model and of a batch that one device computes at a time.

    Attributes:
        micro_batch: Sequences at a time.
        tensor: Devices that share each matrix.
        context: Devices that share each sequence.
        expert: Devices that share the experts.
        precision: Of the matrix products.
        fused_attention: Whether the scores of attention never reach memory.
    """

    micro_batch: int = 1
    tensor: int = 1
    context: int = 1
    expert: int = 1
    precision: str = "bf16"
    fused_attention: bool = True


# Traffic of the element-wise work around one block, in tensors of the residual's size, forward:
# two norms (read, write, statistics), two residual additions, rotary embedding.
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


def attention_kernels(model: Transformer, share: Share, device: Accelerator) -> Kernels:
    """Forward and backward of one block without its feed-forward part."""
    rows = _Rows(device, share.precision)
    tokens = share.micro_batch * model.sequence / share.context
    width, value = model.head_width, model.head_dim or model.hidden // model.heads
    heads = model.heads / share.tensor
    if model.kv_rank:
        rank = model.query_rank or model.hidden
        if model.query_rank:
            rows.product((1, tokens, model.query_rank, model.hidden))
        rows.product((1, tokens, heads * width, rank))
        rows.product((1, tokens, model.kv_rank + model.rope_dim, model.hidden))
        rows.product((1, tokens, heads * 2 * value, model.kv_rank))
    else:
        columns = (model.heads + 2 * model.key_heads) * value / share.tensor
        rows.product((1, tokens, columns, model.hidden))
    seen = 0.5 if model.causal else 1.0
    queries = model.sequence / share.context
    groups = share.micro_batch * heads
    if share.fused_attention:
        rows.attention(groups, queries, model.sequence, (width + value) / 2, seen)
    else:
        rows.product((groups, queries, model.sequence, width), wide=True)
        rows.product((groups, queries, value, model.sequence), wide=True)
        for passes in _SCORE_PASSES:
            rows.stream(passes * groups * queries * model.sequence * 2.0)
    rows.product((1, tokens, model.hidden, heads * value))
    for direction in (1.0, 2.0):
        rows.stream(direction * _BLOCK_PASSES * tokens * model.hidden * 2.0 / share.tensor)
    return rows.kernels()


def feedforward_kernels(
    model: Transformer, share: Share, device: Accelerator, *, experts: bool
) -> Kernels:
    """Forward and backward of one block's feed-forward part, dense or with experts."""
    rows = _Rows(device, share.precision)
    tokens = share.micro_batch * model.sequence / share.context
    wide = 2 if model.gated else 1

    def block(batch: float, visitors: float, inner: float) -> None:
        rows.product((batch, visitors, wide * inner, model.hidden))
        rows.product((batch, visitors, model.hidden, inner))
        for direction in (1.0, 2.0):
            rows.stream(direction * (wide + 1) * batch * visitors * inner * 2.0)

    if not experts:
        block(1, tokens, model.feedforward / share.tensor)
        return rows.kernels()
    if model.shared_feedforward:
        block(1, tokens, model.shared_feedforward / share.tensor)
    rows.product((1, tokens / share.tensor, model.experts, model.hidden), wide=True)
    local = model.experts / share.expert
    visits = tokens * model.experts_per_token / share.tensor
    block(local, visits / local, model.expert_feedforward)
    for _ in range(4):  # permute and restore, forward and backward
        rows.stream(2.0 * visits * model.hidden * 2.0)
    return rows.kernels()


def head_kernels(model: Transformer, share: Share, device: Accelerator) -> Kernels:
    """Forward and backward of the output embedding and the loss, never in narrow formats."""
    rows = _Rows(device, share.precision)
    tokens = share.micro_batch * model.sequence / share.context
    rows.product((1, tokens, model.vocabulary / share.tensor, model.hidden), wide=True)
    rows.stream(tokens * model.vocabulary / share.tensor * _LOSS_BYTES)
    return rows.kernels()
