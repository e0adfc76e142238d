"""Which pipelines are late, and by how much the others may slow down."""

import numpy as np
import pytest

from joulery.errors import InvalidValueError
from joulery.pipeline.runtime._straggler import LatenessTracker


def seen(tracker, *ratios, times=5):
    """The same ratio for each pipeline, several iterations long."""
    for _ in range(times):
        for pipeline, ratio in enumerate(ratios):
            tracker.observe(pipeline, ratio)
        assert len(tracker.factors) == len(ratios)


def test_a_slow_pipeline_sets_the_pace_and_recovers():
    """If it fails the others are needlessly fast, or stay slow when none is late."""
    tracker = LatenessTracker(3)
    seen(tracker, 1.0, 1.0, 1.0)
    assert max(tracker.factors) == 1.0
    seen(tracker, 1.0, 1.2, 1.0)
    assert tracker.factors == pytest.approx([1.0, 1.2, 1.0])
    seen(tracker, 1.0, 1.0, 1.0, times=3)
    assert max(tracker.factors) == 1.0


def test_what_is_slow_for_all_makes_none_late():
    """If it fails a model that is short makes all pipelines slower and slower."""
    tracker = LatenessTracker(2)
    seen(tracker, 1.07, 1.07)
    assert max(tracker.factors) == 1.0
    seen(tracker, 1.07, 1.07 * 1.1)
    assert max(tracker.factors) == pytest.approx(1.1)


def test_single_slow_iterations_and_noise_are_ignored():
    """If it fails plans change all the time."""
    draw = np.random.default_rng(1)
    tracker = LatenessTracker(4)
    for iteration in range(200):
        for pipeline in range(4):
            hiccup = 3.0 if (iteration + pipeline) % 17 == 0 else 1.0
            tracker.observe(pipeline, hiccup * draw.normal(1.0, 0.008))
        assert max(tracker.factors) == 1.0


def test_a_late_pipeline_does_not_flicker():
    """If it fails a pipeline at the bound is late and punctual by turns."""
    tracker = LatenessTracker(2)
    seen(tracker, 1.0, 1.04)
    assert max(tracker.factors) == pytest.approx(1.04)
    seen(tracker, 1.0, 1.02)
    assert max(tracker.factors) > 1.0
    seen(tracker, 1.0, 1.01)
    assert max(tracker.factors) == 1.0
    seen(tracker, 1.0, 1.02)
    assert max(tracker.factors) == 1.0


def test_small_changes_leave_the_pace_alone():
    """If it fails all ranks get new plans for a tiny change."""
    tracker = LatenessTracker(2)
    seen(tracker, 1.0, 1.2)
    seen(tracker, 1.0, 1.205)
    assert max(tracker.factors) == pytest.approx(1.2)
    seen(tracker, 1.0, 1.3)
    assert max(tracker.factors) == pytest.approx(1.3)


def test_a_notice_counts_at_once_until_measurements_differ():
    """If it fails a known straggler is believed only iterations later, or forever."""
    tracker = LatenessTracker(2)
    tracker.notice(1, 1.25)
    assert tracker.factors == pytest.approx([1.0, 1.25])
    seen(tracker, 1.0, 1.0)
    assert max(tracker.factors) == 1.0
    tracker.notice(0, 1.1)
    tracker.notice(0, 1.0)
    assert max(tracker.factors) == 1.0


def test_a_lone_pipeline_is_late_only_by_notice():
    """If it fails a single pipeline slows itself down."""
    tracker = LatenessTracker(1)
    tracker.notice(0, 1.5)
    assert max(tracker.factors) == pytest.approx(1.5)
    tracker.notice(0, 1.0)
    assert max(tracker.factors) == 1.0


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: LatenessTracker(0),
        lambda: LatenessTracker(2).notice(2, 1.5),
        lambda: LatenessTracker(2).notice(0, 0.9),
    ],
)
def test_invalid_figures_are_refused(wrong):
    """If it fails a bad figure decides the pace of a job."""
    with pytest.raises(InvalidValueError):
        wrong()
