"""Kernel times: waves, caches, launches, and the power of kernels."""

import numpy as np
import pytest

from joulery.errors import InvalidValueError, UnknownDeviceError
from joulery.predict import accelerator
from joulery.predict._bayes import fitted_belief
from joulery.predict.models import (
    kernel_power,
    kernel_times,
    matmuls,
    streams,
)

CONSTANTS = fitted_belief("kernels").mean
A100, L40S = accelerator("a100"), accelerator("l40s")


def product(board, m, n, k, copies=np.inf):
    """Seconds of one BF16 matrix product."""
    shape = [np.array([1.0]), *(np.array([float(side)]) for side in (m, n, k))]
    kernels = matmuls(shape, 2.0, board.rates("bf16"), copies)
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
    cold = product(L40S, 1, 1024, 7168)[0]
    warm = product(L40S, 1, 1024, 7168, copies=1)[0]
    assert warm < 0.7 * cold


def test_small_kernels_cost_a_launch():
    """Steps of tiny kernels would look free."""
    seconds = kernel_times(CONSTANTS, A100, streams(np.array([4.0])))[0][0]
    assert seconds == pytest.approx(np.exp(CONSTANTS[2]) * 1e-6, rel=0.01)


def test_power_rises_with_use_and_never_exceeds_the_limit():
    """Energy would be wrong by the same factor."""
    seconds, busy = product(A100, 8192, 8192, 8192)
    at_work = kernel_power(fitted_belief("kernel power").mean, A100, busy, np.array([seconds]))[0]
    slowly = kernel_power(
        fitted_belief("kernel power").mean, A100, busy, np.array([100 * seconds])
    )[0]
    assert slowly < at_work <= A100.limit_watts


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
