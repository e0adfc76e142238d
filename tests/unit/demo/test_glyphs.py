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


@pytest.fixture
def clean(monkeypatch):
    """Pictures that stray from their glyph in no way."""
    for name in ("_TURN_RADIANS", "_STRETCH", "_SHEAR", "_SHIFT_PIXELS", "_NOISE"):
        monkeypatch.setattr(glyphs, name, 0.0)
    return glyphs.draw(400, 3)


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
    monkeypatch.setattr(glyphs, "_NOISE", noise)
    noisy = glyphs.draw(400, 3)
    assert np.std(noisy.pixels - clean.pixels) == pytest.approx(noise, rel=0.02)
