"""The machine that follows a plan: measure some limits, hold one."""

import pytest

from joulery.power import Reading, TunerConfig, TunerState
from joulery.power._state_machine import PlannedMachine
from joulery.power._step_profiler import TuningEvent


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
    machine = PlannedMachine(TunerConfig(), 3, [2, 0], 1, lambda: done.append(1))
    held, command = drive(machine)
    assert command.position == 1
    assert command.state is TunerState.HOLDING
    assert done == [1]
    assert held[1] > 150
    for position in (0, 2):
        assert 5.0 <= held[position] < 12.0
    found = machine.estimates()
    assert found[2].watts == pytest.approx(120.0, rel=0.01)
    assert found[0].seconds == pytest.approx(0.1, rel=0.01)
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
