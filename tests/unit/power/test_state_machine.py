"""The machines: follow a plan, or find the best limit of curves smooth and otherwise."""

import math

import numpy as np
import pytest

from joulery.objectives import Cost, LeastEnergy
from joulery.power import KnobRange, Reading, TunerConfig, TunerState, TuningMachine, limit_curves
from joulery.power._state_machine import PlannedMachine
from joulery.power._step_profiler import TuningEvent


def drive(machine, seconds=200.0, pace=0.1, watts=100.0):
    """Feed a machine with even steps; positions by how long they were held, and the last state."""
    reading = Reading(0.0, 0.0, 0.01, 0)
    command, held_at = machine.start(reading), {}
    while reading.now_seconds < seconds:
        steps = min(command.steps, 50)
        span = steps * pace
        held_at[command.position] = held_at.get(command.position, 0.0) + span
        joules = reading.joules + span * (watts + 10.0 * command.position)
        reading = Reading(reading.now_seconds + span, joules, 0.01, reading.steps + steps)
        command = machine.send(reading)
    return held_at, command


def test_a_plan_measures_what_it_should_and_then_holds():
    """If this fails, decisions about power limits are not carried out."""
    done = []
    machine = PlannedMachine(TunerConfig(), 3, [2, 0], 1, lambda: done.append(1))
    held_at, command = drive(machine)
    assert command.position == 1
    assert command.state is TunerState.HOLDING
    assert done == [1]
    assert held_at[1] > 150
    for position in (0, 2):
        assert 5.0 <= held_at[position] < 12.0
    estimates = machine.estimates()
    assert estimates[2].watts == pytest.approx(120.0, rel=0.01)
    assert estimates[0].seconds == pytest.approx(0.1, rel=0.01)
    assert machine.choice.position == 1
    assert set(machine.choice.measured) == {0, 1, 2, 3}


def test_a_plan_survives_pauses():
    """If this fails, short epochs keep a probe from ever ending."""
    machine = PlannedMachine(TunerConfig(), 1, [0], 0, None)
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
    assert machine.choice is not None
    assert machine.estimates()[0].watts == pytest.approx(100.0, rel=0.02)


LIMITS = np.arange(100.0, 301.0, 2.0)


class Work:
    """Steps whose time and power over the limits are given, with noise, and a known best limit."""

    def __init__(self, seconds, watts, seed=0):
        self.seconds, self.watts = seconds, watts
        self.chance = np.random.default_rng(seed)
        self.worse = 1.0
        self.held = False
        self.hot_seconds = ()  # begin and end of each time when the board is hot
        self.ceiling = len(LIMITS) - 1  # position that it does not exceed then
        self.stall_seconds, self.stall_every = 0.0, 50.0  # mean number of steps between stalls
        self.later = math.inf, self  # time from which on other work follows

    def tuned(self, objective, seconds=150.0):
        """The position that is held in the end."""
        span = KnobRange(LIMITS, lambda watts: limit_curves(LIMITS, watts))
        machine = TuningMachine(span, objective, TunerConfig())
        now = joules = 0.0
        steps = 0
        command = machine.start(Reading(now, joules, 0.5, steps))
        while now < seconds:
            noise = 1 + 0.003 * self.chance.standard_normal() / math.sqrt(command.steps)
            hot = any(begin <= now < end for begin, end in self.hot_seconds)
            position = min(command.position, self.ceiling) if hot else command.position
            work = self.later[1] if now >= self.later[0] else self
            pace, watts = work.seconds[position], work.watts[position]
            self.held |= command.state is TunerState.HOLDING
            if self.held and command.position < len(LIMITS) - 1:
                pace *= self.worse
            elapsed = pace * command.steps * noise
            now, joules = now + elapsed, joules + elapsed * watts
            if self.stall_seconds:
                stalls = self.chance.binomial(command.steps, 1 / self.stall_every)
                now += stalls * self.stall_seconds
                joules += 0.3 * stalls * self.stall_seconds * watts
            steps += command.steps
            command = machine.send(Reading(now, joules, 0.5, steps))
        assert command.state is TunerState.HOLDING
        return command.position

    def slowdown_of_run(self, objective, steps, scatter):
        """Extra time of a run whose steps scatter, against the same ones at the reference."""
        span = KnobRange(LIMITS, lambda watts: limit_curves(LIMITS, watts))
        machine = TuningMachine(span, objective, TunerConfig())
        lengths = np.exp(scatter * self.chance.standard_normal(steps) - scatter**2 / 2)
        now = joules = 0.0
        done, command = 0, machine.start(Reading(0.0, 0.0, 0.5, 0))
        while done < steps:
            elapsed = self.seconds[command.position] * lengths[done : done + command.steps].sum()
            now, joules = now + elapsed, joules + elapsed * self.watts[command.position]
            done = min(steps, done + command.steps)
            command = machine.send(Reading(now, joules, 0.5, done))
        return now / (self.seconds[-1] * lengths.sum()) - 1

    def excess(self, position):
        """Relative energy of a position above the least."""
        joules = self.seconds * self.watts
        return joules[position] / joules.min() - 1


def smooth():
    """Seconds and watts of a job that the limit binds below 260 W."""
    watts = np.clip(LIMITS, 90.0, 260.0)
    return 0.1 * (260.0 / watts) ** 0.6, watts * 0.98


def kinked():
    """Two straight lines that meet at the best limit."""
    seconds, watts = smooth()
    return seconds * (1 + 1.2 * np.maximum(0.0, 170.0 - LIMITS) / 100.0), watts


def dipped():
    """A limit range in which the job is faster than above and below it."""
    seconds, watts = smooth()
    return seconds * (1 - 0.1 * np.maximum(0.0, 1 - np.abs(LIMITS - 236.0) / 20.0)) * (
        LIMITS / 300.0
    ) ** -0.45, watts


def ragged():
    """A job that waits for its host, whose time varies by several per cent without order."""
    random = np.random.default_rng(4)
    knots = np.arange(100.0, 301.0, 25.0)
    pace = np.interp(LIMITS, knots, 0.1 * (1 + 0.04 * random.standard_normal(len(knots))))
    return pace, np.full(len(LIMITS), 85.0)


@pytest.mark.parametrize("curves", [smooth, kinked, dipped, ragged])
def test_kinks_and_dips_are_found(curves):
    """A model that only knows smooth curves holds a limit beside the best one."""
    work = Work(*curves())
    assert work.excess(work.tuned(Cost(1.0))) <= 0.005


def test_a_choice_that_costs_more_than_the_limit_found_is_given_up():
    """Whatever the model believes, tuning must not end worse than doing nothing."""
    work = Work(*smooth())
    work.worse = 2.0
    assert work.tuned(Cost(0.5, 300.0), seconds=300.0) == len(LIMITS) - 1


@pytest.mark.parametrize("curves", [smooth, kinked])
def test_the_slowdown_bound_is_kept(curves):
    """A bound that is broken in the end is a promise broken."""
    work = Work(*curves())
    choice = work.tuned(LeastEnergy(max_slowdown=0.05))
    positions = np.flatnonzero(work.seconds <= 1.05 * work.seconds[-1])
    assert choice in positions
    joules = work.seconds * work.watts
    assert joules[choice] / joules[positions].min() - 1 <= 0.01


@pytest.mark.parametrize("hot_seconds", [[(60, 400)], [(10, 50), (100, 160), (200, 400)]])
def test_a_board_that_got_hot_is_not_compared_with(hot_seconds):
    """A limit seems to cost nothing while the board is hot, and is far too slow once it is not."""
    work = Work(*smooth())
    work.hot_seconds = hot_seconds
    work.ceiling = int(np.flatnonzero(work.seconds > 1.2 * work.seconds[-1]).max())
    choice = work.tuned(LeastEnergy(max_slowdown=0.05), seconds=300.0)
    assert work.seconds[choice] <= 1.05 * work.seconds[-1]
    assert work.seconds[choice] * work.watts[choice] < 0.99 * work.seconds[-1] * work.watts[-1]


def test_the_slowdown_bound_is_on_the_time_of_the_job():
    """A job that stalls would save less than it may, since its stalls take as long as before."""
    work = Work(*smooth())
    work.stall_seconds = 1.0
    waiting = work.stall_seconds / work.stall_every
    seconds = work.seconds + waiting
    slowdown = seconds[work.tuned(LeastEnergy(max_slowdown=0.05), seconds=600.0)] / seconds[-1] - 1
    assert 0.045 < slowdown < 0.05


def test_longer_steps_of_the_same_power_are_no_heat():
    """A job that changed is taken for a hot board, and its limit stays that of the earlier job."""
    work = Work(*smooth())
    memory = Work(0.15 * (260.0 / work.watts) ** 0.1, work.watts)
    work.later = 100.0, memory
    choice = work.tuned(LeastEnergy(max_slowdown=0.05), seconds=400.0)
    assert choice == pytest.approx(
        np.flatnonzero(memory.seconds <= 1.05 * memory.seconds[-1]).min(), abs=8
    )


def test_short_runs_whose_steps_scatter_keep_their_bound():
    """Trials of limits whose slowdown is not known yet would break it."""
    seconds, watts = smooth()
    slowdowns = [
        Work(seconds, watts, seed).slowdown_of_run(LeastEnergy(max_slowdown=0.05), 500, 0.4)
        for seed in range(4)
    ]
    assert min(slowdowns) > 0
    assert max(slowdowns) <= 0.05
