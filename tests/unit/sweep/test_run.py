import math
import os
import signal
import sys
from dataclasses import replace

import pytest

from joulery.clock import VirtualClock
from joulery.errors import DeviceError, MissingRightsError
from joulery.governor import held
from joulery.hardware import (
    DeviceInfo,
    DeviceKind,
    Faults,
    SimulatedGpu,
    SimulatedNode,
    catalog,
    preset,
)
from joulery.sweep import (
    CommandWork,
    FinishedRun,
    SimulatedWork,
    SweepEnvironment,
    SweepJournal,
    SweepPlan,
    Trial,
    run_sweep,
    seconds_left,
)
from joulery.sweep._run import environment_for


def without_noise(chosen):
    """The preset with runs that all take the same time."""
    return replace(chosen, noise=0.0)


class Scripted:
    """Work that notes the limits it ran under, and ends as the script says."""

    def __init__(self, node, outcomes=None):
        self.node = node
        self.outcomes = outcomes or {}
        self.seen = []

    def run(self, trial):
        """One run, or what the script says."""
        self.seen.append([gpu.power_limits().current_watts for gpu in self.node.gpus])
        self.node.run(trial.gpus, trial.repeat)
        outcome = self.outcomes.get(len(self.seen), 0)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


class Place:
    """A simulated node, a plan for it and a folder."""

    def __init__(self, folder):
        self.clock = VirtualClock()
        self.node = SimulatedNode(without_noise(preset("rtx6000x8")), self.clock)
        self.folder = folder
        boards = tuple(gpu.info.id for gpu in self.node.gpus)
        self.plan = SweepPlan(("job",), boards, (260.0, 150.0), (2, 8), 1, 260.0)
        self.bench = SweepEnvironment(
            self.node.gpus, (*self.node.gpus, self.node), self.clock, 0.01
        )

    def sweep(self, work, **options):
        """Run the plan; the runs."""
        with SweepJournal.open(self.folder, self.plan) as journal:
            run_sweep(self.plan, self.bench, work, journal, **options)
            return journal.runs

    def limits(self):
        """The limits in force."""
        return {gpu.power_limits().current_watts for gpu in self.node.gpus}


@pytest.fixture
def place(tmp_path):
    """Ready to sweep."""
    return Place(tmp_path)


def test_every_board_has_the_limit_during_a_run(place):
    """Idle boards are part of the node; the paper caps them alike."""
    work = Scripted(place.node)
    runs = place.sweep(work)
    assert work.seen == [[watts] * 8 for watts in (260.0, 150.0, 260.0, 150.0)]
    assert [(run.gpus, run.watts) for run in runs] == [(8, 260), (8, 150), (2, 260), (2, 150)]
    assert place.limits() == {260.0}


def test_energy_is_the_node_meters_and_idle_boards_are_counted_apart(place):
    """Summing boards and plug would count joules twice; leaving out idle boards loses some."""
    before = place.node.read_energy().joules
    runs = place.sweep(SimulatedWork(place.node))
    used = place.node.read_energy().joules - before
    assert sum(run.joules for run in runs) == pytest.approx(used, rel=0.01)
    eight, two = runs[0], runs[2]
    assert eight.idle_gpu_joules == 0.0
    idle = place.node.gpus[0].board.idle_watts
    assert two.idle_gpu_joules == pytest.approx(6 * idle * two.seconds, rel=0.01)
    assert two.gpu_joules > two.idle_gpu_joules
    assert two.joules > two.gpu_joules + two.idle_gpu_joules
    assert {run.origin for run in runs} == {"simulated"}


def test_energy_is_the_sum_where_there_is_no_node_meter(place):
    """Machines without a wattmeter would have no energy at all."""
    place.bench = replace(place.bench, devices=place.node.gpus)
    runs = place.sweep(SimulatedWork(place.node))
    two = runs[2]
    assert two.joules == pytest.approx(two.gpu_joules + two.idle_gpu_joules)


@pytest.mark.parametrize("how", [KeyboardInterrupt(), ValueError("bug")])
def test_limits_come_back_and_finished_runs_stay_however_it_ends(place, how):
    """A board would stay slow for everybody after a Ctrl-C."""
    with pytest.raises(type(how)):
        place.sweep(Scripted(place.node, {2: how}))
    assert place.limits() == {260.0}
    work = Scripted(place.node)
    runs = place.sweep(work)
    assert len(work.seen) == 3
    assert len(runs) == 4


def test_a_limit_lowered_before_the_sweep_comes_back(place):
    """Restoring the maximum would undo what the administrator set."""
    for gpu in place.node.gpus:
        gpu.set_power_limit(200.0)
    place.plan = replace(place.plan, limits_watts=(200.0, 150.0), default_watts=200.0)
    place.sweep(SimulatedWork(place.node))
    assert place.limits() == {200.0}


def test_a_failed_run_is_recorded_and_the_sweep_goes_on(place):
    """One crash in a night of runs would cost the night."""
    runs = place.sweep(Scripted(place.node, {2: 7}))
    assert [run.exit_code for run in runs] == [0, 7, 0, 0]


def test_a_finished_sweep_runs_nothing(place):
    """Drawing the charts again would take hours."""
    place.sweep(SimulatedWork(place.node))
    work = Scripted(place.node)
    place.sweep(work)
    assert work.seen == []


def test_each_run_is_announced(place):
    """Progress would stand still."""
    reported = []
    place.sweep(SimulatedWork(place.node), on_trial=reported.append)
    assert reported == list(place.plan.trials())


def test_without_rights_nothing_runs_and_nothing_is_left_changed(place):
    """Some boards would stay capped when the last one refuses."""
    stubborn = SimulatedGpu(
        catalog.board("RTX6000"), place.clock, index=9, faults=Faults(no_permission=True)
    )
    place.bench = replace(place.bench, boards=(*place.node.gpus, stubborn))
    work = Scripted(place.node)
    with pytest.raises(MissingRightsError):
        place.sweep(work)
    assert work.seen == []
    with pytest.raises(MissingRightsError), held(place.bench.boards, watts=150.0):
        pytest.fail("the block must not be entered")
    assert place.limits() == {260.0}


def test_unreadable_energy_ends_the_sweep(place):
    """Runs without energy would fill a night for nothing."""
    place.bench = replace(place.bench, devices=())
    with pytest.raises(DeviceError, match="no energy"):
        place.sweep(SimulatedWork(place.node))
    assert place.limits() == {260.0}


def board(index, vendor="nvidia"):
    """A board that only says who it is."""

    class Named:
        info = DeviceInfo(f"{vendor}-{index}", "Board", DeviceKind.GPU, vendor, index)

    return Named()


def test_a_command_sees_only_its_boards():
    """It would use boards that are reported as idle."""
    made = environment_for([board(2), board(3)], {"HOME": "/root", "CUDA_VISIBLE_DEVICES": "2,3,5"})
    assert made["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert made["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    assert made["JOULERY_GPUS"] == "2"
    assert made["HOME"] == "/root"


def test_amd_boards_are_hidden_below_hip():
    """HIP would count among the boards it is left with, and miss."""
    made = environment_for([board(1, "amd")], {"HIP_VISIBLE_DEVICES": "1"})
    assert made == {"JOULERY_GPUS": "1", "ROCR_VISIBLE_DEVICES": "1"}


def test_gaudi_cards_are_hidden_by_their_modules():
    """The run-time of Gaudi reads no other variable."""
    made = environment_for([board(1, "gaudi"), board(2, "gaudi")], {})
    assert made == {"JOULERY_GPUS": "2", "HABANA_VISIBLE_MODULES": "1,2"}


def test_a_commands_output_goes_to_its_log(tmp_path):
    """The table would drown in what the runs print."""
    code = (
        "import os, sys; print(os.environ['JOULERY_GPUS']); "
        "sys.stderr.write('loss\\n'); sys.exit(5)"
    )
    with (tmp_path / "log").open("ab") as output:
        work = CommandWork((sys.executable, "-c", code), (board(0), board(1)), output)
        assert work.run(Trial(0, 1, 150.0)) == 5
    lines = (tmp_path / "log").read_text().splitlines()
    assert lines[0] == "--- 1 GPU at 150 W, run 1"
    assert sorted(lines[1:]) == ["1", "loss"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_ends_the_command_ends_the_sweep(tmp_path, number):
    """Ctrl-C would only skip to the next of hundreds of runs."""
    with (tmp_path / "log").open("ab") as output:
        # The command takes the signal for itself and ends well all the same.
        code = f"import os; os.kill({os.getpid()}, {number:d})"
        work = CommandWork((sys.executable, "-c", code), (board(0),), output)
        with pytest.raises(KeyboardInterrupt):
            work.run(Trial(0, 1, 150.0))


def test_the_time_left_follows_the_runs_so_far():
    """The estimate would be hours off."""
    plan = SweepPlan(("job",), ("a", "b"), (200.0, 100.0), (1, 2), 2, 200.0)
    assert seconds_left(plan, []) is None
    one = FinishedRun(0, 2, 200.0, 0, 10.0, 1.0)
    assert seconds_left(plan, [one]) == pytest.approx(70.0)
    other = FinishedRun(0, 1, 200.0, 0, 30.0, 1.0)
    assert seconds_left(plan, [one, other]) == pytest.approx(3 * 10 + 3 * 30)
    failed = replace(one, watts=100.0, exit_code=1, seconds=math.pi)
    assert seconds_left(plan, [one, other, failed]) == pytest.approx(3 * 10 + 3 * 30)
