"""How often a caller may call."""

import pytest

from joulery.rate_limit import RateLimiter


def test_a_burst_passes_and_then_the_rate_counts():
    """One caller could keep all others from being served."""
    limiter = RateLimiter(per_second=10.0, burst=5.0, remembered=10)
    assert [limiter.wait_seconds("a", 0.0) for _ in range(5)] == [0.0] * 5
    assert limiter.wait_seconds("a", 0.0) == pytest.approx(0.1)
    assert limiter.wait_seconds("a", 0.1) == 0.0
    assert limiter.wait_seconds("a", 0.1) > 0.0


def test_callers_do_not_share():
    """A busy caller would use up what is another's."""
    limiter = RateLimiter(1.0, 1.0, 10)
    assert limiter.wait_seconds("a", 0.0) == 0.0
    assert limiter.wait_seconds("b", 0.0) == 0.0
    assert limiter.exhausted("a", 0.0)
    assert not limiter.exhausted("c", 0.0)


def test_memory_is_bounded():
    """Made-up callers would fill the memory."""
    limiter = RateLimiter(1.0, 1.0, 100)
    for number in range(10_000):
        limiter.wait_seconds(number, 0.0)
    assert len(limiter) == 100


def test_asking_does_not_count():
    """Looking whether a caller must wait would make it wait."""
    limiter = RateLimiter(1.0, 1.0, 10)
    assert not limiter.exhausted("a", 0.0)
    assert limiter.wait_seconds("a", 0.0) == 0.0
