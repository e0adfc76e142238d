"""Jobs that change."""

from dataclasses import replace

import numpy as np
import pytest

from joulery.errors import InvalidValueError
from joulery.simulate import _drift as drift
from joulery.simulate import parse_drift
from joulery.testing.workloads import made_up_workload


@pytest.fixture
def load():
    """Batch size 64 is best."""
    return made_up_workload()


def best(load, change):
    """The batch size that is best after the change."""
    return load.batch_sizes[load.optimum(0.5, change.epochs[-1])[0]]


def test_scaled(load):
    """Every run takes so many times the epochs, and the owner allows as many."""
    change = drift.scaled(load, 40, 2.0)
    assert change.starts == (0, 40)
    assert change.epochs[1] == pytest.approx(2 * load.epochs)
    assert drift.with_enough_epochs(load, change).max_epochs == 200


def test_sliding_grows_step_by_step(load):
    """From the first to the last recurrence of the slide, and stays."""
    change = drift.sliding(load, 10, 20, 4.0)
    means = [np.mean(epochs) for epochs in change.epochs]
    assert means == sorted(means)
    assert means[-1] == pytest.approx(4 * means[0])
    assert change.starts[-1] == 20


def test_optimum_moves(load):
    """Another batch size, at least two away, becomes best."""
    assert best(load, drift.optimum_moves(load, 5)) in (16, 256, 512)
    small = made_up_workload(best=16)
    assert small.batch_sizes.index(best(small, drift.optimum_moves(small, 5))) >= 2


def test_optimum_moves_unannounced(load):
    """The old best costs what it did; only trying others tells of the change."""
    change = drift.optimum_moves(load, 5, announced=False)
    assert best(load, change) != 64
    assert (change.epochs[1][2] == load.epochs[2]).all()


def test_discarded_becomes_best(load):
    """One that cost twice as much costs what the best did; the others need half as much more."""
    costs = np.nanmin(load.expected_cost(), axis=1)
    change = drift.discarded_becomes_best(load, 5)
    arm = load.batch_sizes.index(best(load, change))
    assert costs[arm] >= 2 * costs.min()
    assert load.optimum(0.5, change.epochs[1])[2] == pytest.approx(costs.min(), rel=0.05)
    others = np.arange(6) != arm
    assert change.epochs[1][others] == pytest.approx(np.round(1.5 * load.epochs[others]))


def test_discarded_becomes_best_unannounced(load):
    """Nothing but the discarded one changes."""
    change = drift.discarded_becomes_best(load, 5, others=1.0)
    arm = load.batch_sizes.index(best(load, change))
    others = np.arange(6) != arm
    assert (change.epochs[1][others] == load.epochs[others]).all()


def test_nothing_was_worth_discarding():
    """Where all cost about the same, the optimum moves instead."""
    load = made_up_workload((64,), default=64)
    assert len(drift.discarded_becomes_best(load, 5).starts) <= 2


def test_pieces_take_the_epochs_of_other_traces(load):
    """A job's next version may be another trace of the same batch sizes."""
    other = made_up_workload(best=256, runs=7)
    change = drift.pieces(load, [(30, other)])
    assert best(load, change) == 256
    assert change.epochs[0].shape == change.epochs[1].shape


def test_pieces_must_fit(load):
    """Epochs of other batch sizes mean nothing here."""
    with pytest.raises(InvalidValueError, match="other batch sizes"):
        drift.pieces(load, [(30, made_up_workload((32, 64), default=64))])


def test_out_of_reach_is_refused(load):
    """A drift after which no batch size gets there is no simulation."""
    change = drift.Drift((0, 5), (load.epochs, load.epochs * np.inf))
    with pytest.raises(InvalidValueError, match="from recurrence 5 on"):
        drift.with_enough_epochs(load, change)


@pytest.mark.parametrize("starts", [(), (1,), (0, 0), (0, 9, 5)])
def test_starts_must_ascend_from_zero(load, starts):
    """Pieces in disorder would leave recurrences without epochs."""
    with pytest.raises(InvalidValueError):
        drift.Drift(starts, (load.epochs,) * len(starts))


def test_one_start_per_piece(load):
    """A piece without a start would never hold."""
    with pytest.raises(InvalidValueError, match="2 pieces"):
        drift.Drift((0,), (load.epochs, load.epochs))


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        ("scale=2@40", (0, 40)),
        ("optimum@7", (0, 7)),
        ("discarded@7", (0, 7)),
        ("slide=2@3-4", (0, 3, 4)),
    ],
)
def test_text_is_understood(load, text, starts):
    """What the command line offers."""
    assert parse_drift(text, 0.5)(load).starts == starts


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
        "traces=@3",
    ],
)
def test_text_that_says_nothing(text):
    """A misspelt drift must not be simulated without one."""
    with pytest.raises(InvalidValueError, match="cannot read the drift"):
        parse_drift(text, 0.5)


def test_other_traces_by_text(load, tmp_path):
    """Epochs of a second folder, matched by GPU and job."""
    (tmp_path / "runs.csv").write_text("job,batch_size,epochs\nset,64,3\nset,256,9\n")
    (tmp_path / "jobs.csv").write_text("job,default_batch_size,max_epochs\nset,64,20\n")
    (tmp_path / "power.csv").write_text(
        "gpu,job,batch_size,limit_watts,epoch_seconds,watts\n"
        "made-up,set,64,100,9,90\nmade-up,set,256,100,9,90\n"
    )
    make = parse_drift(f"traces={tmp_path}@4", 0.5)
    mine = replace(made_up_workload((64, 256)), network="", optimizer="")
    assert make(mine).epochs[1][:, 0].tolist() == [3, 9]
    with pytest.raises(InvalidValueError, match="has no"):
        make(load)
