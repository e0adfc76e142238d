"""Runs that recur: what is chosen, when they end, what is reported, what never stops them."""

import gc
import itertools
import json
import logging
import math
import os
import random
import threading
from types import SimpleNamespace

import pytest

from joulery.client import open_backend
from joulery.clock import VirtualClock
from joulery.errors import ConflictError, StoreBusyError
from joulery.hardware import SimulatedGpu, catalog
from joulery.jobs import DecisionLease, JobService, Outcome
from joulery.jobs.policies import ActionKind, RunEnd
from joulery.objectives import Cost, LeastEnergy
from joulery.storage import Store
from joulery.training import Run

COST = Cost(0.5, 250.0)
WORK = catalog.workload("resnet50", catalog.board("V100"))
SAMPLES = 2048


def ends(place):
    """How each training ended."""
    return [
        entry.outcome.end
        for entry in place.decisions()
        if entry.outcome is not None and entry.decision.kind == ActionKind.TRAIN
    ]


def test_a_dozen_recurrences_save_against_the_default(place):
    """If this fails, recurring runs do not find what is best, or forget it."""
    costs, sizes = [], []
    for seed in range(12):
        seconds, joules, tried, run = place.recur(seed)
        assert run.target_reached
        costs.append(COST.of(seconds, joules))
        sizes.append(tried[-1])
    assert sizes[0] == 1024
    assert set(sizes[-4:]) <= {64, 128, 256}
    assert max(costs[-4:]) < 0.5 * costs[0]
    assert sum(costs) < 0.7 * 12 * costs[0]
    assert place.gpu.power_limits().current_watts == 250


def test_the_outcome_tells_what_really_happened(place):
    """If this fails, the policy learns from wrong figures."""
    place.samples = 8192
    began, used = place.clock.now(), place.gpu.read_energy().joules
    run = place.run()
    assert run.batch_size == 1024
    assert place.train(run, 30) == 30
    (entry,) = place.decisions()
    reported = entry.outcome
    assert reported.end == RunEnd.REACHED
    assert reported.epochs == 30
    assert reported.seconds == pytest.approx(place.clock.now() - began, rel=1e-3)
    assert reported.joules == pytest.approx(place.gpu.read_energy().joules - used, rel=0.01)
    held = {one.limit_watts: one for one in reported.measured}[reported.limit_watts]
    assert held.epoch_seconds == pytest.approx(reported.seconds / 30, rel=0.03)
    # The whole run also has the limits that were tried before, most of them higher.
    assert 0.92 * reported.joules < 30 * held.epoch_joules < reported.joules
    assert 0.004 <= held.relative_error < 0.05
    assert len(reported.measured) >= 3


@pytest.mark.parametrize("within_epoch", [False, True])
def test_a_run_goes_on_from_its_checkpoint(place, within_epoch):
    """If this fails, a preempted training is learned from as if its first part had cost nothing."""
    began, used = place.clock.now(), place.gpu.read_energy().joules
    run, work = place.run(), WORK.scaled(4.0)
    for epoch in run.epochs():
        for batch in run.steps(range(SAMPLES // 512)):
            place.gpu.run(work)
            if within_epoch and (epoch, batch) == (12, 1):
                state = json.loads(json.dumps(run.state_dict()))
        if not within_epoch and epoch == 11:
            state = json.loads(json.dumps(run.state_dict()))
        if epoch == 12:
            break
    assert state["epochs"] == 12
    again = place.run()
    again.load_state_dict(state)
    assert again.decision.id == run.decision.id
    epochs = list(_trained(place, again, work, 30))
    assert epochs == list(range(12, 30))
    (entry,) = place.decisions()
    assert entry.outcome.end == RunEnd.REACHED
    assert entry.outcome.epochs == 30
    assert entry.outcome.seconds == pytest.approx(place.clock.now() - began, rel=0.05)
    assert entry.outcome.joules == pytest.approx(place.gpu.read_energy().joules - used, rel=0.05)
    assert again.joules == pytest.approx(entry.outcome.joules, rel=0.05)  # its first part once


def _trained(place, run, work, need):
    for epoch in run.epochs():
        for _ in run.steps(range(SAMPLES // 512)):
            place.gpu.run(work)
        run.report(0.95 if epoch + 1 >= need else 0.5)
        yield epoch


def test_a_checkpoint_that_makes_no_sense_is_left_alone(place, caplog):
    """If this fails, a damaged checkpoint ends a training that could have begun anew."""
    run = place.run()
    with caplog.at_level(logging.WARNING, "joulery"):
        run.load_state_dict({"steps": 3, "epochs": 2, "profile": None, "decision": {"id": 7}})
        run.load_state_dict({"epochs": "many"})
        run.load_state_dict([1])
    assert caplog.text.count("begins anew") == 3
    assert "a document without decision, profile, steps (give what run.state_dict()" in caplog.text
    assert "not a state of a run, but list" in caplog.text
    assert place.train(run, 30) == 30
    assert run.target_reached


def test_what_this_machine_remembers_is_measured_for_a_new_store_all_the_same(place, tmp_path):
    """If this fails, a policy that asks what limits cost is never reported."""
    place.train(place.run(), 30)
    place.store = tmp_path / "other.sqlite"
    place.train(place.run(), 30)
    (entry,) = place.decisions()
    assert len(entry.outcome.measured) >= 3


def test_the_limit_that_was_decided_is_held(place):
    """If this fails, what is decided about power is not done."""
    place.recur(0)
    for seed in (1, 2, 3):
        place.limits.clear()
        place.recur(seed)
    entry = place.decisions()[-1]
    assert entry.decision.power_limit_watts == place.limits[-1] < 250
    assert entry.outcome.limit_watts == place.limits[-1]


def test_a_run_that_over_its_cost_limit_is_stopped_and_says_so(place, caplog):
    """If this fails, hopeless batch sizes are trained to the end, or silently cut."""
    place.recur(0, max_epochs=400)
    run = place.run(max_epochs=400)
    assert run.decision.cost_ceiling_joules < math.inf
    with caplog.at_level(logging.WARNING, "joulery"):
        done = place.train(run, need=10_000)
    assert done < 400
    assert not run.target_reached
    assert "cost limit" in run.stop_reason
    assert any("cost limit" in record.message for record in caplog.records)
    last = place.decisions()[-1]
    assert last.outcome.end == RunEnd.STOPPED
    spent = COST.of(last.outcome.seconds, last.outcome.joules)
    assert spent <= last.decision.cost_ceiling_joules
    assert spent > 0.7 * last.decision.cost_ceiling_joules


def test_early_stopping_can_be_switched_off(place):
    """If this fails, owners who must have a model every night do not get one."""
    place.recur(0)
    run = place.run(early_stop=False)
    assert place.train(run, need=50) == 50
    assert run.target_reached


def test_a_stopped_attempt_is_followed_by_another_until_one_gets_there(place, caplog):
    """If this fails, a recurrence ends without a model."""
    place.recur(0, max_epochs=200)
    run, sizes = place.run(max_epochs=200), []
    for _ in run.attempts():
        sizes.append(run.batch_size)
        place.train(run, 10_000 if len(sizes) < 3 else 5)
    assert run.target_reached
    assert len(sizes) > 1
    assert "not closed" not in caplog.text  # another attempt is no earlier run
    recurrences = {entry.decision.recurrence for entry in place.decisions()}
    assert recurrences == {0, 1}


def test_the_last_attempt_is_never_stopped(place):
    """If this fails, a job whose every attempt is over its cost limit never has a model."""
    place.recur(0)
    run, trained = place.run(), []
    trained += [place.train(run, 10_000) for _ in run.attempts()]
    assert trained[-1] == 60
    assert len(trained) <= 20
    assert "within 60 epochs" in run.stop_reason
    assert not run.target_reached


def test_running_out_of_epochs_is_reported_and_not_repeated(place):
    """If this fails, a run that its owner limits goes on beyond that."""
    run, attempts = place.run(max_epochs=3), 0
    for _ in run.attempts():
        attempts += 1
        place.train(run, 10_000)
    assert attempts == 1
    assert ends(place) == [RunEnd.EXHAUSTED]


@pytest.mark.parametrize("metric", [math.nan, math.inf, -math.inf])
def test_a_run_that_diverges_is_ended_and_counts_as_failed(place, metric):
    """If this fails, a diverged run goes on for ever, or counts as a success."""
    run, done = place.run(), 0
    for _ in run.epochs():
        for _ in run.steps(range(5)):
            place.clock.sleep(0.1)
        done += 1
        run.report(metric)
    assert done == 1
    assert not run.target_reached
    assert "diverged" in run.stop_reason
    (entry,) = place.decisions()
    assert entry.outcome.end == RunEnd.EXHAUSTED
    assert entry.outcome.epochs == 60


def test_lower_metrics_can_be_better(place):
    """If this fails, losses and error rates cannot be targets."""
    run, done = place.run(target=0.1, higher_is_better=False), 0
    for _ in run.epochs():
        for _ in run.steps(range(5)):
            place.clock.sleep(0.1)
        done += 1
        run.report(1.0 / done)
    assert done == 10
    assert run.target_reached


@pytest.mark.parametrize("metric", [None, "high", object(), [1.0, 2.0]])
def test_a_metric_that_is_none_ends_nothing(place, metric, caplog):
    """If this fails, a slip in the validation ends a training of days."""
    run = place.run(max_epochs=4)
    done = 0
    for _ in run.epochs():
        run.step()
        place.clock.sleep(0.1)
        run.report(metric)
        done += 1
    assert done == 4
    assert "no metric" in caplog.text
    assert ends(place) == [RunEnd.ABANDONED]


def test_a_dry_run_runs_the_default_and_says_what_would_be_run(place, caplog):
    """If this fails, observing changes what is trained, or tells nothing."""
    place.recur(0)
    for seed in (1, 2):
        place.recur(seed)
    place.limits.clear()
    run = place.run(dry_run=True)
    assert run.batch_size == 1024
    place.train(run, 45)
    assert run.target_reached
    assert place.limits[-1] == 250
    assert "would be run" in caplog.text
    entry = place.decisions()[-1]
    assert (entry.decision.batch_size, entry.outcome.end) == (1024, RunEnd.REACHED)
    assert (entry.outcome.epochs, entry.outcome.limit_watts) == (45, 250)


def test_what_a_dry_run_shows_is_believed_as_far_as_it_fits(place):
    """If this fails, what an observer sees is kept and not learned, or upsets what was learned."""
    for seed in (0, 1):
        place.recur(seed)
    place.train(place.run(dry_run=True), 28)
    place.train(place.run(dry_run=True), 1)
    assert [entry.quarantined for entry in place.decisions()][-2:] == [False, True]


def test_a_dry_run_is_never_stopped(place):
    """If this fails, watching ends trainings of people who wanted nothing changed."""
    place.recur(0, default_batch_size=128)
    run = place.run(dry_run=True, default_batch_size=1024)
    assert run.decision.cost_ceiling_joules == math.inf
    assert place.train(run, 55) == 55
    assert run.target_reached


def test_a_dry_run_teaches(place):
    """If this fails, nothing is learned while a user only watches."""
    run = place.run(dry_run=True)
    place.train(run, 30)
    (entry,) = place.decisions()
    assert entry.outcome.end == RunEnd.REACHED
    assert entry.outcome.limit_watts == 250
    assert run.result is not None
    assert not run.result.held


def test_one_batch_size_is_enough(place):
    """If this fails, hyperparameter searches cannot be tuned."""
    for _ in range(3):
        place.limits.clear()
        run = place.run(batch_sizes=[256], default_batch_size=256)
        assert run.batch_size == 256
        place.train(run, 10)
    assert place.limits[-1] < 250
    assert ends(place) == [RunEnd.REACHED] * 3


def test_one_batch_size_needs_no_target(place):
    """If this fails, trials that simply run their epochs teach nothing."""
    run = place.run(batch_sizes=[256], default_batch_size=256, target=None, max_epochs=5)
    place.train(run, 10)
    (entry,) = place.decisions()
    assert (entry.outcome.end, entry.outcome.epochs) == (RunEnd.REACHED, 5)


def test_an_exception_in_the_loop_is_reported_as_abandoned_with_its_cost(place):
    """If this fails, a crash counts against the batch size, or costs nothing."""
    run = place.run()

    def crash():
        for epoch in run.epochs():
            for _ in run.steps(range(20)):
                place.clock.sleep(0.5)
            run.report(0.1)
            if epoch == 3:
                raise KeyError("bug of the user")

    with pytest.raises(KeyError):
        crash()
    gc.collect()
    run.close()
    (entry,) = place.decisions()
    assert entry.outcome.end == RunEnd.ABANDONED
    assert entry.outcome.epochs == 3
    assert entry.outcome.seconds == pytest.approx(40.0, rel=0.01)
    assert entry.outcome.joules > 0


def test_leaving_the_loop_once_the_target_is_reached_counts_as_reached(place):
    """If this fails, a polite user who breaks the loop is counted as a crash."""
    run = place.run()
    for _ in run.epochs():
        for _ in run.steps(range(20)):
            place.clock.sleep(0.5)
        run.report(0.99)
        if run.target_reached:
            break
    run.close()
    (entry,) = place.decisions()
    assert entry.outcome.end == RunEnd.REACHED
    assert entry.outcome.epochs == 1


def test_a_with_block_ends_the_run(place):
    """If this fails, a run left by an exception keeps its lease until it expires."""

    def crash():
        with place.run() as run:
            iterator = run.epochs()
            next(iterator)
            run.step()
            place.clock.sleep(1.0)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        crash()
    assert ends(place) == [RunEnd.ABANDONED]


def test_a_copy_of_the_process_does_not_speak_for_it(place):
    """If this fails, a forked worker that exits abandons the run of its parent."""
    run = place.run()
    assert run.batch_size == 1024
    child = os.fork()
    if child == 0:
        run.close()
        os._exit(0)
    os.waitpid(child, 0)
    place.train(run, 30)
    assert ends(place) == [RunEnd.REACHED]


def test_heartbeats_carry_progress_and_stop_with_the_run(place):
    """If this fails, a killed run has cost nothing, or a finished one never seems to end."""
    run = place.run(max_epochs=8)
    seen = []
    real = JobService.heartbeat

    def spy(backend, decision, progress=None, live=None):
        assert live is None  # nobody watches a store
        seen.append(progress)
        return real(backend, decision, progress)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobService, "heartbeat", spy)
        for _ in run.epochs():
            for _ in run.steps(range(20)):
                place.clock.sleep(1.0)
            run.report(0.5)
        beats = len(seen)
        place.clock.sleep(1000.0)
    assert beats >= 2
    assert len(seen) == beats
    assert seen[-1].end == RunEnd.ABANDONED
    assert seen[-1].epochs >= 5
    assert seen[-1].joules > 0


def test_a_server_is_told_how_a_run_is_doing(place, monkeypatch):
    """If this fails, people cannot watch the power, clocks and phases of a run under way."""
    seen = []

    def spy(backend, decision, progress=None, live=None):
        seen.append((place.clock.now(), progress, live))
        return DecisionLease(held=True, expires_wall_seconds=0.0)

    monkeypatch.setattr(JobService, "heartbeat", spy)
    monkeypatch.setattr("joulery.client._resilient.is_server", lambda _: True)
    run = place.run(max_epochs=20)
    work = WORK.scaled(2.0)
    for _ in run.epochs():
        for _ in run.steps(range(40)):
            place.gpu.run(work)
        place.clock.sleep(15.0)
        run.report(0.5)
    times = [at for at, _, _ in seen]
    assert max(after - before for before, after in itertools.pairwise(times)) <= 12.1
    phases = [live.phase for _, _, live in seen]
    assert "validating" in phases
    assert any(phase.startswith("profiling ") and phase.endswith(" W") for phase in phases)
    assert any(phase.startswith("holding ") for phase in phases)
    training = [live for _, _, live in seen if live.phase.startswith("holding ")]
    (device,) = training[-1].devices
    assert device.name == place.gpu.info.name
    assert device.limit_watts == float(training[-1].phase.split()[1])
    assert 0.5 * device.limit_watts < device.watts <= 1.05 * device.limit_watts
    assert 5e8 < device.clock_hertz < 2e9
    assert 0.5 < training[-1].steps_per_second < 10
    assert [live.seconds for _, _, live in seen] == [one.seconds for _, one, _ in seen]


def test_without_a_meter_the_default_is_run_and_one_line_says_so(caplog):
    """If this fails, a script breaks on a machine without a GPU."""
    run = Run(
        "cpu", batch_sizes=[32, 64], default_batch_size=64, target=0.9, max_epochs=5, devices=[]
    )
    assert run.batch_size == 64
    assert run.decision is None
    done = 0
    for _ in run.epochs():
        done += 1
        run.report(0.1 * done)
    assert done == 5
    assert len([r for r in caplog.records if "energy" in r.message]) == 1


def test_processes_without_a_group_run_the_default(place, monkeypatch, caplog):
    """If this fails, ranks of one job train different batch sizes."""
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    monkeypatch.setenv("WORLD_SIZE", "8")
    run = place.run()
    assert run.batch_size == 1024
    assert run.batch_size_per_rank == 128
    assert "process_group" in caplog.text


def test_an_error_of_ours_ends_nothing(place, monkeypatch, caplog):
    """If this fails, a bug in here ends a user's training."""
    run = place.run()
    assert run.batch_size == 1024

    def broken(*_):
        raise RuntimeError("our bug")

    monkeypatch.setattr("joulery.training._energy.EnergyAccount.end_epoch", broken)
    assert place.train(run, 4) == 4
    assert run.batch_size == 1024
    assert "our bug" in caplog.text
    assert place.gpu.power_limits().current_watts == 250


def test_without_rights_the_batch_size_is_still_chosen(place, monkeypatch):
    """If this fails, users who may not set limits get nothing at all."""
    from dataclasses import replace

    place.gpu.faults = replace(place.gpu.faults, no_permission=True)
    sizes = [place.recur(seed)[2][-1] for seed in range(7)]
    assert sizes[-1] in {64, 128, 256}
    assert {entry.outcome.limit_watts for entry in place.decisions() if entry.outcome} <= {
        250.0,
        None,
    }


def test_an_unreadable_meter_claims_nothing(place):
    """If this fails, a run without figures counts as one without cost."""
    from dataclasses import replace

    place.gpu.faults = replace(place.gpu.faults, lost_at_seconds=0.0)
    run = place.run(max_epochs=3)
    for _ in run.epochs():
        for _ in run.steps(range(4)):
            place.clock.sleep(0.1)
        run.report(0.99)
    reported = place.decisions()
    assert all(
        entry.outcome == Outcome(RunEnd.ABANDONED, 0.0, 0.0, 0.0) or entry.outcome.joules > 0
        for entry in reported
    )


def test_a_changed_job_says_what_it_inherits(place, caplog):
    """If this fails, a user wonders where a choice of a new version comes from."""
    place.recur(0)
    place.recur(1)
    caplog.clear()
    run = place.run(max_epochs=50)
    assert run.batch_size
    assert "carry over" in caplog.text or "starts from" in caplog.text
    run.close()
    caplog.clear()
    place.run(max_epochs=50).batch_size  # noqa: B018 - asks
    assert "carry over" not in caplog.text


def test_other_objectives_reach_the_policy(place):
    """If this fails, a user's objective is forgotten on the way."""
    run = place.run(objective=LeastEnergy(max_slowdown=0.1))
    assert run.batch_size == 1024
    backend = open_backend(place.store)
    entry = backend.job("nightly")
    backend.close()
    assert entry.definition.job.objective == LeastEnergy(max_slowdown=0.1)
    assert entry.device == "V100"
    run.close()


def test_learning_rates_follow_the_batch_size(place):
    """If this fails, larger batches train with a rate that does not fit."""
    run = place.run(batch_sizes=[256], default_batch_size=256)
    assert run.scaled_learning_rate(0.1) == 0.1
    run.close()
    plain = Run(default_batch_size=64)
    assert plain.scaled_learning_rate(0.1, "SGD") == 0.1


def test_a_dead_store_costs_its_bound_and_nothing_else(place, monkeypatch):
    """If this fails, a dead store changes what is trained."""

    def dead(*_args, **_options):
        raise StoreBusyError("no answer", remedy="wait")

    monkeypatch.setattr(Store, "open", dead)
    run = place.run()
    assert run.batch_size == 1024
    assert place.train(run, 12) == 12
    assert run.target_reached


def test_a_plain_run_stops_at_its_target_too(place):
    """If this fails, report() means something else without batch sizes."""
    run = Run(default_batch_size=64, target=0.8, max_epochs=10, devices=[place.gpu])
    done = 0
    for _ in run.epochs():
        run.step()
        done += 1
        run.report(0.3 * done)
    assert done == 3
    assert run.batch_size == 64
    assert list(Run(default_batch_size=1, devices=[]).attempts()) == [0]


@pytest.mark.parametrize("policy", ["zeus", "grid", "default"])
def test_every_policy_can_be_run(place, policy):
    """If this fails, a policy asks for something that runs cannot do."""
    for seed in range(4):
        _, _, _, run = place.recur(seed, policy=policy)
        assert run.target_reached
    reported = [entry.outcome for entry in place.decisions() if entry.outcome is not None]
    assert len(reported) >= 4
    assert all(
        one.limit_watts in (100.0, 125.0, 150.0, 175.0, 200.0, 225.0, 250.0) for one in reported
    )


def test_another_kind_of_board_starts_from_what_was_learned(place, caplog):
    """If this fails, a new GPU type begins from nothing."""
    for seed in range(4):
        place.recur(seed)
    place.gpu = SimulatedGpu(catalog.board("A40"), place.clock)
    caplog.clear()
    run = place.run()
    assert run.batch_size in {64, 128, 256}
    assert "carry over from V100" in caplog.text or "as they are" in caplog.text
    run.close()


def test_asking_after_the_end_begins_nothing(place):
    """If this fails, printing the batch size at the end of a script hands out another decision."""
    run = place.run()
    place.train(run, 5)
    assert run.batch_size == 1024
    assert run.decision is not None
    assert run.decision.batch_size == 1024
    assert len(place.decisions()) == 1


def test_epochs_end_without_a_number(place):
    """If this fails, epochs() without a number trains for ever, or once."""
    run = place.run(max_epochs=None)
    done = 0
    for _ in run.epochs():
        run.step()
        place.clock.sleep(0.1)
        done += 1
        run.report(0.95 if done == 7 else 0.1)
    assert done == 7
    assert list(Run(devices=[]).epochs()) == [0]


def test_a_decision_that_was_never_begun_is_given_back(place):
    """If this fails, a script that only looks at the batch size blocks it until its lease ends."""
    run = place.run()
    assert run.batch_size == 1024
    run.close()
    (entry,) = place.decisions()
    assert entry.outcome == Outcome(RunEnd.ABANDONED, 0.0, 0.0, 0.0)


def test_a_local_run_opens_no_network_and_prints_nothing(place, monkeypatch, capsys):
    """If this fails, a training without a server connects, or prints into its own output."""

    def refuse(*_args, **_options):
        raise AssertionError("the network was opened")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)
    place.recur(0)
    place.recur(1)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "network" not in captured.err


def test_a_run_that_does_not_recur_makes_no_store(place, tmp_path):
    """If this fails, plain power tuning leaves databases behind."""
    run = Run("plain", default_batch_size=64, max_epochs=2, devices=[place.gpu])
    place.train(run, 1)
    assert not list(tmp_path.rglob("*.sqlite"))


FAILURES = [
    StoreBusyError("down", remedy="wait"),
    ConflictError("paused", remedy="resume"),
    OSError("disk"),
    RuntimeError("bug"),
    MemoryError(),
    KeyError("x"),
]


@pytest.mark.parametrize("seed", range(12))
def test_whatever_fails_inside_the_same_epochs_are_trained(place, monkeypatch, seed):
    """If this fails, some mix of failures ends, repeats or changes a training."""
    chance = random.Random(seed)  # noqa: S311 - no secret
    calls = ("define", "decide", "heartbeat", "report", "close")
    for owner, name in ((Store, "open"), *((JobService, call) for call in calls)):
        real = getattr(owner, name)

        def sometimes(*args, _real=real, **options):
            if chance.random() < 0.4:
                raise chance.choice(FAILURES)
            return _real(*args, **options)

        monkeypatch.setattr(owner, name, sometimes)
    run = place.run(early_stop=False, max_epochs=20)
    done = 0
    for _ in run.epochs():
        for _ in run.steps(range(20)):
            place.clock.sleep(0.5)
        done += 1
        run.report(0.95 if done == 15 else 0.2)
    assert done == 15
    assert run.target_reached
    run.close()


def test_leaving_the_inner_loop_early_counts_what_was_done(place):
    """If this fails, users who limit the steps of an epoch get wrong figures."""
    run = place.run(batch_sizes=[256], default_batch_size=256)
    for epoch in run.epochs():
        for number, _ in enumerate(run.steps(range(10_000))):
            place.clock.sleep(0.1)
            if number == 49:
                break
        place.clock.sleep(5.0)
        run.report(0.95 if epoch == 5 else 0.1)
    (entry,) = place.decisions()
    assert entry.outcome.epochs == 6
    for one in entry.outcome.measured:
        assert one.epoch_seconds == pytest.approx(10.0, rel=0.1)


class Ranks:
    """Two ranks in threads of one process, which meet at every exchange."""

    def __init__(self):
        self.barrier = threading.Barrier(2, timeout=60.0)
        self.values = [None, None]
        self.members = [Member(self, rank) for rank in range(2)]


class Member:
    """One of them."""

    def __init__(self, ranks, rank):
        self.ranks = ranks
        self.rank = rank

    def all_gather(self, value):
        """Every rank's value."""
        self.ranks.values[self.rank] = value
        self.ranks.barrier.wait()
        found = list(self.ranks.values)
        self.ranks.barrier.wait()
        return found

    def broadcast(self, value):
        """Rank 0's value."""
        return self.all_gather(value)[0]


@pytest.mark.parametrize(
    "broken", [None, "decide", "job on rank 1", "job on both", "nothing to measure there"]
)
def test_ranks_end_alike_whatever_fails_on_one(tmp_path, monkeypatch, broken):
    """If this fails, one rank waits for ever for another, or trains another batch size."""
    ranks, found = Ranks(), [None, None]
    if broken == "decide":
        monkeypatch.setattr(JobService, "decide", lambda *_, **__: 1 / 0)

    def train(rank):
        clock = VirtualClock()
        gpu = SimulatedGpu(catalog.board("V100"), clock, index=rank)
        if broken == "job on both" or (broken and broken.endswith(str(rank))):
            gpu = SimpleNamespace(info=None)  # a device that answers nothing
        run = Run(
            "ranks",
            batch_sizes=[32, 64],
            default_batch_size=64,
            target=0.9,
            devices=[] if rank and broken == "nothing to measure there" else [gpu],
            max_epochs=9,
            store=tmp_path / "s.sqlite",
            process_group=ranks.members[rank],
        )
        size, done = run.batch_size, 0
        for _ in run.epochs():
            clock.sleep(1.0 + rank)
            done += 1
            if rank == 0 or run.decision is None:
                run.report(0.3 * done + 0.05)
        found[rank] = size, done, run.target_reached

    threads = [threading.Thread(target=train, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert found == [(64, 3, True)] * 2
    assert not ranks.barrier.broken
    if broken in {None, "nothing to measure there"}:
        backend = open_backend(tmp_path / "s.sqlite")
        (entry,), used = backend.decisions(1)[0], backend.energy(1)[0]
        backend.close()
        assert (entry.outcome.end, entry.outcome.epochs) == (RunEnd.REACHED, 3)
        assert {one.device for one in used} >= {"simulated:v100:0"}
        assert sum(one.joules for one in used) == pytest.approx(entry.outcome.joules)
    if broken is None:
        assert [one.seconds for one in used] == pytest.approx([3.0, 6.0])


def test_rank_0_tells_what_its_own_process_sees(tmp_path, monkeypatch):
    """If this fails, the devices of one process pass for those of all, or ranks tell twice."""
    ranks, seen = Ranks(), []

    def spy(backend, decision, progress=None, live=None):
        seen.append(live)
        return DecisionLease(held=True, expires_wall_seconds=0.0)

    monkeypatch.setattr(JobService, "heartbeat", spy)
    monkeypatch.setattr("joulery.client._resilient.is_server", lambda _: True)

    def train(rank):
        clock = VirtualClock()
        gpu = SimulatedGpu(catalog.board("V100"), clock, index=rank)
        run = Run(
            "ranks",
            batch_sizes=[32, 64],
            default_batch_size=64,
            target=0.9,
            max_epochs=2,
            devices=[gpu],
            store=tmp_path / "s.sqlite",
            process_group=ranks.members[rank],
        )
        for _ in run.epochs():
            clock.sleep(30.0)

    threads = [threading.Thread(target=train, args=(rank,), daemon=True) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60.0)
    assert [live.seconds for live in seen] == pytest.approx([12.0, 24.0, 36.0, 48.0, 60.0])
    assert {live.processes for live in seen} == {2}
    assert all(len(live.devices) == 1 and live.devices[0].watts > 0 for live in seen)
