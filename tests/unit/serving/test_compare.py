"""Policies side by side, capacity, frontier and sleep."""

import pytest

from joulery.cluster import PowerCurve
from joulery.serving import (
    LatencyObjective,
    ServingCase,
    capacity,
    clock_settings,
    compare_policies,
    limit_settings,
    served_frontier,
    served_model,
    serving_board,
    sleep_advice,
    synthetic_trace,
)
from support.served import LLAMA_8B, steady_requests

BOARD = serving_board("h100")
MODEL = served_model(LLAMA_8B, BOARD)
TRACE = synthetic_trace(lambda _: 4.0, 150.0, prompt_tokens=600.0, seed=4)
CASE = ServingCase(TRACE, MODEL, BOARD, LatencyObjective(1.0, 0.05))


def test_the_tuner_saves_what_bounds_allow_and_loses_next_to_nothing():
    """The controller saves less than half of what an oracle does, or breaks the objective."""
    outcomes = compare_policies(CASE)
    assert outcomes["full"].saved == 0.0
    assert outcomes["tuner"].saved > 0.5 * outcomes["oracle"].saved > 0.1
    assert outcomes["tuner"].lost <= 0.01
    assert outcomes["oracle"].saved >= outcomes["fixed"].saved - 0.02
    assert "MHz" in outcomes["fixed"].setting


def test_settings_end_with_the_one_found():
    """The last position locks a clock, so that the original setting never comes back."""
    for settings in (clock_settings(BOARD), limit_settings(BOARD)):
        assert settings[-1] == (BOARD.limit_watts, None)
        assert len(settings) == 14


def test_capacity_is_where_bounds_begin_to_break():
    """A service is said to carry loads at which it breaks its bounds."""
    factor = capacity(CASE)
    assert 1.0 < factor < 50.0


def test_a_served_model_is_a_job_of_a_cluster():
    """The frontier of a service cannot be given to the allocator of a power budget."""
    frontier = served_frontier(CASE)
    curve = PowerCurve.from_frontier(frontier, gpus=1)
    assert len(frontier) >= 3
    assert 0 < curve.least_watts < curve.most_watts <= BOARD.limit_watts


def test_sleep_pays_from_the_gap_that_loading_costs():
    """Advice to sleep ignores what loading the model again costs."""
    run = ServingCase(steady_requests(5, 300.0), MODEL, BOARD, CASE.objective).run_at(-1)
    advice = sleep_advice(run, 100.0, 20.0, 30.0)
    assert advice["pays_from_seconds"] == pytest.approx(37.5)
    assert advice["gaps_that_pay"] == 4
    assert advice["saved_joules"] == pytest.approx(4 * (300 * 80 - 3000), rel=0.02)
    assert sleep_advice(run, 100.0, 100.0, 30.0)["saved_joules"] == 0.0
