"""Journey: what energy does this command use?"""

import json

import pytest

from support.journeys import TRAINING

SCRIPT = (
    TRAINING
    + """
start = node.true_joules(0)
node.set_load(0, work)
for number in range(int(sys.argv[1])):
    train(number)
node.set_load(0, None)
print(json.dumps(node.true_joules(0) - start))
"""
)


@pytest.mark.slow
def test_a_command_is_measured(world):
    """The energy, its error or the carbon that is printed is not that of the board."""
    command = [*world.script("train.py", SCRIPT), str(round(2.0 / world.assumptions.step_seconds))]
    before = world.node.true_joules(0)
    options = ("--device", "gpu", "--grid", "500", "--price", "0.30")
    with world.start("measure", *options, "--json", "--", *command) as measure:
        output, errors = measure.communicate(timeout=60)
    assert measure.returncode == 0, errors
    around = world.node.true_joules(0) - before
    (true_joules,) = (float(line) for line in errors.splitlines() if line[0].isdigit())
    document = json.loads(output)
    # The interpreter idles on the board before and after the training, inside the window.
    error = 3 * document["relative_error"]
    assert true_joules * (1 - error) <= document["joules"] <= around * (1 + error)
    assert document["grams_co2"] == pytest.approx(document["joules"] / 3.6e6 * 500)
    assert document["money"] == pytest.approx(document["joules"] / 3.6e6 * 0.30)
    assert document["exit_code"] == 0
