"""Jobs that change."""

import numpy as np
import pytest

from joulery.errors import InvalidValueError
from joulery.simulate import (
    discarded_becomes_best,
    optimum_moves,
    parse_drift,
    scale_epochs,
)
from joulery.simulate._drift import changed
from joulery.testing.workloads import made_up_workload


@pytest.fixture
def load():
    """Batch size 64 is best."""
    return made_up_workload()


def starts(load):
    """First recurrences of the stages."""
    return tuple(start for start, _ in load.stages)


def last(load):
    """The workload as it is after the last change."""
    return load.stages[-1][1]


def best(load):
    """The batch size that is best after the change."""
    return load.batch_sizes[last(load).optimum()[0]]


def test_scaled(load):
    """Every run takes so many times the epochs, and the owner allows as many."""
    change = scale_epochs(load, 40, 2.0)
    assert starts(change) == (0, 40)
    assert last(change).epochs == pytest.approx(2 * load.epochs)
    assert change.max_epochs == last(change).max_epochs == 200


def test_sliding_grows_step_by_step(load):
    """From the first to the last recurrence of the slide, and stays."""
    change = scale_epochs(load, 10, 4.0, until=20)
    means = [np.mean(stage.epochs) for _, stage in change.stages]
    assert means == sorted(means)
    assert means[-1] == pytest.approx(4 * means[0])
    assert starts(change)[-1] == 20


def test_optimum_moves(load):
    """Another batch size, at least two away, becomes best."""
    assert best(optimum_moves(load, 5)) in (16, 256, 512)
    small = made_up_workload(best=16)
    assert small.batch_sizes.index(best(optimum_moves(small, 5))) >= 2


def test_optimum_moves_unannounced(load):
    """The old best costs what it did; only trying others tells of the change."""
    change = optimum_moves(load, 5, announced=False)
    assert best(change) != 64
    assert (last(change).epochs[2] == load.epochs[2]).all()


def test_discarded_becomes_best(load):
    """One that cost twice as much costs what the best did; the others need half as much more."""
    costs = np.nanmin(load.expected_cost(), axis=1)
    change = discarded_becomes_best(load, 5)
    arm = load.batch_sizes.index(best(change))
    assert costs[arm] >= 2 * costs.min()
    assert last(change).optimum()[2] == pytest.approx(costs.min(), rel=0.05)
    others = np.arange(6) != arm
    assert last(change).epochs[others] == pytest.approx(np.round(1.5 * load.epochs[others]))


def test_discarded_becomes_best_unannounced(load):
    """Nothing but the discarded one changes."""
    change = discarded_becomes_best(load, 5, factor=1.0)
    arm = load.batch_sizes.index(best(change))
    others = np.arange(6) != arm
    assert (last(change).epochs[others] == load.epochs[others]).all()


def test_nothing_was_worth_discarding():
    """Where all cost about the same, the optimum moves instead."""
    load = made_up_workload((64,), default=64)
    assert len(discarded_becomes_best(load, 5).stages) <= 2


def test_out_of_reach_is_refused(load):
    """A drift after which no batch size gets there is no simulation."""
    with pytest.raises(InvalidValueError, match="from recurrence 5 on"):
        changed(load, [(5, load.epochs * np.inf)])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("scale=2@40", (0, 40)),
        ("optimum@7", (0, 7)),
        ("discarded@7", (0, 7)),
        ("slide=2@3-4", (0, 3, 4)),
    ],
)
def test_text_is_understood(load, text, expected):
    """What the command line offers."""
    assert starts(parse_drift(text, 0.5)(load)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "scale",
        "scale=2",
        "scale=x@4",
        "scale=-1@4",
        "scale=nan@4",
        "optimum@0",
        "optimum@x",
        "slide=2@9-3",
        "slide=2@9",
        "else@4",
        "traces=DIR@3",
    ],
)
def test_text_that_says_nothing(text):
    """A misspelt drift must not be simulated without one."""
    with pytest.raises(InvalidValueError, match="cannot read the drift"):
        parse_drift(text, 0.5)
