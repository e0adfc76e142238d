"""Policies by name."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError

if TYPE_CHECKING:
    from joulery.jobs.policies.base import Policy
    from joulery.objectives import Objective


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a policy lives.

    Attributes:
        module: To import when it is asked for.
        class_name: In that module; called with options by name.
        options: That it takes.
        summary: In words.
    """

    module: str
    class_name: str
    options: frozenset[str]
    summary: str


_ENTRIES = {
    "joulery": Entry(
        "joulery.jobs.policies.bayesian.policy",
        "BayesianPolicy",
        frozenset({"objective"}),
        "beliefs about epochs and epoch costs",
    ),
    "zeus": Entry(
        "joulery.jobs.policies.zeus",
        "Zeus",
        frozenset({"beta", "window"}),
        "pruning, then Gaussian Thompson sampling (NSDI'23)",
    ),
    "grid": Entry(
        "joulery.jobs.policies.grid",
        "Grid",
        frozenset(),
        "every batch size and limit once, then the best",
    ),
    "default": Entry("joulery.jobs.policies.default", "Default", frozenset(), "no change"),
}


def policy_names() -> tuple[str, ...]:
    """Every policy that can be made by name, ours first."""
    return tuple(_ENTRIES)


def make_policy(name: str, **options: float | Objective | None) -> Policy[Any]:
    """A policy by name.

    Args:
        name: See :func:`policy_names`.
        options: For its constructor; those that are None or that it does not know are left out.

    Raises:
        InvalidValueError: No policy of that name, or an option out of range.
    """
    entry = _ENTRIES.get(name)
    if entry is None:
        raise InvalidValueError(
            f"no policy {name!r}", remedy=f"choose from {', '.join(policy_names())}"
        )
    known = {
        option: value
        for option, value in options.items()
        if option in entry.options and value is not None
    }
    policy: Policy[Any] = getattr(import_module(entry.module), entry.class_name)(**known)
    return policy
