"""Offline batch inference with a deadline."""

import pytest

from joulery.clock import VirtualClock
from joulery.hardware import SimulatedGpu, catalog
from joulery.serving import BatchRun, clock_settings, knob_curves, serving_board
from joulery.serving._batch import DeadlineController

BOARD = serving_board("a100")
CURVES = knob_curves(BOARD, clock_settings(BOARD))
STRETCH = 0.5 * (CURVES.prefill + CURVES.decode)


def finish(deadline_seconds, work=1000.0, rate=1.0):
    """Seconds that the work takes, and the lowest position in its first half."""
    controller = DeadlineController(work, deadline_seconds, CURVES)
    now = done = 0.0
    lowest = len(STRETCH)
    while done < work:
        position = controller.decide(now, done)
        lowest = min(lowest, position) if done < 0.5 * work else lowest
        now, done = now + 1.0, done + rate / STRETCH[position]
    return now, lowest


def test_a_loose_deadline_is_used_and_kept():
    """Work with time to spare runs at full power, or too late."""
    seconds, lowest = finish(1300.0)
    assert 1050.0 < seconds <= 1300.0
    assert lowest < len(STRETCH) - 1


def test_a_tight_deadline_keeps_full_power():
    """Work that only just fits is slowed down."""
    seconds, lowest = finish(1010.0)
    assert seconds <= 1010.0
    assert lowest == len(STRETCH) - 1


def test_boards_return_to_what_they_were():
    """A clock stays locked after the batch."""
    clock = VirtualClock()
    board = SimulatedGpu(catalog.board("A100"), clock)
    with BatchRun(100, 1000.0, devices=[board], clock=clock) as batch:
        for _ in range(50):
            clock.sleep(5.0)
            batch.step()
        assert board._locked_hertz is not None
    assert board._locked_hertz is None


def test_work_goes_on_without_a_knob(caplog):
    """A machine without rights or boards cannot run a batch."""
    with BatchRun(10, 100.0, devices=[], clock=VirtualClock()) as batch:
        batch.step()
    assert batch.done == 1.0
    assert "without tuning" in caplog.text


def test_wrong_arguments_raise_at_once():
    """A deadline in the past or of NaN is found out at the end."""
    with pytest.raises(ValueError, match="deadline"):
        BatchRun(10, float("nan"), devices=[])
