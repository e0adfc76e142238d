"""The controller of a served model, fed with readings."""

from itertools import pairwise

import numpy as np
import pytest

from joulery.errors import InvalidValueError
from joulery.serving import (
    EngineState,
    LatencyObjective,
    ServingController,
    clock_settings,
    knob_curves,
    serving_board,
)
from support.served import steady_states

BOARD = serving_board("h100")
CURVES = knob_curves(BOARD, clock_settings(BOARD))
TOP = len(CURVES.prefill) - 1


def drive(controller, states):
    """Positions for a sequence of readings."""
    return [controller.decide(state) for state in states]


def test_curves_end_at_full_power():
    """Stretches are not relative to full power, and all predictions are off by a factor."""
    assert CURVES.prefill[-1] == CURVES.decode[-1] == CURVES.decode_joules[-1] == 1.0
    assert (np.diff(CURVES.prefill) <= 1e-9).all()
    assert CURVES.decode[0] < CURVES.prefill[0]


def test_it_starts_at_full_power():
    """Power goes down before a single latency is known."""
    assert drive(ServingController(LatencyObjective(1.0, 0.1), CURVES), steady_states(5))[0] == TOP


def test_roomy_bounds_bring_the_power_down_gradually():
    """Nothing is saved though latencies are a tenth of their bounds, or the power falls at once."""
    positions = drive(ServingController(LatencyObjective(2.0, 0.5), CURVES), steady_states(400))
    assert positions[-1] < TOP // 2
    assert min(after - before for before, after in pairwise(positions)) >= -2


def test_tight_bounds_keep_full_power():
    """Requests miss bounds that full power only just keeps."""
    states = steady_states(400, ttft=0.05, tpot=0.01)
    assert drive(ServingController(LatencyObjective(0.051, 0.0102), CURVES), states)[-1] >= TOP - 1


def test_long_prompts_do_not_hold_the_clock_up_while_none_waits():
    """A few long prompts, for which guards raise the power, cost it for ten minutes."""
    states = list(steady_states(400))
    for start in (100, 150, 200):
        states[start].ttft_seconds = [1.9]
        for state in states[start:]:
            state.prompt_tokens += 15000.0
    assert drive(ServingController(LatencyObjective(2.0, 0.5), CURVES), states)[-1] < TOP // 2


def test_prompts_of_unknown_length_count_as_long_ones():
    """A prompt that waits is taken for a mean one though a fourth of them are ten times longer."""
    positions = []
    for lengths in ((1625,) * 4, (500, 500, 500, 5000)):
        states, tokens = list(steady_states(402)), 0.0
        for number, state in enumerate(states):
            tokens += lengths[number % 4]
            state.prompt_tokens, state.ttft_seconds = tokens, [1e-4 * lengths[number % 4]]
        # The last request has waited for a tick.
        states[-1].ttft_seconds, states[-1].waiting = [], 1
        controller = ServingController(LatencyObjective(0.6, 0.5), CURVES)
        drive(controller, states)
        positions.append(controller._queue_guard(states[-1].now_seconds))
    assert positions[1] > positions[0]


def test_a_jump_of_the_load_brings_full_power_at_once():
    """A burst of requests meets a slow board for seconds."""
    controller = ServingController(LatencyObjective(2.0, 0.5), CURVES)
    *_, last = steady_states(400)
    assert drive(controller, steady_states(400))[-1] < TOP
    burst = EngineState(
        40.0,
        running=1,
        waiting=60,
        arrived=last.arrived + 60,
        prompt_tokens=last.prompt_tokens,
        generation_tokens=last.generation_tokens,
        iterations=last.iterations,
    )
    assert controller.decide(burst) == TOP


def test_a_quick_clock_lets_the_power_go_lower():
    """Boards that follow at once pay for the slowest that there are."""
    lowest = []
    for lag in (0.0, float("nan")):
        states = list(steady_states(400, ttft=0.4))
        for state in states:
            state.lag_seconds = lag
        lowest.append(drive(ServingController(LatencyObjective(0.6, 0.5), CURVES), states)[-1])
    assert lowest[0] < lowest[1]


def test_a_full_engine_gets_full_power_and_keeps_room():
    """A queue grows for as long as the load stays near what full power can serve."""
    controller = ServingController(LatencyObjective(5.0, 0.5), CURVES)
    states = list(steady_states(600))
    for state in states[300:]:
        state.running = 50
    for waiting, state in enumerate(states[300:302], 1):
        state.waiting, state.ttft_seconds = waiting, []
    positions = drive(controller, states)
    assert positions[299] < TOP
    assert positions[301] == TOP
    assert positions[-1] == TOP  # the batch is as large as when the engine was full


def test_misses_of_our_own_raise_the_margin():
    """The same bound is missed again and again, and nothing is learned."""
    controller = ServingController(LatencyObjective(0.15, 0.5), CURVES)
    assert drive(controller, steady_states(300))[-1] < TOP
    before = controller._ttft.margin
    drive(controller, list(steady_states(303, ttft=0.151))[300:])
    assert controller._ttft.margin > before


def test_counts_of_iterations_may_be_missing():
    """Engines that count no iterations crash the controller."""
    states = list(steady_states(300))
    for state in states:
        state.iterations = float("nan")
    assert 0 <= drive(ServingController(LatencyObjective(2.0, 0.5), CURVES), states)[-1] < TOP


@pytest.mark.parametrize("quantile", [0.2, 1.0])
def test_objectives_are_checked(quantile):
    """A quantile of 99 instead of 0.99 is taken for a promise."""
    with pytest.raises(InvalidValueError):
        LatencyObjective(1.0, 0.1, quantile)
