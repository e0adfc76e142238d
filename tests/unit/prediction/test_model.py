"""Descriptions of transformers: parameters, operations, and what is refused."""

import json

import pytest

from joulery.errors import FileError, InfeasibleError, InvalidValueError
from joulery.prediction import (
    Plan,
    Transformer,
    predict_inference,
    read_steps,
    training_model,
    transformer,
)
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


def configuration(kind, *sizes, **changes):
    """A configuration of ``transformers`` from layers, width, heads, heads of keys and blocks."""
    names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "num_key_value_heads")
    document = dict(zip((*names, "intermediate_size"), sizes, strict=True))
    return {"model_type": kind, "max_position_embeddings": 8192, **document, **changes}


MULTI_QUERY = {"multi_query": True}
JAMBA = configuration("jamba", 32, 4096, 32, 8, 14336, vocab_size=65536, attn_layer_period=8)
QWEN = configuration("qwen3_next", 48, 2048, 16, 2, 5120, vocab_size=151936)


@pytest.mark.parametrize(
    ("document", "word"),
    [
        (JAMBA, "attn_layer_period"),
        (QWEN | {"full_attention_interval": 4}, "full_attention_interval"),
        (QWEN | {"layer_types": ["linear_attention", "full_attention"]}, "linear_attention"),
        (QWEN | {"model_type": "llama", "layer_types": ["mamba"]}, "mamba"),
        (QWEN | {"model_type": "", "mamba_d_state": 128}, "mamba_d_state"),
        (QWEN | {"model_type": "of tomorrow"}, "of tomorrow has layers that are not known"),
        (QWEN | {"model_type": "t5", "is_encoder_decoder": True}, "an encoder and a decoder"),
    ],
)
def test_layers_that_are_not_attention_are_refused_by_name(document, word):
    """Mamba and linear layers would be counted as attention: 92 billion instead of 52."""
    with pytest.raises(FileError, match=word) as refused:
        training_model(document, 4096)
    assert "capture" in refused.value.remedy


@pytest.mark.parametrize(
    ("document", "billions"),
    [
        (  # Llama 4 Scout, whose experts have one more beside them that every token visits
            configuration("llama4_text", 48, 5120, 40, 8, 8192, vocab_size=202048, head_dim=128)
            | {"num_local_experts": 16, "num_experts_per_tok": 1, "intermediate_size_mlp": 16384},
            107.77,
        ),
        (  # Llama 4 Maverick, with experts in every other layer
            configuration("llama4_text", 48, 5120, 40, 8, 8192, vocab_size=202048, head_dim=128)
            | {"num_local_experts": 128, "num_experts_per_tok": 1, "intermediate_size_mlp": 16384}
            | {"interleave_moe_layer_step": 2},
            400.7,
        ),
        (configuration("gemma3_text", 48, 3840, 16, 8, 15360), 11.77),  # embeddings are one matrix
        (configuration("gemma3_text", 48, 3840, 16, 8, 15360, tie_word_embeddings=False), 12.77),
        (
            configuration("falcon", 32, 4544, 71, 71, 18176, vocab_size=65024, multi_query=True),
            6.92,
        ),
        (configuration("starcoder2", 30, 3072, 24, 2, 12288, vocab_size=49152), 3.03),
        (
            configuration("deepseek_v3", 61, 7168, 128, 128, 18432, vocab_size=129280)
            | {"n_routed_experts": 256, "num_experts_per_tok": 8, "moe_intermediate_size": 2048}
            | {"n_shared_experts": 1, "first_k_dense_replace": 3, "q_lora_rank": 1536}
            | {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128}
            | {"v_head_dim": 128, "head_dim": 64},
            671.0,
        ),
    ],
)
def test_configurations_have_the_published_size(document, billions):
    """Shared experts, tied embeddings and the width of a head would be read silently wrong."""
    model = training_model(document, 4096)
    assert model.total_parameters() / 1e9 == pytest.approx(billions, rel=0.005)


def test_windows_of_configurations_are_those_of_their_classes():
    """Attention of Gemma, Llama 4 and Qwen would be charged for what they do not compute."""
    windowed = configuration("gemma3_text", 48, 3840, 16, 8, 15360, sliding_window=1024)
    assert transformer(windowed).windowed_layers == 40
    qwen = configuration("qwen2", 28, 3584, 28, 4, 18944, vocab_size=152064, sliding_window=4096)
    assert transformer(qwen).window == 0
    half = qwen | {"use_sliding_window": True, "max_window_layers": 14}
    assert (transformer(half).window, transformer(half).windowed_layers) == (4096, 14)
    chunked = configuration("llama4_text", 48, 5120, 40, 8, 8192, vocab_size=202048)
    long = training_model(chunked | {"attention_chunk_size": 8192}, 16384)
    assert long.seen_share == pytest.approx(0.25 * 0.5 + 0.75 * 0.25)


def test_a_model_that_sees_both_ways_does_not_decode():
    """BERT would be served as if it answered token by token."""
    bert = configuration("bert", 24, 1024, 16, 16, 4096, vocab_size=30522)
    assert not training_model(bert, 512).causal
    with pytest.raises(InvalidValueError, match="does not decode"):
        predict_inference(bert, "h100")


def test_a_refusal_to_serve_names_what_engines_leave_free():
    """79 GB would be refused on a device of 86 without a reason."""
    with pytest.raises(InfeasibleError, match="has 79 GB for them: 86 less 8 %"):
        predict_inference(LLAMA, "h100", batch_size=128, prompt_tokens=4096)


def test_a_byte_order_mark_is_read_over(tmp_path):
    """A file that an editor on Windows wrote would be refused with a Python codec's name."""
    file = tmp_path / "model.json"
    file.write_text(json.dumps(LLAMA), encoding="utf-8-sig")
    assert transformer(file) == transformer(LLAMA)
    steps = tmp_path / "steps.json"
    row = {"device": "h100", "plan": "dp1-mb1", "batch_size": 1, "seconds": 1.0}
    steps.write_text(json.dumps([row]), encoding="utf-8-sig")
    assert read_steps(steps, transformer(LLAMA))[0].seconds == 1.0


def test_what_is_no_description_is_named_by_its_type():
    """The sentence would begin with a wrong article."""
    with pytest.raises(InvalidValueError, match="an object of type int does not describe"):
        transformer(7)
