import numpy as np
import pytest

from joulery.demo import _glyphs as glyphs


def test_same_seed_draws_the_same_pictures():
    """A broken seed would make two runs of the demonstration learn different things."""
    first, second = glyphs.draw(50, 7), glyphs.draw(50, 7)
    assert np.array_equal(first.pixels, second.pixels)
    assert np.array_equal(first.labels, second.labels)


def test_another_seed_draws_others():
    """An ignored seed would train and test on the same pictures."""
    assert not np.array_equal(glyphs.draw(50, 7).pixels, glyphs.draw(50, 8).pixels)


def test_shape_and_labels():
    """The network expects one row per picture, and all ten digits."""
    pictures = glyphs.draw(500, 1)
    assert pictures.pixels.shape == (500, glyphs.FEATURES)
    assert len(pictures) == 500
    assert set(pictures.labels.tolist()) == set(range(glyphs.CLASSES))
    assert np.isfinite(pictures.pixels).all()


def test_undistorted_pictures_of_a_digit_are_all_the_same():
    """Distortion must come from its parameters alone, and digits must differ from each other."""
    clean = glyphs.Distortion(0.0, 0.0, 0.0, 0.0, 0.0)
    pictures = glyphs.draw(200, 3, clean)
    by_digit = {
        digit: np.unique(pictures.pixels[pictures.labels == digit], axis=0) for digit in range(10)
    }
    assert all(len(found) == 1 for found in by_digit.values())
    assert len(np.unique(np.vstack(list(by_digit.values())), axis=0)) == 10


@pytest.mark.parametrize("noise", [0.1, 0.4])
def test_noise_has_the_stated_size(noise):
    """The difficulty of the problem is a parameter, so it has to do what it says."""
    clean = glyphs.draw(400, 3, glyphs.Distortion(0.0, 0.0, 0.0, 0.0, 0.0))
    noisy = glyphs.draw(400, 3, glyphs.Distortion(0.0, 0.0, 0.0, 0.0, noise))
    assert np.std(noisy.pixels - clean.pixels) == pytest.approx(noise, rel=0.02)
