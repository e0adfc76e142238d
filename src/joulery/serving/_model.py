"""A language model as an engine runs it: arithmetic and memory traffic of an iteration."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError
from joulery.prediction import transformer

if TYPE_CHECKING:
    from pathlib import Path

    from joulery.prediction import Transformer
    from joulery.serving._boards import ServingBoard

# Bytes of a weight by precision.
_WEIGHT_BYTES = {"bf16": 2.0, "fp16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.56}
# Share of the peak that products of a prefill and streams of a decode reach, and what an iteration
# takes on the host: vLLM on an RTX 4090 and an RTX PRO 6000 (LLMServingSim data), first thirds.
_COMPUTE_EFFICIENCY = 0.68
_MEMORY_EFFICIENCY = 0.86
_HOST_SECONDS = 1.5e-3
_HOST_SECONDS_PER_REQUEST = 2.0e-5
# One all-reduce of a small message, and share of the links' bandwidth that large ones reach: over
# NVLink (by hand), and over PCIe (NCCL between RTX PRO 6000 boards, voipmonitor/rtx6kpro).
_REDUCE_SECONDS, _REDUCE_SHARE = 12e-6, 1.0
_PCIE_REDUCE_SECONDS, _PCIE_REDUCE_SHARE = 24e-6, 0.44
# Share of the memory that vLLM takes by default, and what activations take of it, in bytes.
_MEMORY_SHARE = 0.92
_ACTIVATION_BYTES = 2.0e9


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model on a group of boards, as times of an iteration at the highest clock.

    All figures are per board of the group.

    Attributes:
        name: Name of the model.
        boards: Boards of the tensor-parallel group.
        weight_seconds: Time to read all weights once.
        token_seconds: Arithmetic of one token.
        pair_seconds: Arithmetic of one token's attention to one other.
        context_seconds: Time to read one token of the KV cache.
        kv_tokens: Tokens that fit into the KV cache.
        host_seconds: Time of an iteration on the host.
        request_seconds: More of it for each request in the batch.
        link_seconds: Time of an iteration's small messages between boards.
        link_token_seconds: More of it for each token.
        expert_share: Share of the weights that one token reads; 1 for dense models.
    """

    name: str
    boards: int
    weight_seconds: float
    token_seconds: float
    pair_seconds: float
    context_seconds: float
    kv_tokens: int
    host_seconds: float = _HOST_SECONDS
    request_seconds: float = _HOST_SECONDS_PER_REQUEST
    link_seconds: float = 0.0
    link_token_seconds: float = 0.0
    expert_share: float = 1.0

    def work(
        self, prefill: int, pairs: float, batch: int, context: float
    ) -> tuple[float, float, float]:
        """Arithmetic, traffic and fixed time of an iteration, in seconds at the highest clock.

        Args:
            prefill: Prompt tokens in the iteration.
            pairs: Sum over those of the tokens that each attends to.
            batch: Requests that decode a token each.
            context: Sum of their tokens in the KV cache.
        """
        tokens = prefill + batch
        compute = tokens * self.token_seconds + (pairs + context) * self.pair_seconds
        weights = self.weight_seconds
        if self.expert_share < 1.0:
            weights *= 1.0 - (1.0 - self.expert_share) ** min(tokens, 512)
        memory = weights + (context + pairs / 64) * self.context_seconds
        fixed = self.host_seconds + batch * self.request_seconds
        return compute, memory, fixed + self.link_seconds + tokens * self.link_token_seconds

    def slower(self, compute: float = 1.0, memory: float = 1.0, host: float = 1.0) -> ServedModel:
        """The same model with its arithmetic, traffic or host times multiplied."""
        return replace(
            self,
            token_seconds=self.token_seconds * compute,
            pair_seconds=self.pair_seconds * compute,
            weight_seconds=self.weight_seconds * memory,
            context_seconds=self.context_seconds * memory,
            host_seconds=self.host_seconds * host,
            request_seconds=self.request_seconds * host,
        )


def served_model(
    source: Transformer | dict[str, Any] | str | Path,
    board: ServingBoard,
    count: int = 1,
    precision: str = "bf16",
) -> ServedModel:
    """A model on ``count`` boards with tensor parallelism.

    Args:
        source: Description of the model: a JSON file (ours or that of ``transformers``) or object.
        board: Board to serve on.
        count: Boards of the group.
        precision: Precision of the weights: bf16, fp8, int8 or int4.

    Raises:
        InvalidValueError: The model does not fit, or there is no such precision.
    """
    shape = transformer(source)
    if precision not in _WEIGHT_BYTES:
        known = ", ".join(_WEIGHT_BYTES)
        raise InvalidValueError(f"no precision {precision!r}", remedy=f"one of {known}")
    active, total = shape.active_parameters(), shape.total_parameters()
    weight_bytes = total * _WEIGHT_BYTES[precision] / count
    kv_bytes = shape.cache_bytes() / count
    room = _MEMORY_SHARE * board.memory_bytes - weight_bytes - _ACTIVATION_BYTES
    if room < 4096 * kv_bytes:
        raise InvalidValueError(
            f"{shape.name or 'the model'} needs {weight_bytes / 1e9:.0f} GB on each of "
            f"{count} × {board.name}",
            remedy="serve it on more boards or in a narrower precision",
        )
    flops = board.flops * _COMPUTE_EFFICIENCY * count
    bandwidth = board.bytes_per_second * _MEMORY_EFFICIENCY
    reduces = 2 * shape.layers if count > 1 else 0
    call, share = _REDUCE_SECONDS, _REDUCE_SHARE
    if not board.linked:
        call, share = _PCIE_REDUCE_SECONDS, _PCIE_REDUCE_SHARE
    message = 2.0 * shape.hidden * 2 * (count - 1) / count / (share * board.link_bytes_per_second)
    return ServedModel(
        name=shape.name or "model",
        boards=count,
        weight_seconds=weight_bytes / bandwidth,
        token_seconds=2 * active / flops,
        pair_seconds=4 * shape.layers * shape.heads * shape.value_width / flops,
        context_seconds=kv_bytes / bandwidth,
        kv_tokens=int(room / kv_bytes),
        link_seconds=reduces * call,
        link_token_seconds=reduces * message,
        expert_share=active / total if shape.experts else 1.0,
    )
