"""What holds for predictions of any model, plan and limit."""

import numpy as np
from hypothesis import given, settings, strategies as st

from joulery.prediction import Graph, Operator, Plan, accelerator, plan_memory, transformer
from joulery.prediction._bayes import fitted_belief
from joulery.prediction._step import Load
from joulery.prediction.models import (
    kernel_times,
    plan_seconds,
    response,
    step_parts,
)

DEVICES = st.sampled_from(["v100", "a100", "h100", "b200", "l40s", "mi300x", "t4"])
SIDES = st.integers(1, 16384)
SIZES = st.sampled_from([1, 2, 4, 8])


def described(layers, width, experts):
    """A transformer of some size."""
    return transformer(
        {
            "layers": 8 * layers,
            "hidden": 512 * width,
            "heads": 16,
            "feedforward": 2048 * width,
            "vocabulary": 32000,
            "sequence": 2048,
            **(
                {"experts": 16, "experts_per_token": 2, "expert_feedforward": 512}
                if experts
                else {}
            ),
        }
    )


def product(board, m, n, k):
    """A matrix product in 16 bits as columns."""
    cost = 2.0 * m * n * k, 2.0 * (m * k + k * n + m * n)
    one = Operator("mm", "matmul", "forward", (1, m, n, k), *cost, board.sixteen_bits)
    return Graph("", (one,), 0, 0.0, 0.0, 0.0, 0.0).kernels(board)


@given(DEVICES, SIDES, SIDES, SIDES)
@settings(max_examples=80, deadline=None)
def test_a_kernel_never_beats_the_roofline_of_its_device(name, m, n, k):
    """Faster than the hardware is a bug, whatever the shape."""
    board = accelerator(name)
    kernels = product(board, m, n, k)
    seconds = kernel_times(fitted_belief("kernels").mean, board, kernels)[0][0]
    assert seconds >= kernels.operations[0] / board.peak(board.sixteen_bits)
    assert np.isfinite(seconds)


@given(DEVICES, SIDES, SIDES, SIDES)
@settings(max_examples=60, deadline=None)
def test_more_work_never_takes_less_time(name, m, n, k):
    """Twice the inner dimension is at least as long."""
    board = accelerator(name)

    def seconds(inner):
        kernels = product(board, m, n, inner)
        return kernel_times(fitted_belief("kernels").mean, board, kernels)[0][0]

    assert seconds(2 * k) >= seconds(k) * (1 - 1e-9)


@given(
    DEVICES,
    st.floats(0.01, 10.0),
    st.floats(0.3, 1.6),
    st.lists(st.floats(0.3, 1.0), min_size=2, max_size=6),
)
@settings(max_examples=80, deadline=None)
def test_lower_limits_never_speed_up_or_draw_more(name, ratio, demand, shares):
    """The trade of time for power has one direction."""
    board = accelerator(name)
    limits = board.limit_watts * np.sort(np.array(shares))
    slowdown, watts = response(board, Load(1.0, 0.0, ratio, demand), limits)
    assert (np.diff(slowdown) <= 1e-6).all()
    assert (np.diff(watts) >= -1e-6).all()
    assert (slowdown >= 1 - 1e-6).all()


@given(
    st.tuples(st.integers(1, 6), st.integers(1, 6), st.booleans()),
    st.tuples(SIZES, SIZES, SIZES),
    st.integers(0, 3),
)
@settings(max_examples=80, deadline=None)
def test_plans_have_positive_parts_and_memory(shape, sizes, shard):
    """A negative or infinite part would make some plan look free."""
    (layers, width, experts), (data, tensor, pipeline) = shape, sizes
    model, board = described(layers, width, experts), accelerator("h100")
    plan = Plan(
        data=data,
        tensor=tensor,
        pipeline=pipeline,
        expert=data if experts else 1,
        batch_size=16 * data,
        shard=shard,
    )
    plan.check(model)
    parts = step_parts(model, plan, board)
    assert np.isfinite(parts).all()
    assert (parts >= 0).all()
    assert plan_seconds(fitted_belief("plans").mean, parts)[0] > 0
    memory = plan_memory(model, plan)
    assert 0 < memory.allocated < memory.reserved


@given(st.integers(1, 6), SIZES, SIZES)
@settings(max_examples=40, deadline=None)
def test_sharing_a_model_never_needs_more_memory(layers, tensor, pipeline):
    """Splitting over more devices must leave each with less."""
    model = described(layers, 4, experts=False)
    alone = plan_memory(model, Plan(batch_size=16)).allocated
    shared = plan_memory(model, Plan(tensor=tensor, pipeline=pipeline, batch_size=16)).allocated
    assert shared <= alone * (1 + 1e-9)
