"""The Trainer of Lightning on a tiny model, with a simulated board under load."""

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.loggers import CSVLogger

from joulery.integrations.lightning import LightningCallback

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning warns about its own dependencies


class Line(LightningModule):
    """A linear model whose training step loads a board."""

    def __init__(self, world):
        super().__init__()
        self.weights = torch.nn.Linear(4, 1)
        self._world = [world]

    def training_step(self, batch, _):
        """The loss of a batch."""
        self._world[0].load()
        return ((self.weights(batch).squeeze(-1) - batch.sum(-1)) ** 2).mean()

    def validation_step(self, batch, _):
        """A metric that is always good."""
        self._world[0].load()
        self.log("val_accuracy", 0.9)

    def configure_optimizers(self):
        """Plain gradient descent."""
        return torch.optim.SGD(self.parameters(), lr=0.01)


@pytest.fixture
def loader():
    """Batches of 8 of 64 points."""
    torch.manual_seed(0)
    return torch.utils.data.DataLoader(torch.randn(64, 4), batch_size=8)


def fit(world, loader, folder, callback, *, validate=False, **options):
    """Fit the model."""
    made = Trainer(
        accelerator="cpu",
        logger=CSVLogger(folder),
        callbacks=[callback],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
        **{"max_epochs": 3, "num_sanity_val_steps": 0, **options},
    )
    made.fit(Line(world), loader, loader if validate else None)
    return made


def test_a_fit_is_measured_and_logged(world, loader, tmp_path):
    """If this fails, the one line that a user adds measures nothing, or the logger lacks it."""
    callback = LightningCallback(meter=world.meter, sinks=[world])
    made = fit(world, loader, tmp_path, callback)
    world.check(callback.measurement, steps=24)
    made.logger.save()
    assert "joulery/joules" in (tmp_path / "lightning_logs/version_0/metrics.csv").read_text()


def test_a_run_tunes_the_power_of_a_fit(world, loader, tmp_path):
    """If this fails, steps do not reach the tuner, and nothing is saved."""
    run = world.run()
    callback = LightningCallback(run, meter=world.meter, sinks=[world])
    fit(world, loader, tmp_path, callback, max_epochs=60, validate=True)
    world.check(callback.measurement, steps=480)
    assert run.total_steps == 480
    assert run.result.energy_saving > 0.05


def test_the_target_ends_the_fit(world, loader, tmp_path):
    """If this fails, a fit goes on after its target was reached."""
    run = world.run(target=0.8, max_epochs=9)
    callback = LightningCallback(run, monitor="val_accuracy", meter=world.meter)
    made = fit(world, loader, tmp_path, callback, max_epochs=9, validate=True)
    assert run.target_reached
    assert made.global_step == 8


def test_accumulated_batches_are_one_step(world, loader, tmp_path):
    """If this fails, gradient accumulation changes what a step is between two runs of a job."""
    run = world.run()
    fit(
        world,
        loader,
        tmp_path,
        LightningCallback(run, meter=world.meter),
        accumulate_grad_batches=4,
    )
    assert run.total_steps == 6


def test_a_resumed_fit_counts_on(world, loader, tmp_path):
    """If this fails, the energy before a restart is forgotten."""
    made = fit(world, loader, tmp_path, LightningCallback(meter=world.meter), max_epochs=2)
    made.save_checkpoint(tmp_path / "two.ckpt")
    second = LightningCallback(meter=world.meter, sinks=[world])
    again = Trainer(
        accelerator="cpu",
        logger=False,
        callbacks=[second],
        max_epochs=3,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
    )
    again.fit(Line(world), loader, ckpt_path=tmp_path / "two.ckpt", weights_only=False)
    step, figures = world.written[-2]
    assert step == 24
    assert figures["joulery/joules"] == pytest.approx(world.gpu.true_joules(), rel=0.05)
