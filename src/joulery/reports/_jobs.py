"""A recurring job as a report: its savings, what an objective would choose, and its history."""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from joulery.jobs import choose_setting
from joulery.jobs.policies import ActionKind, RunEnd
from joulery.reports._document import (
    Grid,
    Heading,
    KeyFigure,
    KeyFigures,
    Paragraph,
    Report,
    Table,
    charts_of,
)
from joulery.reports._job_charts import choice_chart, history_charts, setting_text
from joulery.reports._text import (
    NONE,
    cost_text,
    count_text,
    date_text,
    describe_objective,
    end_text,
    energy_text,
    limit_difference,
    limit_text,
    origins_text,
    saved_text,
    simulated_text,
)
from joulery.units import human_duration, per_cent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from datetime import tzinfo

    from joulery.jobs import (
        BatchSizeSummary,
        DecisionEntry,
        JobBeliefs,
        JobSummary,
        SettingChoice,
    )
    from joulery.objectives import Objective
    from joulery.reports._document import Block

_MOST_DECISIONS = 15  # by hand: rows of a list that fit a screen


def job_report(
    summary: JobSummary,
    beliefs: JobBeliefs | None = None,
    objective: Objective | None = None,
    link: Callable[[str], str] | None = None,
    zone: tzinfo | None = None,
) -> tuple[Report, Report, Report]:
    """All about one job: its savings, what an objective would choose, and how the job went.

    Args:
        summary: Summary of its history.
        beliefs: Beliefs of its policy; None where they are unknown.
        objective: Objective to choose under, in place of the job's own.
        link: Address of the page of a decision.
        zone: Time zone of the reader; UTC unless given.
    """
    origin = simulated_text(summary.origins)
    choice = charts_of(_choice_blocks(summary, objective), origin)
    history = charts_of(_history_blocks(summary, beliefs, link, zone), origin)
    return (
        Report(summary.entry.name, "", (_job_figures(summary), *_own_change(summary))),
        Report("What to run", "", choice),
        Report("How it went", "", history),
    )


def _choice_blocks(summary: JobSummary, objective: Objective | None) -> tuple[Block, ...]:
    choice = choose_setting(summary, objective)
    if not choice.points:
        text = "Nothing has reached the target yet, so there is nothing to choose from."
        return (Paragraph(text),)
    text = _describe_choice(choice, summary.job.default)
    blocks: list[Block] = [Paragraph(text), choice_chart(choice, text)]
    difference = _difference_from_latest(summary, choice) if objective is None else ""
    return (*blocks, Paragraph(difference, soft=True)) if difference else tuple(blocks)


def _describe_choice(choice: SettingChoice, default: int) -> str:
    name = describe_objective(choice.objective)
    if choice.point is None:
        return f"Nothing meets {name}: {choice.remedy}."
    text = f"With {name}: {setting_text(choice.point)}"
    gains = choice.gains
    if choice.is_default:
        text += ", the default"
    elif gains is not None:
        slower = "slower" if gains.time > 0 else "faster"
        less = "less" if gains.energy >= 0 else "more"
        text += (
            f", {abs(gains.energy):,.0f} % {less} energy and {abs(gains.time):,.0f} % {slower} "
            f"than the default batch size {default}"
        )
    return f"{text} ({choice.point.provenance.origin})."


def _difference_from_latest(summary: JobSummary, choice: SettingChoice) -> str:
    """The reason why the latest training ran another setting; empty where it ran the choice."""
    trainings = [entry for entry in summary.decisions if entry.decision.kind == ActionKind.TRAIN]
    if not trainings or choice.point is None:
        return ""
    latest, point = trainings[-1], choice.point.setting
    held = latest.outcome.limit_watts if latest.outcome else None
    held = held or latest.decision.power_limit_watts
    if (latest.decision.batch_size, held) == (point.batch_size, point.power_limit_watts):
        return ""
    limit = f" at {limit_text(held)}" if held is not None else ""
    return (
        f"The latest run took batch size {latest.decision.batch_size}{limit}. This choice goes by "
        "the means of all runs; the policy also weighs how sure it is of them, and a run holds the "
        "nearest limit that its boards and the caps on them allow."
    )


def _own_change(summary: JobSummary) -> tuple[Block, ...]:
    """A word of warning where the job itself became cheaper or dearer."""
    change = summary.own_change
    if change is None or summary.saved is None:
        return ()
    text = (
        f"Runs of one batch size and limit use {per_cent(abs(change))} "
        f"{'less' if change < 0 else 'more'} energy than at first, so the job itself has changed. "
        "What was saved is counted against runs of the default, also old ones: that part of it is "
        "not the choice's."
    )
    return (Paragraph(text, soft=True),)


def _job_figures(summary: JobSummary) -> KeyFigures:
    saved, used = summary.saved, summary.joules
    least = "at least " * (summary.cut or summary.energy_cut)
    origins = origins_text(summary.origins, used)
    energy = KeyFigure("Energy used", least + energy_text(used), origins)
    if saved is None:
        reason = "it needs runs of the default batch size and of another one"
        return KeyFigures((KeyFigure("Energy saved", NONE, reason), energy))
    simulated = simulated_text(summary.origins)
    origin = f"; {simulated}" if simulated else ""
    runs = f"against {count_text(saved.default_runs, 'run')} of the default{origin}"
    exploring = f"{cost_text(saved.exploring_joules)} spent on exploring{origin}"
    return KeyFigures(
        (
            KeyFigure("Energy saved", saved_text(saved.energy), f"{runs}, exploration included"),
            KeyFigure("Time saved", saved_text(saved.time), runs),
            KeyFigure("Cost saved", saved_text(saved.cost), exploring),
            energy,
        )
    )


def _history_blocks(
    summary: JobSummary,
    beliefs: JobBeliefs | None,
    link: Callable[[str], str] | None,
    zone: tzinfo | None,
) -> tuple[Block, ...]:
    blocks: list[Block] = []
    if summary.recurrences:
        blocks.append(Grid(tuple(history_charts(summary, beliefs, zone))))
        if beliefs is not None and beliefs.changed:
            change = "The policy has noticed that this job no longer trains as it used to"
            blocks.append(Paragraph(f"{change}, and weighs older runs down since."))
        blocks += [Heading("By batch size"), _sizes_table(summary)]
    if any(entry.quarantine_reason for entry in summary.decisions):
        blocks += [Heading("In quarantine"), _quarantine_table(summary, link, zone)]
    blocks.append(Heading("Latest decisions"))
    latest = summary.decisions[: -_MOST_DECISIONS - 1 : -1]
    if not latest:
        return (*blocks, Paragraph("No decision has been made yet."))
    blocks.append(_decisions_table(summary, latest, link, zone))
    differences = (
        limit_difference(entry.decision.power_limit_watts, entry.outcome.limit_watts)
        for entry in latest
        if entry.outcome is not None
    )
    difference = next(filter(None, differences), "")
    return (*blocks, Paragraph(difference, soft=True)) if difference else tuple(blocks)


def _quarantine_table(
    summary: JobSummary, link: Callable[[str], str] | None, zone: tzinfo | None
) -> Table:
    """Reports that the policy does not learn from, the latest first: why, and what helps."""
    entries = [entry for entry in reversed(summary.decisions) if entry.quarantine_reason]
    entries = entries[:_MOST_DECISIONS]
    table = Table.of(
        entries,
        {
            ">recurrence": lambda entry: f"{entry.decision.recurrence + 1:,}",
            "reported": lambda entry: date_text(entry.reported_wall_seconds or 0.0, zone),
            ">batch size": lambda entry: str(entry.decision.batch_size),
            "why, and what would release it": lambda entry: entry.quarantine_reason,
        },
    )
    return replace(table, links=[link(entry.decision.id) for entry in entries] if link else ())


def _sizes_table(summary: JobSummary) -> Table:
    """Runs by batch size: how they ended, and medians of the runs that reached the target."""

    def middle(show: Callable[[float], str], values: Sequence[float]) -> str:
        return show(median(values)) if values else NONE

    def count(end: RunEnd) -> Callable[[BatchSizeSummary], str]:
        return lambda row: f"{row.ends.get(end, 0):,}" if row.ends.get(end, 0) else NONE

    return Table.of(
        summary.batch_sizes,
        {
            ">batch size": lambda row: (
                f"{row.batch_size}{' (default)' * (row.batch_size == summary.job.default)}"
            ),
            ">reached": count(RunEnd.REACHED),
            ">stopped early": count(RunEnd.STOPPED),
            ">failed": count(RunEnd.EXHAUSTED),
            ">lost": count(RunEnd.ABANDONED),
            ">cost": lambda row: middle(cost_text, row.costs_joules),
            ">time": lambda row: middle(human_duration, row.seconds),
            ">energy": lambda row: middle(energy_text, row.joules),
            ">limit": lambda row: limit_text(row.limit_watts),
        },
        kinds=["default" * (row.batch_size == summary.job.default) for row in summary.batch_sizes],
    )


def _decisions_table(
    summary: JobSummary,
    entries: Sequence[DecisionEntry],
    link: Callable[[str], str] | None,
    zone: tzinfo | None,
) -> Table:
    """Decisions of a job, how they ended and why they were made."""

    def limit(entry: DecisionEntry) -> str:
        advised = entry.decision.power_limit_watts
        held = entry.outcome.limit_watts if entry.outcome else None
        if limit_difference(advised, held):
            return f"{limit_text(advised)}, ran {limit_text(held)}"
        return limit_text(held if advised is None else advised)

    table = Table.of(
        entries,
        {
            ">recurrence": lambda entry: f"{entry.decision.recurrence + 1:,}",
            "begun": lambda entry: date_text(entry.decision.issued_wall_seconds, zone),
            "what": lambda entry: "probe" if entry.decision.kind == ActionKind.PROBE else "train",
            ">batch size": lambda entry: str(entry.decision.batch_size),
            ">limit": limit,
            "ended": end_text,
            ">epochs": lambda entry: f"{entry.outcome.epochs:,g}" if entry.outcome else NONE,
            ">cost": lambda entry: (
                cost_text(summary.cost_of(entry.outcome)) if entry.outcome else NONE
            ),
            "why": lambda entry: entry.decision.reason,
        },
    )
    return replace(table, links=[link(entry.decision.id) for entry in entries] if link else ())
