import json
from dataclasses import replace
from pathlib import Path

import pytest

from joulery.demo import Demonstration, DemoPlan, Recipe, saved_drawing
from joulery.demo._report import saved_sentence
from joulery.errors import InfeasibleError, InvalidValueError
from joulery.frontier import Frontier, Origin
from joulery.hardware import Workload, catalog, settle
from joulery.objectives import Cost, FastestWithin, LeastEnergy

BOARD = replace(
    catalog.board("V100"),
    name="Toy",
    min_limit_watts=100.0,
    max_limit_watts=250.0,
    default_limit_watts=250.0,
)
WORKLOAD = Workload("toy steps", 0.1, 0.06, 0.01)
RECIPE = Recipe(epochs=2, pictures=960, test_pictures=200, hidden=16)


def _plan(objective=None, limits=(250.0, 200.0, 150.0), board=BOARD):
    return DemoPlan(board, WORKLOAD, objective or Cost(0.5, 250.0), limits, RECIPE)


@pytest.fixture(scope="module")
def said():
    """What was said on the way."""
    return []


@pytest.fixture(scope="module")
def story(said):
    """A whole small demonstration."""
    return Demonstration(_plan(), said.append).run()


def test_default_run_costs_what_the_model_says(story):
    """Seconds and joules must be those of the simulated board for as many steps."""
    steady = settle(BOARD, WORKLOAD, 250.0)
    steps = RECIPE.epochs * RECIPE.steps_per_epoch
    assert story.default.cost.seconds == pytest.approx(steps * steady.seconds)
    # A little less than steady: the power takes a moment to rise.
    expected = steps * steady.seconds * steady.watts
    assert story.default.cost.joules == pytest.approx(expected, rel=0.06)
    assert story.default.cost.joules < expected


def test_epochs_add_up_to_the_run(story):
    """Epoch windows lie end to end inside the run's window."""
    run = story.default
    assert sum(epoch.seconds for epoch in run.epochs) == pytest.approx(run.cost.seconds)
    assert sum(epoch.joules for epoch in run.epochs) == pytest.approx(run.cost.joules, rel=0.01)


def test_sweep_has_every_limit_scaled_to_a_run(story):
    """The frontier must be of the work that the objective is about: a whole run."""
    assert [point.setting.power_limit_watts for point in story.sweep] == [250.0, 200.0, 150.0]
    assert story.sweep[0].seconds == pytest.approx(story.default.cost.seconds)


def test_learning_does_not_depend_on_the_limit(story):
    """A power limit changes when steps end, never what they compute."""
    assert story.default.final == story.retrained.final


def test_chosen_limit_is_used_and_saves_what_was_expected(story):
    """The second run has to bear out the sweep."""
    assert story.chosen in story.frontier.points
    assert story.retrained.cost.setting == story.chosen.setting
    assert story.saved.energy > 5
    assert story.saved.energy == pytest.approx(story.expected.energy, abs=1.5)
    assert story.saved.time == pytest.approx(story.expected.time, abs=0.1)


def test_everything_is_marked_simulated(story):
    """No figure of the demonstration may pass for a measurement."""
    costs = [story.default.cost, story.retrained.cost, story.chosen, *story.frontier]
    assert {cost.provenance.origin for cost in costs} == {Origin.SIMULATED}


def test_progress_names_every_stage(story, said):
    """A user who waits has to see what for."""
    assert any(text.startswith("default run at 250 W: epoch 2 of 2") for text in said)
    assert any("limit 3 of 3" in text for text in said)
    assert any(text.startswith("second run at") for text in said)


def test_slowdown_refers_to_the_default_limit():
    """Slowdown 0 keeps the default, whatever else is swept."""
    told = Demonstration(_plan(LeastEnergy(max_slowdown=0.0)), lambda _: None).run()
    assert told.chosen.setting.power_limit_watts == 250.0


def test_reference_is_the_default_run_where_the_sweep_leaves_it_out():
    """Savings are told against the default even if the user swept other limits."""
    told = Demonstration(_plan(limits=(200.0, 150.0)), lambda _: None).run()
    assert told.reference == told.default.cost


def test_no_limits_means_a_spread_with_the_default():
    """Without --limits the whole range of the board is swept."""
    told = Demonstration(_plan(limits=()), lambda _: None).run()
    watts = [point.setting.power_limit_watts for point in told.sweep]
    assert watts[0] == 250.0
    assert watts[-1] == 100.0
    assert watts == sorted(watts, reverse=True)


def test_limit_outside_the_range_fails_before_any_training():
    """Nobody should wait for a run to learn of a typing error."""
    said = []
    with pytest.raises(InvalidValueError, match="300 W"):
        Demonstration(_plan(limits=(300.0,)), said.append).run()
    assert said == []


def test_impossible_budget_is_explained():
    """An objective that nothing meets is the user's to widen."""
    with pytest.raises(InfeasibleError):
        Demonstration(_plan(FastestWithin(joules=1.0)), lambda _: None).run()


def test_document_is_json_and_carries_the_frontier(story):
    """Other tools read the document; it must survive a round trip."""
    document = json.loads(json.dumps(story.to_dict(), allow_nan=False))
    assert document["origin"] == "simulated"
    assert Frontier.from_dict(document["frontier"]) == story.frontier
    assert document["retrained"]["accuracy"] == document["default"]["accuracy"]
    assert document["saved"]["joules"] == pytest.approx(
        document["default"]["joules"] - document["retrained"]["joules"]
    )
    assert len(document["default"]["epochs"]) == 2


def test_work_below_every_limit_leaves_nothing_to_save():
    """If this fails, the demonstration claims savings of 0.0 kJ on a board that it cannot fill."""
    light = Workload("light steps", 0.05, 0.05, 0.1, activity=0.02)
    story = Demonstration(replace(_plan(), workload=light), lambda _: None).run()
    assert saved_sentence(story).startswith("There is nothing to save (simulated)")


def test_the_picture_names_the_objective(story):
    """If this fails, a picture stands above a text that sells another objective."""
    assert saved_drawing(story, "edp").name.endswith("edp (simulated Toy)")


def test_the_readme_says_what_the_demonstration_saves():
    """If this fails, the first figures that people read are those of another board."""
    readme = (Path(__file__).parents[3] / "README.md").read_text("utf-8")
    board = catalog.board("A40")
    work = catalog.workload("resnet50", board)
    full, lower = settle(board, work, 300.0), settle(board, work, 200.0)
    time = lower.seconds / full.seconds
    saved = 100 * (1 - time * lower.watts / full.watts)
    text = f"the second takes {saved:.0f} % less energy and {100 * (time - 1):.0f} % more time"
    assert text in readme
    shares = [_most_saved(name) for name in ("A100", "V100", "RTX4090")]
    text = "{:.0f} % on an A100, {:.0f} % on a V100 and {:.0f} % on an RTX 4090".format(*shares)
    assert text in readme


def _most_saved(name):
    """Per cent of the energy that the best limit saves at most 5 % slower."""
    board = catalog.board(name)
    work = catalog.workload("resnet50", board)
    full = settle(board, work, board.default_limit_watts)
    limits = range(int(board.min_limit_watts) + 1, int(board.default_limit_watts))
    points = [settle(board, work, float(watts)) for watts in limits]
    shares = [
        p.seconds * p.watts / full.watts / full.seconds
        for p in points
        if p.seconds <= 1.05 * full.seconds
    ]
    return 100 * (1 - min(shares))
