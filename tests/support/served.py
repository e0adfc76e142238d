"""Models, requests and engine states that tests of serving share."""

from joulery.serving import EngineState, ServedRequest

LLAMA_8B = {"name": "Llama-3.1-8B", "layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8}
LLAMA_8B |= {"feedforward": 14336, "vocabulary": 128256, "sequence": 131072}
LLAMA_70B = {"name": "Llama-2-70B", "layers": 80, "hidden": 8192, "heads": 64, "kv_heads": 8}
LLAMA_70B |= {"feedforward": 28672, "vocabulary": 32000, "sequence": 4096}


def steady_requests(count, gap_seconds, prompt=500, output=100):
    """Requests of one shape at equal distances."""
    return [ServedRequest(n * gap_seconds, prompt, output) for n in range(count)]


def steady_states(count, tick=0.1, ttft=0.05, tpot=0.01):
    """States of an engine that serves a request at each reading, all alike."""
    for n in range(count):
        yield EngineState(
            n * tick,
            running=1,
            arrived=n,
            prompt_tokens=500.0 * n,
            generation_tokens=100.0 * n,
            iterations=10.0 * n,
            ttft_seconds=[ttft],
            tpot_seconds=[tpot],
        )
