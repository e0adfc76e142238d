"""``Model.fit`` of Keras on torch, with a simulated board under load.

Keras is imported by tests only: what takes seconds should not be paid for by every test process.
"""

import os

import numpy as np

os.environ.setdefault("KERAS_BACKEND", "torch")  # before its import


def make_callback(*arguments, **options):
    """The callback under test."""
    from joulery.integrations.keras import KerasCallback

    return KerasCallback(*arguments, **options)


def fit(world, callback, epochs=3, **options):
    """Fit a linear model; its history."""
    import keras

    class Load(keras.callbacks.Callback):
        """Loads the board once per batch of training and of validation."""

        def on_train_batch_end(self, batch, logs=None):
            world.load()

        def on_test_batch_end(self, batch, logs=None):
            world.load()

    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", metrics=["mae"])
    x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    y = x.sum(1, keepdims=True)
    callbacks = [Load(), callback]
    return model.fit(x, y, batch_size=8, epochs=epochs, callbacks=callbacks, verbose=0, **options)


def test_a_fit_is_measured_and_its_history_has_the_energy(world):
    """If this fails, the one line that a user adds measures nothing, or the history lacks it."""
    callback = make_callback(meter=world.meter, sinks=[world])
    history = fit(world, callback)
    world.check(callback.measurement, steps=24)
    joules = history.history["joulery/joules"]
    assert len(joules) == 3
    assert joules == sorted(joules)


def test_a_run_tunes_the_power_of_a_fit(world):
    """If this fails, steps do not reach the tuner, and nothing is saved."""
    run = world.run()
    callback = make_callback(run, meter=world.meter, sinks=[world])
    fit(world, callback, epochs=60, validation_split=0.5)
    world.check(callback.measurement, steps=240)
    assert run.total_steps == 240
    assert run.result.energy_saving > 0.05


def test_the_target_ends_the_fit(world):
    """If this fails, a fit goes on after its target was reached."""
    run = world.run(target=1e9, higher_is_better=False, max_epochs=9)
    callback = make_callback(run, monitor="val_loss", meter=world.meter)
    history = fit(world, callback, epochs=9, validation_split=0.5)
    assert run.target_reached
    assert len(history.epoch) == 1


def test_the_last_epoch_of_a_run_ends_the_fit(world):
    """If this fails, a fit makes a step more than the run has epochs for."""
    run = world.run(max_epochs=2)
    history = fit(world, make_callback(run), epochs=9)
    assert history.epoch == [0, 1]
    assert run.total_steps == 16


def test_a_metric_that_no_validation_has_is_said_once(world, caplog):
    """If this fails, a slip in its name fits past the target, or a rare validation is told of."""
    for monitor, lines in (("val_lss", 1), ("acuracy", 1), ("val_loss", 0)):
        caplog.clear()
        callback = make_callback(world.run(target=-1.0, max_epochs=6), monitor=monitor)
        fit(world, callback, epochs=6, validation_split=0.5, validation_freq=3)
        assert len(caplog.records) == caplog.text.count(f"no '{monitor}' among loss, mae") == lines
