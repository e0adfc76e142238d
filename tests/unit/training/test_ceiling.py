"""Attempts that become too dear within an epoch are left there, and nothing else is."""

import gc
import math
import threading
import weakref
from types import SimpleNamespace

import pytest

from joulery.clock import REAL_CLOCK, VirtualClock
from joulery.hardware import catalog
from joulery.hardware.simulated import SimulatedGpu
from joulery.jobs.policies.base import ActionKind, RunEnd
from joulery.objectives import Cost
from joulery.training.background import BackgroundTasks
from joulery.training.ceiling import CeilingWatch
from joulery.training.run import Run

COST = Cost(0.5, 250.0)
STEP_SECONDS = 10.0
ENDLESS = 10_000
SAMPLES = 8192


def train(place, run, steps=ENDLESS, epochs=60, metric=0.5):
    """One attempt whose epochs are so many seconds; how many steps each of them had."""
    seen = []
    for _ in run.epochs(epochs):
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
    assert not run.reached  # what is reported of an epoch that was left does not count
    assert "cost ceiling within epoch 1" in run.stopped
    assert "cost ceiling within epoch 1" in caplog.text
    told = last(place).outcome
    assert (told.end, told.epochs) == (RunEnd.STOPPED, 0)
    spent = COST.of(told.seconds, told.joules)
    assert ceiling < spent < ceiling + 2 * STEP_SECONDS * COST.max_watts
    assert place.gpu.power_limits().current_watts == 250


def test_whole_epochs_before_it_count(place):
    """If this fails, what an attempt has shown is lost with its last epoch."""
    place.recur(0)
    run, seen = place.run(), []
    for epoch in run.epochs(60):
        for _ in run.steps(range(6 if epoch < 2 else ENDLESS)):
            place.clock.sleep(STEP_SECONDS)
        seen.append(epoch)
        run.report(0.5)
    assert seen == [0, 1, 2]
    told = last(place).outcome
    assert (told.end, told.epochs) == (RunEnd.STOPPED, 2)
    assert "within epoch 3" in run.stopped
    for one in told.measured:
        assert one.epoch_seconds == pytest.approx(60.0, rel=0.05)


def test_what_was_measured_is_told_by_the_length_of_the_epoch(place):
    """If this fails, a stopped attempt teaches nothing about what an epoch costs."""
    place.recur(0)
    run = place.run()
    work = catalogued(place)
    for _ in run.epochs(60):
        for _ in run.steps(range(5_000)):
            place.gpu.run(work)
        run.report(0.5)
    told = last(place).outcome
    assert (told.end, told.epochs) == (RunEnd.STOPPED, 0)
    assert told.measured
    for one in told.measured:
        assert one.epoch_seconds == pytest.approx(5_000 * told.seconds / run.total_steps, rel=0.2)


def catalogued(place, factor=20.0):
    """A step of many samples."""
    return catalog.workload("resnet50", place.gpu.board).scaled(factor)


def test_the_next_attempt_follows(place):
    """If this fails, a recurrence whose attempt was left has no model."""
    place.recur(0, policy="zeus")
    run, stopped = place.run(policy="zeus"), False
    for _ in run.attempts():
        train(place, run, 2 if stopped else ENDLESS, metric=0.95)
        stopped = stopped or run.stopped is not None
    assert run.reached
    ended = [one.outcome.end for one in place.decisions() if one.decision.kind == ActionKind.TRAIN]
    assert RunEnd.STOPPED in ended
    assert ended[-1] == RunEnd.REACHED
    assert {one.decision.recurrence for one in place.decisions()} == {0, 1}


def test_a_training_that_follows_its_probe_is_left_too(place):
    """If this fails, what was probed for seconds may then cost any amount."""
    place.recur(0)
    run, work, probed = place.run(), catalogued(place, 0.5), 0
    for _ in run.attempts():
        for _ in run.epochs(60):
            for _ in run.steps(range(SAMPLES // run.batch_size)):
                if run.decision.kind == ActionKind.PROBE:
                    place.gpu.run(work)
                    probed += 1
                else:
                    place.clock.sleep(500.0)  # it hangs
            run.report(0.5)
        break
    run.close()
    assert probed
    told = last(place)
    assert told.decision.batch_size == run.batch_size
    assert (told.outcome.end, told.outcome.epochs) == (RunEnd.STOPPED, 0)
    spent = COST.of(told.outcome.seconds, told.outcome.joules)
    assert spent < told.decision.cost_ceiling_joules + 1000.0 * COST.max_watts


@pytest.mark.parametrize(
    "options", [{"early_stop": False}, {"observe": True}, {"batch_size": 64}, {"batch_size": 1024}]
)
def test_those_who_must_not_be_stopped_are_not(place, options):
    """If this fails, somebody who was promised a model gets none."""
    place.recur(0)
    assert train(place, place.run(**options), 500, epochs=1) == [500]


def test_the_last_attempt_is_not_left(place):
    """If this fails, a job whose every attempt is too dear never has a model."""
    place.recur(0, policy="zeus")
    run = place.run(policy="zeus")
    seen = [sum(train(place, run, 500, epochs=2)) for _ in run.attempts()]
    assert seen[-1] == 1000
    assert max(seen[:-1]) < 500


def test_an_epoch_that_ends_in_time_is_whole(place):
    """If this fails, validation that passes the ceiling costs an epoch that was trained."""
    place.recur(0)
    run = place.run()
    for _ in run.epochs(60):
        for _ in run.steps(range(2)):
            place.clock.sleep(STEP_SECONDS)
        place.clock.sleep(5000.0)  # validation: nothing to be left there
        run.report(0.99)
    assert run.reached
    told = last(place).outcome
    assert (told.end, told.epochs) == (RunEnd.REACHED, 1)


def test_loops_that_report_their_steps_by_hand_are_not_cut(place):
    """If this fails, an epoch that was trained to its end does not count."""
    place.recur(0)
    run, done = place.run(), 0
    for _ in run.epochs(1):
        for _ in range(400):
            place.clock.sleep(STEP_SECONDS)
            run.step()
            done += 1
        run.report(0.99)
    assert done == 400
    assert run.reached


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
    for _ in run.epochs(60):
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
    for _ in run.epochs(60):
        for number, _ in enumerate(run.steps(range(ENDLESS))):
            place.clock.sleep(STEP_SECONDS)
            if number == 1:
                break
        run.report(0.99)
    assert run.reached
    assert last(place).outcome.epochs == 1


class Ranks:
    """A group of one rank, which agrees with itself."""

    rank = 0

    def agree(self, value):
        """Its own."""
        return value

    def gather(self, value):
        """Its own."""
        return [value]

    def joined(self, machine):
        """As it is."""
        return machine


def test_ranks_leave_their_loops_between_epochs(place):
    """If this fails, one rank leaves its loop while the others wait for it."""
    place.recur(0)
    assert train(place, place.run(group=Ranks()), 500) == [500]


def attempt(clock, watts=100.0, ceiling=1000.0):
    """Something that costs ``watts`` joules a second."""
    decision = SimpleNamespace(cost_ceiling_joules=ceiling, batch_size=64, reason="a try")
    looks = []

    def cost_here():
        looks.append(clock.now())
        return watts * clock.now()

    return SimpleNamespace(decision=decision, epochs=2, cost_here=cost_here, looks=looks)


def test_a_watch_looks_no_more_often_than_it_must():
    """If this fails, looking costs more than it saves on long runs."""
    clock, called = VirtualClock(), []
    tried = attempt(clock, watts=100.0, ceiling=1e6)
    beside = BackgroundTasks(clock)
    job = SimpleNamespace(cost=Cost(0.5, 250.0))
    beside.watch(tried, job, lambda: called.append(clock.now()))
    beside.begin_training()
    clock.sleep(20_000.0)
    assert len(called) == 1
    assert 10_000.0 <= called[0] <= 10_010.0
    assert sum(look <= called[0] for look in tried.looks) < 30
    beside.stop()
    looks = len(tried.looks)
    clock.sleep(1000.0)
    assert len(tried.looks) == looks


def test_who_comes_after_the_last_step_is_too_late():
    """If this fails, a whole epoch is taken for one that was left."""
    clock, called = VirtualClock(), []
    watch = CeilingWatch(attempt(clock), 0.0, clock, lambda: called.append(1))
    clock.sleep(60.0)
    watch.beat()
    assert not called  # nothing trains yet
    watch.begin()
    watch.end()
    watch.beat()
    assert not called
    assert watch.why is None
    watch.begin()
    watch.beat()
    watch.beat()
    assert called == [1]
    assert "within epoch 3, at 6.00 kJ of at most 1.00 kJ (batch size 64: a try)" in watch.why
    watch.end()
    assert watch.why is None


@pytest.mark.parametrize("cost", [math.nan, 0.0])
def test_what_is_not_known_stops_nothing(cost):
    """If this fails, a meter that fails ends a training."""
    clock, called = VirtualClock(), []
    tried = attempt(clock)
    tried.cost_here = lambda: cost
    watch = CeilingWatch(tried, 250.0, clock, lambda: called.append(1))
    watch.begin()
    for _ in range(3):
        watch.beat()
        clock.sleep(5.0)
    assert not called


def test_a_thread_leaves_a_loop_in_real_time(place, monkeypatch):
    """If this fails, only simulated epochs are left."""
    place.recur(0)
    monkeypatch.setattr("joulery.training.background.LOOK_SECONDS", 0.01)
    run = Run(
        "nightly",
        batch_sizes=[32, 64, 128, 256, 512, 1024],
        default=1024,
        target=0.9,
        max_epochs=60,
        devices=[SimulatedGpu(place.gpu.board, REAL_CLOCK)],
        store=place.store,
    )
    assert run.decision.cost_ceiling_joules < math.inf
    monkeypatch.setattr("joulery.training.attempt.Attempt.cost_here", lambda _: math.inf)
    seen, over = 0, threading.Event()
    for _ in run.epochs(2):
        for _ in run.steps(iter(range(ENDLESS))):
            seen += 1
            over.wait(0.001)
    assert 0 < seen < ENDLESS
    assert "within epoch 1" in run.stopped


def test_a_watch_keeps_no_run_alive(place):
    """If this fails, a run that nobody holds any more goes on until the process ends."""
    place.recur(0)
    run = place.run()
    assert run.decision.cost_ceiling_joules < math.inf
    epochs = run.epochs(1)
    next(epochs)
    gone = weakref.ref(run)
    epochs.close()
    del epochs, run
    gc.collect()
    assert gone() is None
