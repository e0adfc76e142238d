"""Policies by the name that users type."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError

if TYPE_CHECKING:
    from joulery.jobs.policies.base import Policy
    from joulery.objectives import Objective


@dataclass(frozen=True, slots=True)
class PolicyEntry:
    """Where a policy is defined.

    Attributes:
        module: Name of the module, imported when the policy is first asked for.
        class_name: Name of the class, called with options by name.
        options: Names of the options that it takes.
    """

    module: str
    class_name: str
    options: frozenset[str] = frozenset()


_ENTRIES = {
    "joulery": PolicyEntry(
        "joulery.jobs.policies.bayesian.policy", "BayesianPolicy", frozenset({"objective"})
    ),
    "zeus": PolicyEntry("joulery.jobs.policies.zeus", "ZeusPolicy", frozenset({"beta", "window"})),
    "grid": PolicyEntry("joulery.jobs.policies.grid", "GridSearchPolicy"),
    "default": PolicyEntry("joulery.jobs.policies.default", "DefaultPolicy"),
}


def policy_names() -> tuple[str, ...]:
    """The names of all policies, ours first."""
    return tuple(_ENTRIES)


def make_policy(name: str, **options: float | Objective | None) -> Policy[Any]:
    """Make the policy of a name.

    Args:
        name: Name of the policy; see :func:`policy_names`.
        options: Options of its constructor; those that are None or that it does not take are left
            out.

    Raises:
        InvalidValueError: There is no policy of that name, or an option is out of range.
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
