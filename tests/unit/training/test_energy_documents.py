"""What runs leave behind besides their reports: energy by device, and frontiers of epochs."""

import math
from collections import Counter

import pytest

from joulery.client import open_backend
from joulery.frontier import Origin, Provenance
from joulery.hardware import SimulatedGpu
from joulery.jobs import Decision, Definition, Job, JobService, Measured, Outcome
from joulery.jobs.policies import ActionKind, RunEnd
from joulery.objectives import Cost
from joulery.training._energy import DeviceEnergy, run_measurements

SIMULATED = Provenance(Origin.SIMULATED, "a model", 0.01)
MEASURED = Provenance(Origin.MEASURED, "a counter", 0.02)


def kept(place):
    """Profiles and energy of the job."""
    backend = open_backend(place.store, clock=place.clock)
    try:
        return backend.profiles(1), backend.energy(1)[0]
    finally:
        backend.close()


def test_a_run_leaves_its_energy_and_frontier_behind(place):
    """If this fails, it is unknown what runs used, or what limits of a batch size cost."""
    joules = place.recur(0)[1]
    (entry,) = place.decisions()
    (profile,), (used,) = kept(place)
    assert used.decision == entry.decision.id
    assert (used.device, used.origin) == (place.gpu.info.id, "simulated")
    assert used.source
    assert used.joules == pytest.approx(entry.outcome.joules)
    assert used.joules == pytest.approx(joules, rel=0.01)
    assert (profile.batch_size, profile.device) == (1024, "V100")
    assert profile.frontier.work == "an epoch of nightly at batch size 1024"
    reported = {one.limit_watts: one for one in entry.outcome.measured}
    for point in profile.frontier:
        one = reported[point.setting.power_limit_watts]
        assert (point.seconds, point.joules) == (one.epoch_seconds, one.epoch_joules)
        assert point.provenance.origin is Origin.SIMULATED
        error = point.provenance.relative_error
        assert error == pytest.approx(math.sqrt(2) * one.relative_error)
        assert (point.setting.batch_size, point.setting.device) == (1024, "V100")
        assert point.setting.devices is None


def test_energy_of_all_attempts_adds_up(place):
    """If this fails, stopped attempts and probes are forgotten, or counted twice."""
    for seed in range(4):
        place.recur(seed)
    _, used = kept(place)
    reported = {
        entry.decision.id: entry.outcome.joules
        for entry in place.decisions()
        if entry.outcome is not None and entry.outcome.joules > 0
    }
    assert {one.decision: one.joules for one in used} == pytest.approx(reported)
    assert len(used) == len(reported) >= 4


def test_what_is_used_after_the_target_does_not_count(place):
    """If this fails, energy and report tell different totals."""
    run = place.run()
    for _ in run.epochs():
        for _ in run.steps(range(20)):
            place.clock.sleep(0.5)
        run.report(0.99)
        place.clock.sleep(500.0)
    (entry,) = place.decisions()
    _, (used,) = kept(place)
    assert used.seconds == entry.outcome.seconds == pytest.approx(10.0, rel=0.01)
    assert used.joules == entry.outcome.joules


def test_all_boards_of_a_job_are_told_apart(place):
    """If this fails, a job on two boards seems to use one."""
    boards = [place.gpu, SimulatedGpu(place.gpu.board, place.clock, index=1)]
    run = place.run(devices=boards)
    place.train(run, 2)
    (entry,) = place.decisions()
    (profile,), used = kept(place)
    assert {one.device for one in used} == {board.info.id for board in boards}
    assert sum(one.joules for one in used) == pytest.approx(entry.outcome.joules)
    assert profile.device == "V100 × 2"
    assert {point.setting.devices for point in profile.frontier} == {2}


def test_a_run_makes_few_requests_after_its_report(place, monkeypatch):
    """If this fails, every run asks for more than it needs."""
    calls = Counter()
    for name in ("profiles", "put_profile", "add_energy"):
        real = getattr(JobService, name)

        def count(*args, _real=real, _name=name):
            calls[_name] += 1
            return _real(*args)

        monkeypatch.setattr(JobService, name, count)
    seen = []
    for _ in range(5):
        calls.clear()
        place.train(place.run(batch_sizes=[256], default_batch_size=256), 10)
        seen.append(dict(calls))
    assert seen == [{"profiles": 1, "put_profile": 1, "add_energy": 1}] * 5
    place.run(batch_sizes=[256], default_batch_size=256).close()
    assert len(kept(place)[1]) == 5  # a run that used nothing tells of nothing


def test_what_nobody_measures_is_not_claimed(place):
    """If this fails, a broken meter tells of energy that was not used."""
    from dataclasses import replace

    place.gpu.faults = replace(place.gpu.faults, lost_at_seconds=0.2)  # within the run
    run = place.run(max_epochs=3)
    for _ in run.epochs():
        for _ in run.steps(range(4)):
            place.clock.sleep(0.1)
        run.report(0.99)
    profiles, used = kept(place)
    assert profiles == []
    assert all(one.joules > 0 for one in used)


def test_findings_are_as_good_as_their_weakest_device():
    """If this fails, simulated figures pass for measured ones."""
    decision = Decision("1.1", 0, ActionKind.TRAIN, 64, None, (), math.inf, "", 0.0)
    outcome = Outcome(RunEnd.REACHED, 1.0, 9.0, 9.0, None, (Measured(None, 9.0, 8.0, 0.01),))
    used = [
        DeviceEnergy("a", "V100", 9.0, 4.0, MEASURED),
        DeviceEnergy("b" * 300, "V100", 9.0, 5.0, SIMULATED),
    ]
    wanted = Definition(Job("job", (64,), 64, Cost(0.5, 300.0)), "V100 × 2")
    found = run_measurements(decision, outcome, used, wanted)
    (point,) = found.points
    assert point.provenance.origin is Origin.SIMULATED
    assert point.setting.power_limit_watts is None
    assert [one.origin for one in found.energy] == ["measured", "simulated"]
    assert [one.relative_error for one in found.energy] == [
        MEASURED.relative_error,
        SIMULATED.relative_error,
    ]
    assert max(len(one.device) for one in found.energy) == 200
    unknown = run_measurements(decision, outcome, [], wanted)
    assert unknown.points[0].provenance.origin is Origin.ASSUMED
    assert unknown.energy == ()
