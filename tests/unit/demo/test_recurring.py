"""Retraining night after night: what is real stays real, and it pays."""

import json
from dataclasses import replace

import pytest

from joulery.demo import RECIPE, RecurringPlan, recurring_text, retrain
from joulery.hardware import catalog

pytestmark = pytest.mark.slow

BOARD = catalog.board("V100")
PLAN = RecurringPlan(
    BOARD,
    catalog.workload("resnet50", BOARD),
    nights=3,
    batch_sizes=(12, 48),
    default=48,
    target=0.8,
    recipe=replace(RECIPE, pictures=600, test_pictures=300),
)


@pytest.fixture(scope="module")
def story(tmp_path_factory):
    """A few short nights."""
    with pytest.MonkeyPatch.context() as patch:
        folder = tmp_path_factory.mktemp("home")
        patch.setenv("XDG_STATE_HOME", str(folder))
        patch.setenv("XDG_DATA_HOME", str(folder))
        patch.delenv("JOULERY_STORE", raising=False)
        told = retrain(PLAN, lambda _: None)
        assert not list(folder.rglob("*.sqlite"))
    return told


def test_every_night_ends_with_a_network_that_is_good_enough(story):
    """If this fails, the demonstration shows savings on networks that learned nothing."""
    assert len(story.nights) == len(story.unchanged) == 3
    for night in (*story.nights, *story.unchanged):
        assert night.accuracy >= 0.8
        assert night.seconds > 0
        assert night.joules > 0
    assert story.nights[0].batch_sizes == (48,)
    assert {night.batch_sizes for night in story.unchanged} == {(48,)}


def test_other_batch_sizes_are_tried(story):
    """If this fails, nothing recurs."""
    tried = {size for night in story.nights for size in night.batch_sizes}
    assert tried == {12, 48}


def test_it_can_be_told(story):
    """If this fails, the figures are not marked as simulated, or cannot be read."""
    text = recurring_text(story)
    assert "simulated" in text
    assert "48" in text
    assert "The last 3 nights together: " in text
    document = story.to_dict()
    assert document["origin"] == "simulated"
    assert len(json.loads(json.dumps(document, allow_nan=False))["nights"]) == 3
