"""Descriptions of transformers: parameters, operations, and what is refused."""

import json

import pytest

from joulery.errors import FileError, InvalidValueError
from joulery.prediction import Plan, Transformer, transformer
from joulery.prediction._plan import local_parameters

LLAMA = {
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "feedforward": 14336,
    "vocabulary": 128256,
    "sequence": 8192,
}
DEEPSEEK = {
    "layers": 61,
    "hidden": 7168,
    "heads": 128,
    "head_dim": 128,
    "feedforward": 18432,
    "vocabulary": 129280,
    "sequence": 4096,
    "experts": 256,
    "experts_per_token": 8,
    "expert_feedforward": 2048,
    "shared_feedforward": 2048,
    "dense_layers": 3,
    "query_rank": 1536,
    "kv_rank": 512,
    "rope_dim": 64,
}


def test_published_sizes():
    """Memory and time both start from the number of parameters."""
    assert local_parameters(transformer(LLAMA), Plan()) == pytest.approx(8.03e9, rel=0.005)
    assert local_parameters(transformer(DEEPSEEK), Plan()) == pytest.approx(671e9, rel=0.005)


def test_configurations_of_transformers_are_understood(tmp_path):
    """People have a config.json at hand, not our names."""
    foreign = {
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "intermediate_size": 14336,
        "vocab_size": 128256,
        "max_position_embeddings": 8192,
        "rope_theta": 500000.0,
        "architectures": ["x"],
    }
    file = tmp_path / "config.json"
    file.write_text(json.dumps(foreign))
    assert transformer(file) == transformer(LLAMA)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"hiden": 4096}, "hidden"),
        ({"layers": "32"}, "whole number"),
        ({"layers": None}, "layers"),
    ],
)
def test_wrong_descriptions_name_what_is_wrong(change, words):
    """A misspelled name must not silently mean its default."""
    document = {key: value for key, value in {**LLAMA, **change}.items() if value is not None}
    with pytest.raises(FileError) as refused:
        transformer(document)
    assert words in str(refused.value)


def test_unreadable_files_are_one_line(tmp_path):
    """A missing or broken file is a user's mistake, not a crash."""
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    for file in (tmp_path / "missing.json", broken):
        with pytest.raises(FileError):
            transformer(file)


def test_impossible_models_are_refused():
    """Zero layers or nine of eight experts would divide by zero later."""
    with pytest.raises(InvalidValueError):
        Transformer(0, 1, 1, 1, 1, 1)
    with pytest.raises(InvalidValueError):
        transformer({**LLAMA, "experts": 8, "experts_per_token": 9})
    for document in (LLAMA | {"expert_nodes": 4}, DEEPSEEK | {"expert_nodes": 257}):
        with pytest.raises(InvalidValueError, match="expert_nodes"):
            transformer(document)


def test_a_window_bounds_what_a_token_attends_to():
    """Models with sliding windows would be charged for attention that they do not compute."""
    full = transformer(LLAMA)
    half = transformer(LLAMA | {"window": 16, "windowed_layers": LLAMA["layers"] // 2})
    every = transformer(LLAMA | {"window": 16})
    assert every.seen_share == pytest.approx(16 / LLAMA["sequence"])
    assert half.seen_share == pytest.approx((full.seen_share + every.seen_share) / 2)
    configured = transformer(
        {"num_hidden_layers": 4, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 99}
        | {"intermediate_size": 128, "max_position_embeddings": 512, "sliding_window": 64}
        | {"layer_types": ["sliding_attention", "full_attention"] * 2}
    )
    assert (configured.window, configured.windowed_layers) == (64, 2)
