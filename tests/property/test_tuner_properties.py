"""What holds for the tuner whatever the board, the job and the noise."""

import math

import numpy as np
from hypothesis import given, settings, strategies as st

from joulery.objectives import Cost, LeastEnergy
from joulery.power import KnobRange, Reading, TunerConfig, TunerState, TuningMachine, limit_curves
from joulery.power._step_profiler import Slice, StepSample, TuningEvent

LIMITS = np.arange(100.0, 301.0, 4.0)
LAST = len(LIMITS) - 1
FEW = settings(max_examples=12, derandomize=True)


class Job:
    """A made-up board and job: power follows the limit between a floor and what the job draws."""

    def __init__(self, draw, floor, steepness, step_seconds):
        self.watts = np.clip(LIMITS, floor, max(floor, draw))
        self.seconds = step_seconds * (self.watts[-1] / self.watts) ** steepness


jobs = st.builds(
    Job,
    draw=st.floats(60.0, 400.0),
    floor=st.floats(40.0, 160.0),
    steepness=st.floats(0.05, 1.5),
    step_seconds=st.sampled_from([0.002, 0.05, 2.0]),
)
objectives = st.one_of(
    st.floats(0.0, 1.0).map(lambda eta: Cost(eta, 300.0)),
    st.floats(0.01, 0.3).map(lambda slack: LeastEnergy(max_slowdown=slack)),
)


def tuned(job, objective, seed, rules):
    """Drive the machine until it holds; yields nothing, returns it with its last command."""
    chance = np.random.default_rng(seed)
    machine = TuningMachine(
        KnobRange(LIMITS, lambda watts: limit_curves(LIMITS, watts)), objective, rules
    )
    now, joules, steps = 0.0, 0.0, 0
    command = machine.start(Reading(now, joules, 0.5, steps))
    for _ in range(5000):
        assert 0 <= command.position <= LAST
        assert command.steps >= 1
        if command.state is TunerState.HOLDING:
            return machine, command
        spread = 0.003 * chance.standard_normal() / math.sqrt(command.steps)
        seconds = job.seconds[command.position] * command.steps * (1 + spread)
        now, steps = now + seconds, steps + command.steps
        joules += job.watts[command.position] * seconds
        command = machine.send(Reading(now, joules, 0.5, steps))
    raise AssertionError("never settled")


@FEW
@given(job=jobs, objective=objectives, seed=st.integers(0, 99))
def test_always_settles_near_the_best(job, objective, seed):
    """A board outside the catalog would make the tuner wander or hold nonsense."""
    machine, command = tuned(job, objective, seed, TunerConfig())
    seconds, joules = job.seconds, job.seconds * job.watts
    if isinstance(objective, Cost):
        scores = objective.eta * joules + (1 - objective.eta) * 300.0 * seconds
        late, allowed = 0.0, 0.0
    else:
        longest = seconds[-1] * (1 + objective.max_slowdown)
        scores = np.where(seconds <= longest * (1 + 1e-9), joules, np.inf)
        late = seconds[command.position] / longest - 1
        # Limits are 4 W apart here: the next that keeps the bound may cost a few per cent more.
        allowed = scores[min(int(np.argmin(scores)) + 1, LAST)]
    assert late < 0.005
    chosen = scores[command.position] if late <= 0 else scores.min()
    assert chosen <= max(scores.min() * 1.03, allowed)
    assert machine.choice.regret >= 0


@FEW
@given(job=jobs, seed=st.integers(0, 99))
def test_time_only_stays_as_fast_as_found(job, seed):
    """Who counts only time must not lose any."""
    _, command = tuned(job, Cost(0.0, 300.0), seed, TunerConfig())
    assert job.seconds[command.position] <= job.seconds[-1] * 1.006


@FEW
@given(job=jobs, pauses=st.lists(st.integers(1, 30), min_size=3, max_size=20))
def test_pauses_anywhere_do_not_matter(job, pauses):
    """A pause counted as training would make its limit look slow."""
    machine = TuningMachine(
        KnobRange(LIMITS, lambda watts: limit_curves(LIMITS, watts)), Cost(1.0), TunerConfig()
    )
    now, joules, steps = 0.0, 0.0, 0
    command = machine.start(Reading(now, joules, 0.1, steps))
    for count in [*pauses, *([10_000] * 300)]:
        if command.state is TunerState.HOLDING:
            break
        done = min(count, command.steps)
        seconds = job.seconds[command.position] * done
        now, steps, joules = (
            now + seconds,
            steps + done,
            joules + job.watts[command.position] * seconds,
        )
        event = TuningEvent.PAUSED if done < command.steps else TuningEvent.STEP
        command = machine.send(Reading(now, joules, 0.1, steps, event))
        if event is TuningEvent.PAUSED:
            now, joules = now + 60.0, joules + 60.0 * 30.0
            command = machine.send(Reading(now, joules, 0.1, steps, TuningEvent.RESUMED))
    for position, seen in machine.estimates().items():
        assert math.isclose(seen.seconds, job.seconds[position], rel_tol=1e-4)
        assert math.isclose(seen.watts, job.watts[position], rel_tol=1e-4)


@given(
    paces=st.lists(st.floats(0.95, 1.05), min_size=3, max_size=12),
    stalls=st.lists(st.floats(1.5, 100.0), max_size=1),
)
def test_one_stall_moves_no_estimate_by_more_than_the_noise(paces, stalls):
    """Whatever its size, one stall among three or more stretches is left out."""
    noise = 0.02
    usual = Slice(0, [StepSample(1, pace, 100.0 * pace, 0.1) for pace in paces]).estimate(noise)
    all_of_them = [StepSample(1, pace, 100.0 * pace, 0.1) for pace in [*paces, *stalls]]
    assert math.isclose(Slice(0, all_of_them).estimate(noise).seconds, usual.seconds, rel_tol=0.06)
