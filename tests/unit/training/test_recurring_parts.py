"""Small parts of recurring runs: goals, learning rates, limits, spending, heartbeats, sites."""

import math
import threading

import pytest

from joulery.clock import REAL_CLOCK, VirtualClock
from joulery.hardware import catalog
from joulery.hardware.simulated import SimulatedGpu
from joulery.metering.meter import Meter
from joulery.power.messages import Reading, State, TuningEvent
from joulery.power.rules import Rules
from joulery.training.energy_account import NOTHING, EnergyAccount, Usage, figures_of, together
from joulery.training.environment import RunEnvironment
from joulery.training.goal import Goal
from joulery.training.heartbeat import Heartbeat
from joulery.training.job_settings import Recurring
from joulery.training.learning_rate import is_adaptive, scaled_learning_rate
from joulery.training.limit_plan import PlannedMachine, listed_limits


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
    goal = Goal(0.76, higher_is_better=higher)
    for metric in metrics:
        goal.tell(metric)
    assert goal.reached is reached


def test_a_goal_without_a_target_is_never_reached():
    """If this fails, runs without a target end after their first epoch."""
    goal = Goal(None)
    goal.tell(1e9)
    assert not goal.reached
    assert goal.best == 1e9


def test_divergence_after_the_target_is_no_failure():
    """If this fails, a run that got there counts as failed."""
    goal = Goal(0.5)
    goal.tell(0.6)
    goal.tell(math.nan)
    assert goal.reached
    assert not goal.diverged


@pytest.mark.parametrize(
    ("rule", "factor"),
    [
        ("sqrt", 2.0),
        ("linear", 4.0),
        ("SGD", 4.0),
        ("Adam", 2.0),
        ("AdamW", 2.0),
        ("Adadelta", 2.0),
        ("RMSprop", 2.0),
        (type("NAdam", (), {}), 2.0),
        (type("SGD", (), {})(), 4.0),
    ],
)
def test_learning_rates_scale_by_the_kind_of_optimizer(rule, factor):
    """If this fails, large batches train with a rate that does not fit their optimizer."""
    assert scaled_learning_rate(0.1, 1024, 256, rule) == pytest.approx(0.1 * factor)


def test_momentum_is_not_adaptive():
    """If this fails, plain gradient descent gets the wrong rule."""
    assert not is_adaptive("SGD with momentum")
    assert not is_adaptive("ASGD")


@pytest.mark.parametrize("name", ["V100", "A40", "P100", "RTX6000"])
def test_limits_of_a_job_are_few_and_within_range(name):
    """If this fails, profiling takes for ever, or a limit is refused by the board."""
    board = catalog.board(name)
    limits = listed_limits([SimulatedGpu(board, VirtualClock())])
    assert 2 <= len(limits) <= 10
    assert limits[0] >= board.min_limit_watts
    assert limits[-1] == board.default_limit_watts
    assert list(limits) == sorted(set(limits))


def test_no_board_has_no_limits():
    """If this fails, jobs on processors cannot be defined."""
    assert listed_limits([]) == ()


def drive(machine, seconds=200.0, pace=0.1, watts=100.0):
    """Feed a machine with even steps; positions by how long they were held, and the last state."""
    reading = Reading(0.0, 0.0, 0.01, 0)
    command, held = machine.start(reading), {}
    while reading.now_seconds < seconds:
        steps = min(command.steps, 50)
        span = steps * pace
        held[command.position] = held.get(command.position, 0.0) + span
        joules = reading.joules + span * (watts + 10.0 * command.position)
        reading = Reading(reading.now_seconds + span, joules, 0.01, reading.steps + steps)
        command = machine.send(reading)
    return held, command


def test_a_plan_measures_what_it_should_and_then_holds():
    """If this fails, decisions about power limits are not carried out."""
    done = []
    machine = PlannedMachine(Rules(), 3, [2, 0], 1, lambda: done.append(1))
    held, command = drive(machine)
    assert command.position == 1
    assert command.state is State.HOLDING
    assert done == [1]
    assert held[1] > 150
    for position in (0, 2):
        assert 5.0 <= held[position] < 12.0
    found = machine.estimates()
    assert found[2].watts == pytest.approx(120.0, rel=0.01)
    assert found[0].seconds == pytest.approx(0.1, rel=0.01)
    assert machine.settled.position == 1
    assert set(machine.settled.measured) == {0, 1, 2, 3}


def test_a_plan_survives_pauses():
    """If this fails, short epochs keep a probe from ever ending."""
    machine = PlannedMachine(Rules(), 1, [0], 0, None)
    reading = Reading(0.0, 0.0, 0.01, 0)
    command = machine.start(reading)
    for _ in range(60):
        for _ in range(3):
            steps = min(command.steps, 5)
            now = reading.now_seconds + 0.1 * steps
            reading = Reading(now, now * 100.0, 0.01, reading.steps + steps)
            command = machine.send(reading)
        pause = Reading(
            reading.now_seconds, reading.joules, 0.01, reading.steps, TuningEvent.PAUSED
        )
        machine.send(pause)
        now = reading.now_seconds + 5.0
        reading = Reading(now, reading.joules + 100.0, 0.01, reading.steps, TuningEvent.RESUMED)
        command = machine.send(reading)
    assert machine.settled is not None
    assert machine.estimates()[0].watts == pytest.approx(100.0, rel=0.02)


def test_spending_keeps_training_and_the_rest_apart():
    """If this fails, epochs are judged by figures that leave validation out, or count it twice."""
    clock = VirtualClock()
    gpu = SimulatedGpu(catalog.board("V100"), clock)
    work = catalog.workload("resnet50", gpu.board).scaled(0.2)
    with Meter([gpu], clock=clock) as meter:
        spending = EnergyAccount(meter)
        for _ in range(3):
            spending.begin_epoch()
            spending.begin_training()
            for _ in range(30):
                gpu.run(work)
            spending.end_training(30)
            clock.sleep(4.0)
            spending.end_epoch(250.0)
        total = spending.end()
        clock.sleep(100.0)
        assert spending.now() == total
    assert sum(epoch.whole.seconds for epoch in spending.epochs) == pytest.approx(total.seconds)
    assert spending.besides().seconds == pytest.approx(4.0, rel=0.01)
    held = spending.held(250.0)
    assert held.seconds == pytest.approx(total.seconds / 3)
    assert held.relative_error >= 0.005
    assert spending.held(200.0) is None


def test_figures_say_how_sure_they_are():
    """If this fails, one noisy epoch counts as certain."""
    assert figures_of([]) is None
    assert figures_of([Usage(10.0, 0.0)]) is None
    assert figures_of([Usage(10.0, 100.0)]).relative_error == 0.02
    noisy = figures_of([Usage(10.0, 100.0), Usage(14.0, 140.0)])
    assert noisy.relative_error > 0.1
    assert figures_of([Usage(10.0, 100.0)] * 50).relative_error == 0.005


def test_ranks_add_joules_and_wait_for_the_slowest():
    """If this fails, a job on four boards seems to use one."""

    class Ranks:
        rank = 0

        def agree(self, value):
            return value

        def gather(self, value):
            return [value, (12.0, 50.0)]

    assert together(Usage(10.0, 100.0), Ranks()) == Usage(12.0, 150.0)
    assert together(NOTHING, None) == NOTHING
    assert not Usage(1.0, math.nan).known


class Heart:
    """Counts its beats."""

    def __init__(self, error=None):
        self.beats = threading.Semaphore(0)
        self.count = 0
        self.error = error

    def beat(self):
        """Once more."""
        self.count += 1
        self.beats.release()
        if self.error is not None:
            raise self.error


def test_a_heart_beats_until_it_is_stopped_or_gone():
    """If this fails, leases of living runs expire, or those of forgotten ones never do."""
    clock = VirtualClock()
    who = Heart()
    heartbeat = Heartbeat(who, 10.0, clock)
    heartbeat.start()
    clock.sleep(35.0)
    assert who.count == 3
    heartbeat.stop()
    clock.sleep(35.0)
    assert who.count == 3
    gone = Heart()
    Heartbeat(gone, 10.0, clock).start()
    del gone
    clock.sleep(35.0)


def test_a_beat_that_fails_is_followed_by_another():
    """If this fails, one hiccup ends all signs of life."""
    who = Heart(ValueError("hiccup"))
    heartbeat = Heartbeat(who, 0.005, REAL_CLOCK)
    heartbeat.start()
    for _ in range(3):
        assert who.beats.acquire(timeout=5.0)
    heartbeat.stop()


def test_sizes_are_put_in_order_and_get_a_default():
    """If this fails, a list as people write it is refused."""
    settings = Recurring("job", [256, 64, 128, 64], 512).in_order()
    assert settings.batch_sizes == (64, 128, 256, 512)
    assert Recurring("job", [256, 64, 128]).in_order().usual == 128
    assert "secret" not in repr(Recurring("job", [1], token="secret" * 2))


def test_a_site_knows_its_processes():
    """If this fails, each rank loads the whole batch."""
    assert RunEnvironment(environ={}).processes == 1
    assert RunEnvironment(environ={"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}).processes == 4
    alike = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "16"}
    assert RunEnvironment(environ=alike).processes == 16
    assert RunEnvironment(environ={"WORLD_SIZE": "many"}).processes == 1
