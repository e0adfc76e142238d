import pytest
from papers.zeus.claims import claims
from papers.zeus.settings import Surface, savings_potential
from papers.zeus.study import (
    in_published_order,
    missing_parts,
    published_traces,
    with_distinct_names,
)
from papers.zeus.tables import Figure, Table

from joulery.errors import FileError


def _last_five():
    columns = ("gpu", "workload", "policy", "eta_vs_default", "eta_vs_default_low")
    columns += ("eta_vs_default_high", "tta_vs_default", "tta_vs_default_low")
    columns += ("tta_vs_default_high",)
    cells = (
        ("v100", "a", "zeus", 0.80, 0.79, 0.81, 1.10, 1.09, 1.11),
        ("v100", "b", "zeus", 0.30, 0.28, 0.32, 0.50, 0.49, 0.51),
        ("v100", "a", "grid", 0.85, 0.60, 0.99, 1.20, 1.00, 1.40),
    )
    rows = [dict(zip(columns, row, strict=True)) for row in cells]
    return Figure.of("fig06_23_last_five", (6, 23), "", rows)


def test_claims_are_ranges_over_workloads():
    """The table beside the published figures would be wrong."""
    energy, time = claims({"fig06_23_last_five": _last_five()})
    assert energy.published == (15.3, 75.8)
    assert energy.spans["zeus"] == pytest.approx((20.0, 70.0))
    assert time.spans["zeus"] == pytest.approx((-50.0, 10.0))


def test_doubt_is_that_of_the_policies_compared():
    """Grid search's luck would make our own figures look unsure."""
    energy = claims({"fig06_23_last_five": _last_five()})[0]
    assert energy.doubt == pytest.approx(2.0)


def test_published_figures_stand_beside_their_gpu_only(small_workload):
    """An A40's figures would be held against a V100's."""
    surfaces = [Surface(small_workload("a40")), Surface(small_workload("v100"))]
    found = claims({"fig01_15_savings_potential": savings_potential(surfaces)})
    assert [claim.gpu for claim in found] == ["v100"] * 3 + ["a40"] * 3
    assert all((claim.published is None) == (claim.gpu == "a40") for claim in found)


def test_their_order_of_gpus_and_workloads(small_workload):
    """Panels would not stand as in the publication."""
    pairs = [("zz", "squad"), ("a40", "squad"), ("v100", "squad"), ("v100", "librispeech")]
    ordered = in_published_order([small_workload(*pair) for pair in pairs])
    assert [(load.gpu, load.dataset) for load in ordered] == pairs[::-1]


def test_missing_parts_name_files_and_their_source(small_workload):
    """A reader would not know what to fetch."""
    lines = missing_parts([small_workload()], own_groups=False, some_groups=True)
    text = "\n".join(lines)
    assert "summary_power_a40.csv" in text
    assert "librispeech" in text
    assert "github.com/ml-energy/zeus" in text
    assert "synthetic" in text


def test_groups_that_were_given_are_not_missing(small_workload):
    """A complete set of data would be called incomplete."""
    lines = missing_parts([small_workload()], own_groups=True, some_groups=True)
    assert not any(line.startswith("Alibaba") for line in lines)


def test_an_empty_folder_says_which_file_is_missing(tmp_path):
    """The user would be left guessing what a folder of traces is."""
    with pytest.raises(FileError, match=r"summary_train\.csv is missing") as error:
        published_traces(tmp_path)
    assert "ml-energy/zeus" in error.value.remedy
    (tmp_path / "summary_train.csv").write_text("x\n")
    with pytest.raises(FileError, match="summary_power_"):
        published_traces(tmp_path)


def test_two_networks_on_one_data_set_are_told_apart(small_workload):
    """Their bars would be drawn on top of each other."""
    twins = with_distinct_names([small_workload(), small_workload(), small_workload("a40")])
    assert [load.dataset for load in twins] == ["cifar100 net sgd"] * 2 + ["cifar100"]


def test_regret_is_relative_to_zeus():
    """Joulery and grid search would be held against the wrong thing."""
    columns = ("gpu", "workload", "policy", "regret", "total_cost_vs_default")
    regrets = {"zeus": (4.0, 10.0), "joulery": (1.0, 10.0), "grid": (40.0, 720.0)}
    cells = tuple(
        ("v100", load, policy, values[at], 0.9)
        for at, load in enumerate(("a", "b"))
        for policy, values in regrets.items()
    )
    name = "fig07_19_cumulative_regret"
    rows = tuple(dict(zip(columns, row, strict=True)) for row in cells)
    data = Figure(name, (7, 19), "", (Table("x", rows), Table("y", rows)))
    found = {claim.what: claim for claim in claims({name: data})}
    worst = found["most regret of grid search relative to zeus"]
    assert worst.published == (72.0, 72.0)
    assert worst.spans["grid"] == (72.0, 72.0)
    assert "the next is 10 ×" in worst.remark
    mean = found["cumulative regret relative to zeus, geometric mean"]
    assert mean.spans["joulery"] == pytest.approx((0.5, 0.5))
    assert found["cumulative regret relative to zeus, over workloads"].spans["zeus"] == (1.0, 1.0)
