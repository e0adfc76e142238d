"""Schedules side by side: memory, messages, time and energy, and which one wins."""

from dataclasses import replace

import numpy as np
import pytest

from joulery.errors import InfeasibleError, InvalidValueError
from joulery.pipeline import (
    PipelineConfig,
    custom_schedule,
    make_schedule,
    plan_pipeline,
    profiles_from_rows,
    search_schedules,
)
from joulery.pipeline._search import activations_in_flight, compare_schedules
from support.pipelines import random_rows

_CONFIG = PipelineConfig(blocking_watts=80.0)


def _profiles(stages=4):
    """Equal stages that take a quarter of their time whatever the clock."""
    clocks = np.arange(1400, 800, -100)
    return profiles_from_rows(
        [
            {
                "stage": stage,
                "instruction": kind,
                "frequency": float(clock),
                "time": work * (0.25 + 0.75 * 1400 / clock),
                "energy": work * (0.25 + 0.75 * 1400 / clock) * (100 + 300 * (clock / 1400) ** 3),
            }
            for kind, work in (("forward", 0.1), ("backward", 0.2))
            for stage in range(stages)
            for clock in clocks
        ],
        smooth=False,
    )


@pytest.fixture(scope="module")
def comparison():
    """Four ranks and eight microbatches, in the time of 1F1B at full clocks."""
    return compare_schedules(_profiles(), 8, config=_CONFIG)


def test_activations_in_flight():
    """Memory would be charged wrongly: the figures are those of the papers."""
    assert activations_in_flight(make_schedule("gpipe", 4, 8)) == (8, 8, 8, 8)
    assert activations_in_flight(make_schedule("1f1b", 4, 8)) == (4, 3, 2, 1)
    assert activations_in_flight(make_schedule("1f1b", 4, 2)) == (2, 2, 2, 1)
    # A rank of ZB-H1 holds at most as much as the first one of 1F1B.
    assert max(activations_in_flight(make_schedule("zb-h1", 4, 8))) == 4
    assert max(activations_in_flight(make_schedule("zbv", 4, 12))) == 4
    # 1 + (P - 1) / (P v) as much as 1F1B.
    assert max(activations_in_flight(make_schedule("interleaved", 4, 8))) == 4 * (1 + 3 / 8)
    # Recomputation keeps inputs only; what it brings back is gone after the backward.
    assert activations_in_flight(make_schedule("early-recompute", 4, 8)) == (1, 1, 1, 1)


def test_messages_are_counted(comparison):
    """Interleaving would get its extra communication for free."""
    transfers = {
        candidate.schedule.name: candidate.transfers for candidate in comparison.candidates
    }
    assert transfers["1f1b"] == transfers["gpipe"] == 2 * 8 * 3
    assert transfers["interleaved"] == 2 * 8 * 7
    assert transfers["zbv"] == 2 * 8 * 6


def test_smaller_bubbles_need_less_energy_in_equal_time(comparison):
    """A faster schedule would not give its time back as energy."""
    joules = {candidate.schedule.name: candidate.joules for candidate in comparison.candidates}
    assert joules["1f1b"] < comparison.full_clocks_joules
    for name in ("interleaved", "zb-h1", "zbv"):
        assert joules[name] < joules["1f1b"]


def test_schedules_that_do_not_fit_the_memory_are_not_chosen(comparison):
    """A schedule that does not fit would be chosen."""
    limit = comparison.max_activations
    assert limit == 4
    best = comparison.best()
    assert best.activations <= limit
    assert best.schedule.name in ("zbv", "zb-h1")
    spacious = comparison.best(any_memory=True)
    assert spacious.joules is not None
    assert best.joules is not None
    assert spacious.joules <= best.joules * 1.001
    tight = replace(comparison, max_activations=0.5)
    assert tight.best() is None
    assert "no schedule gets by with 0.5 microbatches" in str(tight.infeasible())


def test_communication_is_charged():
    """Twice the messages would cost no more than one."""
    free = compare_schedules(_profiles(), 8, config=_CONFIG)
    config = PipelineConfig(blocking_watts=80.0, communication_seconds=0.05)
    slow = compare_schedules(_profiles(), 8, config=config)

    def longer(name):
        before, after = (
            next(c for c in comparison.candidates if c.schedule.name == name)
            for comparison in (free, slow)
        )
        return after.plan.full_clocks.seconds - before.plan.full_clocks.seconds

    # There and back once: nothing of it can hide behind work.
    assert longer("gpipe") == pytest.approx(2 * 3 * 0.05)
    for name in ("1f1b", "interleaved", "zb-h1", "zbv"):
        assert longer(name) > 2 * 3 * 0.05


def test_what_cannot_run_is_named():
    """A schedule would be missing without a reason."""
    comparison = compare_schedules(_profiles(), 6, config=_CONFIG)
    assert "6 microbatches" in comparison.refused["dualpipe-v"]
    assert {c.schedule.name for c in comparison.candidates} >= {"gpipe", "1f1b", "zb-h1", "zbv"}


def test_a_deadline_of_ones_own():
    """Comparisons at another pace would be those of 1F1B's."""
    usual = compare_schedules(_profiles(), 4, config=_CONFIG)
    pace = usual.pace_seconds
    late = compare_schedules(_profiles(), 4, config=_CONFIG, deadline_seconds=pace * 1.3)
    assert late.deadline_seconds == pytest.approx(1.3 * usual.pace_seconds)
    early = compare_schedules(_profiles(), 4, config=_CONFIG, deadline_seconds=pace * 0.5)
    assert all(candidate.joules is None for candidate in early.candidates)
    assert early.best() is None
    with pytest.raises(InfeasibleError, match=r"no schedule ends within 1\.05 s"):
        search_schedules(_profiles(), 4, config=_CONFIG, deadline_seconds=pace * 0.5)


def test_winners_at_several_counts():
    """The best schedule by number of microbatches would be missing."""
    search = search_schedules(_profiles(2), 8, config=_CONFIG)
    assert [comparison.microbatches for comparison in search.comparisons] == [2, 4, 8]
    savings = [
        1 - (comparison.best().joules or 0) / comparison.full_clocks_joules
        for comparison in search.comparisons
    ]
    assert all(0 < share < 1 for share in savings)
    assert search.best is search.wanted.best()


def test_schedules_that_take_equally_long_are_not_too_slow():
    """If it fails GPipe is refused for the last digit of a sum."""
    comparison = compare_schedules(_profiles(), 32, config=_CONFIG)
    gpipe, one_f_one_b = comparison.candidates[:2]
    assert gpipe.plan.full_clocks.seconds == pytest.approx(one_f_one_b.plan.full_clocks.seconds)
    assert gpipe.best is not None


def test_one_line_plans_a_pipeline(tmp_path):
    """If it fails users must wire schedules, profiles and the planner themselves."""
    plan = plan_pipeline(_profiles(), schedule="zb-h1", microbatches=8, config=_CONFIG)
    assert (plan.problem.schedule, plan.problem.ranks, plan.problem.microbatches) == ("zb-h1", 4, 8)
    order = make_schedule("1f1b", 4, 6)
    assert plan_pipeline(_profiles(), schedule=order).problem.instructions == order.instructions()
    path = tmp_path / "profile.csv"
    path.write_text(
        "stage,instruction,frequency,time,energy\n0,F,1400,1,300\n0,B,1400,2,600\n",
        encoding="utf-8",
    )
    assert plan_pipeline(str(path), microbatches=2).fastest_seconds == 6.0


def test_auto_takes_the_schedule_of_least_energy():
    """If it fails "auto" plans another schedule than the search finds."""
    plan = plan_pipeline(_profiles(), schedule="auto", microbatches=8, config=_CONFIG)
    best = search_schedules(_profiles(), 8, config=_CONFIG).best
    assert plan.problem.schedule == best.schedule.name


def test_too_many_instructions_are_refused_at_once(tmp_path):
    """If it fails a slip of the keyboard compares schedules for hours."""
    with pytest.raises(InvalidValueError, match=r"more than the 20,000 .* name one schedule"):
        search_schedules(_profiles(), 2501, config=_CONFIG)
    halves = [[f"0I{n}" for n in range(40_000)], [f"0W{n}" for n in range(40_000)]]
    order = custom_schedule("mine", [[f"0F{n}" for n in range(40_000)] + halves[0] + halves[1]])
    with pytest.raises(InvalidValueError, match="120,000 instructions"):
        plan_pipeline(_profiles(), schedule=order)


def test_numbers_must_fit_the_schedule():
    """If it fails another pipeline is planned than was asked for."""
    with pytest.raises(InvalidValueError, match="needs the number of microbatches"):
        plan_pipeline(_profiles(), schedule="1f1b")
    with pytest.raises(InvalidValueError, match="asked for 8 microbatches, but 1f1b has 6"):
        plan_pipeline(_profiles(), schedule=make_schedule("1f1b", 4, 6), microbatches=8)
    with pytest.raises(InvalidValueError, match="asked for 2 ranks"):
        plan_pipeline(_profiles(), schedule=make_schedule("1f1b", 4, 6), ranks=2)


def test_every_public_name_is_there():
    """If it fails a name of the API cannot be imported."""
    import joulery.pipeline as room

    assert all(getattr(room, name) is not None for name in room.__all__)


def test_memory_in_bytes_rules_schedules_out():
    """If it fails a schedule is chosen whose activations do not fit the device."""
    rows = [row | {"activation_bytes": 2e9} for row in random_rows(4, 2)]
    profiles = profiles_from_rows(rows)
    search = search_schedules(profiles, 16, memory_bytes=8e9)
    sizes = {c.schedule.name: c.activation_bytes for c in search.wanted.candidates}
    assert sizes["gpipe"] == 32e9
    assert sizes["1f1b"] == 8e9
    assert search.best.activation_bytes <= 8e9
    with pytest.raises(InfeasibleError, match=r"1\.00 GB.*make room for"):
        search_schedules(profiles, 16, memory_bytes=1e9)
    with pytest.raises(InvalidValueError, match="activation_bytes"):
        search_schedules(profiles_from_rows(random_rows(4, 2)), 16, memory_bytes=8e9)


def test_a_tie_is_not_decided_by_the_last_digit():
    """If it fails a schedule is ruled out because its seconds were added in another order."""
    first = [row for row in random_rows(1, 4) if row["stage"] == 0]
    profiles = profiles_from_rows(row | {"stage": stage} for stage in range(3) for row in first)
    for microbatches in range(2, 30, 3):
        comparison = compare_schedules(profiles, microbatches)
        by_name = {c.schedule.name: c for c in comparison.candidates}
        # Of equal stages both take equally long, in different sums.
        assert by_name["gpipe"].best is not None
        tiny = replace(comparison, max_activations=comparison.max_activations * (1 - 1e-15))
        assert tiny.fits(by_name["1f1b"])
