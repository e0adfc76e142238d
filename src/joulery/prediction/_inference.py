"""Time, power and memory of a model that answers requests: prefill, decode and KV cache.

The kernels are those of training steps, forward only. Prefill computes a prompt's tokens at once;
decode reads all weights and the cache for one token of each sequence.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import InfeasibleError, InvalidValueError
from joulery.frontier import Origin
from joulery.prediction._bayes import fitted_belief
from joulery.prediction._devices import BYTES, accelerator
from joulery.prediction._layers import Batch, LayerCost, layer_costs
from joulery.prediction._links import call_seconds
from joulery.prediction._model import training_model

if TYPE_CHECKING:
    from pathlib import Path

    from joulery.prediction._devices import Accelerator
    from joulery.prediction._model import Transformer
    from joulery.prediction._plan import Plan

# Time of an iteration on the host, and more for each sequence: vLLM on an RTX 4090 and an RTX PRO
# 6000 (LLMServingSim data).
_HOST_SECONDS, _SEQUENCE_SECONDS = 1.5e-3, 2e-5
# Memory that an engine may take, as a share, and what activations take of it; vLLM's defaults.
_MEMORY_SHARE, _ACTIVATION_BYTES = 0.92, 2e9
# Deviation of predicted times: against Splitwise's tables of Llama-2-70B on two boards (vLLM of
# 2023) decode is 16 to 19 % too fast, on eight, where its host bound it, 55 to 59 %.
_DEVIATION = 0.3
# Deviation of the time of a step's rollouts, which last as long as the longest answer and come with
# rewards and a transfer of weights, none of which is predicted: three GRPO steps of NeMo-RL 0.4
# took 1.6 to 2.8 times what is predicted for them.
ROLLOUT_DEVIATION = 0.8
ROLLOUTS_LACK = (
    "rollouts: answers of unequal length, rewards and the transfer of weights to the engine; "
    "published GRPO steps took 1.6 to 2.8 times what is predicted"
)


@dataclass(frozen=True, slots=True)
class Inference:
    """A batch of equal requests on a group of devices.

    Attributes:
        device: Accelerator type.
        devices: Devices that share the model.
        prefill_seconds: Time until the first token of all.
        token_seconds: Time of one further token of all.
        tokens_per_second: Tokens that are decoded per second, prefill included.
        watts: Mean power of all devices.
        joules_per_token: Energy of all devices per decoded token, prefill included.
        memory_bytes: Memory of one device: weights, cache and activations.
        cache_tokens: Tokens that fit into the cache beside the weights.
        relative_error: Standard deviation of the times and of tokens per second, relative.
        relative_error_watts: Standard deviation of the power, relative.
        relative_error_joules: Standard deviation of the energy per token, relative.
        source: Evidence behind the prediction, in words.
    """

    device: str
    devices: int
    prefill_seconds: float
    token_seconds: float
    tokens_per_second: float
    watts: float
    joules_per_token: float
    memory_bytes: float
    cache_tokens: int
    relative_error: float
    relative_error_watts: float
    relative_error_joules: float
    source: str = "specifications and fitted constants"

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self) | {
            "origin": Origin.PREDICTED.value,
            "watts_per_device": self.watts / self.devices,
        }


def predict_inference(  # noqa: PLR0913 - all but two by keyword only
    model: Transformer | dict[str, Any] | str | Path,
    device: str | Accelerator,
    *,
    devices: int = 1,
    batch_size: int = 1,
    prompt_tokens: int = 512,
    output_tokens: int = 128,
    precision: str | None = None,
) -> Inference:
    """Prefill and decode of equal requests at the default power limit.

    >>> model = {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "feedforward": 14336}
    >>> model |= {"vocabulary": 128256, "sequence": 8192}
    >>> 0.004 < predict_inference(model, "h100").token_seconds < 0.012
    True

    Args:
        model: Description of a transformer: object, document or JSON file.
        device: Name in the catalog, TOML file, or accelerator.
        devices: Devices that share each matrix.
        batch_size: Requests at a time.
        prompt_tokens: Tokens of a prompt.
        output_tokens: Tokens of an answer.
        precision: Precision of weights and products; ``bf16``, or ``fp16`` where the device lacks
            it, where None.

    Raises:
        InvalidValueError: A count is below 1, the model does not decode, or the device lacks the
            precision.
        InfeasibleError: Weights and cache do not fit.
    """
    counts = (devices, batch_size, prompt_tokens, output_tokens)
    if min(counts) < 1:
        raise InvalidValueError(
            "devices, batch size and tokens must be at least 1", remedy="give whole numbers"
        )
    shape, board = training_model(model, prompt_tokens + output_tokens), accelerator(device)
    shape.check_decodes()
    if shape.heads % devices:
        raise InvalidValueError(
            f"{shape.heads} heads do not divide among {devices} devices",
            remedy=f"give a number of devices that divides {shape.heads}",
        )
    precision = precision or board.sixteen_bits
    board.peak(precision)
    weights = shape.total_parameters() * BYTES[precision] / devices
    per_token = shape.cache_bytes() / devices
    memory = weights + batch_size * (prompt_tokens + output_tokens) * per_token + _ACTIVATION_BYTES
    room = _MEMORY_SHARE * board.memory_bytes
    if memory > room:
        raise InfeasibleError(
            f"weights, cache and activations need {memory / 1e9:.0f} GB on each of {devices} × "
            f"{board.name}, which has {room / 1e9:.0f} GB for them: {board.memory_bytes / 1e9:.0f} "
            f"less {100 * (1 - _MEMORY_SHARE):.0f} % that engines leave free",
            remedy="take more devices, a narrower precision or fewer requests at a time",
        )
    requests = Batch(0, batch_size, 1, 1, 1, tensor=devices, precision=precision)
    prefill = _iteration(shape, board, requests, prompt_tokens, prompt_tokens)
    decode = _iteration(shape, board, requests, 1, prompt_tokens + output_tokens // 2)
    seconds = prefill[0] + (output_tokens - 1) * decode[0]
    joules = devices * (prefill[1] + (output_tokens - 1) * decode[1])
    tokens = batch_size * output_tokens
    return Inference(
        board.name,
        devices,
        prefill[0],
        decode[0],
        tokens / seconds,
        joules / seconds,
        joules / tokens,
        memory,
        int((room - weights - _ACTIVATION_BYTES) / per_token),
        _DEVIATION,
        board.power_deviation,
        float(np.hypot(_DEVIATION, board.power_deviation)),
    )


def _iteration(
    model: Transformer, board: Accelerator, requests: Batch, queries: int, keys: float
) -> tuple[float, float]:
    """Seconds and joules of one forward pass on one device of a group."""
    sequences, devices = requests.sequences, requests.tensor
    seen = 0.5 if queries > 1 else 1.0
    batch = replace(
        requests, tokens=sequences * queries, queries=queries, keys=round(keys), seen=seen
    )
    block, mlp, moe, head = layer_costs(model, batch, board)
    experts = model.expert_layers
    cost = block.times(model.layers) + mlp.times(model.layers - experts) + moe.times(experts)
    # Only the last token of each sequence needs logits.
    cost = cost + head.times(1.0 if queries == 1 else 1 / queries)
    message = sequences * queries * model.hidden * 2.0
    links = 2 * model.layers * 2 * call_seconds(board, devices, message) if devices > 1 else 0.0
    busy = cost.seconds + cost.attention
    waiting = links + _HOST_SECONDS + sequences * _SEQUENCE_SECONDS
    return busy + waiting, _joules(board, cost, waiting)


def _joules(board: Accelerator, cost: LayerCost, waiting: float) -> float:
    """Energy of kernels and of waiting, no more than the limit allows."""
    static, arithmetic, memory, idle = np.exp(fitted_belief("power").mean).tolist()
    busy = cost.seconds + cost.attention
    demand = static * busy + arithmetic * cost.operations + memory * cost.bandwidth
    return float(board.limit_watts * (min(demand, busy) + idle * waiting))


def rollout_seconds(model: Transformer, plan: Plan, board: Accelerator) -> float:
    """Seconds of decoding the answers of a step (``grpo``) on the devices that train.

    The devices form as many groups as hold the model in 16 bit; answers are as long as the sequence
    leaves room for behind the prompt.
    """
    if plan.task.kind != "grpo":
        return 0.0
    prompt = plan.task.prompt_tokens or max(1, model.sequence // 8)
    answer = max(1, model.sequence - prompt)
    weights = model.total_parameters() * 2.0
    group = max(1, plan.tensor)
    while group < plan.devices and weights / group > 0.7 * board.memory_bytes:
        group *= 2
    together = max(1.0, plan.batch_size * group / plan.devices)
    room = group * _MEMORY_SHARE * board.memory_bytes - weights
    at_once = max(1.0, min(together, room / (model.sequence * model.cache_bytes())))
    precision = plan.precision if plan.precision in ("bf16", "fp16") else board.sixteen_bits
    rounds = together / at_once
    requests = Batch(0, at_once, 1, 1, 1, tensor=group, precision=precision)
    prefill, _ = _iteration(model, board, requests, prompt, prompt)
    decode, _ = _iteration(model, board, requests, 1, prompt + answer / 2)
    return rounds * (prefill + answer * decode)
