from dataclasses import replace

import pytest

from joulery.clock import VirtualClock
from joulery.errors import InvalidValueError, UnsupportedError
from joulery.hardware import PowerLimitRange, SimulatedGpu, SimulatedNode, catalog, preset
from joulery.sweep import SweepPlan, checked_limits, common_limits, settable_boards

PLAN = SweepPlan(("train",), ("a", "b"), (200.0, 100.0), (1, 2), 2, 200.0)
ALLOWED = PowerLimitRange(100.0, 260.0, 250.0, 260.0)


def test_every_setting_runs_before_any_runs_again():
    """An interrupted sweep would know nothing about half of its settings."""
    trials = list(PLAN.trials())
    assert len(trials) == len(PLAN) == len(set(trials)) == 8
    assert {(t.gpus, t.watts) for t in trials[:4]} == {(t.gpus, t.watts) for t in trials[4:]}
    assert [t.repeat for t in trials] == [0] * 4 + [1] * 4


def test_the_fastest_run_comes_first():
    """A mistake in the command would show only after the slowest run."""
    first = next(PLAN.trials())
    assert (first.gpus, first.watts) == (2, 200.0)
    assert str(first) == "2 GPUs at 200 W, run 1"


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"repeats": 0}, "repeat"),
        ({"gpu_counts": (3,)}, "this node has 2 GPUs"),
        ({"gpu_counts": ()}, "number of GPUs"),
        ({"limits_watts": ()}, "power limit"),
        ({"repeats": 10**7}, "too many"),
    ],
)
def test_senseless_plans_are_refused(wrong, word):
    """The mistake would show up hours later, or never."""
    with pytest.raises(InvalidValueError, match=word):
        replace(PLAN, **wrong)


def test_the_default_limit_is_always_among_the_limits():
    """Without it there is nothing to compare with."""
    assert checked_limits([120.0, 200.0], ALLOWED) == (250.0, 200.0, 120.0)
    assert checked_limits([250.0, 120.0], ALLOWED) == (250.0, 120.0)


@pytest.mark.parametrize("watts", [99.0, 261.0])
def test_limits_that_boards_refuse_are_named(watts):
    """The driver would refuse in the middle of the sweep."""
    with pytest.raises(InvalidValueError, match=f"{watts:g} W is outside") as refused:
        checked_limits([150.0, watts], ALLOWED)
    assert refused.value.remedy == "give 100 to 260 W"


def test_nothing_goes_above_what_the_administrator_set():
    """A sweep would lift a cap that protects the machine's circuit."""
    capped = replace(ALLOWED, current_watts=180.0, default_watts=180.0)
    with pytest.raises(InvalidValueError, match="above the 180 W in force") as refused:
        checked_limits([200.0], capped)
    assert "administrator" in refused.value.remedy


def test_limits_in_common_are_those_of_every_board():
    """One board of a mixed node would refuse what another accepts."""
    clock = VirtualClock()
    v100, rtx = (SimulatedGpu(catalog.board(name), clock) for name in ("V100", "RTX6000"))
    rtx.set_power_limit(180.0)
    found = common_limits([v100, rtx])
    assert (found.min_watts, found.max_watts) == (100.0, min(v100.board.max_limit_watts, 260.0))
    assert (found.current_watts, found.default_watts) == (180.0, 180.0)


def test_only_whole_boards_are_limited():
    """The plug's meter has no limit, and would stop every sweep."""
    node = SimulatedNode(preset("rtx6000x8"), VirtualClock())
    assert settable_boards([*node.gpus, node]) == node.gpus


def test_a_board_without_a_limit_is_named():
    """It would run uncapped next to the others, and the figures would mean nothing."""

    class Fixed(SimulatedGpu):
        capabilities = frozenset()

    with pytest.raises(UnsupportedError, match="no power limit"):
        settable_boards([Fixed(catalog.board("V100"), VirtualClock())])
