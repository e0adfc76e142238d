"""What profiling costs and measures."""

import numpy as np
import pytest

from joulery.errors import InvalidValueError
from joulery.jobs.policies import ActionKind, CounterRng
from joulery.simulate import Slices
from joulery.simulate._environment import EpochAtMean, ProbeRequest, cheapest_limit

SECONDS = np.array([[40.0, 20.0, 10.0]])
JOULES = np.array([[4000.0, 3000.0, 2000.0]])


def request(
    kind=ActionKind.TRAIN,
    limit=-1,
    mask=None,
    *,
    fresh=True,
    epochs=100.0,
    seconds=SECONDS,
    word=1,
):
    """One row to be measured."""
    joules = JOULES * seconds / SECONDS
    weights = np.array([[0.5, 100.0]])
    return ProbeRequest(
        kind=np.array([kind]),
        limit=np.array([limit]),
        mask=None if mask is None else np.array([mask]),
        fresh=np.array([fresh]),
        epochs=np.array([epochs]),
        seconds=seconds,
        joules=joules,
        cost=weights[:, :1] * joules + weights[:, 1:] * seconds,
        cost_weights=weights,
        rng=CounterRng(np.array([word], dtype=np.uint64)),
    )


def test_first_epoch_runs_at_the_mean_of_all_limits():
    """Zeus's simulator charges the first epoch of a batch size so."""
    profile = EpochAtMean().profile(request())
    assert profile.seconds[0] == pytest.approx(70 / 3)
    assert profile.joules[0] == 3000
    assert profile.progress[0] == 1
    assert profile.limit[0] == 2
    assert profile.epoch_seconds.tolist() == SECONDS.tolist()
    assert profile.relative_error.tolist() == [[0, 0, 0]]


def test_profiled_batch_size_pays_no_more():
    """The second run of a batch size knows its best limit already."""
    profile = EpochAtMean().profile(request(fresh=False))
    assert (profile.seconds[0], profile.progress[0], profile.limit[0]) == (0, 0, 2)


def test_held_limit_is_not_profiled():
    """Who names a limit pays for no profile and learns nothing of the others."""
    profile = EpochAtMean().profile(request(limit=1))
    assert (profile.seconds[0], profile.limit[0]) == (0, 1)
    assert np.isnan(profile.epoch_seconds).all()


def test_missing_limits_do_not_spoil_the_mean():
    """A trace with holes is profiled on what it has."""
    seconds = np.array([[np.nan, 20.0, 10.0]])
    profile = EpochAtMean().profile(request(seconds=seconds))
    assert profile.seconds[0] == 15


def test_slices_cost_seconds_each():
    """Every limit asked for costs its seconds at its power, and trains meanwhile."""
    profile = Slices(5.0, 0.0).profile(request(mask=[True, False, True]))
    assert profile.seconds[0] == 10
    assert profile.joules[0] == pytest.approx(5 * 100 + 5 * 200)
    assert profile.progress[0] == pytest.approx(5 / 40 + 5 / 10)
    assert np.isnan(profile.epoch_seconds[0]).tolist() == [False, True, False]


def test_exact_slices_hold_the_best():
    """Without noise the profile finds the true best of what it measured."""
    assert Slices(5.0, 0.0).profile(request()).limit[0] == 2
    assert Slices(5.0, 0.0).profile(request(mask=[True, True, False])).limit[0] == 1


def test_slices_are_noisy_by_what_they_say():
    """Errors are log-normal, independent for time and power, fresh for every measurement."""
    told = [Slices(5.0, 0.02).profile(request(word=word)) for word in range(400)]
    seconds = np.log([p.epoch_seconds[0] / SECONDS[0] for p in told])
    watts = np.log([p.epoch_joules[0] / p.epoch_seconds[0] * SECONDS[0] / JOULES[0] for p in told])
    assert seconds.std() == pytest.approx(0.02, rel=0.1)
    assert watts.std() == pytest.approx(0.02, rel=0.1)
    assert abs(np.corrcoef(seconds.ravel(), watts.ravel())[0, 1]) < 0.1
    assert abs(np.corrcoef(seconds[:, 0], seconds[:, 1])[0, 1]) < 0.15


def test_training_that_ends_meanwhile_measures_no_more():
    """Slices go from the highest limit down; half an epoch is over within the first."""
    profile = Slices(10.0, 0.0).profile(request(epochs=0.5))
    assert profile.seconds[0] == 5
    assert profile.progress[0] == 0.5
    assert np.isnan(profile.epoch_seconds[0]).tolist() == [True, True, False]


def test_probe_measures_all_whatever_the_run_would_need():
    """A probe is not a training: nothing ends it early."""
    profile = Slices(10.0, 0.0).profile(request(ActionKind.PROBE, epochs=0.5))
    assert profile.seconds[0] == 30
    assert np.isfinite(profile.epoch_seconds).all()


def test_named_limit_measures_nothing_unasked():
    """Who names a limit and asks for no measurement pays for none."""
    profile = Slices().profile(request(limit=0))
    assert profile.seconds[0] == 0
    assert profile.limit[0] == 0


def test_limits_that_the_trace_lacks_are_not_measured():
    """Asking for a hole in the trace costs nothing and tells nothing."""
    seconds = np.array([[np.nan, 20.0, 10.0]])
    profile = Slices(5.0, 0.0).profile(request(mask=[True, True, False], seconds=seconds))
    assert profile.seconds[0] == 5
    assert profile.limit[0] == 1


def test_nothing_known_leaves_the_highest_limit():
    """A profile of nothing changes nothing."""
    assert cheapest_limit(np.full((1, 3), np.nan))[0] == 2


def test_equal_limits_go_to_the_higher():
    """As Zeus breaks ties: it measures from the highest limit downward."""
    assert cheapest_limit(np.array([[3.0, 3.0, 5.0]]))[0] == 1


@pytest.mark.parametrize(
    "wrong",
    [{"seconds_per_setting": -1.0}, {"relative_error": float("nan")}, {"held_error": -0.1}],
)
def test_nonsense_is_refused(wrong):
    """Negative seconds would make probing pay."""
    with pytest.raises(InvalidValueError):
        Slices(**wrong)
