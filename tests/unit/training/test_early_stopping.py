"""Runs end at their target, or at their cost limit, even within an epoch; nothing else is left."""

import dataclasses
import gc
import itertools
import math
import weakref
from types import SimpleNamespace

import pytest

from joulery.clock import REAL_CLOCK, VirtualClock
from joulery.hardware import SimulatedGpu, catalog
from joulery.jobs.policies import ActionKind, RunEnd
from joulery.objectives import Cost
from joulery.training import Run
from joulery.training._early_stopping import CostLimit, TargetTracker
from joulery.training._energy import Usage

COST = Cost(0.5, 250.0)
EPOCHS = {32: 14, 64: 10, 128: 9, 256: 10, 512: 16, 1024: 30}
STEP_SECONDS = 10.0
ENDLESS = 10_000
SAMPLES = 2048


@pytest.fixture
def place(place):
    """A board whose counter is read twice a step: days pass here, step by step."""
    board = dataclasses.replace(place.gpu.board, counter_period_seconds=0.5 * STEP_SECONDS)
    place.gpu = SimulatedGpu(board, place.clock)
    return place


def train(place, run, steps=ENDLESS, metric=0.5, most=60):
    """One attempt whose epochs have so many steps; how many steps each of them had."""
    seen = []
    for _ in run.epochs():
        if len(seen) == most:
            break
        seen.append(0)
        for _ in run.steps(range(steps)):
            place.clock.sleep(STEP_SECONDS)
            seen[-1] += 1
        run.report(metric)
    return seen


def last(place):
    """The latest decision of a training."""
    return [one for one in place.decisions() if one.decision.kind == ActionKind.TRAIN][-1]


def test_an_endless_first_epoch_is_left_at_its_ceiling(place, caplog):
    """If this fails, one epoch of a batch size that was only tried may cost any amount."""
    place.recur(0)
    run = place.run()
    ceiling = run.decision.cost_ceiling_joules
    assert ceiling < math.inf
    (steps,) = train(place, run, metric=0.99)
    assert steps < ENDLESS
    assert not run.target_reached  # what is reported of an epoch that was left does not count
    assert "cost limit within epoch 1" in run.stop_reason
    assert "cost limit within epoch 1" in caplog.text
    reported = last(place).outcome
    assert (reported.end, reported.epochs) == (RunEnd.STOPPED, 0)
    spent = COST.of(reported.seconds, reported.joules)
    assert ceiling < spent < ceiling + 2 * STEP_SECONDS * COST.max_watts
    assert place.gpu.power_limits().current_watts == 250


def test_whole_epochs_before_it_count(place):
    """If this fails, what an attempt has shown is lost with its last epoch."""
    place.recur(0)
    run, seen = place.run(), []
    for epoch in run.epochs():
        for _ in run.steps(range(6 if epoch < 2 else ENDLESS)):
            place.clock.sleep(STEP_SECONDS)
        seen.append(epoch)
        run.report(0.5)
    assert seen == [0, 1, 2]
    reported = last(place).outcome
    assert (reported.end, reported.epochs) == (RunEnd.STOPPED, 2)
    assert "within epoch 3" in run.stop_reason
    for one in reported.measured:
        assert one.epoch_seconds == pytest.approx(60.0, rel=0.05)


def test_what_was_measured_is_reported_by_the_length_of_the_epoch(place):
    """If this fails, a stopped attempt teaches nothing about what an epoch costs."""
    place.recur(0)
    run = place.run()
    work = catalogued(place)
    for _ in run.epochs():
        for _ in run.steps(range(5_000)):
            place.gpu.run(work)
        run.report(0.5)
    reported = last(place).outcome
    assert (reported.end, reported.epochs) == (RunEnd.STOPPED, 0)
    assert reported.measured
    for one in reported.measured:
        assert one.epoch_seconds == pytest.approx(
            5_000 * reported.seconds / run.total_steps, rel=0.2
        )


def catalogued(place, factor=20.0):
    """A step of many samples."""
    return catalog.workload("resnet50", place.gpu.board).scaled(factor)


def test_the_next_attempt_follows(place):
    """If this fails, a recurrence whose attempt was left has no model."""
    place.recur(0, policy="zeus")
    run, stopped = place.run(policy="zeus"), False
    for _ in run.attempts():
        train(place, run, 2 if stopped else ENDLESS, metric=0.95)
        stopped = stopped or run.stop_reason is not None
    assert run.target_reached
    ended = [one.outcome.end for one in place.decisions() if one.decision.kind == ActionKind.TRAIN]
    assert RunEnd.STOPPED in ended
    assert ended[-1] == RunEnd.REACHED
    assert {one.decision.recurrence for one in place.decisions()} == {0, 1}


def test_a_plain_loop_says_that_it_ends_without_a_model(place, caplog):
    """If this fails, a loop that cannot be begun again ends without a model and without a word."""
    place.recur(0)
    run = place.run()
    train(place, run, ENDLESS)
    assert run.stop_reason is not None
    assert "ends without a model; the next one will not be stopped" in caplog.text
    caplog.clear()
    run = place.run()
    train(place, run, 2, metric=0.95)
    assert run.target_reached
    assert math.isinf(run.decision.cost_ceiling_joules)
    assert "without a model" not in caplog.text


def test_a_job_that_became_many_times_as_long_gets_its_model(place):
    """If this fails, a nightly job that changed is stopped night after night."""
    place.samples = 1024
    for seed in range(3):
        place.recur(seed)
    reached = []
    for _ in range(6):
        run = place.run(max_epochs=1000)
        place.train(run, 15 * EPOCHS[run.batch_size])
        reached.append(run.target_reached)
    assert all(one or another for one, another in itertools.pairwise(reached))


def test_a_training_that_follows_its_probe_is_left_too(place):
    """If this fails, what was probed for seconds may then cost any amount."""
    place.recur(0)
    run, work, probed = place.run(), catalogued(place, 0.5), 0
    for _ in run.attempts():
        for _ in run.epochs():
            for _ in run.steps(range(SAMPLES // run.batch_size)):
                if run.decision.kind == ActionKind.PROBE:
                    place.gpu.run(work)
                    probed += 1
                else:
                    place.clock.sleep(500.0)  # it hangs
            run.report(0.5)
        if run.stop_reason is not None:
            break
    run.close()
    assert probed
    reported = last(place)
    assert reported.decision.batch_size == run.batch_size
    assert (reported.outcome.end, reported.outcome.epochs) == (RunEnd.STOPPED, 0)
    spent = COST.of(reported.outcome.seconds, reported.outcome.joules)
    assert spent < reported.decision.cost_ceiling_joules + 1000.0 * COST.max_watts


@pytest.mark.parametrize("options", [{"early_stop": False}, {"dry_run": True}])
def test_those_who_must_not_be_stopped_are_not(place, options):
    """If this fails, a user who was promised a model gets none."""
    place.recur(0)
    assert train(place, place.run(**options), 500, most=1) == [500]


def test_the_last_attempt_is_not_left(place):
    """If this fails, a job whose every attempt is over its cost limit never has a model."""
    place.recur(0, policy="zeus")
    run = place.run(policy="zeus")
    seen = [sum(train(place, run, 500, most=2)) for _ in run.attempts()]
    assert seen[-1] == 1000
    assert max(seen[:-1]) < 500


def test_an_epoch_that_ends_in_time_is_whole(place):
    """If this fails, validation that passes the ceiling costs an epoch that was trained."""
    place.recur(0)
    run = place.run()
    for _ in run.epochs():
        for _ in run.steps(range(2)):
            place.clock.sleep(STEP_SECONDS)
        place.clock.sleep(5000.0)  # validation: nothing to be left there
        run.report(0.99)
    assert run.target_reached
    reported = last(place).outcome
    assert (reported.end, reported.epochs) == (RunEnd.REACHED, 1)


def test_loops_that_report_their_steps_by_hand_are_not_cut(place):
    """If this fails, an epoch that was trained to its end does not count."""
    place.recur(0)
    run, done = place.run(), 0
    for _ in run.epochs():
        for _ in range(400):
            place.clock.sleep(STEP_SECONDS)
            run.step()
            done += 1
        run.report(0.99)
    assert done == 400
    assert run.target_reached


def test_loops_without_epochs_are_not_cut(place):
    """If this fails, a loop that counts its own epochs loses the rest of each."""
    place.recur(0)
    run = place.run()
    assert run.batch_size
    assert sum(1 for _ in run.steps(place.clock.sleep(STEP_SECONDS) for _ in range(400))) == 400
    run.close()


def test_a_second_loop_of_the_same_epoch_is_empty(place):
    """If this fails, the rest of an epoch that was left is trained all the same."""
    place.recur(0)
    run, seen = place.run(), []
    for _ in run.epochs():
        for _ in run.steps(range(ENDLESS)):
            place.clock.sleep(STEP_SECONDS)
        seen += list(run.steps(range(5)))
        run.report(0.5)
    assert seen == []
    assert last(place).outcome.end == RunEnd.STOPPED


def test_leaving_the_loop_by_oneself_is_no_stop(place):
    """If this fails, an epoch that its owner cuts short counts as stopped."""
    place.recur(0)
    run = place.run()
    for _ in run.epochs():
        for number, _ in enumerate(run.steps(range(ENDLESS))):
            place.clock.sleep(STEP_SECONDS)
            if number == 1:
                break
        run.report(0.99)
    assert run.target_reached
    assert last(place).outcome.epochs == 1


class Ranks:
    """A group of one rank, which agrees with itself."""

    rank = 0

    def broadcast(self, value):
        """Its own."""
        return value

    def all_gather(self, value):
        """Its own."""
        return [value]


def test_ranks_leave_their_loops_between_epochs(place):
    """If this fails, one rank leaves its loop while the others wait for it."""
    place.recur(0)
    assert train(place, place.run(process_group=Ranks()), 500) == [500]


def limit_of(clock, watts=100.0, limit=1000.0, max_watts=250.0):
    """The cost limit of something that costs ``watts`` joules a second, and its checks."""
    decision = SimpleNamespace(cost_ceiling_joules=limit, batch_size=64, reason="a try")
    checks = []

    def here():
        checks.append(clock.now())
        return Usage(0.0, 2 * watts * clock.now())

    account = SimpleNamespace(epochs=2, here=here)
    job = SimpleNamespace(cost=Cost(0.5, max_watts))
    return CostLimit(decision, job, account, clock), checks


def test_the_cost_is_checked_no_more_often_than_it_must():
    """If this fails, checking costs more than it saves on long runs."""
    clock = VirtualClock()
    limit, checks = limit_of(clock, watts=100.0, limit=1e6)
    reason = None
    while reason is None:
        clock.sleep(0.1)
        reason = limit.exceeded_within_epoch() if limit.is_due() else None
    assert 10_000.0 <= clock.now() <= 10_010.0
    assert len(checks) < 30
    assert "within epoch 3, at 1.00 MJ of at most 1.00 MJ (batch size 64: a try)" in reason


@pytest.mark.parametrize("cost", [math.nan, 0.0])
def test_what_is_not_known_stops_nothing(cost):
    """If this fails, a meter that fails ends a training."""
    clock = VirtualClock()
    limit, _ = limit_of(clock, watts=cost)
    for _ in range(3):
        clock.sleep(5.0)
        assert limit.exceeded_within_epoch() is None


def test_a_loop_is_left_in_real_time(place, monkeypatch):
    """If this fails, only simulated epochs are left."""
    place.recur(0)
    run = Run(
        "nightly",
        batch_sizes=[32, 64, 128, 256, 512, 1024],
        default_batch_size=1024,
        target=0.9,
        max_epochs=60,
        devices=[SimulatedGpu(place.gpu.board, REAL_CLOCK)],
        store=place.store,
    )
    assert run.decision.cost_ceiling_joules < math.inf
    monkeypatch.setattr(
        "joulery.training._energy.EnergyAccount.here", lambda _: Usage(math.inf, math.inf)
    )
    seen = 0
    for _ in run.epochs():
        for _ in run.steps(iter(range(ENDLESS))):
            seen += 1
    assert 0 < seen < ENDLESS
    assert "within epoch 1" in run.stop_reason


@pytest.mark.parametrize(
    ("metrics", "higher", "reached"),
    [
        ([0.5, 0.76], True, True),
        ([0.5, 0.7599], True, False),
        ([0.9, 0.76], False, True),
        ([0.77], False, False),
        ([math.nan, 0.9], True, True),
        (["0.8"], True, True),
    ],
)
def test_a_target_is_reached_from_the_right_side(metrics, higher, reached):
    """If this fails, runs end too early or never."""
    target = TargetTracker(0.76, higher_is_better=higher)
    for metric in metrics:
        target.report(metric)
    assert target.reached is reached


def test_without_a_target_nothing_is_reached():
    """If this fails, runs without a target end after their first epoch."""
    target = TargetTracker(None)
    target.report(1e9)
    assert not target.reached
    assert not target.has_target


def test_divergence_after_the_target_is_no_failure():
    """If this fails, a run that got there counts as failed."""
    target = TargetTracker(0.5)
    target.report(0.6)
    target.report(math.nan)
    assert target.reached
    assert not target.diverged


def test_a_cost_limit_keeps_no_run_alive(place):
    """If this fails, a run without any reference goes on until the process ends."""
    place.recur(0)
    run = place.run()
    assert run.decision.cost_ceiling_joules < math.inf
    epochs = run.epochs()
    next(epochs)
    gone = weakref.ref(run)
    epochs.close()
    del epochs, run
    gc.collect()
    assert gone() is None
