"""Our orders are those of torch.distributed.pipelining, and its schedule objects are understood."""

import importlib
import importlib.util
import os
from types import SimpleNamespace

import pytest

from joulery.errors import InvalidValueError
from joulery.integrations.torch_pipelining import schedule_of
from joulery.pipeline import make_schedule

_NAMES = {
    "gpipe": ("ScheduleGPipe", 1),
    "1f1b": ("Schedule1F1B", 1),
    "interleaved": ("ScheduleInterleaved1F1B", 3),
    "zb-h1": ("ScheduleInterleavedZeroBubble", 1),
    "zbv": ("ScheduleZBVZeroBubble", 2),
    "dualpipe-v": ("ScheduleDualPipeV", 2),
}


@pytest.fixture(scope="module")
def torch_schedules():
    """The module that holds torch's schedules."""
    if importlib.util.find_spec("torch") is None and os.environ.get("CI") != "true":
        pytest.skip("torch is not installed")
    return importlib.import_module("torch.distributed.pipelining.schedules")


def _stage(index, stages, ranks, rank):
    """As much of a stage as torch looks at to lay out an order."""
    return SimpleNamespace(
        stage_index=index,
        num_stages=stages,
        group_size=ranks,
        group_rank=rank,
        group=None,
        device="cpu",
        is_first=index == 0,
        is_last=index == stages - 1,
        has_backward=True,
        submod=None,
        stage_index_to_group_rank={},
    )


def _theirs(module, name, ranks, microbatches, rank=0):
    class_name, chunks = _NAMES[name]
    kind = getattr(module, class_name)
    if issubclass(kind, module.PipelineScheduleSingle):
        stages = _stage(rank, ranks, ranks, rank)
    else:
        indices = [rank + ranks * chunk for chunk in range(chunks)]
        if name in ("zbv", "dualpipe-v"):
            indices = [rank, 2 * ranks - 1 - rank]
        stages = [_stage(index, ranks * chunks, ranks, rank) for index in indices]
    return kind(stages, microbatches, loss_fn=lambda output, target: output - target)


@pytest.mark.parametrize("name", _NAMES)
def test_orders_are_those_of_torch(torch_schedules, name):
    """A plan would be for another order than the one torch runs."""
    compared = 0
    for ranks in (1, 2, 3, 4, 5):
        for microbatches in (1, 2, 3, 4, 6, 8, 10, 12, 15, 16):
            try:
                theirs = _theirs(torch_schedules, name, ranks, microbatches)
            except (ValueError, RuntimeError):
                continue  # torch takes fewer combinations than we do
            ours = make_schedule(name, ranks, microbatches, chunks=_NAMES[name][1])
            assert schedule_of(theirs).ranks == ours.ranks, (ranks, microbatches)
            compared += 1
    assert compared >= 20


def test_every_rank_knows_the_same_order(torch_schedules):
    """The order would depend on the rank that exports it."""
    orders = {schedule_of(_theirs(torch_schedules, "1f1b", 3, 6, rank)).ranks for rank in range(3)}
    assert len(orders) == 1


def test_orders_of_torch_go_through_its_own_file_format(torch_schedules, tmp_path):
    """An order that torch wrote to a file would be read as another one."""
    from joulery.pipeline import read_schedule

    theirs = _theirs(torch_schedules, "dualpipe-v", 3, 8)
    path = tmp_path / "dualpipe.csv"
    theirs._dump_csv(str(path), format="compute_only")
    assert read_schedule(path).ranks == schedule_of(theirs).ranks


def test_objects_without_an_order_are_refused():
    """Any object would pass for a schedule."""
    with pytest.raises(InvalidValueError, match="int has no order of a pipeline"):
        schedule_of(3)
    with pytest.raises(InvalidValueError, match="has no order"):
        schedule_of(SimpleNamespace(pipeline_order=None))
