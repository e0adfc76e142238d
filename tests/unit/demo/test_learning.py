import numpy as np
import pytest

from joulery.demo import _learning as learning
from joulery.demo._learning import DemoNetwork, Pictures, Recipe, Trainer

SMALL = Recipe(seed=3, epochs=3, pictures=960, test_pictures=300, hidden=32)


def test_same_seed_draws_the_same_pictures():
    """A broken seed would make two runs of the demonstration learn different things."""
    first, second = learning.draw(50, 7), learning.draw(50, 7)
    assert np.array_equal(first.pixels, second.pixels)
    assert np.array_equal(first.labels, second.labels)


def test_another_seed_draws_others():
    """An ignored seed would train and test on the same pictures."""
    assert not np.array_equal(learning.draw(50, 7).pixels, learning.draw(50, 8).pixels)


def test_shape_and_labels():
    """The network expects one row per picture, and all ten digits."""
    pictures = learning.draw(500, 1)
    assert pictures.pixels.shape == (500, learning.FEATURES)
    assert len(pictures) == 500
    assert set(pictures.labels.tolist()) == set(range(learning.CLASSES))
    assert np.isfinite(pictures.pixels).all()


@pytest.fixture
def clean(monkeypatch):
    """Pictures that stray from their glyph in no way."""
    for name in ("_TURN_RADIANS", "_STRETCH", "_SHEAR", "_SHIFT_PIXELS", "_NOISE"):
        monkeypatch.setattr(learning, name, 0.0)
    return learning.draw(400, 3)


def test_undistorted_pictures_of_a_digit_are_all_the_same(clean):
    """Distortion must come from its parameters alone, and digits must differ from each other."""
    by_digit = {
        digit: np.unique(clean.pixels[clean.labels == digit], axis=0) for digit in range(10)
    }
    assert all(len(found) == 1 for found in by_digit.values())
    assert len(np.unique(np.vstack(list(by_digit.values())), axis=0)) == 10


@pytest.mark.parametrize("noise", [0.1, 0.4])
def test_noise_has_the_stated_size(clean, monkeypatch, noise):
    """The difficulty of the problem is a parameter, so it has to do what it says."""
    monkeypatch.setattr(learning, "_NOISE", noise)
    noisy = learning.draw(400, 3)
    assert np.std(noisy.pixels - clean.pixels) == pytest.approx(noise, rel=0.02)


def _batch(seed=0, count=12, features=5, classes=3):
    random = np.random.default_rng(seed)
    return random.standard_normal((count, features)), random.integers(classes, size=count)


def test_gradients_match_finite_differences():
    """A wrong slope would make the loss of the demonstration a fake."""
    network, (pixels, labels) = DemoNetwork((5, 7, 3), seed=1), _batch()
    _, slopes = network.gradients(pixels, labels)
    nudge = 1e-6
    for parameter, slope in zip(network.parameters, slopes, strict=True):
        for index in list(np.ndindex(parameter.shape))[:10]:
            found = parameter[index]
            parameter[index] = found + nudge
            above, _ = network.gradients(pixels, labels)
            parameter[index] = found - nudge
            below, _ = network.gradients(pixels, labels)
            parameter[index] = found
            assert slope[index] == pytest.approx((above - below) / (2 * nudge), abs=1e-7)


def test_fresh_loss_of_equal_scores_is_the_logarithm_of_the_classes():
    """The cross-entropy must be the real one, in nats."""
    network, (pixels, labels) = DemoNetwork((5, 7, 3), seed=1), _batch()
    network.parameters[2][:] = 0.0
    assert network.gradients(pixels, labels)[0] == pytest.approx(np.log(3))


def test_huge_scores_do_not_overflow():
    """An unshifted softmax would turn a confident network into NaN."""
    network, (pixels, labels) = DemoNetwork((5, 7, 3), seed=1), _batch()
    network.parameters[0] *= 1e4
    loss, slopes = network.gradients(pixels, labels)
    assert np.isfinite(loss)
    assert all(np.isfinite(slope).all() for slope in slopes)


def test_steps_learn_a_batch_by_heart():
    """Training must bring the loss down and the accuracy up."""
    network, (pixels, labels) = DemoNetwork((5, 16, 3), seed=2), _batch()
    losses = [network.step(pixels, labels, 0.1) for _ in range(200)]
    assert losses[-1] < 0.1 * losses[0]
    assert network.accuracy(Pictures(pixels, labels)) == 1.0


def test_momentum_follows_its_rule():
    """Velocity is momentum times the last one minus rate times slope; both must count."""
    network, (pixels, labels) = DemoNetwork((5, 7, 3), seed=1), _batch()
    start = network.parameters[0].copy()
    slope = network.gradients(pixels, labels)[1][0]
    network.step(pixels, labels, 0.5)
    once = network.parameters[0].copy()
    second_slope = network.gradients(pixels, labels)[1][0]
    network.step(pixels, labels, 0.5)
    assert np.allclose(once, start - 0.5 * slope)
    assert np.allclose(network.parameters[0], once - 0.45 * slope - 0.5 * second_slope)


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


def test_training_twice_learns_the_same(trainer):
    """The comparison of two power limits needs runs that learn the same."""
    first, second = list(trainer.epochs(_nothing)), list(trainer.epochs(_nothing))
    assert first == second
    assert [lesson.epoch for lesson in first] == [1, 2, 3]


def test_it_learns(trainer):
    """Loss has to fall and accuracy to climb from chance, or there is nothing to show."""
    lessons = list(trainer.epochs(_nothing))
    assert trainer.fresh().accuracy(trainer.test) < 0.3
    assert lessons[-1].accuracy > 0.5
    assert lessons[-1].loss < 0.7 * lessons[0].loss


def test_another_seed_learns_otherwise(trainer):
    """The seed has to reach pictures and weights."""
    other = Trainer(Recipe(seed=4, epochs=1, pictures=960, test_pictures=300, hidden=32))
    assert next(other.epochs(_nothing)).loss != next(trainer.epochs(_nothing)).loss


def test_train_and_test_pictures_differ(trainer):
    """Testing on the training pictures would flatter the accuracy."""
    count = len(trainer.test)
    assert (trainer.train.pixels[:count] != trainer.test.pixels).all()


@pytest.mark.slow
def test_default_recipe_reads_19_of_20_digits():
    """The demonstration promises a network that is worth its energy."""
    *_, last = Trainer(Recipe()).epochs(_nothing)
    assert last.accuracy > 0.95
