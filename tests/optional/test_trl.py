"""TRL's trainers take the callback of transformers."""

import pytest

pytestmark = pytest.mark.filterwarnings("ignore")  # those of the packages themselves


def test_supervised_fine_tuning_is_measured(world, tmp_path, monkeypatch):
    """If this fails, trainers of TRL do not take the callback, or it measures nothing."""
    for name in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "1")
    from datasets import Dataset
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
    from trl import SFTConfig, SFTTrainer

    from joulery.integrations.transformers import TransformersCallback

    words = ["<pad>", "<eos>", "save", "some", "joules"]
    raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<pad>"))
    raw.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=raw, pad_token="<pad>", eos_token="<eos>", unk_token="<pad>"
    )
    shape = {"n_embd": 8, "n_layer": 1, "n_head": 1, "n_positions": 32}
    model = GPT2LMHeadModel(GPT2Config(vocab_size=len(words), **shape))
    model.register_forward_pre_hook(lambda *_: world.load())
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
