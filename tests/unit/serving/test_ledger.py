"""The ledger, against energies that are known."""

import math
from dataclasses import replace

import numpy as np
import pytest

from joulery.serving import (
    EnergyLedger,
    EngineState,
    LatencyObjective,
    ServingCase,
    served_model,
    serving_board,
    synthetic_trace,
)
from support.served import LLAMA_8B

BOARD = serving_board("a100")
MODEL = served_model(LLAMA_8B, BOARD)


def random_states(seed, prefill=0.02, decode=0.3, iteration=2.0, idle=80.0, count=600):
    """Readings of an engine whose energy follows the ledger's own model."""
    rng = np.random.default_rng(seed)
    state = EngineState(0.0, iterations=0.0)
    for n in range(count):
        yield state
        busy = n % 50 < 40
        prompt = int(rng.poisson(2)) * 500 * busy
        steps = int(rng.integers(5, 20)) * busy
        batch = int(rng.integers(1, 16))
        joules = idle * 0.2 + prefill * prompt + decode * steps * batch + iteration * steps
        state = EngineState(
            0.2 * (n + 1),
            running=batch if busy else 0,
            arrived=state.arrived + (prompt > 0),
            prompt_tokens=state.prompt_tokens + prompt,
            generation_tokens=state.generation_tokens + steps * batch,
            iterations=state.iterations + steps,
            ttft_seconds=[0.05] * (prompt > 0),
            joules=state.joules + joules,
        )


def test_coefficients_of_its_own_model_come_back():
    """The regression does not find what it assumes."""
    ledger = EnergyLedger(idle_watts=100.0)
    for state in random_states(1):
        ledger.add(state)
    account = ledger.account()
    assert account.waiting_watts == pytest.approx(80.0, rel=0.02)
    assert account.prefill_joules_per_token.value == pytest.approx(0.02, rel=0.05)
    steps_per_token = 1 / 8  # mean batch of 8
    expected = 0.3 + 2.0 * steps_per_token
    assert account.decode_joules_per_token.value == pytest.approx(expected, rel=0.05)


def test_idle_power_is_assumed_until_it_is_seen():
    """Waiting power is fitted, or an assumption is passed off as a measurement."""
    ledger = EnergyLedger(idle_watts=100.0)
    assert ledger.waiting_watts == 100.0
    assert "idle-assumed" in ledger.account().flags


def test_little_traffic_gives_no_figures():
    """Three requests are enough for a figure with a bar."""
    ledger = EnergyLedger(idle_watts=100.0)
    for state in random_states(1, count=10):
        ledger.add(state)
    account = ledger.account()
    assert "few-intervals" in account.flags
    assert np.isnan(account.prefill_joules_per_token.value)
    assert account.joules > 0


def test_tokens_counted_late_have_no_figure():
    """Joules are given to tokens of requests that ended, not to those computed."""
    ledger = EnergyLedger(idle_watts=100.0)
    for state in random_states(1):
        ledger.add(replace(state, late=True))
    account = ledger.account()
    assert "counted-late" in account.flags
    assert np.isnan(account.decode_joules_per_token.value)
    above = account.joules - account.waiting_joules
    assert account.joules_per_request.value == pytest.approx(above / account.requests)


def test_requests_that_are_not_counted_are_unknown():
    """An engine without a count of requests spends -1,214 J on each."""
    ledger = EnergyLedger(idle_watts=100.0)
    for state in random_states(1):
        ledger.add(replace(state, arrived=math.nan))
    account = ledger.account()
    assert np.isnan([account.requests, account.joules_per_request.value]).all()


def test_no_token_costs_nothing():
    """Tokens that the fit leaves without energy are said to cost 0.0 ± 0.0 J."""
    ledger = EnergyLedger(idle_watts=100.0)
    for state in random_states(1, prefill=0.05, decode=-0.2, iteration=0.0):
        ledger.add(state)
    account = ledger.account()
    figures = account.prefill_joules_per_token, account.decode_joules_per_token
    assert np.isnan([figure.value for figure in figures]).all()
    assert "inseparable" in account.flags
    assert account.joules_per_request.value > 0


def test_a_counter_that_restarts_is_left_out():
    """A restart of the engine books negative tokens."""
    ledger = EnergyLedger(idle_watts=100.0)
    for n, state in enumerate(random_states(2)):
        if n >= 300:
            state.prompt_tokens -= 10**6
        ledger.add(state)
    account = ledger.account()
    assert account.prefill_joules_per_token.value == pytest.approx(0.02, rel=0.1)


@pytest.mark.parametrize("iterations", [True, False])
def test_simulated_truth_lies_within_three_errors(iterations):
    """Figures of an engine, also one that counts no iterations, are far off, with narrow bars."""
    trace = synthetic_trace(lambda _: 5.0, 120.0, prompt_tokens=600.0, output_tokens=80.0, seed=5)
    ledger = EnergyLedger(BOARD.awake_watts)

    class Meter:
        def decide(self, state):
            ledger.add(state if iterations else replace(state, iterations=math.nan))
            return -1

    case = ServingCase(trace, MODEL, BOARD, LatencyObjective(10.0, 1.0), tick_seconds=0.2)
    run = case.run(Meter())
    account = ledger.account()
    prefill, decode = account.prefill_joules_per_token, account.decode_joules_per_token
    truth = run.prefill_joules / run.prompt_tokens, run.decode_joules / run.output_tokens.sum()
    assert abs(prefill.value - truth[0]) < 3 * prefill.error < 0.3 * truth[0]
    assert abs(decode.value - truth[1]) < 3 * decode.error < 0.3 * truth[1]


def test_traffic_after_a_quiet_time_is_unknown_at_first():
    """A few requests after a long idle time end the meter with a singular matrix."""
    ledger = EnergyLedger(idle_watts=100.0)
    for n in range(120):
        busy = n >= 110
        count = max(0, n - 109)
        ledger.add(
            EngineState(
                0.25 * n,
                running=int(busy),
                arrived=count,
                prompt_tokens=400.0 * count,
                generation_tokens=20.0 * count,
                iterations=20.0 * count,
                ttft_seconds=[0.1] * busy,
                joules=20.0 * n + 30.0 * count,
            )
        )
        account = ledger.account()
        assert np.isnan(account.decode_joules_per_token.value)
    assert account.waiting_watts == pytest.approx(80.0)


def test_boards_that_draw_no_more_at_work_than_idle_have_no_figure():
    """Noise gives tokens a negative energy."""
    ledger = EnergyLedger(idle_watts=100.0)
    for state in random_states(4, prefill=0.0, decode=-0.01, iteration=0.0):
        ledger.add(state)
    account = ledger.account()
    assert "idle-above-work" in account.flags
    assert np.isnan(account.joules_per_request.value)
