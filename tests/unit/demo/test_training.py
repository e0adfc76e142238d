import pytest

from joulery.demo import Recipe
from joulery.demo._training import Trainer

SMALL = Recipe(seed=3, epochs=3, pictures=960, test_pictures=300, hidden=32)


@pytest.fixture(scope="module")
def trainer():
    """A small problem."""
    return Trainer(SMALL)


def _nothing():
    return None


def test_every_step_is_told(trainer):
    """A step that costs nothing would make the simulated run too cheap."""
    steps = []
    list(trainer.epochs(lambda: steps.append(1)))
    assert len(steps) == SMALL.epochs * SMALL.steps_per_epoch == 60


def test_training_twice_gives_the_same_weights(trainer):
    """The comparison of two power limits needs runs that learn the same."""
    first, second = list(trainer.epochs(_nothing)), list(trainer.epochs(_nothing))
    assert first == second
    assert [lesson.epoch for lesson in first] == [1, 2, 3]


def test_it_learns(trainer):
    """Loss has to fall and accuracy to climb from chance, or there is nothing to show."""
    lessons = list(trainer.epochs(_nothing))
    assert trainer.untrained_accuracy() < 0.3
    assert lessons[-1].accuracy > 0.5
    assert lessons[-1].loss < 0.7 * lessons[0].loss


def test_another_seed_learns_otherwise(trainer):
    """The seed has to reach pictures and weights."""
    other = Trainer(Recipe(seed=4, epochs=1, pictures=960, test_pictures=300, hidden=32))
    assert next(other.epochs(_nothing)).fingerprint != next(trainer.epochs(_nothing)).fingerprint


def test_train_and_test_pictures_differ(trainer):
    """Testing on the training pictures would flatter the accuracy."""
    count = len(trainer.test)
    assert (trainer.train.pixels[:count] != trainer.test.pixels).all()


@pytest.mark.slow
def test_default_recipe_reads_19_of_20_digits():
    """The demonstration promises a network that is worth its energy."""
    *_, last = Trainer(Recipe()).epochs(_nothing)
    assert last.accuracy > 0.95
