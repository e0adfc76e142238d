"""A training run that is tuned, and one that cannot be: both train to the end."""

import json
import logging
import os
import threading
from dataclasses import replace

import pytest

from joulery.clock import REAL_CLOCK, VirtualClock
from joulery.errors import InvalidValueError
from joulery.hardware import Faults, SimulatedGpu, catalog, settle
from joulery.jobs import JobService
from joulery.objectives import LeastEnergy
from joulery.storage import Store
from joulery.training import REPORTS_VARIABLE, Run, read_reports
from joulery.training._tuning import write_report

BOARD = catalog.board("V100")
WORK = catalog.workload("resnet50", BOARD).scaled(0.2)
WORK_JOULES = settle(BOARD, WORK, 250.0).seconds * settle(BOARD, WORK, 250.0).watts


@pytest.fixture(autouse=True)
def _own_world(tmp_path, monkeypatch):
    """Profiles and reports of one test must not reach another."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv(REPORTS_VARIABLE, raising=False)
    for name in ("JOULERY_OBJECTIVE", "JOULERY_DRY_RUN", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


def train(run, gpu, clock, steps=49):
    """Short epochs with a pause after each; the limits in force at each step."""
    limits = []
    for _ in run.epochs():
        for _ in run.steps(range(steps)):
            gpu.run(WORK)
            limits.append(gpu.power_limits().current_watts)
        clock.sleep(2.0)
    return limits


@pytest.fixture
def clock():
    """Time that the test turns."""
    return VirtualClock()


def test_a_better_limit_is_found_held_and_given_back(clock):
    """If this fails, Run saves nothing, or leaves the board capped after training."""
    gpu = SimulatedGpu(BOARD, clock)
    run = Run(objective="least-energy:slowdown=5%", max_epochs=12, devices=[gpu])
    limits = train(run, gpu, clock)
    assert run.result is not None
    assert run.result.energy_saving > 0.1
    assert run.result.slowdown <= 0.055
    assert limits[-1] == run.result.chosen.setting.power_limit_watts < 250
    assert gpu.power_limits().current_watts == 250
    assert run.total_steps == 12 * 49


def test_a_stored_run_has_its_saving_and_what_that_costs(clock, tmp_path):
    """If this fails, a list of runs shows what was saved, and not the time that it took."""
    store, gpu = str(tmp_path / "store.sqlite"), SimulatedGpu(BOARD, clock)
    with Run(
        objective="least-energy:slowdown=5%", max_epochs=12, devices=[gpu], store=store
    ) as run:
        train(run, gpu, clock)
    with Store.open(store) as opened:
        (entry,), _ = JobService(opened, team="default").runs()
    assert run.result is not None
    assert entry.objective == "least-energy:slowdown=5%"
    assert (entry.energy_saving, entry.slowdown) == (run.result.energy_saving, run.result.slowdown)


def test_without_its_length_a_run_has_no_deadline(clock):
    """A bound that cannot be kept must be refused, or said and left alone."""
    with pytest.raises(InvalidValueError, match="length is not known"):
        Run(objective="fastest:joules=1e6", devices=[SimulatedGpu(BOARD, clock)])
    gpu = SimulatedGpu(BOARD, clock)
    with Run(objective="least-energy:deadline=300", max_epochs=2, devices=[gpu]) as run:
        for _ in run.steps(iter(int, 1)):  # without a length
            gpu.run(WORK)
            assert gpu.power_limits().current_watts == 250
            if run.total_steps > 100:
                break
    assert "length is not known" in run.tuning_skipped


def test_what_a_whole_run_saved_leaves_waiting_out(clock):
    """Waits between steps were counted as steps that a limit made slower and cheaper."""
    boards = SimulatedGpu(BOARD, clock), SimulatedGpu(BOARD, VirtualClock())
    with Run(objective="least-energy:slowdown=5%", devices=boards[:1]) as run:
        for step in range(250):
            for gpu, at in zip(boards, (clock, boards[1].clock), strict=True):
                gpu.run(WORK)
                if step % 20 == 19:
                    at.sleep(5.0)
            run.step()
    said = run.result.whole_run
    energy = 1 - boards[0].true_joules() / boards[1].true_joules()
    slowdown = clock.now() / boards[1].clock.now() - 1
    assert said.energy == pytest.approx(energy, abs=3 * said.energy_error)
    assert said.slowdown == pytest.approx(slowdown, abs=3 * said.slowdown_error)


def test_a_dry_run_changes_nothing_for_long(clock):
    """If this fails, observer mode keeps the board capped."""
    gpu = SimulatedGpu(BOARD, clock)
    run = Run(objective=LeastEnergy(max_slowdown=0.05), max_epochs=12, devices=[gpu], dry_run=True)
    limits = train(run, gpu, clock)
    assert limits[-1] == 250
    assert run.result is not None
    assert not run.result.held
    assert "would save" in str(run.result)


def test_the_next_run_of_the_same_name_starts_from_the_profile(clock):
    """If this fails, every run of a recurring job pays for profiling again."""
    first = SimulatedGpu(BOARD, clock)
    train(Run("nightly", default_batch_size=64, max_epochs=12, devices=[first]), first, clock)
    second = SimulatedGpu(BOARD, clock)
    again = Run("nightly", default_batch_size=64, devices=[second])
    limits = train(again, second, clock, steps=20)
    assert min(limits) == max(limits[5:]) < 250


def test_without_a_board_training_goes_on_and_one_line_says_so(clock, caplog):
    """If this fails, a script that trains elsewhere breaks on a machine without a GPU."""
    run = Run(devices=[])
    with caplog.at_level(logging.WARNING, "joulery"):
        seen = list(run.steps(range(100)))
        run.close()
    assert seen == list(range(100))
    assert len(caplog.records) == 1
    assert "no GPU" in str(run.tuning_skipped)


def test_a_run_goes_on_from_its_checkpoint_at_the_limit_it_found(clock):
    """If this fails, every part of a preempted training profiles anew."""
    gpu = SimulatedGpu(BOARD, clock)
    first = Run(max_epochs=20, devices=[gpu])
    for epoch in first.epochs():
        for _ in first.steps(range(49)):
            gpu.run(WORK)
        if epoch == 11:
            state = json.loads(json.dumps(first.state_dict()))
            break
    chosen = first.result.chosen.setting.power_limit_watts
    again = Run(max_epochs=20, devices=[gpu])
    again.load_state_dict(state)
    limits = train(again, gpu, clock)
    assert len(limits) == 8 * 49
    assert set(limits[5:]) == {chosen}
    assert again.total_steps == 20 * 49


def _train_in_parts(clock, gpu, forget=(), **options):
    """Two epochs, and after a checkpoint two more, as another process would: the second run."""
    first = Run("parts", max_epochs=4, devices=[gpu])
    for epoch in first.epochs():
        for _ in first.steps(range(49)):
            gpu.run(WORK)
        if epoch == 1:
            state = json.loads(json.dumps(first.state_dict()))
            break
    first.close()
    again = Run("parts", max_epochs=4, devices=[gpu], **options)
    again.load_state_dict({key: state[key] for key in state.keys() - set(forget)})
    train(again, gpu, clock)
    return first, again


def test_a_resumed_run_counts_the_energy_of_all_its_steps(clock):
    """If this fails, a run of two parts shows the energy of one beside the steps of both."""
    gpu = SimulatedGpu(BOARD, clock)
    used, began = gpu.read_energy().joules, clock.now()
    first, run = _train_in_parts(clock, gpu)
    used, seconds = gpu.read_energy().joules - used, clock.now() - began
    assert first.joules < 0.6 * used
    assert run.joules == pytest.approx(used, rel=0.01)
    assert run.seconds == pytest.approx(seconds, rel=0.01)
    assert run.kwh == pytest.approx(used / 3.6e6, rel=0.01)
    assert run.measurement.mean_watts == pytest.approx(used / seconds, rel=0.01)
    assert 0 < run.measurement.relative_error < 1.1 * first.measurement.relative_error
    assert run.measurement.provenance.origin == "simulated"
    assert "196 steps" in str(run)
    document = run.to_dict()
    assert (document["steps"], document["joules"]) == (196, run.joules)
    (row,) = run.rows()
    assert row["joules"] == pytest.approx(run.joules - first.joules, rel=1e-6)
    assert row["mean_watts"] == pytest.approx(first.measurement.mean_watts, rel=0.2)


def test_the_entry_of_a_resumed_run_in_a_store_has_the_steps_of_its_energy(clock, tmp_path):
    """If this fails, sums over runs count a first part twice, or joules per step are too few."""
    gpu, store = SimulatedGpu(BOARD, clock), tmp_path / "store.sqlite"
    first, run = _train_in_parts(clock, gpu, store=store)
    with Store.open(store) as opened:
        ((entry,), _) = JobService(opened, team="default").runs()
    assert entry.steps == 98
    assert entry.joules == pytest.approx(run.joules - first.joules)


def test_the_state_of_a_resumed_run_has_the_energy_of_all_parts(clock):
    """If this fails, a training that is interrupted twice forgets its first part."""
    gpu = SimulatedGpu(BOARD, clock)
    _, run = _train_in_parts(clock, gpu)
    third = Run("parts", max_epochs=4, devices=[gpu])
    third.load_state_dict(run.state_dict())
    assert str(third) == "parts: 196 steps, nothing is measured yet"
    assert third.state_dict()["joules"] == run.joules
    assert [*third.epochs()] == []
    assert third.joules == pytest.approx(run.joules)


def test_steps_before_a_checkpoint_without_energy_do_not_count_with_it(clock):
    """If this fails, joules of one part are shown beside the steps of two."""
    gpu = SimulatedGpu(BOARD, clock)
    first, run = _train_in_parts(clock, gpu, forget=["joules"])
    assert run.joules == pytest.approx(first.joules, rel=0.2)
    assert "98 steps since the checkpoint" in str(run)
    assert run.to_dict()["steps"] == 98
    assert run.total_steps == 196
    assert run.state_dict()["joules"] is None


def test_a_run_at_the_limit_of_an_earlier_one_says_what_that_saves_by_prediction(clock):
    """If this fails, every run of a name but the first says nothing of what it saved."""
    gpu = SimulatedGpu(BOARD, clock)
    first, second = (Run("nightly", max_epochs=12, devices=[gpu]) for _ in range(2))
    train(first, gpu, clock)
    assert "predicted" not in str(first)
    train(second, gpu, clock)
    text, _, saved = second.summary.partition("; by that, ")
    assert text == second.result.summary
    assert str(second).endswith(second.summary)
    at_original = 12 * 49 * WORK_JOULES
    assert saved.endswith(" kJ less here (predicted)")
    assert 1e3 * float(saved.split()[0]) == pytest.approx(at_original - second.joules, rel=0.2)


class _Hanging(SimulatedGpu):
    """A board whose limits cannot be read before it is let go."""

    def __init__(self):
        super().__init__(BOARD, REAL_CLOCK)
        self.called, self.let_go = threading.Event(), threading.Event()

    def power_limits(self):
        """Hang, then read."""
        self.called.set()
        assert self.let_go.wait(30)
        return super().power_limits()


def test_a_driver_that_hangs_at_the_first_step_does_not_stop_training():
    """If this fails, a driver that does not answer at once holds up the first step."""
    gpu = _Hanging()
    run = Run(devices=[gpu])
    run.step()
    assert gpu.called.wait(30)
    run.step()  # would wait for ever if it waited
    assert run.tuning_skipped is None
    gpu.let_go.set()
    run.close()


def test_a_driver_that_hangs_before_training_is_given_up(monkeypatch, tmp_path):
    """If this fails, asking for the batch size waits for a broken driver for ever."""
    monkeypatch.setattr("joulery.background.DRIVER_SECONDS", 0.05)
    gpu = _Hanging()
    run = Run(
        "nightly",
        batch_sizes=[8, 16],
        default_batch_size=16,
        target=0.5,
        devices=[gpu],
        store=tmp_path / "store.db",
    )
    assert run.batch_size == 16
    assert run.decision is None
    gpu.let_go.set()
    run.close()


def test_without_rights_training_goes_on(clock, caplog):
    """If this fails, missing rights end a user's training."""
    gpu = SimulatedGpu(BOARD, clock, faults=replace(Faults(), no_permission=True))
    run = Run(devices=[gpu], max_epochs=3)
    train(run, gpu, clock)
    assert run.result is None or not run.result.held
    assert run.tuning_skipped
    assert gpu.power_limits().current_watts == 250


def test_a_broken_objective_is_said_once_and_training_goes_on(clock, monkeypatch):
    """If this fails, a typo in the environment ends a user's training."""
    monkeypatch.setenv("JOULERY_OBJECTIVE", "fastest-and-leanest")
    gpu = SimulatedGpu(BOARD, clock)
    run = Run(devices=[gpu])
    train(run, gpu, clock, steps=5)
    assert "unknown objective" in str(run.tuning_skipped)


def test_ranks_without_a_group_are_left_alone(clock, monkeypatch):
    """If this fails, ranks profile at different moments and slow each other down."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    gpu = SimulatedGpu(BOARD, clock)
    run = Run(devices=[gpu], max_epochs=2)
    limits = train(run, gpu, clock)
    assert set(limits) == {250}
    assert "group" in str(run.tuning_skipped)


def test_the_starter_hears_what_became_of_the_run(clock, tmp_path, monkeypatch):
    """If this fails, `joulery run` cannot tell what was saved."""
    monkeypatch.setenv(REPORTS_VARIABLE, str(tmp_path))
    gpu = SimulatedGpu(BOARD, clock)
    train(Run("job", max_epochs=12, devices=[gpu]), gpu, clock)
    train(Run("another", max_epochs=1, devices=[gpu]), gpu, clock, steps=1)
    (tmp_path / "torn.json").write_text('{"name": ', encoding="utf-8")
    found = read_reports(tmp_path)
    assert [report["name"] for report in found] == ["job", "another"]
    assert found[0]["steps"] == 12 * 49
    assert "saved" in found[0]["summary"]
    json.dumps(found, allow_nan=False)


def test_a_report_that_cannot_be_written_is_ignored(monkeypatch):
    """If this fails, a full disk ends a user's training."""
    monkeypatch.setenv(REPORTS_VARIABLE, "/nonexistent/folder")
    write_report({"name": "x"}, "x")


def test_a_report_that_cannot_be_made_is_ignored(clock, monkeypatch):
    """If this fails, an error of ours while reporting ends a user's training."""

    def broken(_run):
        raise KeyError("broken")

    monkeypatch.setattr(Run, "result", property(broken))
    gpu = SimulatedGpu(BOARD, clock)
    run = Run(devices=[gpu])
    train(run, gpu, clock, steps=5)
    assert gpu.power_limits().current_watts == 250


def test_a_second_run_of_a_process_takes_the_board_over(clock):
    """Trainings in a row, none of them closed, would all run at a probe limit of the first."""
    gpu = SimulatedGpu(BOARD, clock)
    runs = [Run(devices=[gpu]) for _ in range(2)]
    for run in runs:
        for _ in range(300):
            gpu.run(WORK)
            run.step()
        assert run.tuning_skipped is None
        assert run.result is not None
    runs[1].close()
    assert gpu.power_limits().current_watts == 250


def test_a_forked_child_trains_on_in_silence(clock, caplog):
    """If this fails, a script that forks is told of windows, or two processes set one board."""
    gpu = SimulatedGpu(BOARD, clock)
    run = Run(devices=[gpu])
    while run._power.tuner is None or run.total_steps < 40:
        gpu.run(WORK)
        run.step()
    caplog.clear()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for _ in range(60):
                gpu.run(WORK)
                run.step()
            code = 2 if caplog.records else 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    run.close()


def test_a_run_without_a_step_says_so(clock):
    """If this fails, a run that has not begun sends its user to `joulery doctor`."""
    gpu = SimulatedGpu(BOARD, clock)
    run = Run("nightly", devices=[gpu])
    assert str(run) == "nightly: no step yet"
    for _ in run.steps(range(2)):
        gpu.run(WORK)
    assert "2 steps" in str(run)
    run.close()
    late = Run("late", devices=[SimulatedGpu(BOARD, clock)])
    late.step()
    assert str(late) == "late: 1 step, nothing is measured yet"
    late.close()


def test_a_run_that_lost_its_board_says_so(clock):
    """If this fails, the energy until the loss is taken for that of the whole run."""
    gpu = SimulatedGpu(BOARD, clock, faults=Faults(lost_at_seconds=5.0))
    with Run("lost", devices=[gpu]) as run:
        for _ in range(80):
            gpu.run(WORK)
            run.step()
    assert "device lost" in str(run)


def test_a_run_that_has_ended_trains_again_and_says_that_a_new_one_is_needed(clock, caplog):
    """If this fails, the folds of a cross-validation after the first end with untrained models."""
    gpu = SimulatedGpu(BOARD, clock)
    written = []
    run = Run("folds", max_epochs=2, target=0.9, devices=[gpu], sinks=[_Sink(written)])
    for _ in range(3):
        epochs = []
        for epoch in run.epochs():
            epochs.append((epoch, len(list(run.steps(range(3))))))
            run.step()
            run.report(0.5)
        assert epochs == [(0, 3), (1, 3)]
    assert [record.getMessage().partition(" has ended; ")[0] for record in caplog.records] == [
        "joulery: folds"
    ]
    assert run.total_steps == 8
    assert len(written) == 3
    for _ in run.epochs():
        run.report(0.95)
    assert run.target_reached
    assert [*run.epochs()] == [0, 1]


def test_a_checkpoint_of_a_finished_run_has_no_epochs_left(clock, caplog):
    """If this fails, a training that a scheduler starts again after its end trains twice."""
    gpu = SimulatedGpu(BOARD, clock)
    finished = Run(max_epochs=2, devices=[gpu])
    train(finished, gpu, clock, steps=3)
    again = Run(max_epochs=2, devices=[gpu])
    again.load_state_dict(finished.state_dict())
    assert [*again.epochs()] == []
    assert "has ended" not in caplog.text


def test_a_run_on_a_busy_board_names_the_reason_and_no_limit(clock, tmp_path, monkeypatch):
    """If this fails, a limit of a tuning that was stopped passes for the chosen one."""
    monkeypatch.setenv(REPORTS_VARIABLE, str(tmp_path))
    gpu = SimulatedGpu(BOARD, clock)
    run = Run(max_epochs=9, devices=[gpu])
    for epoch in run.epochs():
        for _ in run.steps(range(49)):
            gpu.run(WORK)
        if epoch == 6:
            assert run.result is not None
            run._power.tuner.fail(RuntimeError("the board is held by process 7"))
    assert run.summary == "tuning stopped: the board is held by process 7"
    assert run.result is not None
    assert str(run).endswith(f"; {run.summary}")
    (report,) = read_reports(tmp_path)
    assert report["summary"] == run.summary


def test_the_summary_of_a_run_is_its_choice_or_the_reason_why_there_is_none(clock):
    """If this fails, the line that ends a user's script prints None."""
    gpu = SimulatedGpu(BOARD, clock)
    run = Run(max_epochs=9, devices=[gpu])
    assert run.summary == "no limit is chosen yet"
    train(run, gpu, clock)
    assert run.summary == run.result.summary
    short = Run(max_epochs=1, devices=[gpu])
    train(short, gpu, clock, steps=3)
    assert short.summary.startswith(
        "ended before a limit was chosen, which takes about 30 s or 110 "
    )
    without = Run(devices=[])
    assert len([*without.steps(range(100))]) == 100
    without.close()
    assert without.summary == without.tuning_skipped
    assert "no GPU" in without.summary


def test_energy_per_step_of_a_resumed_run_is_that_of_its_own_steps(clock):
    """If this fails, the first entry after a restart spreads its energy over all steps before."""
    gpu, written = SimulatedGpu(BOARD, clock), []
    run = Run(max_epochs=2, devices=[gpu], sinks=[_Sink(written)])
    run.load_state_dict({"steps": 4900, "epochs": 1, "profile": None, "decision": None})
    train(run, gpu, clock)
    assert written[0]["joulery/joules_per_step"] == pytest.approx(
        written[0]["joulery/joules"] / 49, rel=0.1
    )


class _Sink:
    """A sink that remembers."""

    def __init__(self, written):
        self._written = written

    def write(self, figures, _step):
        """Remember."""
        self._written.append(figures)

    def close(self):
        """Nothing is pending."""
