"""Kernel times: waves, caches, launches, and missing precisions."""

from dataclasses import replace

import numpy as np
import pytest

from joulery.errors import InvalidValueError, UnknownDeviceError
from joulery.prediction import Graph, Operator, accelerator
from joulery.prediction._bayes import fitted_belief
from joulery.prediction.models import kernel_times

CONSTANTS = fitted_belief("kernels").mean
A100, L40S = accelerator("a100"), accelerator("l40s")


def one_kernel(board, name, *details):
    """A BF16 step of one operator, as columns."""
    operator = Operator(name, name, "forward", *details, "bf16")
    return Graph("", (operator,), 0, 0.0, 0.0, 0.0, 0.0).kernels(board)


def product(board, m, n, k):
    """Seconds of one matrix product, and its columns."""
    traffic = 2.0 * (m * k + k * n + m * n)
    kernels = one_kernel(board, "matmul", (1, m, n, k), 2.0 * m * n * k, traffic)
    return kernel_times(CONSTANTS, board, kernels)[0][0], kernels


def test_large_products_run_near_the_sustained_peak():
    """A roofline that is off for the easiest kernel is off everywhere."""
    seconds, kernels = product(A100, 8192, 8192, 8192)
    assert 0.7 < kernels.operations[0] / seconds / A100.peak("bf16") < 1.0


def test_one_more_row_than_a_wave_costs_another_wave():
    """Wave quantisation is the reason why batch sizes matter on small problems."""
    at = product(A100, 108 * 128 // 4, 512, 4096)[0]
    above = product(A100, 108 * 128 // 4 + 128, 512, 4096)[0]
    assert above > 1.1 * at


def test_weights_that_stay_in_the_cache_are_faster_where_memory_is_slow():
    """L40S reuses 15 MB of weights from its cache; forgetting that costs 20 points of error."""
    cold, kernels = product(L40S, 1, 1024, 7168)
    reused = replace(kernels, weight_footprint=kernels.weight_bytes)
    assert kernel_times(CONSTANTS, L40S, reused)[0][0] < 0.7 * cold


def test_small_kernels_cost_a_launch():
    """Steps of tiny kernels would look free."""
    seconds = kernel_times(CONSTANTS, A100, one_kernel(A100, "stream", (0, 0, 0, 0), 0.0, 4.0))[0][
        0
    ]
    assert seconds == pytest.approx(np.exp(CONSTANTS[2]) * 1e-6, rel=0.01)


def test_small_boards_cannot_feed_their_peak():
    """A T4 never reaches its nominal FP32 rate within 70 W."""
    t4 = accelerator("t4")
    assert t4.sustained("fp32") < 0.6 * t4.peak("fp32")
    assert accelerator("v100").sustained("fp32") > 0.9 * accelerator("v100").peak("fp32")


@pytest.mark.parametrize("precision", ["fp8", "bf17"])
def test_missing_precisions_are_one_line_with_a_remedy(precision):
    """A number for a format that the device lacks would be fiction."""
    with pytest.raises(InvalidValueError) as refused:
        A100.peak(precision)
    assert refused.value.remedy


def test_unknown_devices_are_offered_the_nearest():
    """A typo must not end in a traceback."""
    with pytest.raises(UnknownDeviceError, match="H100"):
        accelerator("h1000")
