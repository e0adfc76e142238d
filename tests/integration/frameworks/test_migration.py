"""Code written for Zeus and CodeCarbon, with one import changed, on simulated boards."""

import csv
import inspect

import pytest

from joulery.hardware import catalog
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
    codecarbon.EmissionsTracker(country_iso_code="XYZ")
    assert "world" in caplog.text
