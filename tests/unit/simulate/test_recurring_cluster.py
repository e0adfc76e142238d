import numpy as np
import pytest

from joulery.jobs.policies import JobBatch, ZeusPolicy
from joulery.jobs.policies._default import DefaultPolicy
from joulery.simulate import (
    ALL_JOBS,
    Environment,
    JobGroups,
    Slices,
    replay,
    simulate,
    summarize_replays,
)
from joulery.simulate._recurring_cluster import default_seconds
from joulery.simulate._runner import PolicyRunner


def _groups(load, count, gap, groups=1, ratio=1.0):
    """Groups of ``count`` jobs, ``gap`` default run times apart."""
    usual = default_seconds(load)
    submit = np.tile(np.arange(count) * gap * usual, groups)
    durations = np.full(count * groups, usual * ratio)
    return JobGroups.of(np.repeat(np.arange(groups), count), submit, durations)


def test_jobs_one_after_another_are_a_plain_recurring_job(small_workload):
    """The cluster would run another algorithm than the simulation of one job."""
    load = small_workload()
    # Far enough apart that nothing overlaps, retries included.
    log = replay(_groups(load, 25, 1000.0), [load], ZeusPolicy())
    alone = simulate([load], ZeusPolicy(), 25, [0])
    assert log.joules == pytest.approx(alone.joules[0])
    assert log.arm.tolist() == alone.arm[0].tolist()
    assert not log.overlapping.any()


def test_a_job_submitted_meanwhile_decides_without_the_outcome(small_workload):
    """Policies would see the future."""
    load = small_workload()
    together = replay(_groups(load, 6, 0.0), [load], ZeusPolicy())
    assert together.overlapping.tolist() == [0, 1, 2, 3, 4, 5]
    # While the first explores, the others run the best known, which is the default.
    assert together.arm.tolist() == [1] * 6


def test_an_outcome_is_known_at_the_moment_of_the_end(small_workload):
    """A job submitted when the one before ends would be called overlapping."""
    load = small_workload()
    log = replay(_groups(load, 5, 1.0), [load], DefaultPolicy())
    assert not log.overlapping.any()


def test_energy_scales_with_the_job(small_workload):
    """Long jobs would count like short ones."""
    load = small_workload()
    usual = default_seconds(load)
    groups = JobGroups.of(
        np.zeros(2, dtype=int), np.array([0.0, 1e6]), np.array([usual, 3 * usual])
    )
    log = replay(groups, [load], DefaultPolicy())
    assert log.joules[1] == pytest.approx(3 * log.joules[0])
    assert log.optimal[1] == pytest.approx(3 * log.optimal[0])


def test_groups_do_not_depend_on_their_neighbours(small_workload):
    """A group's luck would change with the rest of the cluster."""
    load = small_workload()
    many = replay(_groups(load, 8, 0.4, groups=5), [load], ZeusPolicy())
    few = replay(_groups(load, 8, 0.4, groups=2), [load], ZeusPolicy())
    assert (many.joules[:16] * few.optimal / many.optimal[:16]) == pytest.approx(few.joules)


def test_every_job_is_run_with_more_at_once_than_there_were_slots(small_workload):
    """Jobs would get lost in a rush."""
    load = small_workload()
    log = replay(_groups(load, 40, 0.01, groups=3), [load], ZeusPolicy())
    assert (log.attempts > 0).all()
    assert log.overlapping.max() > 20


def test_progress_is_reported(small_workload):
    """A long replay would look hung."""
    load = small_workload()
    shares = []
    replay(_groups(load, 60, 1.0), [load], DefaultPolicy(), on_progress=shares.append)
    assert shares == sorted(shares)
    assert 0 < shares[-1] <= 1


def test_slots_widen_and_keep_what_is_under_way(small_workload):
    """A job under way would vanish when another is submitted."""
    load = small_workload()
    job = np.zeros(1, dtype=np.int64)
    jobs = JobBatch.of([load.job()], [0])
    environment = Environment([load], job, jobs, Slices())
    runner = PolicyRunner(DefaultPolicy(), jobs, environment, width=2)
    for number in range(6):
        slot = runner.submit(job, np.array([number]))
        runner.act(job, slot, runner.decide(job))
        runner.finish[job, slot] = 10.0 - number
    assert runner.in_flight(job).tolist() == [6]
    slot, when = runner.next_end(job)
    assert when.tolist() == [5.0]
    assert runner.end(job, slot).recurrence.tolist() == [5]


def test_summaries_are_relative_to_default(small_workload):
    """The figures would be normalised by something else."""
    load = small_workload()
    groups = _groups(load, 10, 2.0, groups=2)
    logs = {p.name: replay(groups, [load], p) for p in (DefaultPolicy(), ZeusPolicy())}
    found = summarize_replays(logs, [load])
    assert [one.workload for one in found] == ["cifar100", "cifar100", ALL_JOBS, ALL_JOBS]
    assert found[0].eta_vs_default == pytest.approx(1.0)
    ratio = logs["zeus"].joules.sum() / logs["default"].joules.sum()
    assert found[3].eta_vs_default == pytest.approx(ratio)
