import pytest
from papers.zeus.__main__ import effort_of, figure_numbers, groups_of, make_parser

from joulery.errors import InvalidValueError


def _arguments(*options):
    return make_parser().parse_args(["--data", "t", *options])


def test_figures_are_numbers_of_the_publication():
    """Nobody could ask for one figure only."""
    assert figure_numbers("1, 7,9") == [1, 7, 9]
    assert figure_numbers("") == []


@pytest.mark.parametrize("text", ["seven", "0", "1,-2"])
def test_what_is_no_figure_is_refused(text):
    """A typing error would reproduce everything, for minutes."""
    with pytest.raises(InvalidValueError, match="--figures"):
        figure_numbers(text)


def test_seeds_overrule_the_effort():
    """The option would change nothing."""
    assert effort_of(_arguments()).seeds == 100
    assert effort_of(_arguments("--quick")).seeds == 10
    few = effort_of(_arguments("--seeds", "3"))
    assert (few.seeds, few.sweep_seeds) == (3, 3)


def test_a_mean_over_one_seed_is_refused():
    """An interval would be claimed that nobody can know."""
    with pytest.raises(InvalidValueError, match="--seeds"):
        effort_of(_arguments("--seeds", "1"))


def test_jobs_beside_the_traces_are_found(tmp_path):
    """Fig. 9 would be left out though the data is there."""
    (tmp_path / "zeus").mkdir()
    arguments = _arguments()
    arguments.data = tmp_path / "zeus"
    assert groups_of(arguments) is None
    (tmp_path / "jobs").mkdir()
    rows = [f"2017-10-09 07:{minute:02d}:00,100,1,100,a" for minute in range(30)]
    header = "timestamp,duration,num_gpus,gpu_time,cluster"
    (tmp_path / "jobs" / "philly.csv").write_text("\n".join([header, *rows]) + "\n")
    arguments.quick = True
    found = groups_of(arguments)
    assert found is not None
    assert found.jobs == 4000
