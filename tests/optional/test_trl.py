"""TRL's trainers take the callback of transformers, and have their phases tuned."""

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the packages themselves


@pytest.fixture
def tiny(world, monkeypatch):
    """A model that loads the board whenever it is called, and its tokenizer."""
    for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "1")
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", "save", "some", "joules"]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", unk_token="<pad>"
    )
    shape = {"n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 32}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(words), **shape))
    model.register_forward_pre_hook(lambda *_: world.load())
    return model, tokenizer


def test_supervised_fine_tuning_is_measured(world, tiny, tmp_path):
    """If this fails, trainers of TRL do not take the callback, or it measures nothing."""
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    from joulery.integrations.transformers import TransformersCallback

    model, tokenizer = tiny
    callback = TransformersCallback(meter=world.meter, sinks=[world])
    SFTTrainer(
        model=model,
        args=SFTConfig(
            output_dir=str(tmp_path), max_length=16, per_device_train_batch_size=2, use_cpu=True,
            num_train_epochs=2, report_to=[], save_strategy="no", logging_steps=2, bf16=False,
        ),
        train_dataset=Dataset.from_dict({"text": ["save some joules"] * 8}),
        processing_class=tokenizer,
        callbacks=[callback],
    ).train()  # fmt: skip
    world.check(callback.measurement, steps=8)


def test_generation_and_updates_of_grpo_are_phases(world, tiny, tmp_path):
    """If this fails, TRL calls other methods than those that are phases."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from joulery.integrations.trl import tune_phases

    model, tokenizer = tiny
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [float(len(text)) for text in completions],
        args=GRPOConfig(
            output_dir=str(tmp_path), per_device_train_batch_size=2, num_generations=2,
            max_completion_length=4, num_iterations=2, max_steps=6, use_cpu=True, bf16=False,
            report_to=[], save_strategy="no", logging_steps=2,
        ),
        train_dataset=Dataset.from_dict({"prompt": ["save some"] * 8}),
        processing_class=tokenizer,
    )  # fmt: skip
    run = world.run()
    callback = tune_phases(trainer, run, sinks=[world])
    trainer.train()
    world.check(callback.measurement, steps=6)
    rollout, update = run.phases["rollout"], run.phases["update"]
    assert (rollout.visits, update.visits) == (3, 6)
    assert rollout.joules + update.joules == pytest.approx(world.gpu.true_joules(), rel=0.03)
    assert rollout.joules > 1.5 * update.joules, "four tokens for two passes"
