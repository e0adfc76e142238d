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
# The counter and the power sensor stop refreshing, and then the load changes.
FROZEN = (
    TRAINING
    + """
for number, busy in enumerate(sys.argv[1:]):
    node.set_load(0, work if busy == "1" else None)
    time.sleep(1.2)
    if number == 0:
        node.freeze_counter(0)
node.set_load(0, None)
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


@pytest.mark.slow
def test_a_counter_that_freezes_with_its_sensor(world):
    """The power before is taken for that of the whole command, and nobody is told."""
    loads = world.draw.choice(("011", "100", "101"))
    before = world.node.truth(0)
    document = world.joulery(
        "measure", "--device", "gpu", "--", *world.script("frozen.py", FROZEN), *loads
    )
    after = world.node.truth(0)
    assert "counter frozen" in document["flags"]
    # The board idles while `joulery measure` itself starts and ends.
    around = (after.now_seconds - before.now_seconds - document["seconds"]) * world.board.idle_watts
    bar = 1.96 * document["relative_error"] * document["joules"]
    # A board that idles from then on is at the very end of the bar.
    assert abs(document["joules"] + around - (after.joules - before.joules)) <= 1.05 * bar
