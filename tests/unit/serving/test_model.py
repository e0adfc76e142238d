"""A model on boards: arithmetic and traffic of an iteration."""

import pytest

from joulery.errors import InvalidValueError
from joulery.serving import served_model, serving_board
from support.served import LLAMA_8B, LLAMA_70B

MIXTURE = LLAMA_8B | {"experts": 64, "experts_per_token": 4, "expert_feedforward": 1408}


def test_a_decode_step_reads_all_weights_once():
    """Time of a decode step is not weights over bandwidth, the first rule of serving."""
    board = serving_board("h100")
    _, memory, _ = served_model(LLAMA_8B, board).work(0, 0.0, 1, 100.0)
    assert memory == pytest.approx(16.06e9 / 3.35e12 / 0.86, rel=0.02)


def test_prefill_is_bound_by_arithmetic_and_decode_by_memory():
    """The two phases are confused, and the tuner slows the wrong one."""
    model = served_model(LLAMA_8B, serving_board("a100"))
    compute, memory, _ = model.work(2048, 2048 * 1024.0, 0, 0.0)
    assert compute > 5 * memory
    compute, memory, _ = model.work(0, 0.0, 8, 8000.0)
    assert memory > 5 * compute


def test_a_model_that_does_not_fit_says_so():
    """A 70B model on one board simulates with a negative KV cache."""
    with pytest.raises(InvalidValueError, match="more boards"):
        served_model(LLAMA_70B, serving_board("a100"))


def test_more_boards_share_weights_and_cache():
    """Tensor parallelism neither speeds up reading nor makes room."""
    board = serving_board("h100")
    two, four = (served_model(LLAMA_70B, board, count) for count in (4, 8))
    assert four.weight_seconds == pytest.approx(two.weight_seconds / 2)
    assert four.kv_tokens > 2 * two.kv_tokens


def test_a_mixture_reads_few_experts_for_one_token_and_all_for_many():
    """Sparse models are priced as dense ones, or large batches as small ones."""
    model = served_model(MIXTURE, serving_board("h100"))
    one, many = (model.work(0, 0.0, batch, 0.0)[1] for batch in (1, 256))
    assert one < 0.6 * many
    assert many == pytest.approx(model.weight_seconds, rel=0.01)


def test_an_unknown_precision_is_refused():
    """A misspelled precision falls back to another in silence."""
    with pytest.raises(InvalidValueError, match="no precision"):
        served_model(LLAMA_8B, serving_board("h100"), 1, "fp5")
