"""Random numbers by what they are for."""

import numpy as np
import pytest

from joulery.jobs.policies import CounterRng, mix

SEEDS = np.arange(4000, dtype=np.uint64)


def one_decision():
    """One decision of many seeds."""
    return CounterRng.of(SEEDS, np.zeros(len(SEEDS), dtype=np.int64))


def test_same_purpose_same_number():
    """A job's random numbers do not depend on the other jobs of a batch."""
    alone = CounterRng.of(SEEDS[7:8], np.array([3]))
    among = CounterRng.of(SEEDS, np.full(len(SEEDS), 3))
    assert alone.uniform(2, 5)[0].tolist() == among.uniform(2, 5)[7].tolist()


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_padding_changes_nothing(kind):
    """A job among larger ones gets more columns, and the same first ones."""
    few, many = getattr(one_decision(), kind)(1, 3), getattr(one_decision(), kind)(1, 9)
    assert (few == many[:, :3]).all()


def test_uniform_is_uniform():
    """Between 0 and 1, evenly, without correlation between columns, seeds or streams."""
    numbers = one_decision().uniform(0, 4)
    assert 0 <= numbers.min() < numbers.max() < 1
    assert numbers.mean() == pytest.approx(0.5, abs=0.01)
    assert numbers.var() == pytest.approx(1 / 12, abs=0.003)
    other = one_decision().uniform(1, 4)
    for one, two in (
        (numbers[:, 0], numbers[:, 1]),
        (numbers[1:, 0], numbers[:-1, 0]),
        (numbers[:, 0], other[:, 0]),
    ):
        assert abs(np.corrcoef(one, two)[0, 1]) < 0.05


def test_normal_is_normal():
    """Mean, variance and tails of the standard normal."""
    numbers = one_decision().normal(0, 10)
    assert np.isfinite(numbers).all()
    assert numbers.mean() == pytest.approx(0, abs=0.02)
    assert numbers.std() == pytest.approx(1, abs=0.02)
    assert (np.abs(numbers) < 1.96).mean() == pytest.approx(0.95, abs=0.01)


def test_neighbouring_decisions_differ():
    """The next decision of the same job gets new numbers."""
    words = mix(SEEDS[:1], np.arange(1000))
    assert len(set(words.tolist())) == 1000
