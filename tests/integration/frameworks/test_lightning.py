"""The Trainer of Lightning on a tiny model, with a simulated board under load.

Lightning is imported by tests only: what takes seconds should not be paid for by every process.
"""

import pytest

from support.torch_on_use import torch

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning warns about its own dependencies


def make_callback(*arguments, **options):
    """The callback under test."""
    from joulery.integrations.lightning import LightningCallback

    return LightningCallback(*arguments, **options)


def make_line(world):
    """A linear model whose training step loads a board."""
    from lightning.pytorch import LightningModule

    class Line(LightningModule):
        def __init__(self):
            super().__init__()
            self.weights = torch.nn.Linear(4, 1)

        def training_step(self, batch, _):
            """The loss of a batch."""
            world.load()
            return ((self.weights(batch).squeeze(-1) - batch.sum(-1)) ** 2).mean()

        def validation_step(self, batch, _):
            """A metric that is always good."""
            world.load()
            self.log("val_accuracy", 0.9)

        def configure_optimizers(self):
            """Plain gradient descent."""
            return torch.optim.SGD(self.parameters(), lr=0.01)

    return Line()


def make_trainer(callback, **options):
    """A quiet trainer."""
    from lightning.pytorch import Trainer

    return Trainer(
        accelerator="cpu",
        callbacks=[callback],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        **{"max_epochs": 3, **options},
    )


@pytest.fixture
def loader():
    """Batches of 8 of 64 points."""
    torch.manual_seed(0)
    return torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=8)


def fit(world, loader, folder, callback, *, validate=False, **options):
    """Fit the model."""
    from lightning.pytorch.loggers import CSVLogger

    options = {"num_sanity_val_steps": 0, **options}
    made = make_trainer(callback, logger=CSVLogger(folder), default_root_dir=folder, **options)
    made.fit(make_line(world), loader, loader if validate else None)
    return made


def test_a_fit_is_measured_and_logged(world, loader, tmp_path):
    """If this fails, the one line that a user adds measures nothing, or the logger lacks it."""
    callback = make_callback(meter=world.meter, sinks=[world])
    made = fit(world, loader, tmp_path, callback)
    world.check(callback.measurement, steps=24)
    made.logger.save()
    assert "joulery/joules" in (tmp_path / "lightning_logs/version_0/metrics.csv").read_text()


def test_a_run_tunes_the_power_of_a_fit(world, loader, tmp_path):
    """If this fails, steps do not reach the tuner, and nothing is saved."""
    run = world.run()
    callback = make_callback(run, meter=world.meter, sinks=[world])
    fit(world, loader, tmp_path, callback, max_epochs=60, validate=True)
    world.check(callback.measurement, steps=480)
    assert run.total_steps == 480
    assert run.result.energy_saving > 0.05


def test_the_target_ends_the_fit(world, loader, tmp_path):
    """If this fails, a fit goes on after its target was reached."""
    run = world.run(target=0.8, max_epochs=9)
    callback = make_callback(run, monitor="val_accuracy", meter=world.meter)
    made = fit(world, loader, tmp_path, callback, max_epochs=9, validate=True)
    assert run.target_reached
    assert made.global_step == 8


def test_a_metric_that_no_validation_has_is_said_once(world, loader, tmp_path, caplog):
    """If this fails, a slip in its name fits past the target without a word."""
    callback = make_callback(world.run(target=0.8, max_epochs=3), monitor="val_acuracy")
    fit(world, loader, tmp_path, callback, validate=True)
    lines = [record.getMessage() for record in caplog.records if record.name == "joulery"]
    assert lines == ["joulery: no 'val_acuracy' among val_accuracy: the run gets no metric"]


def test_the_last_epoch_of_a_run_ends_the_fit(world, loader, tmp_path):
    """If this fails, a fit makes a step more than the run has epochs for."""
    run = world.run(max_epochs=2)
    made = fit(world, loader, tmp_path, make_callback(run), max_epochs=9, validate=True)
    assert made.global_step == run.total_steps == 16


def test_accumulated_batches_are_one_step(world, loader, tmp_path):
    """If this fails, gradient accumulation changes what a step is between two runs of a job."""
    run = world.run()
    fit(
        world,
        loader,
        tmp_path,
        make_callback(run, meter=world.meter),
        accumulate_grad_batches=4,
    )
    assert run.total_steps == 6


def test_a_resumed_fit_counts_on(world, loader, tmp_path):
    """If this fails, the energy before a restart is forgotten."""
    made = fit(world, loader, tmp_path, make_callback(meter=world.meter), max_epochs=2)
    made.save_checkpoint(tmp_path / "two.ckpt")
    second = make_callback(meter=world.meter, sinks=[world])
    again = make_trainer(second, logger=False)
    again.fit(make_line(world), loader, ckpt_path=tmp_path / "two.ckpt", weights_only=False)
    step, figures = world.written[-2]
    assert step == 24
    assert figures["joulery/joules"] == pytest.approx(world.gpu.true_joules(), rel=0.05)
