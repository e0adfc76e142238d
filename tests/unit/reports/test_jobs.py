"""Pages of recurring jobs: figures with their errors, choices, and real empty states."""

import dataclasses
import math

import pytest
from msgspec import structs

from joulery.frontier import Frontier, OperatingPoint, Setting
from joulery.grid import ElectricityPrice
from joulery.jobs import (
    Decision,
    DecisionEntry,
    Definition,
    EndedRecurrence,
    EnergyEntry,
    JobBeliefs,
    JobEntry,
    JobSummary,
    JobTotals,
    Measured,
    Outcome,
    ProfileEntry,
    Saved,
)
from joulery.jobs.policies import ActionKind, RunEnd
from joulery.objectives import Cost, LeastEnergy
from joulery.reports import (
    OtherRuns,
    energy_text,
    job_report,
    jobs_chart,
    overview_report,
    saved_text,
)
from joulery.reports._chart import thin
from joulery.reports._text import carbon_text, date_text, limit_difference, with_error
from joulery.storage import JobHead, OtherEnergy
from joulery.testing.workloads import made_up_workload

JOB = structs.replace(made_up_workload().job(), name="nightly")
NOW = 1.8e9
WORLD = ElectricityPrice(500.0, "a table")


def figures(number=1, share=0.25, error=0.05, **changed):
    """Figures of a job that saved a quarter of 10 MJ."""
    name, paused = f"job {number}", False
    head = JobHead(number, 1, paused, 20, 10, "vision", name, "joulery", "A100", 256)
    found = JobTotals(head, 10, 7.5e6, {"measured": 7.5e6}, 1e6, Saved(share, error))
    ended = [
        EndedRecurrence(NOW - 3600.0 * (10 - at), (1 - share) * 1e6, share * 1e6, 1e6, counts=True)
        for at in range(10)
    ]
    return dataclasses.replace(found, ended=tuple(ended), **changed)


def overview(jobs, electricity, now):
    """Both parts of an overview as HTML."""
    return "".join(report.html() for report in overview_report(jobs, electricity, now))


def run(number, size, seconds, joules, end=RunEnd.REACHED, watts=250.0, **changed):
    """A decision that was reported on."""
    kind = ActionKind.PROBE if end == RunEnd.PROBED else ActionKind.TRAIN
    decision = Decision(
        f"1.{number}", number - 1, kind, size, watts, (), float("inf"), "it is best", 0.0
    )
    outcome = Outcome(end, 10.0, seconds, joules, watts, (Measured(watts, 5.0, 100.0, 0.01),))
    entry = DecisionEntry(decision, number, f"key {number}", "reported", None, outcome)
    return structs.replace(entry, **changed)


def summary(*decisions, profiles=()):
    """The summary of a job with these decisions."""
    definition, paused = Definition(JOB, "A100"), False
    entry = JobEntry(1, "vision", 1, None, "", paused, definition, 0.0, 9, 9)
    energy = (EnergyEntry(None, "GPU-0", 100.0, 1e4, "measured"),)
    return JobSummary(entry, decisions, energy, profiles)


@pytest.mark.parametrize(
    ("value", "error", "shown"),
    [
        (3.6e6, 3.6e5, "1.00 ± 0.10 kWh"),
        (3.6e6, None, "1.00 kWh"),
        (1000.0, 50.0, "1.00 ± 0.05 kJ"),
        (0.0, 0.0, "0 J"),
        (3.6e7, 1.0, "10.0 kWh"),
        (3.6e7, 3.6e4, "10.00 ± 0.01 kWh"),
        (1e300, 1e300, f"{1e300 / 3600 / 1e12:,.0f} ± {1e300 / 3600 / 1e12:,.0f} TWh"),
        (-7.2e6, 3.6e6, "-2.00 ± 1.00 kWh"),
        (3.6e4, 3.6e6, "0.01 ± 1.00 kWh"),
    ],
)
def test_figures_have_their_errors_in_the_same_unit(value, error, shown):
    """If this fails, a figure and its error cannot be compared."""
    assert with_error(value, error, energy_text) == shown


def test_the_overview_adds_up_savings_and_errors():
    """If this fails, the first page states a wrong sum, or an error that is too small."""
    price = ElectricityPrice(500.0, "a table", 0.3, "EUR")
    text = overview([figures(1), figures(2)], price, NOW)
    assert "1.39 ± 0.20 kWh" in text  # 5 MJ, errors of 0.5 MJ each added in squares
    assert "694 ± 98 g" in text
    assert "0.42 ± 0.06 EUR" in text
    assert "100 % measured" in text
    assert "2 of 2 jobs can be compared" in text


def test_a_price_that_is_unknown_is_not_made_up():
    """If this fails, people read money that nobody stated."""
    text = overview([figures()], WORLD, NOW)
    assert "the price of a kWh is unknown" in text


def test_attention_is_drawn_to_what_needs_it():
    """If this fails, a report in quarantine or a lost run goes unnoticed."""
    head = dataclasses.replace(figures().head, paused=True)
    happened = {"quarantined": 2, "quarantined_wall_seconds": NOW - 3 * 86_400.0}
    happened |= {"expired": 1, "expired_wall_seconds": NOW - 7200.0}
    text = overview([figures(head=head, **happened)], WORLD, NOW)
    for words in (
        "paused",
        "2 reports in quarantine",
        "1 run never reported",
        "2027-01-12 08:00",
        "2027-01-15 06:00",
    ):
        assert words in text
    later = overview([figures(**happened)], WORLD, NOW + 40 * 86_400.0)
    assert "never reported" not in later
    assert "Nothing: in 30 days" in overview([figures()], WORLD, NOW)
    losing = overview([figures(share=-0.27, latest_wall_seconds=NOW - 60.0)], WORLD, NOW)
    assert "27 % more energy than the default" in losing
    assert "Nothing: in 30 days" in overview([figures(share=-0.05)], WORLD, NOW)  # not told apart


def test_empty_states_say_what_to_do():
    """If this fails, a new user sees a page of dashes."""
    assert "No recurring jobs yet" in overview([], WORLD, NOW)
    fresh = figures(saved=None, joules=0.0, origins={})
    unknown = overview([fresh], WORLD, NOW)
    assert "Nothing to compare yet" in unknown
    assert "0 ± 0" not in unknown  # which would claim to know that nothing was saved
    head, choice, history = job_report(summary())
    assert "Nothing has reached the target yet" in choice.body()
    assert "needs runs of the default" in head.body()
    assert "No decision has been made yet" in history.body()


def test_an_unknown_error_is_said():
    """If this fails, a sum whose error is unknown looks exact."""
    text = overview([figures(error=None)], WORLD, NOW)
    assert "the error of 1 is not yet known" in text


def test_a_part_of_the_energy_is_said_to_be_one():
    """If this fails, a job whose record is too long seems to have used less."""
    whole, _, _ = job_report(summary())
    part, _, _ = job_report(dataclasses.replace(summary(), energy_cut=True))
    assert "at least" not in whole.body()
    assert "at least 2.78 Wh" in part.body()


@pytest.mark.parametrize(
    ("share", "error", "shown"),
    [
        (0.4392, 0.0006, "43.92 ± 0.06 %"),
        (-0.312, 0.02, "-31 ± 2 %"),
        (0.3, 0.0, "30 %"),
        (0.3, None, "30 ± ? %"),
    ],
)
def test_savings_are_as_exact_as_their_error(share, error, shown):
    """If this fails, a figure claims digits that its error takes back, or hides those it has."""
    assert saved_text(Saved(share, error)) == shown


def profile(size, *points):
    """A profile of (seconds, joules, limit) of an epoch."""
    cloud = [OperatingPoint(s, j, Setting(watts)) for s, j, watts in points]
    return ProfileEntry(size, "A100", Frontier.from_points(cloud))


def test_an_objective_chooses_among_runs_and_measured_limits():
    """If this fails, what would be chosen under another objective is wrong."""
    found = summary(
        run(1, 256, 100.0, 2000.0),
        run(2, 64, 80.0, 1500.0),
        profiles=(profile(64, (8.0, 150.0, 250.0), (12.0, 100.0, 100.0)),),
    )
    chosen = {
        name: job_report(found, None, objective)[1].body()
        for name, objective in (
            ("own", None),
            ("energy", Cost(1.0, 250.0)),
            ("quick", LeastEnergy(0.0)),
            ("impossible", LeastEnergy(None, 1.0)),
        )
    }
    assert "batch size 64 at 250 W, 25 % less energy and 20 % faster" in chosen["own"]
    assert "equal cost, eta 0.5" in chosen["own"]
    assert "batch size 64 at 100 W, 50 % less energy and 20 % slower" in chosen["energy"]
    assert "(predicted)" in chosen["energy"]
    assert "batch size 64 at 250 W" in chosen["quick"]
    assert "longest time allowed" in chosen["quick"]
    assert "Nothing meets" in chosen["impossible"]


def test_charts_of_a_simulated_job_say_so():
    """If this fails, a chart of an emulated board is shown elsewhere as a measured one."""
    decisions = run(1, 256, 100.0, 2000.0), run(2, 64, 50.0, 1000.0)
    energy = (EnergyEntry(None, "GPU-0", 100.0, 1e4, "simulated"),)
    simulated = dataclasses.replace(summary(*decisions), energy=energy)
    origins = {"simulated": 7.5e6}
    (overview_charts, _) = overview_report([figures(origins=origins)], WORLD, NOW)
    reports = [*job_report(simulated), overview_charts]
    charts = [chart for report in reports for chart in report.charts]
    assert len(charts) > 4
    assert {chart.origin for chart in [*charts, jobs_chart([simulated])]} == {"simulated"}
    assert charts[0].y_name == "energy in kJ (simulated)"
    assert {c.origin for report in job_report(summary(*decisions)) for c in report.charts} == {""}


def test_a_legend_names_only_what_is_drawn():
    """If this fails, readers look for a frontier of one place, or for a line of no length."""
    best = summary(run(1, 256, 100.0, 2000.0), run(2, 64, 50.0, 1000.0))
    (chart,) = job_report(best)[1].charts
    assert [series.name for series in chart.series] == ["default", "chosen", "equal cost, eta 0.5"]
    (start, _), (end, _) = chart.series[-1].points
    assert end - start > 0.05 * (100.0 - 50.0)
    charts = {chart.title: chart for chart in job_report(summary(run(1, 256, 1.0, 2.0)))[2].charts}
    assert charts["Cost by recurrence"].series[0].symbol == "dot"


def test_a_report_in_quarantine_is_not_chosen():
    """If this fails, a wrong report decides what people believe to be best."""
    found = summary(run(1, 256, 100.0, 2000.0), run(2, 64, 1.0, 1.0, quarantined=True))
    assert "batch size 256" in job_report(found)[1].body()
    assert "(in quarantine)" in job_report(found)[2].body()


def test_history_shows_beliefs_path_regret_and_drift():
    """If this fails, it cannot be seen how the search went."""
    ends = (RunEnd.PROBED, RunEnd.STOPPED, RunEnd.EXHAUSTED)
    runs = [run(n, 64, 80.0, 1500.0) for n in range(2, 6)]
    runs += [run(6 + n, 32, 9.0, 99.0, end) for n, end in enumerate(ends)]
    found = summary(run(1, 256, 100.0, 2000.0), *runs)
    beliefs = JobBeliefs({64: (1e4, 2e4, 3e4), 256: (2e4, 3e4, 4e4)}, changed=True)
    text = job_report(found, beliefs, link=lambda one: f"/to/{one}")[2].body()
    for words in (
        *(
            "Cost of a run by batch size",
            "Search path",
            "Cost by recurrence",
            "Cost beyond the best",
        ),
        *("Drift", "stopped early", "failed", "probed for seconds", "no longer trains", "/to/1.8"),
    ):
        assert words in text


@pytest.mark.parametrize(
    ("level", "limit", "says"),
    [(0.8, 250.0, "20 % less"), (1.25, 250.0, "25 % more"), (1.0, 250.0, ""), (0.8, 200.0, "")],
)
def test_a_job_that_changes_by_itself_is_not_our_saving(level, limit, says):
    """If this fails, a job whose data shrank is credited to the choice without a word."""
    noise = (1.01, 0.99, 1.0, 1.005)
    early = [run(2 + n, 64, 80.0, 1500.0 * noise[n]) for n in range(4)]
    late = [run(6 + n, 64, 80.0, level * 1500.0 * noise[n], watts=limit) for n in range(4)]
    text = job_report(summary(run(1, 256, 100.0, 2000.0), *early, *late))[0].body()
    assert ("the job itself has changed" in text) == bool(says)
    assert says in text


def test_long_lines_are_thinned():
    """If this fails, the page of an old job has megabytes."""
    line = thin([(float(n), 2.0) for n in range(10_000)])
    assert len(line) == 150
    assert line[0][0] < 40
    assert line[-1][0] > 9960


def test_the_default_may_be_the_best():
    """If this fails, a choice is compared with itself."""
    found = summary(run(1, 256, 50.0, 1000.0), run(2, 64, 80.0, 1500.0))
    text = job_report(found)[1].body()
    assert "batch size 256 at 250 W, the default" in text
    assert "0 %" not in text


def test_a_limit_other_than_the_advised_one_is_explained():
    """If this fails, people read two limits of one run and do not know which one held."""
    assert limit_difference(250.0, None) == limit_difference(None, 250.0) == ""
    assert "Advised 365 W, ran at 330 W" in limit_difference(365.0, 330.0)
    decisions = run(1, 256, 100.0, 2000.0), run(2, 64, 80.0, 1500.0)
    outcome = structs.replace(decisions[1].outcome, limit_watts=200.0)
    capped = summary(decisions[0], structs.replace(decisions[1], outcome=outcome))
    text = job_report(capped)[2].body()
    assert "250 W, ran 200 W" in text
    assert "the caps on them allow" in text
    plain = "".join(report.body() for report in job_report(summary(*decisions)))
    assert "the caps on them allow" not in plain


def test_a_choice_other_than_the_latest_run_is_explained():
    """If this fails, the page advises one setting, runs another, and does not say why."""
    runs = run(1, 64, 80.0, 1500.0), run(2, 256, 100.0, 2000.0)
    assert "The latest run took batch size 256 at 250 W." in job_report(summary(*runs))[1].body()


@pytest.mark.parametrize("slowdown", [1e-300, 1.0])
def test_a_bound_far_away_does_not_squeeze_the_chart(slowdown):
    """If this fails, a slip in a form breaks the page, or hides all points in a corner."""
    runs = summary(run(1, 256, 100.0, 2000.0), run(2, 64, 80.0, 1500.0))
    (chart,) = job_report(runs, None, LeastEnergy(slowdown))[1].charts
    assert max(x for line in chart.series for x, _ in line.points) <= 120.0


def test_units_are_the_ones_people_use():
    """If this fails, emissions are stated in megagrams, or dates cannot be told apart."""
    grams = (0.5, 999.0, 2500.0, 2.5e6, 3e9)
    assert [carbon_text(value) for value in grams] == [
        "500 mg",
        "999 g",
        "2.50 kg",
        "2.50 t",
        "3.00 kt",
    ]
    assert date_text(NOW) == "2027-01-15 08:00"
    assert {date_text(value) for value in (None, 0.0, 1e300, math.inf, -1e18)} == {"–"}


def test_energy_of_all_runs_is_in_the_overview():
    """If this fails, whoever pays is told less than was used, by as much as runs do not recur."""
    used = OtherEnergy("speech", NOW - 7200.0, 3.6e6), OtherEnergy("vision", NOW - 7200.0, 1.8e6)
    others = OtherRuns(used, used)
    overview, lists = (
        report.body() for report in overview_report([figures()], WORLD, NOW, others=others)
    )
    total = energy_text(7.5e6 + 5.4e6)
    assert f'<dt>Energy used</dt><dd class="value">{total}' in overview
    assert f"of which {energy_text(7.5e6)} recurring" in overview
    assert lists.index(energy_text(7.5e6 + 1.8e6)) < lists.index("speech") < lists.index("1.00 kWh")
    alone = overview_report([], WORLD, NOW, others=others)[0]
    assert [chart.title for chart in alone.charts] == ["Energy used by day"]
    assert sum(y for _, y in alone.charts[0].series[0].points) == pytest.approx(5.4e6)


def test_losses_are_drawn_to_the_other_side():
    """If this fails, a job that wastes energy looks like one that saves it."""
    lists = overview_report([figures(1), figures(2, share=-0.5)], WORLD, NOW)[1].body()
    assert '<rect x="-50.0" width="50.0" y="2" height="8" fill="var(--s4)"/>' in lists
    assert '<rect x="0.0" width="25.0" y="2" height="8" fill="var(--s2)"/>' in lists
    losses = overview_report([figures(2, share=-0.5)], WORLD, NOW)[0]
    assert min(y for _, y in losses.charts[0].series[0].points) < 0
    assert "var(--s4)" in losses.body()


def test_an_interrupted_run_is_no_cheap_recurrence():
    """If this fails, Ctrl-C looks like the largest saving of a job's history."""
    size = JOB.default
    runs = [run(number, size, 100.0, 2e4) for number in (1, 2, 3)]
    interrupted = run(4, size, 10.0, 2e3, RunEnd.ABANDONED)
    charts = {
        chart.title: chart
        for part in job_report(summary(*runs, interrupted))
        for chart in part.charts
    }
    costs = charts["Cost by recurrence"].series[0].points
    assert [number for number, _ in costs] == [1.0, 2.0, 3.0]
    excess = charts["Cost beyond the best batch size, in all"].series[0].points
    assert excess[-1][1] > excess[-2][1]
