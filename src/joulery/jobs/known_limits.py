"""The power limit of a training whose batch size the policy has not chosen, but knows."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from joulery.jobs.policies.base import ActionKind, KnowsLimits
from joulery.jobs.replay import ROW

if TYPE_CHECKING:
    from joulery.jobs.policies.base import Actions, Policy


def with_known_limit(actions: Actions, policy: Policy[Any], beliefs: Any) -> Actions:
    """The same, at the limit that the policy would hold there, with those worth measuring.

    Nothing changes where a limit is decided already, where the policy leaves limits to
    just-in-time profiling, as ``zeus`` does, or where it knows none.
    """
    decided = actions.limit[0] != -1 or actions.kind[0] != ActionKind.TRAIN
    if decided or not isinstance(policy, KnowsLimits):
        return actions
    limits = policy.limit_of(beliefs, ROW, actions.arm)
    if limits.hold[0] == -1:
        return actions
    return dataclasses.replace(actions, limit=limits.hold, probe_limits=limits.measure)
