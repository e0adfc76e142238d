"""The Trainer of transformers on a tiny random model, with a simulated board under load."""

import pytest

from joulery.errors import InvalidValueError
from support.torch_on_use import torch


def make_callback(*arguments, **options):
    """The callback under test; transformers is imported by tests only, since it takes a second."""
    from joulery.integrations.transformers import TransformersCallback

    return TransformersCallback(*arguments, **options)


def make_line(world):
    """A linear model whose forward pass loads a board."""

    class Line(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = torch.nn.Linear(4, 1)

        def forward(self, x, labels=None):
            """Prediction and loss, as the Trainer wants them."""
            world.load()
            prediction = self.weights(x).squeeze(-1)
            return {"loss": ((prediction - labels) ** 2).mean(), "logits": prediction}

    return Line()


@pytest.fixture
def data():
    """Points on a line."""
    torch.manual_seed(0)
    x = torch.randn(64, 4)
    return [{"x": row, "labels": row.sum()} for row in x]


def trainer(world, data, folder, callback, **arguments):
    """A trainer whose log entries come every ten steps."""
    from transformers import Trainer, TrainingArguments

    options = {
        "per_device_train_batch_size": 8,
        "num_train_epochs": 3,
        "logging_steps": 10,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "use_cpu": True,
        **arguments,
    }
    return Trainer(
        make_line(world),
        TrainingArguments(output_dir=str(folder), **options),
        train_dataset=data,
        eval_dataset=data,
        compute_metrics=lambda _: {"accuracy": 0.9},
        callbacks=[callback],
    )


def test_a_training_is_measured_and_its_log_has_the_energy(world, data, tmp_path):
    """If this fails, the one line that a user adds measures nothing, or the log lacks it."""
    callback = make_callback(meter=world.meter, sinks=[world])
    made = trainer(world, data, tmp_path, callback)
    made.train()
    world.check(callback.measurement, steps=24)
    entries = [entry for entry in made.state.log_history if "joulery/joules" in entry]
    assert len(entries) >= 2
    assert entries[0]["joulery/joules"] < entries[-1]["joulery/joules"]
    assert entries[0]["joulery/watts"] > 50


def test_a_run_tunes_the_power_of_a_trainer(world, data, tmp_path):
    """If this fails, steps do not reach the tuner, and nothing is saved."""
    run = world.run()
    callback = make_callback(run, meter=world.meter, sinks=[world])
    trainer(world, data, tmp_path, callback, num_train_epochs=60).train()
    world.check(callback.measurement, steps=480)
    assert run.total_steps == 480
    assert run.result is not None
    assert run.result.energy_saving > 0.05
    assert world.written[-2][1]["joulery/energy_saving"] == run.result.energy_saving


def test_the_target_ends_the_training(world, data, tmp_path):
    """If this fails, a Trainer goes on after its target was reached."""
    run = world.run(target=0.8, max_epochs=9)
    callback = make_callback(run, metric="eval_accuracy", meter=world.meter, sinks=[world])
    made = trainer(world, data, tmp_path, callback, num_train_epochs=9, eval_strategy="epoch")
    made.train()
    assert run.target_reached
    assert made.state.global_step == 8


def test_a_second_trainer_with_a_run_that_has_ended_is_measured(world, data, tmp_path, caplog):
    """If this fails, the energy of a second training is missing, and nothing says why."""
    run = world.run(max_epochs=3)
    for _ in range(2):
        before = world.gpu.true_joules()
        callback = make_callback(run)
        made = trainer(world, data, tmp_path, callback)
        made.train()
        used = world.gpu.true_joules() - before
        assert made.state.global_step == 24
        assert callback.measurement.joules == pytest.approx(used, rel=0.05)
    assert caplog.text.count("tiny has ended") == 1


def test_a_metric_that_no_evaluation_has_is_said_once(world, data, tmp_path, caplog):
    """If this fails, a slip in its name trains past the target without a word."""
    callback = make_callback(world.run(target=0.8, max_epochs=3), metric="eval_acuracy")
    trainer(world, data, tmp_path, callback, eval_strategy="epoch").train()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert lines[0].endswith(": the run gets no metric")
    assert lines[0].startswith("joulery: no 'eval_acuracy' among epoch, eval_accuracy, ")
    assert "joulery/" not in lines[0]
    with pytest.raises(InvalidValueError, match="name of a metric"):
        make_callback(metric=5)


def test_a_metric_of_one_of_several_evaluations_is_not_missed(world, data, tmp_path, caplog):
    """If this fails, a Trainer with several evaluation sets is told of a slip that is none."""
    run = world.run(target=0.8, max_epochs=3)
    made = trainer(
        world, data, tmp_path, make_callback(run, metric="eval_b_accuracy"), eval_strategy="epoch"
    )
    made.eval_dataset = {"a": data, "b": data}
    made.train()
    assert run.target_reached
    assert not caplog.records


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_last_epoch_of_a_run_ends_the_training(world, data, tmp_path, epochs):
    """If this fails, a Trainer makes a step more than the run has epochs for."""
    run = world.run(max_epochs=epochs)
    made = trainer(
        world, data, tmp_path, make_callback(run), num_train_epochs=4, eval_strategy="epoch"
    )
    made.train()
    assert made.state.global_step == run.total_steps == 8 * epochs
    assert sum("eval_loss" in entry for entry in made.state.log_history) == epochs


def test_evaluation_is_not_taken_for_slow_steps(world, data, tmp_path):
    """If this fails, validation between two steps makes the tuner believe that a step is slow."""
    run = world.run()
    callback = make_callback(run, meter=world.meter)
    made = trainer(
        world, data, tmp_path, callback, num_train_epochs=60, eval_strategy="steps", eval_steps=8
    )
    made.train()
    assert run.result is not None
    alone = world.run()
    seconds = run.result.reference.seconds
    world.load()
    before = world.clock.now()
    world.load()
    assert seconds == pytest.approx(world.clock.now() - before, rel=0.05)
    alone.close()


def test_accumulated_batches_are_one_step(world, data, tmp_path):
    """If this fails, gradient accumulation changes what a step is between two runs of a job."""
    run = world.run()
    callback = make_callback(run, meter=world.meter, sinks=[world])
    trainer(world, data, tmp_path, callback, gradient_accumulation_steps=4).train()
    assert run.total_steps == 6


def test_a_resumed_training_counts_on(world, data, tmp_path):
    """If this fails, the energy before a restart is forgotten."""
    first = make_callback(meter=world.meter, sinks=[world])
    trainer(
        world, data, tmp_path, first, save_strategy="epoch", logging_steps=8, num_train_epochs=2
    ).train()
    spent = world.gpu.true_joules()
    second = make_callback(meter=world.meter, sinks=[world])
    made = trainer(world, data, tmp_path, second, num_train_epochs=3, logging_steps=8)
    made.train(resume_from_checkpoint=True)
    assert made.state.global_step == 24
    assert world.written[-2][1]["joulery/joules"] == pytest.approx(world.gpu.true_joules(), rel=0.1)
    entries = [entry[1] for entry in world.written if entry != "closed"]
    per_step = [e["joulery/joules_per_step"] for e in entries if "joulery/joules_per_step" in e]
    assert per_step == pytest.approx([per_step[0]] * 3, rel=0.1)
    assert second.measurement.joules < spent


def test_a_callback_that_is_used_again_counts_anew(world, data, tmp_path):
    """If this fails, the log of a second training begins with the energy of the first."""
    callback = make_callback(meter=world.meter, sinks=[world])
    made = trainer(world, data, tmp_path, callback)
    for again in (made, made, trainer(world, data, tmp_path, callback, num_train_epochs=1)):
        before = world.gpu.true_joules()
        again.train()
        step, figures = world.written[-2]
        assert step == again.state.global_step
        used = world.gpu.true_joules() - before
        assert figures["joulery/joules"] == pytest.approx(used, rel=0.05)
        assert callback.measurement.joules == pytest.approx(used, rel=0.05)


def test_a_fault_of_ours_does_not_stop_the_training(world, data, tmp_path, monkeypatch, caplog):
    """If this fails, a bug in our code costs a user's training."""
    callback = make_callback(world.run(), meter=world.meter, sinks=[world])

    def broken(*_):
        raise RuntimeError("a bug")

    monkeypatch.setattr(world.meter, "begin", broken)
    monkeypatch.setattr(world.meter, "end", broken)
    made = trainer(world, data, tmp_path, callback)
    made.train()
    assert made.state.global_step == 24
    assert "a bug" in caplog.text
