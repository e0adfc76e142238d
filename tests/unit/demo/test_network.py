import numpy as np
import pytest

from joulery.demo._glyphs import Pictures
from joulery.demo._network import DemoNetwork, Momentum


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
    network, (pixels, labels) = DemoNetwork((5, 3), seed=1), _batch()
    network.parameters[0][:] = 0.0
    assert network.gradients(pixels, labels)[0] == pytest.approx(np.log(3))


def test_huge_scores_do_not_overflow():
    """An unshifted softmax would turn a confident network into NaN."""
    network, (pixels, labels) = DemoNetwork((5, 3), seed=1), _batch()
    network.parameters[0] *= 1e4
    loss, slopes = network.gradients(pixels, labels)
    assert np.isfinite(loss)
    assert all(np.isfinite(slope).all() for slope in slopes)


def test_steps_learn_a_batch_by_heart():
    """Training must bring the loss down and the accuracy up."""
    network, (pixels, labels) = DemoNetwork((5, 16, 3), seed=2), _batch()
    losses = [network.step(pixels, labels, Momentum(0.1, 0.9)) for _ in range(200)]
    assert losses[-1] < 0.1 * losses[0]
    assert network.accuracy(Pictures(pixels, labels)) == 1.0


def test_momentum_follows_its_rule():
    """Velocity is momentum times the last one minus rate times slope; both must count."""
    network, (pixels, labels) = DemoNetwork((5, 3), seed=1), _batch()
    start = network.parameters[0].copy()
    slope = network.gradients(pixels, labels)[1][0]
    network.step(pixels, labels, Momentum(0.5, 0.9))
    once = network.parameters[0].copy()
    second_slope = network.gradients(pixels, labels)[1][0]
    network.step(pixels, labels, Momentum(0.5, 0.9))
    assert np.allclose(once, start - 0.5 * slope)
    assert np.allclose(network.parameters[0], once - 0.45 * slope - 0.5 * second_slope)


def test_fingerprint_sees_the_last_bit():
    """Two runs count as equal only if every weight is."""
    first, second = DemoNetwork((5, 3), seed=1), DemoNetwork((5, 3), seed=1)
    assert first.fingerprint() == second.fingerprint()
    second.parameters[0][0, 0] = np.nextafter(second.parameters[0][0, 0], np.inf)
    assert first.fingerprint() != second.fingerprint()
