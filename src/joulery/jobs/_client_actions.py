"""Actions for clients: the policy's choice, adapted to what the client can do.

A client may be unable to probe, may run a batch size of its own, or may be in the middle of a
recurrence whose runs were stopped again and again.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.errors import InvalidValueError
from joulery.jobs._replay import ROW, action_document
from joulery.jobs.policies import ActionKind, ChoosesLimits, RunEnd

if TYPE_CHECKING:
    from joulery.jobs._models import Job, Request
    from joulery.jobs._posterior import JobState
    from joulery.jobs._recent_reports import RecentReports
    from joulery.jobs.policies import Actions, Policy
    from joulery.storage import Document

_UNPROBED = (
    "may be better than the best so far, and is measured on its way, since probes are not made"
)
_ON_THE_WAY = (
    "a batch size further on may be better than the best so far: the next one is trained first, "
    "since probes are not made"
)
_SUREST = "most runs reached the target with it, and the last report has to be confirmed"
# A try may cost this many times what the best takes (You et al., NSDI'23, section 4.4).
_BETA = 2.0
# The same for a client that makes one training per recurrence: a night without a model is worse
# than a dear one. By hand: as a run of the best, see joulery.jobs.policies.bayesian.
_PLAIN_BETA = 4.0
# From this training of a recurrence on, each may cost twice as much as the one before.
_PATIENCE = 4
_MOST_DOUBLINGS = 64
# Ratio of batch sizes within which an untried one is near a trained one: half an octave, as of
# joulery.jobs.policies.bayesian.
_NEAR = 2.0**0.5


def client_action(
    state: JobState, chosen: Actions, request: Request, before: Document | None, *, doubted: bool
) -> tuple[Document, str]:
    """The action that a client is asked to run, as it is stored; and the reason in words.

    ``before`` is the action before it in its recurrence, if any; ``doubted``, whether the report on
    that is quarantined.
    """
    reason = state.policy.reasons[int(chosen.reason[0])]
    # Which training of its recurrence comes next; counts from 1.
    attempt = 1
    if before is not None:
        attempt = before.get("attempt", 1) + int(before["kind"] == ActionKind.TRAIN)
    only = request.only
    if only is not None:
        actions = only_batch_size(chosen, state.job, only)
        would = state.job.batch_sizes[int(chosen.arm[0])]
        if would != only:
            reason = f"this batch size was asked for; {would} would be run: {reason}"
    elif _needs_a_model(state.reports, chosen, request, before, doubted=doubted):
        actions, reason = only_batch_size(chosen, state.job, state.reports.surest()), _SUREST
    else:
        actions = chosen
        if chosen.kind[0] == ActionKind.PROBE and (not request.probing or _again(chosen, before)):
            arm = arm_within_reach(state.job, state.reports.trained(), int(chosen.arm[0]))
            reason = _UNPROBED if arm == chosen.arm[0] else _ON_THE_WAY
            actions = dataclasses.replace(chosen, arm=np.full(1, arm))
            actions = without_probe(actions, state.reports.best_cost())
        actions = widened(actions, attempt)
        if not request.probing and before is None:
            actions = _with_patience(actions, state.reports.best_cost())
    if actions.arm[0] != chosen.arm[0] or only is not None:
        actions = with_known_limit(actions, state.policy, state.beliefs)
    action = action_document(actions, state.job, attempt)
    if actions.arm[0] != chosen.arm[0] and only is not None:
        action["volunteered"] = True  # see joulery.jobs._recent_reports
    return action, reason


def _with_patience(actions: Actions, best_cost: float) -> Actions:
    """The same for a client that ends without a model where it is stopped."""
    return dataclasses.replace(
        actions, ceiling=np.maximum(actions.ceiling, _PLAIN_BETA * best_cost)
    )


def _needs_a_model(
    reports: RecentReports,
    chosen: Actions,
    request: Request,
    before: Document | None,
    *,
    doubted: bool,
) -> bool:
    """Whether the batch size that is surest to reach the target is run next, without a ceiling.

    A policy does not see a report in quarantine, so it would have the next training fail the same
    way. Within a recurrence the surest one is run once, since that may fail, too. A client that
    makes one training per recurrence must not end without a model twice in a row.
    """
    if before is not None:
        repeated = (before["batch_size"], before["ceiling"]) == (reports.surest(), None)
        return doubted and before["kind"] == ActionKind.TRAIN and not repeated
    latest = reports.latest_training()
    if request.probing or latest is None:
        return False
    may_stop = chosen.kind[0] == ActionKind.PROBE or bool(np.isfinite(chosen.ceiling[0]))
    return latest.quarantined or (latest.end != RunEnd.REACHED and may_stop)


def _again(chosen: Actions, before: Document | None) -> bool:
    """Whether the same batch size was just probed, which happens if that is quarantined."""
    probed = before is not None and before["kind"] == ActionKind.PROBE
    return before is not None and probed and before["arm"] == chosen.arm[0]


def widened(actions: Actions, attempt: int) -> Actions:
    """The same, with a higher ceiling where earlier trainings have not reached the target.

    Ceilings follow from the posterior. Were that far too good to be true, all trainings would be
    stopped for ever; so ceilings grow until one reaches the target.
    """
    doublings = min(_MOST_DOUBLINGS, max(0, attempt + 1 - _PATIENCE))
    return dataclasses.replace(actions, ceiling=2.0**doublings * actions.ceiling)


def arm_within_reach(job: Job, trained: set[int], arm: int) -> int:
    """The batch size nearest to ``arm`` that is next to trained ones, or within half an octave.

    A probe of a batch size far away costs seconds, a training of it may cost several runs of the
    best, and may never reach the target.
    """
    if not trained:
        return arm
    sizes, low, high = job.batch_sizes, min(trained), max(trained)
    near = [
        other
        for other, size in enumerate(sizes)
        if low - 1 <= other <= high + 1 or sizes[low] <= _NEAR * size <= _NEAR**2 * sizes[high]
    ]
    return min(max(arm, near[0]), near[-1])


def without_probe(probe: Actions, best_cost: float) -> Actions:
    """A training of the batch size that was to be probed.

    It measures the limits that the probe would have measured, and holds the limit if it is a single
    one. It may cost twice what the best batch size takes, or what ``_with_patience`` allows: a
    client that tries it without having measured is stopped there, and what it measured until then
    is what the probe would have shown.
    Before anything has reached the target there is nothing to compare with, and so no ceiling.
    """
    mask = probe.probe_limits
    alone = np.zeros(0) if mask is None else np.flatnonzero(mask[0])
    return dataclasses.replace(
        probe,
        kind=np.full(1, ActionKind.TRAIN),
        limit=np.array([alone[0] if len(alone) == 1 else -1], dtype=np.int64),
        ceiling=np.array([_BETA * best_cost]),
        probe_limits=None if mask is None or len(alone) != 1 else np.zeros_like(mask),
    )


def only_batch_size(chosen: Actions, job: Job, only: int) -> Actions:
    """A training of the batch size ``only``, for a client that runs it whatever is chosen.

    It is not stopped, so there is no ceiling. Where the policy has chosen the same, its power limit
    holds; else it is left open, for ``with_known_limit``.

    Raises:
        InvalidValueError: The job has no such batch size.
    """
    if only not in job.batch_sizes:
        raise InvalidValueError(
            f"batch size {only} is not in this job's set",
            remedy=f"give one of {', '.join(map(str, job.batch_sizes))}",
        )
    arm = job.batch_sizes.index(only)
    same = int(chosen.arm[0]) == arm and chosen.kind[0] == ActionKind.TRAIN
    return dataclasses.replace(
        chosen,
        kind=np.full(1, ActionKind.TRAIN),
        arm=np.full(1, arm),
        limit=chosen.limit if same else np.full(1, -1),
        ceiling=np.full(1, np.inf),
        probe_limits=chosen.probe_limits if same else None,
    )


def with_known_limit(actions: Actions, policy: Policy[Any], beliefs: Any) -> Actions:
    """The same, at the power limit that the policy would hold, with those worth measuring.

    Nothing changes where a limit is decided already, where the policy leaves limits to
    just-in-time profiling, as ``zeus`` does, or where it has measured none.
    """
    decided = actions.limit[0] != -1 or actions.kind[0] != ActionKind.TRAIN
    if decided or not isinstance(policy, ChoosesLimits):
        return actions
    limits = policy.limit_of(beliefs, ROW, actions.arm)
    if limits.hold[0] == -1:
        return actions
    return dataclasses.replace(actions, limit=limits.hold, probe_limits=limits.measure)
