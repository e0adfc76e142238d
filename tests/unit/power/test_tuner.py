"""The tuner in a loop: what it does to the limit, to pauses, to trouble, and to time."""

import logging
import math
import time
from dataclasses import replace

import pytest

from joulery.errors import DeviceError, InvalidValueError
from joulery.frontier import OperatingPoint, Origin, Provenance, Setting
from joulery.hardware import Faults, settle
from joulery.objectives import Cost, LeastEnergy
from joulery.power import (
    BothKnobs,
    ClockKnob,
    LimitKnob,
    LimitPlan,
    PhaseTuner,
    PowerObserver,
    PowerTuner,
    ProcessGroup,
    ProfileFile,
    TunerConfig,
    TunerState,
    TuningResult,
)
from joulery.power._tuner import RunGains
from support.training_loop import TrainingLoop, held_here

BALANCED = Cost(0.5, 250.0)
FILE = ProfileFile("resnet", 256, "V100", "driver 1", "balanced")


@pytest.fixture
def data_home(monkeypatch, tmp_path):
    """A data folder of its own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))


@pytest.mark.parametrize(
    "make",
    [
        lambda: PowerTuner(5, BALANCED),
        lambda: PowerTuner([5], BALANCED),
        lambda: PowerTuner([], 5),
        *(
            lambda name=name: PowerTuner([], BALANCED, **{name: 5})
            for name in ("knob", "meter", "clock", "config", "profile", "earlier", "process_group")
        ),
        lambda: PhaseTuner([], BALANCED, knob=5),
        lambda: PhaseTuner(5, BALANCED, LimitKnob([])),
        lambda: BothKnobs(LimitKnob([]), 5),
        lambda: LimitKnob(5),
        lambda: ClockKnob("gpu:0"),
        lambda: LimitKnob([], hold=5),
        lambda: LimitKnob([], plan=[100.0]),
        lambda: LimitPlan(100.0),
        lambda: LimitPlan(("low",)),
        lambda: LimitPlan((100.0,), hold_watts="low"),
        lambda: PowerTuner([], type(BALANCED)),
        lambda: PowerTuner([], BALANCED, clock=None),
        lambda: PowerTuner([], BALANCED, process_group=ProcessGroup),
        lambda: ProfileFile("job", "256", "V100", "torch", "energy"),
        lambda: PowerObserver(5),
        lambda: TunerConfig(work_steps=0),
    ],
)
def test_wrong_arguments_are_refused_when_a_tuner_is_made(make):
    """A mistake only shows up as a training that is never tuned."""
    with pytest.raises(InvalidValueError) as refused:
        make()
    assert refused.value.remedy


def holding(tuner):
    """Whether the choice is made."""
    return lambda: tuner.state is TunerState.HOLDING


def test_states_come_in_order_and_the_limit_comes_back():
    """A tuner that leaves its limit behind slows the next user's job."""
    loop = TrainingLoop()
    states = []
    with loop.tuner(BALANCED) as tuner:

        def step():
            tuner.step()
            if not states or states[-1] is not tuner.state:
                states.append(tuner.state)

        loop.run(step, steps=600)
        assert loop.limit_watts < 200
    assert states == [TunerState.WARMUP, TunerState.PROBING, TunerState.HOLDING]
    assert loop.limit_watts == 250
    assert tuner.state is TunerState.STOPPED


def test_result_tells_points_savings_and_cost():
    """Users could not judge the choice without the frontier and what it cost to find."""
    loop = TrainingLoop()
    with loop.tuner(BALANCED) as tuner:
        loop.run(tuner.step, until=holding(tuner))
        result = tuner.result
        assert result.held
        assert "saves" in str(result)
    truth = loop.point(result.chosen.setting.power_limit_watts)
    assert result.chosen.seconds == pytest.approx(truth.seconds, rel=0.01)
    assert result.chosen.joules == pytest.approx(truth.joules, rel=0.01)
    assert result.reference.setting.power_limit_watts == 250
    assert 0.2 < result.energy_saving < 0.5
    origins = {point.provenance.origin for point in result.points}
    assert origins == {Origin.SIMULATED, Origin.PREDICTED}
    assert result.profiling_seconds < 60
    assert abs(result.extra_seconds) < result.profiling_seconds / 2
    assert len(result.frontier) >= 5
    assert result.to_dict()["profiling"]["steps"] == result.profiling_steps
    same = replace(result, chosen=result.reference)
    assert (
        str(same)
        == f"{result.reference.setting}: the original setting, since no other is known to be better"
    )


def test_result_after_the_end_tells_what_was_saved():
    """A limit held to the end would be reported as if it had never been in force."""
    loop = TrainingLoop()
    with loop.tuner(BALANCED) as tuner:
        loop.run(tuner.step, steps=90)
    assert "would save" in str(tuner.result), "closed while probing"
    with loop.tuner(BALANCED) as tuner:
        loop.run(tuner.step, until=holding(tuner))
    tuner.close()
    assert tuner.result.held
    assert tuner.result.ended
    assert ": saved " in str(tuner.result)
    assert tuner.result.to_dict()["ended"]


def test_a_choice_that_was_hardly_in_force_is_not_said_to_have_saved():
    """People would credit a limit with a saving while others were tried to the end."""
    loop = TrainingLoop(step_seconds=4.0, noise=0.08)
    in_force = []

    def step():
        in_force.append(loop.limit_watts)
        tuner.step()

    with loop.tuner(LeastEnergy(max_slowdown=0.05)) as tuner:
        loop.run(step, steps=350)
    result = tuner.result
    choice_watts = result.chosen.setting.power_limit_watts
    near = sum(abs(watts / choice_watts - 1) < 0.02 for watts in in_force[-80:])
    assert near < 20
    assert result.max_slowdown == 0.05
    assert result.comparing
    assert not result.held
    assert "saved" not in str(result)
    assert "; other settings were tried to the end; over all steps: " in str(result)
    vague = replace(result, whole_run=RunGains(-0.0007, 0.0047, -0.02, 0.01))
    assert vague.summary == (
        "over all steps: the same energy (± 0.47 %), 2 % (± 1 %) less time, "
        f"against {result.reference.setting}; best setting {result.chosen.setting}"
    )
    assert str(vague).endswith(
        "over all steps: the same energy (± 0.47 %), "
        f"2 % (± 1 %) less time, against {result.reference.setting}"
    )
    vague = replace(result, whole_run=RunGains(-0.007, 0.02, -0.02, 0.01))
    assert "over all steps: the change in energy is not known yet (± 2 %), " in str(vague)
    original = loop.point(loop.board.default_limit_watts)
    joules = sum(gpu.true_joules() for gpu in loop.gpus)
    saving = 1 - joules / (len(in_force) * original.joules)
    assert result.whole_run.energy == pytest.approx(saving, abs=0.03)
    changed = replace(result, whole_run=None)
    assert changed.summary == str(changed)
    assert "what all steps together save is not known, since the job changed" in str(changed)


def test_a_figure_within_its_error_is_not_claimed():
    """A saving or a slowdown that is only noise would be taken for a fact."""
    reference = OperatingPoint(1.0, 200.0, Setting(power_limit_watts=250.0))
    for error, joules, text in (
        (0.02, 180.0, "200 W: saved 10 % of the energy at 4 % more time (± 2 %) than 250 W"),
        (0.05, 180.0, "200 W: saved 10 % of the energy (± 5 %) against 250 W; the change in time "),
        (0.18, 180.0, "200 W: what it saved against 250 W is not known yet (± 18 %)"),
        (0.002, 199.8, "200 W: saved 0 % (± 0.2 %) of the energy at 4 % more time than 250 W"),
    ):
        provenance = Provenance(Origin.SIMULATED, "", error)
        chosen = OperatingPoint(1.04, joules, Setting(power_limit_watts=200.0), provenance)
        flags = {"held": True, "ended": True, "regret": 0.0}
        cost = dict.fromkeys(("profiling_seconds", "extra_seconds", "extra_joules"), 0.0)
        result = TuningResult((chosen,), chosen, reference, profiling_steps=1, **flags, **cost)
        assert str(result).startswith(text)
        if error == 0.05:
            bounded = replace(result, max_slowdown=0.05)
            assert str(bounded).endswith(" (± 5 %) against 250 W; at most 5 % more time")
            assert "not known yet" in str(replace(bounded, held=False))


def test_stalls_of_the_job_are_no_cost_of_profiling():
    """Waiting for data would be blamed on the tuner."""
    costs = []
    for stall_every in (None, 41):  # no period of steps
        loop = TrainingLoop()
        loop.stall_every = stall_every
        with loop.tuner(LeastEnergy(max_slowdown=0.05)) as tuner:
            loop.run(tuner.step, until=holding(tuner))
        costs.append(tuner.result.extra_seconds)
    assert costs[1] == pytest.approx(costs[0], abs=0.05 * tuner.result.profiling_seconds)


def test_a_dry_run_reports_and_leaves_the_limit_alone():
    """Observer mode that keeps a low limit is no observer."""
    loop = TrainingLoop()
    with loop.tuner(BALANCED, config=TunerConfig(dry_run=True)) as tuner:
        loop.run(tuner.step, until=holding(tuner))
        loop.run(tuner.step, steps=50)
        assert loop.limit_watts == 250
        assert not tuner.result.held
        assert "would save" in str(tuner.result)


def test_slices_carry_across_short_epochs_and_pauses():
    """Epochs of 49 steps with an evaluation after each must not keep profiling from ending."""
    loop = TrainingLoop(["V100"], 0.1)
    tuner = loop.tuner(BALANCED)
    epochs = 0
    while tuner.state is not TunerState.HOLDING and epochs < 60:
        loop.run(tuner.step, steps=49)
        tuner.pause()
        for gpu in loop.gpus:
            gpu.set_load(None)
        loop.clock.sleep(7.0)
        for gpu in loop.gpus:
            gpu.set_load(loop.workload)
        tuner.resume()
        epochs += 1
    assert epochs < 20
    assert loop.regret(BALANCED, tuner.result.chosen.setting.power_limit_watts) < 0.005
    tuner.close()


@pytest.mark.parametrize("every", [23, 97])
def test_stalls_do_not_fool_it(every):
    """A data loader that stalls now and then would otherwise look like a slow limit."""
    loop = TrainingLoop(["V100"], 0.05)
    loop.stall_every = every
    with loop.tuner(BALANCED) as tuner:
        loop.run(tuner.step, until=holding(tuner))
        assert loop.regret(BALANCED, tuner.result.chosen.setting.power_limit_watts) < 0.01


def test_slow_first_steps_are_left_out():
    """Compilation in the first steps would make every other limit look fast."""
    loop = TrainingLoop()
    loop.slower = 30.0
    objective = LeastEnergy(max_slowdown=0.05)
    with loop.tuner(objective) as tuner:
        loop.run(tuner.step, steps=2)
        loop.slower = 1.0
        loop.run(tuner.step, until=holding(tuner))
        assert loop.regret(objective, tuner.result.chosen.setting.power_limit_watts) < 0.01


def test_a_slower_start_that_fades_does_not_break_the_bound():
    """A reference that is measured once, while caches fill, allows what is far too slow later."""
    loop = TrainingLoop()
    objective = LeastEnergy(max_slowdown=0.05)
    with loop.tuner(objective) as tuner:

        def step():
            loop.slower = 1 + 0.3 * max(0.0, 1 - loop.steps / 200)
            tuner.step()

        loop.run(step, steps=2000)
        choice = tuner.result.chosen.setting.power_limit_watts
        assert tuner.result.slowdown == pytest.approx(
            loop.point(choice).seconds / loop.point(250.0).seconds - 1, abs=0.005
        )
    assert loop.regret(objective, choice) < 0.02


def test_profiles_again_when_the_job_changes_but_not_for_noise():
    """A job that doubles its work per step would be held at a limit chosen for another job."""
    loop = TrainingLoop(["V100"], 0.1)
    with loop.tuner(BALANCED) as tuner:
        loop.run(tuner.step, until=holding(tuner))
        loop.run(tuner.step, steps=3000)
        assert tuner.state is TunerState.HOLDING, "noise alone is no drift"
        loop.slower = 1.3
        loop.run(tuner.step, steps=2000, until=lambda: tuner.state is not TunerState.HOLDING)
        assert tuner.state in {TunerState.DRIFTED, TunerState.PROBING}
        loop.run(tuner.step, until=holding(tuner))
        assert tuner.state is TunerState.HOLDING


@pytest.mark.usefixtures("data_home")
def test_later_runs_reuse_the_profile_and_check_it():
    """Without memory every restart would pay for profiling again."""
    first = TrainingLoop()
    with first.tuner(BALANCED, profile=FILE) as tuner:
        first.run(tuner.step, until=holding(tuner))
        limit_watts = first.limit_watts
    second = TrainingLoop(seed=1)
    with second.tuner(BALANCED, profile=FILE) as tuner:
        second.run(tuner.step, until=holding(tuner))
        second.run(tuner.step, steps=3)
        assert second.steps < 40
        assert second.limit_watts == limit_watts
        assert tuner.result.profiling_steps == 0
        assert str(tuner.result).endswith("; not measured in this run")
    slower = TrainingLoop(step_seconds=0.3)
    with slower.tuner(BALANCED, profile=FILE) as tuner:
        slower.run(tuner.step, steps=3000, until=lambda: tuner.state is TunerState.PROBING)
        assert tuner.state is TunerState.PROBING, "another job under the same name is profiled anew"
        slower.run(tuner.step, until=holding(tuner))
    assert FILE.load().chosen.seconds > 0.25, "and remembered instead"


@pytest.mark.usefixtures("data_home")
def test_broken_profile_is_ignored(caplog):
    """A damaged file must cost a profile, not a training run."""
    FILE.path.parent.mkdir(parents=True)
    FILE.path.write_text("{", encoding="utf-8")
    loop = TrainingLoop()
    with loop.tuner(BALANCED, profile=FILE) as tuner:
        loop.run(tuner.step, steps=10)
        assert tuner.failure is None
    assert "starts from scratch" in caplog.text


def test_missing_rights_stop_tuning_but_not_training(caplog):
    """A user without rights must still be able to train, and get advice."""
    loop = TrainingLoop()
    loop.gpus[0].faults = Faults(no_permission=True)
    tuner = loop.tuner(BALANCED)
    with caplog.at_level(logging.WARNING, "joulery"):
        loop.run(tuner.step, steps=200)
    assert tuner.state is TunerState.STOPPED
    assert tuner.failure is not None
    assert caplog.text.count("power tuning stopped") == 1
    assert not tuner.result.held
    assert Origin.PREDICTED in {point.provenance.origin for point in tuner.result.points}


def test_any_error_restores_the_limit_and_never_leaves_step():
    """An error of ours inside a user's training loop would cost them hours."""
    loop = TrainingLoop()
    tuner = loop.tuner(BALANCED)
    loop.run(tuner.step, until=lambda: loop.limit_watts < 250)

    def broken(_):
        raise ZeroDivisionError("a bug")

    tuner._counter.read = broken
    loop.run(tuner.step, steps=200)
    assert isinstance(tuner.failure, ZeroDivisionError)
    assert loop.limit_watts == 250


def test_unreadable_energy_stops_tuning():
    """Without energy there is nothing to choose by, and a guess must not be held."""
    loop = TrainingLoop()
    tuner = loop.tuner(BALANCED)
    loop.run(tuner.step, until=lambda: loop.limit_watts < 250)

    def unreadable(_):
        raise DeviceError("gone", remedy="none")

    tuner._counter.read = unreadable
    loop.run(tuner.step, steps=200)
    assert isinstance(tuner.failure, DeviceError)
    assert loop.limit_watts == 250


def test_device_without_a_limit_is_refused_quietly():
    """A board without the knob must not end training either."""
    loop = TrainingLoop()

    class Bare:
        info = loop.gpus[0].info
        provenance = loop.gpus[0].provenance
        capabilities = frozenset()

    tuner = PowerTuner([Bare()], BALANCED, meter=loop.meter, clock=loop.clock)
    tuner.step()
    assert tuner.state is TunerState.STOPPED
    assert "power limit" in str(tuner.failure)
    tuner.pause()
    tuner.resume()
    tuner.close()


def test_found_cap_is_never_exceeded():
    """The administrator's cap is a ceiling, for the probes too."""
    loop = TrainingLoop()
    loop.gpus[0].set_power_limit(180.0)
    highest = []
    with loop.tuner(Cost(0.0, 250.0)) as tuner:
        loop.run(lambda: (tuner.step(), highest.append(loop.limit_watts)), steps=300)
    assert max(highest) == 180.0
    assert loop.limit_watts == 180.0


def test_locked_clocks_are_an_alternative():
    """Where limits do nothing, as for a board far below its cap, only clocks can save."""
    loop = TrainingLoop(["V100"], 0.1, workload="host-bound")
    knob = BothKnobs(LimitKnob(loop.gpus, held_here), ClockKnob(loop.gpus, held_here))
    with loop.tuner(Cost(1.0, 250.0), knob=knob) as tuner:
        loop.run(tuner.step, until=lambda: tuner.state is TunerState.HOLDING and tuner.result)
        loop.run(tuner.step, steps=5)
        assert tuner.result.chosen.setting.clock_hertz is not None
        assert loop.gpus[0].steady().clock_hertz < 1.0e9
        assert tuner.result.energy_saving > 0.03
    assert loop.gpus[0].steady().clock_hertz == loop.board.max_clock_hertz


def test_a_clock_of_a_job_that_got_faster_is_compared_with_the_job_as_it_is():
    """Faster steps would count as a saving of the clock that is tried after limits."""
    loop = TrainingLoop(["V100"], 0.1, workload="host-bound")
    knob = BothKnobs(LimitKnob(loop.gpus, held_here), ClockKnob(loop.gpus, held_here))
    with loop.tuner(LeastEnergy(max_slowdown=0.05), knob=knob) as tuner:

        def step():
            loop.slower = 1 + 0.5 * math.exp(-loop.steps / 300)
            tuner.step()

        loop.run(step, steps=4000)
        result = tuner.result
    highest, clock = loop.board.default_limit_watts, result.chosen.setting.clock_hertz
    assert clock is not None
    full, held = (settle(loop.board, loop.workload, highest, hertz) for hertz in (None, clock))
    assert result.reference.setting.power_limit_watts == highest
    assert result.reference.seconds == pytest.approx(full.seconds, rel=0.01)
    assert result.slowdown == pytest.approx(held.seconds / full.seconds - 1, abs=0.005)
    saving = 1 - held.seconds * held.watts / (full.seconds * full.watts)
    assert result.energy_saving == pytest.approx(saving, abs=0.01)


@pytest.mark.usefixtures("data_home")
@pytest.mark.parametrize("workload", ["host-bound", "resnet50"])
def test_both_knobs_remember_what_they_chose(workload):
    """Trying two knobs again in every run would cost twice what one does."""
    results = []
    for seed in range(2):
        loop = TrainingLoop(["V100"], 0.1, workload=workload, seed=seed)
        knob = BothKnobs(LimitKnob(loop.gpus, held_here), ClockKnob(loop.gpus, held_here))
        with loop.tuner(Cost(1.0, 250.0), knob=knob, profile=FILE) as tuner:
            loop.run(tuner.step, until=lambda tuner=tuner: tuner.state is TunerState.HOLDING)
            if seed:
                assert loop.steps < 40
            loop.run(tuner.step, steps=5)
            assert tuner.failure is None
            results.append(tuner.result)
    first, second = results
    assert second.chosen.setting == first.chosen.setting
    assert second.profiling_steps == 0


def test_limits_are_preferred_where_clocks_do_no_better():
    """A tie between knobs must not lock clocks for nothing."""
    loop = TrainingLoop(["V100"], 0.1)
    knob = BothKnobs(LimitKnob(loop.gpus, held_here), ClockKnob(loop.gpus, held_here))
    with loop.tuner(BALANCED, knob=knob) as tuner:
        loop.run(tuner.step, until=lambda: tuner.state is TunerState.HOLDING and tuner.result)
        loop.run(tuner.step, steps=5)
        assert tuner.result.chosen.setting.power_limit_watts is not None
        assert loop.regret(BALANCED, loop.limit_watts) < 0.005


def test_step_costs_next_to_nothing_once_settled():
    """The tuner would eat what it saves."""
    loop = TrainingLoop(["V100"], 0.01)
    with loop.tuner(BALANCED) as tuner:
        loop.run(tuner.step, until=holding(tuner))
        loop.run(tuner.step, steps=8000)
        seconds = 0.0

        def timed():
            nonlocal seconds
            started = time.thread_time()
            tuner.step()
            seconds += time.thread_time() - started

        loop.run(timed, steps=4000)
    # Planning included, which elsewhere happens beside the loop; 24 to 36 µs by the machine.
    assert seconds / 4000 < 6e-5
