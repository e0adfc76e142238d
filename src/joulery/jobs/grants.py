"""What the desk makes of a policy's decision: for those who cannot probe, or are not believed."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np

from joulery.errors import InvalidValueError
from joulery.jobs.models import ASKED_FOR
from joulery.jobs.policies.base import ActionKind

if TYPE_CHECKING:
    from joulery.jobs.job import Job
    from joulery.jobs.policies.base import Actions
    from joulery.jobs.report_filter import ReportFilter
    from joulery.storage.records import Document

# Marks an action whose batch size the policy has not chosen; see joulery.jobs.report_filter.
VOLUNTEERED = {"volunteered": True}
_UNPROBED = (
    "may be better than the best so far, and is measured on its way, since probes are not made"
)
_SUREST = "most have reached the target with it, and how the last try went has to be confirmed"

# A try may cost this many times what the best takes (You et al., NSDI'23, section 4.4).
_BETA = 2.0
# From this training of a recurrence on, each is granted twice as much as the policy would.
_PATIENCE = 4
_MOST_DOUBLINGS = 64


def granted(
    chosen: Actions, before: Document | None, history: ReportFilter, *, probing: bool
) -> tuple[Actions, int]:
    """What is handed out where a policy has chosen; and which training of its recurrence it is.

    Args:
        chosen: By the policy.
        before: The action that it follows in its recurrence, if any.
        history: Of the job.
        probing: Whether its holder can probe.
    """
    if before is not None and before["kind"] == ActionKind.TRAIN and history.doubts(before):
        # Who is right will be found out, but not at the expense of this one recurrence: the policy
        # does not know of its failure, and would have it fail the same way again.
        surest = history.surest()
        if (before["batch_size"], before["ceiling"]) != (surest, None):  # it has its turn once
            return only_granted(chosen, before, history.job, surest)
    # A probe whose report is not believed would be chosen again and again.
    again = before is not None and (before["kind"], before["arm"]) == (
        ActionKind.PROBE,
        chosen.arm[0],
    )
    actions = chosen if probing and not again else without_probe(chosen, history)
    attempt = attempt_after(before)
    return widened(actions, attempt), attempt


def only_granted(
    chosen: Actions, before: Document | None, job: Job, only: int
) -> tuple[Actions, int]:
    """As :func:`granted`, for one who will run the batch size ``only`` whatever is chosen.

    It is not stopped, so there is no ceiling. Where the policy has chosen the same, its power limit
    holds; else it is left open, for :mod:`joulery.jobs.known_limits` to fill in what is known.

    Raises:
        InvalidValueError: The job has no such batch size.
    """
    if only not in job.batch_sizes:
        raise InvalidValueError(
            f"batch size {only} is none of this job's",
            remedy=f"give one of {', '.join(map(str, job.batch_sizes))}",
        )
    arm = job.batch_sizes.index(only)
    same = int(chosen.arm[0]) == arm and chosen.kind[0] == ActionKind.TRAIN
    actions = dataclasses.replace(
        chosen,
        kind=np.full(1, ActionKind.TRAIN),
        arm=np.full(1, arm),
        limit=chosen.limit if same else np.full(1, -1),
        ceiling=np.full(1, np.inf),
        probe_limits=chosen.probe_limits if same else None,
    )
    return actions, attempt_after(before)


def reason_granted(chosen: Actions, actions: Actions, reason: str) -> str:
    """Why ``actions`` are handed out, where the policy has chosen for a ``reason``."""
    if actions.arm[0] != chosen.arm[0]:
        return _SUREST
    return _UNPROBED if actions.kind[0] != chosen.kind[0] else reason


def reason_beside(chosen: Actions, reason: str, job: Job, only: int) -> str:
    """Why the policy would run what it has chosen; said as such where that is not ``only``."""
    would = job.batch_sizes[int(chosen.arm[0])]
    return reason if would == only else f"{ASKED_FOR}; {would} would be run: {reason}"


def attempt_after(before: Document | None) -> int:
    """Which training of its recurrence comes next; counts from 1."""
    if before is None:
        return 1
    attempt: int = before.get("attempt", 1)
    return attempt + int(before["kind"] == ActionKind.TRAIN)


def widened(actions: Actions, attempt: int) -> Actions:
    """The same, with a higher ceiling where ``attempt`` trainings have not reached the target.

    Ceilings follow from what is believed of the best. Were that far too good to be true, all
    trainings would be stopped for ever; so it is doubled until one gets there.
    """
    if attempt < _PATIENCE:
        return actions
    factor = 2.0 ** min(_MOST_DOUBLINGS, attempt - _PATIENCE + 1)
    return dataclasses.replace(actions, ceiling=factor * actions.ceiling)


def without_probe(actions: Actions, history: ReportFilter) -> Actions:
    """The same if it is a training, else a training of the batch size that was to be probed.

    It measures the limits that the probe would have measured, and holds the one if there is but
    one. It may cost twice what the best batch size takes: whoever tries it without having looked
    is stopped there, and what was measured until then is what the probe would have told. Before
    anything has reached the target there is nothing to compare with, and so no ceiling.
    """
    if actions.kind[0] != ActionKind.PROBE:
        return actions
    wanted = actions.probe_limits
    alone = np.zeros(0) if wanted is None else np.flatnonzero(wanted[0])
    return dataclasses.replace(
        actions,
        kind=np.full(1, ActionKind.TRAIN),
        limit=np.array([alone[0] if len(alone) == 1 else -1], dtype=np.int64),
        ceiling=np.array([_BETA * history.best_cost()]),
        probe_limits=None if wanted is None or len(alone) != 1 else np.zeros_like(wanted),
    )
