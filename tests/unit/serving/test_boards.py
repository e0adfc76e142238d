"""Boards that serve models: time and power by clock and limit."""

from dataclasses import replace

import pytest

from joulery.errors import InvalidValueError
from joulery.serving import node_watts, serving_board


@pytest.mark.parametrize(
    ("name", "watts"), [("a100", 294), ("h100", 420), ("rtx4090", 392), ("rtx3090", 334)]
)
def test_memory_bound_decode_draws_what_boards_measure(name, watts):
    """Decode counts as nearly free power, and no saving that the tuner predicts is real."""
    board = serving_board(name)
    seconds, joules = board.within(board.limit_watts).cost(0.02, 1.0, 0.1)
    assert joules / seconds == pytest.approx(watts, rel=0.22)


def test_a_limit_slows_decode_too():
    """Decode under a low limit is predicted to be as fast as without, as it was."""
    board = serving_board("rtx3090")
    free, limited = (board.within(watts).cost(0.0, 1.0, 0.0)[0] for watts in (350.0, 210.0))
    assert 0.35 < free / limited < 0.75  # 0.48 measured with quantized weights


@pytest.mark.parametrize(("limit", "low", "high"), [(300.0, 0.6, 0.78), (450.0, 0.76, 0.9)])
def test_compute_bound_work_on_h100_keeps_what_mlperf_measures(limit, low, high):
    """Retention under a limit is off by more than MLPerf's results spread."""
    board = serving_board("h100", "fp8")
    free, limited = (board.within(w).cost(1.0, 0.2, 0.0)[0] for w in (700.0, limit))
    assert low < free / limited < high


def test_lower_clocks_take_longer_and_less_power():
    """Time or power is not monotonic in the clock, and searches go astray."""
    board = serving_board("h100")
    rows = [
        board.within(700.0, share * board.max_clock_hertz).cost(0.5, 0.5, 0.1)
        for share in (0.4, 0.6, 0.8, 1.0)
    ]
    seconds = [row[0] for row in rows]
    watts = [joules / time for time, joules in rows]
    assert seconds == sorted(seconds, reverse=True)
    assert watts == sorted(watts)


def test_mlperf_nodes_draw_what_specifications_say():
    """Wall power of a DGX H100 at 450 W per board, measured as 5,646 to 5,908 W."""
    assert node_watts(serving_board("h100"), 8, 450.0) == pytest.approx(5750, rel=0.06)


def test_a_board_without_bandwidth_is_refused():
    """A typing error in a specification gives infinite times instead of an error."""
    with pytest.raises(InvalidValueError):
        replace(serving_board("h100"), bytes_per_second=0.0)
