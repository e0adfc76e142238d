"""Policies beside the controller."""

from joulery.serving import LatencyObjective
from joulery.serving._policies import ReactiveLadder
from support.served import steady_states


def test_the_ladder_goes_down_slowly_and_up_at_once():
    """The peer is not the ladder that papers describe."""
    ladder = ReactiveLadder(LatencyObjective(1.0, 0.1), 10)
    down = [ladder.decide(state) for state in steady_states(400, tpot=0.01)]
    assert down[0] >= 8
    assert down[-1] < 5
    late = next(steady_states(1, ttft=2.0))
    late.now_seconds = 40.0
    assert ladder.decide(late) == 9
