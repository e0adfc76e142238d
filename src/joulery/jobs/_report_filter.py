"""Filter of the reports that a policy learns from: a robust rule with quarantine.

A report that is possible (``joulery.jobs._validation``) can still be wrong: a worker that measured
the boards of another job, a script that reports another run. One such report must not ruin a job.

Algorithm. Two reports of one batch size agree if epochs to the target are within a factor of 3 and
costs of an epoch within 1.5, else they contradict each other. Reports of different batch sizes can
only contradict each other, by wider limits. A report is outvoted if more recurrences contradict it
than agree with it. The one outvoted by most is quarantined first, with all others of its
recurrence, and votes are counted again without them, until none is outvoted. Of two that are alone
and contradict each other, both wait for a third. A *doubtful* report contradicts none, and needs
more for it than against it.

Thresholds. Epochs of a batch size vary by 10 to 30 % between runs and may double with new data; the
cost of an epoch at its best power limit hardly varies. An epoch of twice the batch size has half
the steps and costs at least half as much, at most 1.9 times (traces of You et al., NSDI'23).

Reference. A majority within fixed limits is Hampel's identifier (The influence curve and its role
in robust estimation, JASA 69, 1974); removing the most deviant first is the outward procedure of
Davies and Gather (The identification of multiple outliers, JASA 88, 1993).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from joulery.jobs.policies import RunEnd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from joulery.jobs._recent_reports import RunReport

UNCHOSEN = -1
"""Stands for the recurrences of all runs that the policy had not chosen."""
# Logarithms of the factors within which reports agree: on a batch size, per octave between two, and
# the cost of an epoch in larger steps.
_EPOCHS, _COST = math.log(3.0), math.log(1.5)
_PER_OCTAVE, _LARGER_COST = math.log(2.0), math.log(2.0)
OTHERS = 2
"""Recurrences on other batch sizes that count against a report, at most; by hand, by what
``scripts/stress_jobs.py adversaries --other-sizes`` shows."""


def verdicts(reports: Sequence[RunReport]) -> list[bool]:
    """Whether to quarantine each of some reports."""
    recurrence, arm, end, doubtful = np.array(
        [(report.recurrence, report.arm, report.end, report.doubtful) for report in reports]
    ).T
    chosen, same = recurrence != UNCHOSEN, arm[:, None] == arm
    agree, contradict = _votes(reports)
    member = (recurrence[:, None] == np.unique(recurrence)).astype(float)
    gone = np.zeros(len(reports), dtype=bool)
    while True:
        against = contradict & ~gone
        others = ((against & ~same) @ member > 0).sum(axis=1)
        lead = (agree & ~gone).sum(axis=1) - (against & same).sum(axis=1)
        lead -= np.minimum(others, OTHERS)
        least = lead[~gone].min(initial=0)
        if least == 0:
            break
        fallen = ~gone & (lead == least)
        gone |= fallen | np.isin(recurrence, recurrence[fallen & chosen])
    gone |= (doubtful > 0) & (lead <= 0)
    if not (~gone & (end == RunEnd.REACHED)).any():
        gone |= end == RunEnd.STOPPED  # ceilings follow from runs that reached the target
    return gone.tolist()


def _votes(reports: Sequence[RunReport]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(report, voter): whether the voter's report agrees with a report, or contradicts it."""
    recurrence, octave, reached, doubtful, low, high, cost = np.array(
        [
            (
                report.recurrence,
                report.octave,
                report.end == RunEnd.REACHED,
                report.doubtful,
                *report.log_epochs,
                report.log_epoch_cost,
            )
            for report in reports
        ]
    ).T
    larger, dearer = octave[:, None] - octave, cost[:, None] - cost
    same, room = larger == 0.0, _PER_OCTAVE * np.abs(larger)
    apart = np.maximum(low[:, None] - high, low - high[:, None])
    # That one batch size fails says nothing about another.
    apart[~same & (reached[:, None] * reached == 0.0)] = np.nan
    widest = np.where(larger * dearer > 0, _LARGER_COST, _COST + room)
    contradict = (apart > _EPOCHS + room) | (np.abs(dearer) > widest)
    # Only a report that has the same figures can confirm another.
    comparable = np.isnan(low)[:, None] | ~np.isnan(apart)
    comparable &= np.isnan(cost)[:, None] | ~np.isnan(dearer)
    independent = (recurrence[:, None] != recurrence) & (recurrence != UNCHOSEN)
    agree = comparable & ~contradict & same & independent
    return agree, contradict & independent & (doubtful == 0.0)


def reasons(reports: Sequence[RunReport]) -> dict[int, str]:
    """Reasons why reports are in quarantine, and what would release each, by decision."""
    if not any(report.quarantined for report in reports):
        return {}
    recurrence = np.array([report.recurrence for report in reports])
    return {
        report.decision: _reason(report, len(np.unique(recurrence[against])))
        for report, against in zip(reports, _votes(reports)[1], strict=True)
        if report.quarantined
    }


def _reason(report: RunReport, contradictions: int) -> str:
    """Reason why a report is in quarantine, and what would release it."""
    size = report.body["action"]["batch_size"]
    if report.body["action"].get("volunteered"):
        return (
            f"batch size {size} was asked for, not chosen by the policy: "
            "a run of it that the policy chooses releases the report if it agrees"
        )
    if report.doubtful:
        return (
            "the run ended before its target though neither its cost ceiling nor max_epochs "
            f"explains that: a second run of batch size {size} that ends so releases the report"
        )
    if contradictions:
        runs = "another run" if contradictions == 1 else f"{contradictions} other runs"
        return (
            f"epochs to the target, or the cost of an epoch, are far from those of {runs}: "
            f"further runs of batch size {size} that agree with it release the report"
        )
    return "it follows from a report in quarantine: once that is released, this one is, too"
