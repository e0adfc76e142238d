"""Shapes of served models that benchmarks share, and the rate of a service offline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulery.serving import EngineConfig, ServedRequest, ServingSimulation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from joulery.serving import ClockTable, ServedModel

LLAMA_8B: dict[str, Any] = {
    "name": "Llama-3.1-8B",
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "feedforward": 14336,
    "vocabulary": 128256,
    "sequence": 131072,
}
LLAMA_70B: dict[str, Any] = {
    "name": "Llama-2-70B",
    "layers": 80,
    "hidden": 8192,
    "heads": 64,
    "kv_heads": 8,
    "feedforward": 28672,
    "vocabulary": 32000,
    "sequence": 4096,
}
LLAMA_405B: dict[str, Any] = {
    "name": "Llama-3.1-405B",
    "layers": 126,
    "hidden": 16384,
    "heads": 128,
    "kv_heads": 8,
    "feedforward": 53248,
    "vocabulary": 128256,
    "sequence": 131072,
}
QWEN_32B: dict[str, Any] = {
    "name": "Qwen3-32B",
    "layers": 64,
    "hidden": 5120,
    "heads": 64,
    "kv_heads": 8,
    "head_dim": 128,
    "feedforward": 25600,
    "vocabulary": 151936,
    "sequence": 40960,
}
GPT_J: dict[str, Any] = {
    "name": "GPT-J",
    "layers": 28,
    "hidden": 4096,
    "heads": 16,
    "kv_heads": 16,
    "feedforward": 16384,
    "vocabulary": 50400,
    "sequence": 2048,
    "gated": 0,
}
BLOOM: dict[str, Any] = {
    "name": "BLOOM-176B",
    "layers": 70,
    "hidden": 14336,
    "heads": 112,
    "kv_heads": 112,
    "feedforward": 57344,
    "vocabulary": 250880,
    "sequence": 2048,
    "gated": 0,
}
MIXTRAL: dict[str, Any] = {
    "name": "Mixtral-8x7B",
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "feedforward": 14336,
    "vocabulary": 32000,
    "sequence": 32768,
    "experts": 8,
    "experts_per_token": 2,
    "expert_feedforward": 14336,
}


def offline_rate(
    model: ServedModel,
    table: ClockTable,
    lengths: Sequence[tuple[int, int]],
    engine: EngineConfig | None = None,
) -> float:
    """Sequences per second when all are there from the start.

    Args:
        model: Model that is served.
        table: Clocks of its boards.
        lengths: Tokens of prompt and answer of each sequence.
        engine: Settings of the engine.
    """
    requests = [ServedRequest(0.0, *tokens) for tokens in lengths]
    run = ServingSimulation(requests, model, [table], engine=engine or EngineConfig()).run()
    return len(requests) / run.seconds
