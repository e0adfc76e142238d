import argparse

import pytest

from joulery.cli import reproduce
from joulery.errors import InvalidValueError


def _arguments(*options):
    parser = argparse.ArgumentParser()
    reproduce.add_arguments(parser)
    return parser.parse_args(["zeus", "--traces", "t", *options])


def test_figures_are_numbers_of_the_publication():
    """Nobody could ask for one figure only."""
    assert reproduce._figure_numbers("1, 7,9") == [1, 7, 9]
    assert reproduce._figure_numbers("") == []


@pytest.mark.parametrize("text", ["seven", "0", "1,-2"])
def test_what_is_no_figure_is_refused(text):
    """A typing error would reproduce everything, for minutes."""
    with pytest.raises(InvalidValueError, match="--figures"):
        reproduce._figure_numbers(text)


def test_seeds_overrule_the_effort():
    """The option would change nothing."""
    assert reproduce._effort(_arguments()).seeds == 100
    assert reproduce._effort(_arguments("--quick")).seeds == 10
    few = reproduce._effort(_arguments("--seeds", "3"))
    assert (few.seeds, few.sweep_seeds) == (3, 3)


def test_a_mean_over_one_seed_is_refused():
    """An interval would be claimed that nobody can know."""
    with pytest.raises(InvalidValueError, match="--seeds"):
        reproduce._effort(_arguments("--seeds", "1"))


def test_jobs_beside_the_traces_are_found(tmp_path):
    """Fig. 9 would be left out though the data is there."""
    (tmp_path / "zeus").mkdir()
    arguments = _arguments()
    arguments.traces = str(tmp_path / "zeus")
    assert reproduce._groups(arguments) is None
    (tmp_path / "jobs").mkdir()
    rows = [f"2017-10-09 07:{minute:02d}:00,100,1,100,a" for minute in range(30)]
    header = "timestamp,duration,num_gpus,gpu_time,cluster"
    (tmp_path / "jobs" / "philly.csv").write_text("\n".join([header, *rows]) + "\n")
    arguments.quick = True
    found = reproduce._groups(arguments)
    assert found is not None
    assert found.jobs == 4000
