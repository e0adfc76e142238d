"""Phases of reinforcement learning by one line, against trainers built as TRL's and verl's are.

``tests/optional`` has the real trainer of TRL; verl needs GPUs.
"""

import sys
from contextlib import contextmanager
from types import ModuleType

import pytest

from joulery.errors import InvalidValueError
from joulery.integrations import verl

GENERATION, UPDATE = 3.0, 1.0  # shares of a step of the board


def _train_as_verl(world, run, steps):
    """A trainer whose module has the timers, as verl's has."""
    module, timings = ModuleType("recipe"), {}

    @contextmanager
    def marked_timer(name, timing_raw, color=None):
        yield
        timing_raw[name] = color

    module.marked_timer = marked_timer

    class Trainer:
        def fit(self):
            for _ in range(steps):
                with module.marked_timer("step", timings):
                    with module.marked_timer("gen", timings, color="red"):
                        world.load(GENERATION)
                        with module.marked_timer("ref", timings):
                            pass  # within another phase
                    with module.marked_timer("update_actor", timings):
                        world.load(UPDATE)

    Trainer.__module__ = module.__name__
    sys.modules[module.__name__] = module
    try:
        verl.tune_phases(Trainer(), run)
        Trainer().fit()
    finally:
        del sys.modules[module.__name__]
    assert timings == {"step": None, "gen": "red", "ref": None, "update_actor": None}
    return "gen", "update_actor"


def _train_as_trl(world, run, steps):
    """A trainer that generates for every second step, as TRL's with two iterations."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    from joulery.integrations.trl import tune_phases

    class Line(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.line = torch.nn.Linear(1, 1)

        def forward(self, x):
            world.load(UPDATE / 2)
            return {"loss": self.line(x).mean()}

    class Trainer(transformers.Trainer):
        calls = 0

        def _prepare_inputs(self, inputs):
            self.calls += 1
            if self.calls % 4 == 1:  # two steps of two accumulated batches
                inputs = self._generate_and_score_completions(inputs)
            return inputs

        def _generate_and_score_completions(self, inputs):
            world.load(2 * GENERATION)
            return super()._prepare_inputs(inputs)

    arguments = transformers.TrainingArguments(
        output_dir=".", max_steps=steps, gradient_accumulation_steps=2, report_to=[],
        per_device_train_batch_size=1, save_strategy="no", use_cpu=True, disable_tqdm=True,
    )  # fmt: skip
    data = [{"x": torch.ones(1)}] * 4 * steps
    trainer = Trainer(Line(), arguments, train_dataset=data)
    tune_phases(trainer, run)
    trainer.train()
    return "rollout", "update"


@pytest.mark.parametrize("train", [_train_as_trl, _train_as_verl])
def test_generation_and_updates_are_phases(world, tmp_path, monkeypatch, train):
    """Energy would count for the wrong phase, or generation run at the setting of updates."""
    monkeypatch.chdir(tmp_path)
    run, steps = world.run(), 24
    generation, update = train(world, run, steps)
    phases = run.phases
    run.close()
    assert set(phases) == {generation, update}
    ratio = phases[generation].joules / phases[update].joules
    assert ratio == pytest.approx(GENERATION / UPDATE, rel=0.03)
    total = sum(use.joules for use in phases.values())
    assert total == pytest.approx(world.gpu.true_joules(), rel=0.03)
    assert phases[update].visits == steps


def test_trainers_without_phases_are_refused(world):
    """A wrong object would train without a word and without phases."""
    pytest.importorskip("transformers")
    from joulery.integrations import trl

    for module in (trl, verl):
        with pytest.raises(InvalidValueError, match="object has no"):
            module.tune_phases(object(), world.run())
