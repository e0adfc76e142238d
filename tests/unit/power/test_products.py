"""Products in pieces are the same products."""

import numpy as np
import pytest

from joulery.power.products import product


@pytest.mark.parametrize("shape", [(3, 4, 5), (160, 160, 60), (2500, 7, 7), (1, 2000, 500)])
def test_pieces_make_the_whole(shape):
    """A piece left out would leave garbage in the belief."""
    chance = np.random.default_rng(0)
    left, right = chance.normal(size=shape[:2]), chance.normal(size=shape[1:])
    assert np.allclose(product(left, right), left @ right)
