"""Sinks and trackers, each with the real package, offline."""

import csv
import json
import math
import re
from pathlib import Path

import pytest

from joulery.errors import InvalidValueError
from joulery.integrations.files import FileSink
from joulery.training import CallbackLoop


def train(world, sinks, steps=6):
    """Some steps, with figures after each."""
    loop = CallbackLoop(meter=world.meter, sinks=sinks)
    loop.begin()
    loop.begin_epoch(steps)
    for _ in range(steps):
        loop.begin_step()
        world.load()
        loop.end_step()
        loop.log()
    return loop.end()


def test_files_get_a_line_per_log_entry(world, tmp_path):
    """If this fails, figures on disk are lost or cannot be read back."""
    train(world, [FileSink(tmp_path / "a/energy.csv"), FileSink(tmp_path / "energy.jsonl")])
    train(world, [FileSink(tmp_path / "a/energy.csv")])  # appends, with one header
    with (tmp_path / "a/energy.csv").open() as file:
        rows = list(csv.DictReader(file))
    lines = [json.loads(line) for line in (tmp_path / "energy.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows[:7]] == ["1", "2", "3", "4", "5", "6", "6"]
    assert len(rows) == 14
    assert [float(row["joulery/joules"]) for row in rows[:7]] == [
        line["joulery/joules"] for line in lines
    ]


def test_a_file_of_an_unknown_kind_is_refused():
    """If this fails, a typo shows only after hours of training."""
    with pytest.raises(InvalidValueError, match=r"\.csv or \.jsonl"):
        FileSink("energy.txt")


def test_a_sink_that_fails_is_left_out(world, caplog):
    """If this fails, a full disk stops the training or the other sinks."""

    class Broken:
        def write(self, figures, step):
            raise OSError("disk full")

        def close(self):
            raise OSError("disk full")

    train(world, [Broken(), world])
    assert world.written[-1] == "closed"
    assert caplog.text.count("disk full") == 1


def test_tensorboard_shows_the_figures(world, tmp_path):
    """If this fails, the scalars of a training do not reach TensorBoard."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    from joulery.integrations.tensorboard import TensorBoardSink

    measured = train(world, [TensorBoardSink(str(tmp_path))])
    events = EventAccumulator(str(tmp_path)).Reload()
    scalars = events.Scalars("joulery/joules")
    assert [scalar.step for scalar in scalars] == [1, 2, 3, 4, 5, 6, 6]
    assert scalars[-1].value == pytest.approx(measured.joules, rel=1e-3)


def test_weights_and_biases_keeps_the_figures_offline(world, tmp_path, monkeypatch):
    """If this fails, a run of Weights & Biases lacks the energy, or the network is used."""
    import wandb

    from joulery.integrations.wandb import WandbSink

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run = wandb.init(dir=tmp_path, project="test")
    measured = train(world, [WandbSink()])
    summary = dict(run.summary)
    run.finish()
    assert summary["joulery/joules"] == pytest.approx(measured.joules, rel=0.03)
    assert summary["joulery/step"] == 6


def test_trackio_keeps_the_figures(world, tmp_path, monkeypatch):
    """If this fails, a run of Trackio lacks the energy."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    import trackio

    from joulery.integrations.trackio import TrackioSink

    trackio.init(project="test", name="tiny", embed=False)
    train(world, [TrackioSink()])
    trackio.finish()
    assert list(tmp_path.glob("*.db"))


def test_accelerate_measures_from_init_to_end(world, tmp_path):
    """If this fails, an Accelerator does not take the tracker, or it measures nothing."""
    import accelerate

    from joulery.integrations.accelerate import AccelerateTracker

    tracker = AccelerateTracker(meter=world.meter, sinks=[world])
    accelerator = accelerate.Accelerator(cpu=True, log_with=[tracker])
    accelerator.init_trackers("tiny", config={"rate": 0.1})
    for step in range(5):
        world.load()
        accelerator.log({"loss": 1.0}, step=step + 1)
    accelerator.end_training()
    world.check(tracker.measurement, steps=5)


def test_accelerate_counts_from_the_first_training_step(world):
    """If this fails, loading a model and a dataset counts as training."""
    import accelerate
    import torch

    from joulery.integrations.accelerate import AccelerateTracker

    tracker = AccelerateTracker(meter=world.meter, sinks=[world])
    accelerator = accelerate.Accelerator(cpu=True, log_with=[tracker])
    accelerator.init_trackers("tiny")
    model = torch.nn.Linear(2, 2)
    world.load(7)
    model.eval()(torch.zeros(1, 2))
    model.train()
    began = world.meter.clock.now()
    for step in range(5):
        model(torch.zeros(1, 2))
        world.load()
        accelerator.log({"loss": 1.0}, step=step + 1)
    seconds = world.meter.clock.now() - began
    accelerator.end_training()
    assert tracker.measurement.seconds == pytest.approx(seconds, rel=0.01)
    assert not torch.nn.modules.module._global_forward_pre_hooks


def test_optuna_weighs_accuracy_against_joules(world):
    """If this fails, a study does not see what a trial spends."""
    import optuna

    from joulery.integrations.optuna import EnergyObjective

    def objective(trial):
        width = trial.suggest_int("width", 1, 8)
        world.load(width)
        return math.log(width)

    optuna.logging.disable_default_handler()
    study = optuna.create_study(
        directions=["maximize", "minimize"], sampler=optuna.samplers.RandomSampler(seed=0)
    )
    study.optimize(EnergyObjective(objective, world.meter), n_trials=8)
    joules = {trial.params["width"]: trial.values[1] for trial in study.trials}
    assert [joules[width] for width in sorted(joules)] == sorted(joules.values())
    assert study.trials[0].user_attrs["joules"] == study.trials[0].values[1]


def test_prometheus_scrapes_energy_power_and_limit(world):
    """If this fails, dashboards show nothing, or a name that they do not know."""
    from prometheus_client import CollectorRegistry
    from prometheus_client.exposition import generate_latest

    from joulery import integrations
    from joulery.integrations.prometheus import DeviceCollector

    registry = CollectorRegistry()
    registry.register(DeviceCollector(world.meter))
    before = world.gpu.true_joules()
    for _ in range(20):
        world.load()
    (device,) = world.meter.devices
    labels = {"device": device.info.id, "name": device.info.name, "kind": "gpu"}
    samples = {
        sample.name: (sample.labels, sample.value)
        for family in registry.collect()
        for sample in family.samples
    }
    found, joules = samples["joulery_device_joules_total"]
    assert labels.items() <= found.items()
    assert joules == pytest.approx(world.gpu.true_joules() - before, rel=0.05)
    assert samples["joulery_device_watts"][1] > 50
    assert samples["joulery_device_limit_watts"][1] == device.power_limits().current_watts
    assert samples["joulery_device_default_limit_watts"][1] == device.power_limits().default_watts
    assert b"joulery_device_joules_total{" in generate_latest(registry)
    panels = (Path(integrations.__file__).parent / "grafana.json").read_text(encoding="utf-8")
    drawn = samples.keys() - {"joulery_device_default_limit_watts"}  # which an alert needs
    assert set(re.findall(r"joulery_device_\w+", panels)) == drawn


def test_opentelemetry_uses_the_names_of_its_conventions(world):
    """If this fails, backends do not recognise the metrics."""
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    from joulery.integrations.opentelemetry import HardwareMetrics

    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader])
    HardwareMetrics(world.meter, provider)
    for _ in range(20):
        world.load()
    (resource,) = reader.get_metrics_data().resource_metrics
    found = {m.name: m for m in resource.scope_metrics[0].metrics}
    point = found["hw.energy"].data.data_points[0]
    assert (found["hw.energy"].unit, found["hw.power"].unit) == ("J", "W")
    assert point.attributes["hw.type"] == "gpu"
    assert point.value == pytest.approx(world.gpu.true_joules(), rel=0.05)
    provider.shutdown()
