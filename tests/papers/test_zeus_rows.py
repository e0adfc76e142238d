import math

import pytest
from papers.zeus.tables import Figure, Table, geometric_mean

CELLS = (("a", 1, 0.5), ("b", 2, None), ("a", 3, math.inf))
ROWS = Table("t", tuple({"gpu": gpu, "n": n, "x": x} for gpu, n, x in CELLS))


def test_rows_select_by_value_and_keep_their_order():
    """A chart would mix the figures of two GPUs."""
    assert ROWS.where(gpu="a").column("n") == [1, 3]
    assert ROWS.distinct("gpu") == ["a", "b"]
    assert len(ROWS.where(gpu="c")) == 0


def test_numbers_say_nan_for_unknown():
    """An unknown figure would be drawn as zero."""
    assert ROWS.numbers("x")[0] == 0.5
    assert math.isnan(ROWS.numbers("x")[1])


def test_csv_has_a_header_and_leaves_unknown_empty():
    """A spreadsheet would read inf or None as words."""
    assert ROWS.csv_text() == "gpu,n,x\na,1,0.5\nb,2,\na,3,\n"


def test_csv_spells_out_truth_values():
    """True and 1 could not be told apart by other tools."""
    assert Table("t", ({"x": True}, {"x": False})).csv_text() == "x\nyes\nno\n"


@pytest.mark.parametrize(("numbers", "label"), [((1, 15), "Fig. 1/15"), ((), "Table")])
def test_label_names_the_published_figures(numbers, label):
    """A reader could not find the figure in the publication."""
    assert Figure("x", numbers, "", (ROWS,)).label == label


def test_geometric_mean_is_that_of_ratios():
    """Halving and doubling would not cancel out."""
    assert geometric_mean([0.5, 2.0]) == pytest.approx(1.0)
    assert math.isnan(geometric_mean([]))
