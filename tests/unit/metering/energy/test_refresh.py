"""Learning when a counter refreshes, from looks at it."""

import math
from bisect import bisect_right

import numpy as np
import pytest

from joulery.metering.energy._refresh import RefreshTimer


class Counter:
    """A counter that refreshes at given moments."""

    def __init__(self, moments, stamps="none"):
        self.moments = moments
        self.stamps = stamps

    @classmethod
    def regular(cls, period, phase=0.0, seconds=20.0, **options):
        """One that refreshes every ``period`` seconds."""
        count = math.ceil(seconds / period) + 2
        return cls([phase - period + n * period for n in range(count)], **options)

    def at(self, now):
        """(value, stamp) that a read at ``now`` returns."""
        place = bisect_right(self.moments, now) - 1
        stamp = {"none": None, "refresh": self.moments[place], "call": now}[self.stamps]
        return place, stamp


def followed(counter, seconds=10.0, interval=0.1):
    """A timer after ``seconds``, with the (true moment, refresh) pairs and looks it took."""
    timer, found, looks = RefreshTimer(), [], []
    now, last = 0.0, None
    while now < seconds:
        value, stamp = counter.at(now)
        looks.append(now)
        refresh = timer.observe(now, stamp, changed=last is not None and value != last)
        last = value
        if refresh is not None:
            found.append((counter.moments[value], refresh))
        early = 0.5 * (timer.period_seconds or 0.0)
        now = max(now + 1e-4, timer.next_due(now + interval - early))
    return timer, found, looks


@pytest.mark.parametrize("stamps", ["none", "refresh", "call"])
@pytest.mark.parametrize("period", [0.02, 0.1, 0.097])
def test_finds_the_period_within_a_percent(period, stamps):
    """Looks would drift off the refreshes, and knots be misplaced."""
    counter = Counter.regular(period, phase=0.37 * period, stamps=stamps)
    timer, _, _ = followed(counter)
    assert timer.period_seconds == pytest.approx(period, rel=0.01)


def test_refreshes_between_two_readings_do_not_blur_the_one_that_is_read():
    """Boards that refresh every 20 ms would lose the moments of their refreshes in a second."""
    _, found, _ = followed(Counter.regular(0.02, phase=0.007))
    late = [refresh for moment, refresh in found if moment > 2.0]
    assert max(refresh.half_width_seconds for refresh in late) < 0.002


def test_refreshes_missed_while_learning_do_not_stretch_the_period():
    """On a busy machine a counter of 20 ms would pass for one of 30 ms, for good."""
    timer, period = RefreshTimer(), 0.02
    readings = [0.001 * n for n in range(200) if not 25 <= n % 100 <= 65]
    last = None
    for now in readings:
        value = math.floor(now / period + 1e-9)
        timer.observe(now, None, changed=last is not None and value != last)
        last = value
    assert timer.period_seconds == pytest.approx(period, rel=0.05)


@pytest.mark.parametrize(("stamps", "trusted"), [("refresh", True), ("call", False)])
def test_stamps_are_trusted_only_if_they_stand_still_with_the_value(stamps, trusted):
    """A driver that stamps calls would pass for one that stamps refreshes."""
    timer, _, _ = followed(Counter.regular(0.1, 0.03, stamps=stamps), seconds=2.0)
    assert timer.stamps_trusted is trusted


def test_without_stamps_there_is_nothing_to_trust():
    """None would be taken for a time."""
    timer, _, _ = followed(Counter.regular(0.1, 0.03), seconds=2.0)
    assert timer.stamps_trusted is None


def test_a_stamp_that_wavers_by_microseconds_is_still_trusted():
    """Converting between two clocks would discredit good stamps."""
    timer = RefreshTimer()
    timer.observe(1.000, 0.95, changed=False)
    timer.observe(1.010, 0.95 + 5e-5, changed=False)
    assert timer.stamps_trusted is True


def test_stamped_refreshes_are_placed_exactly():
    """The whole point of stamps is lost."""
    _, found, _ = followed(Counter.regular(0.1, 0.03, stamps="refresh"), seconds=5.0)
    settled = found[5:]
    assert len(settled) > 30
    assert all(refresh.at_seconds == true for true, refresh in settled)
    assert all(refresh.half_width_seconds == 0 for _, refresh in settled)


@pytest.mark.parametrize("stamps", ["none", "call"])
@pytest.mark.parametrize("period", [0.02, 0.1])
def test_unstamped_refreshes_lie_in_their_brackets(period, stamps):
    """The error bar of every short window rests on these brackets."""
    draw = np.random.default_rng(4)
    pairs = []
    for _ in range(12):
        counter = Counter.regular(period, draw.random() * period, stamps=stamps)
        _, found, _ = followed(counter, seconds=6.0)
        pairs += found[4:]
    inside = [
        abs(refresh.at_seconds - true) <= refresh.half_width_seconds + 1e-9
        for true, refresh in pairs
    ]
    assert len(pairs) > 300
    assert sum(inside) / len(inside) >= 0.99


def test_brackets_of_an_unstamped_counter_shrink_to_a_millisecond():
    """Short windows on boards without stamps would stay uncertain."""
    _, found, _ = followed(Counter.regular(0.1, 0.042), seconds=6.0)
    widths = sorted(refresh.half_width_seconds for _, refresh in found[10:])
    assert widths[len(widths) // 2] <= 0.001


def test_settled_looks_come_no_more_often_than_asked():
    """Looking is what costs the measured code time."""
    for stamps in ("none", "refresh"):
        _, _, looks = followed(Counter.regular(0.1, 0.03, stamps=stamps), seconds=10.0)
        late = [look for look in looks if look > 5.0]
        assert len(late) <= 1.3 * 10 * 5.0, stamps


def test_asked_to_look_rarely_it_does():
    """A slower sampling rate would be ignored."""
    _, _, looks = followed(Counter.regular(0.1, 0.03, stamps="refresh"), 20.0, interval=1.0)
    assert len([look for look in looks if look > 10.0]) <= 11


def test_a_counter_of_one_millisecond_is_continuous():
    """RAPL-like counters need no phase, only to be read."""
    timer, found, looks = followed(Counter.regular(0.001, 0.0003), seconds=3.0)
    assert timer.period_seconds == 0.0
    assert all(refresh.at_seconds in looks for _, refresh in found[5:])
    assert len([look for look in looks if look > 1.0]) <= 21
    assert looks[-1] < timer.next_refresh() <= looks[-1] + 0.01


def test_an_irregular_counter_is_followed_within_its_brackets():
    """Jitter of a tenth of the period must widen brackets, not break them."""
    draw = np.random.default_rng(9)
    moments = [n * 0.1 + draw.uniform(-0.01, 0.01) for n in range(-1, 120)]
    timer, found, _ = followed(Counter(moments, stamps="refresh"))
    assert timer.period_seconds == pytest.approx(0.1, rel=0.05)
    errors = [abs(r.at_seconds - true) - r.half_width_seconds for true, r in found]
    assert max(errors) <= 1e-9


def test_a_frozen_counter_is_looked_at_less_and_less():
    """A counter that never moves would be polled every millisecond for ever."""
    timer, found, looks = followed(Counter([-1.0]), seconds=20.0)
    assert not found
    assert timer.period_seconds is None
    assert len([look for look in looks if look > 10.0]) <= 101


@pytest.mark.parametrize(
    ("old", "new", "stamps"),
    [(0.1, 0.034, "refresh"), (0.03, 0.1, "refresh"), (0.03, 0.1, "none")],
)
def test_a_new_period_is_learnt(old, new, stamps):
    """A driver that changes its rate would be misread for the rest of the run."""
    moments = [n * old for n in range(-1, round(5.0 / old))]
    moments += [moments[-1] + n * new for n in range(1, round(15.0 / new))]
    timer, found, _ = followed(Counter(moments, stamps=stamps), seconds=15.0, interval=0.02)
    assert timer.period_seconds == pytest.approx(new, rel=0.01)
    late = [(true, refresh) for true, refresh in found if true > 8.0]
    assert len(late) > 50
    assert all(abs(r.at_seconds - true) <= r.half_width_seconds + 2e-4 for true, r in late)


def test_news_is_due_one_period_after_the_last_refresh():
    """Windows would close without the refresh that just came."""
    counter = Counter.regular(0.1, 0.03, stamps="refresh")
    timer, found, looks = followed(counter, seconds=5.0)
    last = found[-1][0]
    assert timer.next_refresh() == pytest.approx(last + 0.1, abs=1e-6)
    assert RefreshTimer().next_refresh() == math.inf
    assert looks[-1] < timer.next_due(0.0)


def test_two_values_with_the_same_stamp_do_not_end_the_sampling():
    """A counter that is reset between two refreshes would end the meter's thread."""
    timer = RefreshTimer()
    timer.observe(0.001, 0.0, changed=False)
    timer.observe(0.01, 0.0, changed=False)
    timer.observe(0.101, 0.1, changed=True)
    timer.observe(0.15, 0.1, changed=True)
    for number in range(2, 30):
        timer.observe(0.1 * number + 0.001, 0.1 * number, changed=True)
    assert timer.period_seconds == pytest.approx(0.1, rel=0.01)
