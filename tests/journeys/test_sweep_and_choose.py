"""Journey: measure a command under several power limits, and choose one."""

import pytest

import joulery
from support.journeys import TRAINING

SCRIPT = (
    TRAINING
    + """
node.set_load(0, work)
for number in range(int(sys.argv[1])):
    train(number)
node.set_load(0, None)
"""
)


@pytest.mark.slow
def test_the_choice_of_a_sweep_is_good_in_truth(world):
    """The limit of least energy in a sweep does not need the least energy."""
    command = [*world.script("train.py", SCRIPT), str(round(1.5 / world.assumptions.step_seconds))]
    lowest, highest = world.board.min_limit_watts, world.board.default_limit_watts
    limits = f"{(lowest + highest) / 2:g}W,{highest:g}W"
    document = world.joulery("sweep", "--limits", limits, "--repeat", "1", "--", *command)
    assert document["complete"]
    frontier = joulery.Frontier.from_json((world.folder / "sweep-output/frontier.json").read_text())
    choice = joulery.choose(joulery.LeastEnergy(max_slowdown=1.0), frontier)
    true_joules = {
        point.setting.power_limit_watts: world.true_point(point.setting.power_limit_watts)[1]
        for point in frontier
    }
    assert true_joules[choice.setting.power_limit_watts] == min(true_joules.values())
    assert world.node.power_limit(0) == highest
