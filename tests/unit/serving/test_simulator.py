"""The simulator of continuous batching."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from joulery.errors import InvalidValueError
from joulery.serving import (
    EngineConfig,
    ServedRequest,
    ServingSimulation,
    served_model,
    serving_board,
    synthetic_trace,
)
from support.served import LLAMA_8B, steady_requests

BOARD = serving_board("h100")
MODEL = served_model(LLAMA_8B, BOARD)
FULL = BOARD.within(BOARD.limit_watts)


def serve(requests, model=MODEL, table=FULL, **options):
    """A run at one setting."""
    return ServingSimulation(requests, model, [table], **options).run()


def test_an_unloaded_request_takes_its_own_work():
    """Latency without load is not prefill plus decode."""
    run = serve([ServedRequest(1.0, 1000, 101)])
    prefill, _ = FULL.cost(*MODEL.work(1000, 0.5e6, 0, 0.0))
    decode, _ = FULL.cost(*MODEL.work(0, 0.0, 1, 1050.0))
    assert run.ttft_seconds[0] == pytest.approx(prefill)
    assert run.tpot_seconds[0] == pytest.approx(decode, rel=0.01)


def test_a_long_prompt_is_computed_in_chunks():
    """Chunked prefill stops the tokens of others for a whole prompt."""
    requests = [ServedRequest(0.0, 100, 400), ServedRequest(0.5, 12000, 10)]
    small, large = (serve(requests, engine=EngineConfig(size)) for size in (512, 16384))
    gaps = [np.diff([run.first_seconds[0], run.finish_seconds[0]])[0] for run in (small, large)]
    assert small.ttft_seconds[1] > large.ttft_seconds[1]
    assert gaps[0] != gaps[1]


def test_a_full_cache_preempts_and_still_answers_everyone():
    """Requests are lost, or served twice, when the KV cache is full."""
    model = replace(MODEL, kv_tokens=3000)
    requests = steady_requests(20, 0.01, prompt=400, output=300)
    run = serve(requests, model)
    assert run.preemptions > 0
    assert np.isfinite(run.finish_seconds).all()
    assert run.prompt_tokens > 20 * 400


def test_a_request_larger_than_the_cache_is_refused():
    """A request that can never run keeps the simulation waiting for ever."""
    with pytest.raises(InvalidValueError, match="KV cache"):
        serve([ServedRequest(0.0, 10**7, 10)])


def test_idle_time_draws_waiting_power():
    """A board that waits draws nothing, or works for free."""
    run = serve([ServedRequest(0.0, 10, 1), ServedRequest(100.0, 10, 1)])
    assert run.idle_seconds == pytest.approx(100.0, rel=0.01)
    assert run.joules == pytest.approx(100 * BOARD.awake_watts, rel=0.01)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), rate=st.floats(0.5, 30.0))
def test_energy_adds_up_and_time_goes_forward(seed, rate):
    """Joules appear from nowhere, or a token comes before its request."""
    requests = synthetic_trace(lambda _: rate, 20.0, output_tokens=50.0, seed=seed)
    if not requests:
        return
    run = serve(requests)
    waiting = BOARD.awake_watts * run.seconds
    assert run.joules == pytest.approx(waiting + run.prefill_joules + run.decode_joules)
    assert (run.ttft_seconds > 0).all()
    assert (run.finish_seconds >= run.first_seconds).all()


def test_jumps_over_equal_iterations_change_nothing():
    """Taking iterations together gives other latencies than taking them one by one."""

    class Idle:
        def decide(self, state):
            return 0

    requests = synthetic_trace(lambda _: 3.0, 60.0, seed=3)
    run = serve(requests)
    fine = serve(requests, policy=Idle(), tick_seconds=0.01)
    assert fine.finish_seconds == pytest.approx(run.finish_seconds, rel=0.002)
    assert fine.joules == pytest.approx(run.joules, rel=0.002)


def test_a_lower_clock_is_slower_and_cheaper():
    """The setting has no effect on a run."""
    requests = synthetic_trace(lambda _: 3.0, 60.0, seed=3)
    low = serve(requests, table=BOARD.within(700.0, 0.6 * BOARD.max_clock_hertz))
    full = serve(requests)
    assert low.joules < 0.9 * full.joules
    assert low.tpot_seconds.mean() > full.tpot_seconds.mean()


def test_metrics_count_what_was_served():
    """The controller reads other counts than the engine has."""
    states = []

    class Watch:
        def decide(self, state):
            states.append(state)
            return 0

    requests = synthetic_trace(lambda _: 3.0, 60.0, seed=3)
    serve(requests, policy=Watch())
    assert sum(len(state.ttft_seconds) for state in states) >= len(requests) - 5
    assert states[-1].arrived == len(requests)
    assert states[-1].iterations > 1000
