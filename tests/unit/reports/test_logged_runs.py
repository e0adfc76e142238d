"""Runs of any kind beside each other."""

from msgspec import structs

from joulery.jobs import RunCurve, RunEntry
from joulery.reports import comparison_report, logged_run_report, run_state

NOW = 1.8e9
RUN = RunEntry(
    key="a", name="night", started_wall_seconds=NOW - 4000.0, seconds=1000.0, joules=2e5, ended=True
)


def test_a_silent_run_is_not_called_lost():
    """Another page shows the same run as under way, as long as its lease holds."""
    open_run = structs.replace(RUN, ended=False)
    assert run_state(RUN, NOW) == "ended"
    assert run_state(open_run, NOW - 2900.0) == "under way"
    assert run_state(open_run, NOW) == "silent for 50 min"


def test_the_simulated_run_of_a_comparison_is_named():
    """An emulated board's power would be taken for that of the real one beside it."""
    curve = RunCurve("watts", "A100", ((1.0, 100.0), (2.0, 110.0)))
    real = structs.replace(RUN, origin="measured", curves=(curve,))
    emulated = structs.replace(real, key="b", name="trial", origin="simulated")
    (mixed,) = comparison_report([real, emulated], NOW).charts
    assert [series.name for series in mixed.series] == ["night", "trial (simulated)"]
    (chart,) = comparison_report([emulated, emulated], NOW).charts
    assert chart.y_name == "power in W (simulated)"


def test_part_of_a_run_is_compared_with_none():
    """A run under way seems to save energy against one that ended."""
    longer = structs.replace(RUN, seconds=2000.0, joules=4e5)
    assert comparison_report([RUN, longer], NOW).html().count("+100.0 %") == 2
    part = structs.replace(longer, ended=False)
    page = comparison_report([RUN, part], NOW).html()
    assert "+100.0 %" not in page
    assert "silent for 33 min" in page


def test_a_saving_has_its_price_beside_it():
    """A run reads as 12 % better, and nobody sees that it took a tenth longer."""
    run = structs.replace(RUN, energy_saving=0.12, setting="165 W")
    assert "change in time not known" in logged_run_report(run, NOW).html()
    run = structs.replace(run, slowdown=0.041, objective="least-energy:slowdown=5%")
    page = logged_run_report(run, NOW).html()
    assert "of the energy, 4.1 % more time" in page
    assert "least-energy:slowdown=5%" in page
    assert "no more time" in logged_run_report(structs.replace(run, slowdown=-0.01), NOW).html()
