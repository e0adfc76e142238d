"""Code written for Zeus and CodeCarbon, with one import changed, on simulated boards."""

import csv
import inspect
import json
import logging

import pytest

from joulery.clock import VirtualClock
from joulery.hardware import catalog
from joulery.hardware._estimate import CpuEstimate, Processor
from joulery.integrations import codecarbon, zeus
from joulery.metering import Meter


@pytest.fixture
def board(world, monkeypatch):
    """The only device that a new meter finds."""

    def made(*_):
        return Meter([world.gpu], clock=world.clock)

    monkeypatch.setattr(zeus, "Meter", made)
    monkeypatch.setattr(codecarbon, "Meter", made)
    monkeypatch.delenv("JOULERY_REGION", raising=False)
    return world


def test_windows_of_zeus(board, tmp_path):
    """If this fails, a script written for Zeus's monitor breaks or measures something else."""
    monitor = zeus.ZeusMonitor(gpu_indices=[0], log_file=tmp_path / "a/windows.csv")
    before = board.gpu.true_joules()
    monitor.begin_window("epoch")
    monitor.begin_window("step")
    for _ in range(20):
        board.load()
    step = monitor.end_window("step")
    epoch = monitor.end_window("epoch")
    assert epoch.gpu_energy == {0: pytest.approx(board.gpu.true_joules() - before, rel=0.03)}
    assert epoch.total_energy == sum(epoch.gpu_energy.values())
    assert epoch.time == pytest.approx(step.time, rel=0.01)
    with (tmp_path / "a/windows.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["window_name"] for row in rows] == ["step", "epoch"]
    assert float(rows[1]["gpu0_energy"]) == epoch.total_energy


def test_the_power_monitor_of_zeus(board):
    """If this fails, a script that plots the power of Zeus's monitor gets another shape."""
    monitor = zeus.PowerMonitor(update_period=0.5)
    assert monitor.get_power() is None
    start = board.clock.wall()
    before = board.gpu.true_joules()
    board.load(40)
    monitor.stop()
    end, joules = board.clock.wall(), board.gpu.true_joules() - before
    line = monitor.get_power_timeline("device_instant")[0]
    assert [time for time, _ in line] == sorted(time for time, _ in line)
    assert len(line) == pytest.approx((end - start) / 0.5, abs=2)
    assert monitor.get_all_power_timelines(gpu_index=0)["device_average"] == {0: line}
    assert monitor.get_power() == {0: line[-1][1]}
    assert monitor.get_power(line[3][0] + 0.1) == {0: line[3][1]}
    assert monitor.get_energy(start, end)[0] == pytest.approx(joules, rel=0.2)
    with pytest.raises(ValueError, match="not measured"):
        zeus.PowerMonitor(power_domains=["memory_average"])


@pytest.mark.parametrize("shim", [zeus, codecarbon])
def test_completion_offers_the_names_of_the_package(shim):
    """If this fails, a tab in a notebook shows ``os`` and classes of ours among theirs."""
    names = set(dir(shim))
    assert set(shim.__all__) <= names
    assert not names & {"os", "csv", "Cost", "LeastEnergy", "Run", "Meter", "Any"}


def test_zeus_refuses_what_it_refused(board):
    """If this fails, mistakes that Zeus reports pass silently."""
    monitor = zeus.ZeusMonitor()
    monitor.begin_window("a")
    with pytest.raises(ValueError, match="open already"):
        monitor.begin_window("a")
    monitor.begin_window("a", restart=True)
    assert monitor.end_window("a", cancel=True).total_energy == 0
    with pytest.raises(ValueError, match="not open"):
        monitor.end_window("a")
    with pytest.raises(ValueError, match="found"):
        zeus.ZeusMonitor(gpu_indices=[3])
    with pytest.raises(ValueError, match="profile_steps"):
        zeus.GlobalPowerLimitOptimizer(monitor, profile_steps=0)
    with pytest.raises(ValueError, match="eta_knob"):
        zeus.ZeusCost(1.5)
    with pytest.raises(ValueError, match="at least 1"):
        zeus.MaxSlowdownConstraint(0.9)


@pytest.mark.parametrize(
    ("selector", "least", "most"),
    [
        (None, 100, 200),
        (zeus.ZeusCost(0.5), 100, 200),
        (zeus.Energy(), 100, 180),
        (zeus.MaxSlowdownConstraint(1.1), 100, 220),
        (zeus.Time(), 190, 300),
    ],
    ids=["default", "cost", "energy", "slowdown", "time"],
)
def test_the_power_limit_optimizer_of_zeus(board, selector, least, most):
    """If this fails, a loop written for Zeus's optimizer does not get its power limit."""
    plo = zeus.GlobalPowerLimitOptimizer(zeus.ZeusMonitor(), selector)
    for _ in range(40):
        plo.on_epoch_begin()
        for _ in range(10):
            plo.on_step_begin()
            board.load()
            plo.on_step_end()
        plo.on_epoch_end()
    watts = board.gpu.power_limits().current_watts
    plo.on_train_end()
    assert least <= watts <= most
    assert board.gpu.power_limits().current_watts == catalog.board("V100").default_limit_watts


def test_the_optimizer_for_transformers_takes_the_same_arguments():
    """If this fails, the callback for the Trainer is made in another way than Zeus's."""
    made = inspect.signature(zeus.HFGlobalPowerLimitOptimizer.__init__)
    assert made == inspect.signature(zeus.GlobalPowerLimitOptimizer.__init__)


def test_the_loader_of_zeus_ml(board, monkeypatch):
    """If this fails, a loop written for zeus-ml 0.8 breaks or ends at another epoch."""
    import torch

    monkeypatch.setenv("ZEUS_TARGET_METRIC", "0.8")
    monkeypatch.setattr("joulery.training._config.RunEnvironment.boards", lambda _: [board.gpu])
    data = torch.utils.data.TensorDataset(torch.randn(32, 4))
    train = zeus.ZeusDataLoader(data, batch_size=8, max_epochs=5, shuffle=True)
    evaluation = zeus.ZeusDataLoader(data, batch_size=8)
    epochs = 0
    for _ in train.epochs():
        for _ in train:
            board.load()
        assert sum(1 for _ in evaluation) == 4
        epochs += 1
        train.report_metric(0.3 * epochs, higher_is_better_metric=True)
    assert epochs == 3
    assert train.is_train
    assert not evaluation.is_train


def test_emissions_of_codecarbon(board, tmp_path):
    """If this fails, a script written for CodeCarbon gets other figures or another file."""
    with codecarbon.EmissionsTracker(
        "demo", output_dir=tmp_path, country_iso_code="FRA"
    ) as tracker:
        board.load(20)
        tracker.start_task("inner")
        board.load(20)
        task = tracker.stop_task("inner")
    kilowatt_hours = board.gpu.true_joules() / 3.6e6
    assert tracker.final_emissions == pytest.approx(kilowatt_hours * 0.06, rel=0.05)
    assert task.gpu_energy == pytest.approx(kilowatt_hours / 2, rel=0.05)
    with (tmp_path / "emissions.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["project_name"] == "demo"
    assert row["country_name"] == "France"
    assert row["gpu_model"].endswith("(simulated)")
    assert row["codecarbon_version"].endswith("(simulated)")
    # No meter of memory or processors is here: unknown, not nothing.
    assert row["ram_energy"] == row["cpu_power"] == ""
    assert 0 < float(row["gpu_utilization_percent"]) <= 100
    assert float(row["energy_consumed"]) == pytest.approx(kilowatt_hours, rel=0.05)
    assert float(row["emissions"]) == tracker.final_emissions


def test_a_row_per_run_or_one_that_is_updated(board, tmp_path):
    """If this fails, results of earlier runs are lost, or flushed rows pile up."""
    for mode, rows in (("append", 3), ("update", 4)):
        tracker = codecarbon.OfflineEmissionsTracker(output_dir=tmp_path, on_csv_write=mode)
        tracker.start()
        tracker.flush()
        tracker.flush()
        tracker.stop()
        with (tmp_path / "emissions.csv").open() as file:
            assert len(list(csv.DictReader(file))) == rows


def test_decorated_functions(board, tmp_path, caplog):
    """If this fails, the decorator loses results, errors or files."""

    @codecarbon.track_emissions(output_dir=tmp_path, pue=1.5, force_carbon_intensity_g_co2e_kwh=0)
    def train(value):
        """Train."""
        board.load(10)
        if value < 0:
            raise ArithmeticError
        return value

    assert train(7) == 7
    assert train.__doc__ == "Train."
    with pytest.raises(ArithmeticError):
        train(-1)
    with (tmp_path / "emissions.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 2
    assert float(rows[0]["emissions"]) == 0
    with pytest.raises(TypeError, match="prject"):
        codecarbon.EmissionsTracker(prject_name="typo")


def test_a_country_may_be_given_by_two_letters(board, caplog):
    """The world's mean applies to a country whose intensity is in the table."""
    tracker = codecarbon.EmissionsTracker(country_iso_code="de", save_to_file=False)
    tracker.start()
    board.load()
    tracker.stop()
    row = tracker.final_emissions_data
    assert (row.country_iso_code, row.country_name) == ("DEU", "Germany")
    assert row.emissions == pytest.approx(row.energy_consumed * 0.346)
    assert caplog.text == ""


def test_an_unknown_place_is_said_once(board, caplog, monkeypatch):
    """If this fails, the world's mean passes for that of the place, or floods the log."""
    codecarbon._warn_of_world.cache_clear()
    monkeypatch.setenv("JOULERY_REGION", "DE")
    codecarbon.EmissionsTracker()
    codecarbon.EmissionsTracker(force_carbon_intensity_g_co2e_kwh=100)
    assert caplog.text == ""
    monkeypatch.delenv("JOULERY_REGION")
    for country in ("XYZ", "XYZ", None, None):
        codecarbon.EmissionsTracker(country_iso_code=country)
    first, second = (record.getMessage() for record in caplog.records)
    assert "no intensity of XYZ" in first
    assert "known are AUS, AUT" in first
    assert "no country is given; the world's mean of 445 g/kWh" in second


def test_an_estimate_is_called_assumed(monkeypatch):
    """If this fails, energy by utilisation passes for measured in a CSV of CodeCarbon."""
    clock = VirtualClock()
    processors = CpuEstimate(Processor("EPYC", 1, 4, 8), 100.0, clock)
    monkeypatch.setattr(codecarbon, "Meter", lambda *_: Meter([processors], clock=clock))
    with codecarbon.EmissionsTracker(save_to_file=False) as tracker:
        clock.sleep(10.0)
    assert tracker.final_emissions_data.cpu_energy > 0
    assert tracker.final_emissions_data.codecarbon_version.endswith(" (cpu power assumed)")


def test_forced_powers_of_codecarbon_count_and_are_called_assumed(board):
    """If this fails, what the caller knows of memory and processors is swallowed."""
    with codecarbon.EmissionsTracker(
        save_to_file=False, force_cpu_power=20, force_ram_power=5, pue=2.0
    ) as tracker:
        board.load(20)
    data = tracker.final_emissions_data
    assert (data.cpu_power, data.ram_power) == (pytest.approx(40), pytest.approx(10))
    parts = data.cpu_energy + data.ram_energy + data.gpu_energy
    assert data.energy_consumed == pytest.approx(parts)
    assert "cpu power assumed, memory power assumed" in data.codecarbon_version
    with pytest.raises(ValueError, match="forced power of cpu"):
        codecarbon.EmissionsTracker(force_cpu_power=-1)


def test_nothing_known_is_no_emission_of_nothing(board, monkeypatch, tmp_path):
    """If this fails, a machine without any meter reports 0 kg."""
    clock = board.clock
    monkeypatch.setattr(codecarbon, "Meter", lambda: Meter([], clock=clock))
    handler = Handler()
    tracker = codecarbon.EmissionsTracker(output_dir=tmp_path, output_handlers=[handler])
    tracker.start()
    clock.sleep(20)
    assert tracker.flush() is None
    assert tracker.stop() is None
    with (tmp_path / "emissions.csv").open() as file:
        assert {row["emissions"] for row in csv.DictReader(file)} == {""}


class Handler(codecarbon.BaseOutput):
    """A handler of figures as users of CodeCarbon write them."""

    def __init__(self):
        self.seen = []

    def out(self, total, delta):
        """Note the figures."""
        self.seen.append(("out", total.gpu_energy, delta.gpu_energy))

    def live_out(self, total, delta):
        """Note the figures so far."""
        self.seen.append(("live", total.gpu_energy, delta.gpu_energy))

    def task_out(self, data, experiment_name):
        """Note the tasks."""
        self.seen.append(("tasks", experiment_name, [task.task_name for task in data]))

    def exit(self):
        """Fail."""
        self.seen.append("exit")
        raise OSError


def test_handlers_of_codecarbon_get_their_figures(board, caplog):
    """If this fails, handlers written for CodeCarbon are not called, or stop the program."""
    handler = Handler()
    tracker = codecarbon.EmissionsTracker(
        "demo", 10, 2, save_to_file=False, output_handlers=[handler]
    )
    tracker.start()
    tracker.start_task("inner")
    while board.clock.now() < 25:  # a look at the start and every ten seconds, a call every two
        board.load()
    tracker.stop()
    first, last, tasks, end = handler.seen[0], *handler.seen[-3:]
    assert [seen[0] for seen in handler.seen[:-1]] == ["live", "live", "out", "tasks"]
    assert first[1] == first[2] < last[1] == pytest.approx(board.gpu.true_joules() / 3.6e6, 0.05)
    assert sum(seen[2] for seen in handler.seen[:3]) == pytest.approx(last[1])
    assert tasks[2] == ["inner"]
    assert end == "exit"
    assert "exit of" in caplog.text


def test_figures_of_codecarbon_in_a_log(board, caplog):
    """If this fails, those who read CodeCarbon's figures from a log find none."""
    handler = codecarbon.LoggerOutput(logging.getLogger("energy"), logging.INFO)
    with (
        caplog.at_level(logging.INFO, "energy"),
        codecarbon.EmissionsTracker(
            "demo", output_methods=[codecarbon.OutputMethod.LOGGER], logging_logger=handler
        ),
    ):
        board.load(10)
    (line,) = [record.message for record in caplog.records if record.name == "energy"]
    found = json.loads(line)
    assert found["project_name"] == "demo"
    assert found["gpu_energy"] > 0
    assert 0 <= (found["cpu_utilization_percent"] or 0) <= 100  # unknown for less than a tick
    assert 0 < found["ram_used_gb"] < found["ram_total_size"]


@pytest.mark.parametrize(
    ("gpu_ids", "counts"), [(None, True), ([0], True), ("0, 3", True), ([1], False), ("", False)]
)
def test_only_the_gpus_that_were_named_count(board, gpu_ids, counts):
    """If this fails, a job is charged for boards of others, or a form of the list is refused."""
    with codecarbon.EmissionsTracker(save_to_file=False, gpu_ids=gpu_ids) as tracker:
        board.load(10)
    assert (tracker.final_emissions_data.gpu_energy > 0) == counts


def test_a_tracker_of_codecarbon_starts_again(board, tmp_path):
    """If this fails, the second part of a program that stops its tracker in between counts zero."""
    tracker = codecarbon.EmissionsTracker(save_to_file=False)
    for _ in range(2):
        tracker.start()
        board.load(10)
        tracker.stop()
    assert tracker.final_emissions_data.gpu_energy == pytest.approx(
        board.gpu.true_joules() / 2 / 3.6e6, rel=0.1
    )


def test_tasks_of_codecarbon_by_decorator(board, tmp_path):
    """If this fails, functions decorated as tasks do not show up in the file of tasks."""
    tracker = codecarbon.EmissionsTracker(output_dir=tmp_path, experiment_name="both")

    @codecarbon.track_task_emissions(tracker=tracker, task_name="train")
    def train():
        board.load(10)
        return 3

    with tracker:
        assert train() == 3
    with (tmp_path / f"emissions_both_{tracker.run_id}.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert row["task_name"] == "train"
    assert float(row["gpu_energy"]) > 0


@pytest.mark.parametrize(("given", "used"), [(0, 0.0), (12.5, 12.5), (-1, None), ("x", None)])
def test_carbon_intensities_that_make_no_sense_are_not_used(board, caplog, given, used):
    """If this fails, a slip in an argument makes emissions negative or stops the program."""
    tracker = codecarbon.EmissionsTracker(force_carbon_intensity_g_co2e_kwh=given)
    assert tracker.force_carbon_intensity_g_co2e_kwh == used
    assert ("not a carbon intensity" in caplog.text) == (used is None)


def test_a_set_of_callbacks_of_zeus_calls_all():
    """If this fails, a loop that holds its callbacks in a set loses some of them."""
    seen = []

    class Noting(zeus.Callback):
        def on_evaluate(self, metric):
            seen.append(metric)

    callbacks = zeus.CallbackSet([Noting(), Noting()])
    callbacks.on_train_begin()
    callbacks.on_instruction_begin("forward")
    callbacks.on_evaluate(0.5)
    assert seen == [0.5, 0.5]


def test_settings_of_zeus_from_the_environment(monkeypatch):
    """If this fails, scripts that take their settings as Zeus's examples do get wrong ones."""
    monkeypatch.setenv("SLOW", "True")
    assert zeus.get_env("SLOW", bool) is True
    assert zeus.get_env("ABSENT", float, default=1.1) == 1.1
    with pytest.raises(ValueError, match="ABSENT"):
        zeus.get_env("ABSENT", str)
    monkeypatch.setenv("SLOW", "perhaps")
    with pytest.raises(ValueError, match="true or false"):
        zeus.get_env("SLOW", bool)
