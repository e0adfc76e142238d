"""What actions take and measure in the replayed environment."""

import numpy as np
import pytest

from joulery.jobs.policies import ActionKind, Actions, JobBatch, RunEnd
from joulery.simulate import Environment, Moment, Slices, scale_epochs
from joulery.simulate._environment import EpochAtMean
from joulery.testing.workloads import made_up_workload

ARM, LIMIT = 2, 1


@pytest.fixture
def load():
    """Ten epochs at batch size 64 whatever the luck."""
    return made_up_workload(runs=1)


def world(load, probing=None, seeds=(0,)):
    """The replayed environment of one workload."""
    jobs = JobBatch.of([load.job()] * len(seeds), seeds)
    workload_of = np.zeros(len(seeds), dtype=np.int64)
    return Environment([load], workload_of, jobs, probing or Slices(5.0, 0.0))


def act(
    world,
    *,
    kind=ActionKind.TRAIN,
    arm=ARM,
    limit=LIMIT,
    ceiling=np.inf,
    probe=None,
    progress=0.0,
    recurrence=0,
    training=0,
):
    """What becomes of one action."""
    actions = Actions(
        kind=np.array([kind]),
        arm=np.array([arm]),
        limit=np.array([limit]),
        ceiling=np.array([ceiling]),
        reason=np.array([0]),
        probe_limits=None if probe is None else np.array([probe]),
    )
    moment = Moment(
        job=np.array([0]),
        recurrence=np.array([recurrence]),
        training=np.array([training]),
        action=np.array([0]),
        progress=np.array([progress]),
    )
    return world.act(actions, moment)


def test_training_takes_its_epochs(load):
    """Ten epochs at a held limit cost ten times what one costs."""
    result = act(world(load))
    assert result.end[0] == RunEnd.REACHED
    assert result.epochs[0] == 10
    assert result.seconds[0] == pytest.approx(10 * load.epoch_seconds[ARM, LIMIT])
    assert result.joules[0] == pytest.approx(10 * load.epoch_joules[ARM, LIMIT])
    assert result.cost[0] == pytest.approx(10 * load.epoch_cost()[ARM, LIMIT])


def test_held_limit_is_known_better_than_a_slice(load):
    """A whole training tells its own limit within half a per cent, and no other."""
    result = act(world(load, Slices(5.0, 0.02, held_error=0.005)))
    known = np.isfinite(result.epoch_seconds[0])
    assert known.tolist() == [False, True, False, False]
    assert result.relative_error[0, LIMIT] == 0.005
    assert result.epoch_seconds[0, LIMIT] == pytest.approx(load.epoch_seconds[ARM, LIMIT], rel=0.03)
    assert result.epoch_seconds[0, LIMIT] != load.epoch_seconds[ARM, LIMIT]


def test_ceiling_floors_to_whole_epochs(load):
    """A run stops before the epoch that would pass the ceiling."""
    epoch = load.epoch_cost()[ARM, LIMIT]
    result = act(world(load), ceiling=4.9 * epoch)
    assert (result.end[0], result.epochs[0]) == (RunEnd.STOPPED, 4)
    assert result.cost[0] == pytest.approx(4 * epoch)


def test_exact_ceiling_is_enough(load):
    """The cost may come up to the ceiling."""
    result = act(world(load), ceiling=10 * load.epoch_cost()[ARM, LIMIT] * (1 + 1e-9))
    assert result.end[0] == RunEnd.REACHED


def test_unaffordable_training_is_not_begun(load):
    """Where not even one epoch fits, nothing is spent and nothing learnt."""
    result = act(world(load), limit=-1, ceiling=1.0)
    assert (result.end[0], result.epochs[0], result.cost[0]) == (RunEnd.STOPPED, 0, 0)
    assert np.isnan(result.epoch_seconds).all()


def test_failing_batch_size_is_exhausted(load):
    """A run that never gets there pays for all epochs allowed."""
    result = act(world(made_up_workload(never=(64,), runs=1)))
    assert (result.end[0], result.epochs[0]) == (RunEnd.EXHAUSTED, 100)


def test_probe_is_charged_and_trains_nothing(load):
    """A probe costs its slices."""
    result = act(world(load), kind=ActionKind.PROBE, limit=-1, probe=[True, False, False, True])
    assert result.end[0] == RunEnd.PROBED
    assert result.seconds[0] == 10
    assert result.epochs[0] == 0
    assert result.limit[0] == -1
    assert np.isfinite(result.epoch_seconds[0]).tolist() == [True, False, False, True]


def test_probe_of_the_trained_batch_size_is_progress(load):
    """Probing and then training one batch size is one run."""
    place = world(load)
    probe = act(place, kind=ActionKind.PROBE, limit=-1)
    rest = act(place, progress=probe.progress[0])
    whole = act(world(load))
    lost = probe.seconds[0] - probe.progress[0] * load.epoch_seconds[ARM, LIMIT]
    assert probe.seconds[0] + rest.seconds[0] == pytest.approx(whole.seconds[0] + lost)
    assert rest.epochs[0] == 10


def test_profiling_in_a_training_is_productive(load):
    """Slices within a training count as progress; only their excess is lost."""
    result = act(world(load), limit=-1)
    best = int(result.limit[0])
    slices = 4 * 5.0
    progress = (5.0 / load.epoch_seconds[ARM]).sum()
    expected = slices + (10 - progress) * load.epoch_seconds[ARM, best]
    assert result.seconds[0] == pytest.approx(expected)


def test_whole_epoch_profile_is_charged_once(load):
    """Zeus's simulator charges the first run of each batch size one epoch at the mean."""
    place = world(load, EpochAtMean())
    first, second = act(place, limit=-1), act(place, limit=-1, recurrence=1)
    excess = load.epoch_seconds[ARM].mean() - load.epoch_seconds[ARM, first.limit[0]]
    assert first.seconds[0] - second.seconds[0] == pytest.approx(excess)


def test_limit_without_data_gives_way_to_the_nearest(load):
    """A hole in the trace cannot be replayed; the outcome says what was held."""
    load.epoch_seconds[ARM, LIMIT] = np.nan
    assert act(world(load)).limit[0] in (LIMIT - 1, LIMIT + 1)


def test_luck_hangs_on_seed_recurrence_training_and_arm_only():
    """All policies face the same luck, whatever they did before."""
    place = world(made_up_workload(runs=5))
    again = world(made_up_workload(runs=5))
    act(again, recurrence=3, arm=0)
    for recurrence in range(5):
        mine, theirs = act(place, recurrence=recurrence), act(again, recurrence=recurrence, limit=3)
        assert mine.epochs[0] == theirs.epochs[0]
    seen = {act(place, recurrence=r, training=t).epochs[0] for r in range(10) for t in range(5)}
    assert len(seen) == 5


def test_drift_holds_from_its_recurrence_on(load):
    """Before the change all is as it was."""
    place = world(scale_epochs(load, 7, 2.0))
    assert [act(place, recurrence=r).epochs[0] for r in (6, 7, 8)] == [10, 20, 20]
