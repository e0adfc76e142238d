import numpy as np
import pytest
from papers.zeus.study import Effort, Study

from joulery.errors import InvalidValueError
from joulery.simulate import JobGroups

EFFORT = Effort(seeds=2, sweep_seeds=2)


def test_only_the_figures_asked_for_are_made(small_workload):
    """A look at one figure would take minutes."""
    simulated = []
    study = Study(
        [small_workload()], EFFORT, on_progress=lambda what, _share: simulated.append(what)
    )
    names = [data.name for data in study.figures([1, 16])]
    assert names == ["fig01_15_savings_potential", "fig02_16_fronts"]
    assert simulated == []


def test_unknown_figures_are_refused_before_any_work(small_workload):
    """A typing error would surface after minutes of work."""
    with pytest.raises(InvalidValueError, match=r"Fig\. 3 "):
        next(Study([small_workload()], EFFORT).figures([1, 3]))


def test_the_cluster_needs_jobs(small_workload):
    """The error would not say what Fig. 9 lacks."""
    with pytest.raises(InvalidValueError) as error:
        next(Study([small_workload()], EFFORT).figures([9]))
    assert "--groups" in error.value.remedy


def test_the_cluster_is_replayed_under_every_policy(small_workload):
    """Fig. 9 would miss a bar."""
    groups = JobGroups.of(np.zeros(6, dtype=int), np.arange(6.0), np.full(6, 100.0), "made up")
    (data,) = Study([small_workload()], EFFORT, groups).figures([9])
    assert data.main.distinct("policy") == ["default", "grid", "zeus", "joulery"]
    assert "made up" in data.remark


def test_every_published_figure_is_made_or_stands_for_nothing_simulated(small_workload):
    """A figure would silently be left out; 3 and 4 of the publication are diagrams."""
    groups = JobGroups.of(np.zeros(2, dtype=int), np.arange(2.0), np.ones(2))
    made = {n for numbers in Study([small_workload()], EFFORT, groups).makers() for n in numbers}
    assert made == set(range(1, 24)) - {3, 4}
