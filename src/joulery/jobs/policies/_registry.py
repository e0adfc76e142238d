"""Policies by the name that users type."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError

if TYPE_CHECKING:
    from joulery.jobs.policies._base import Policy
    from joulery.objectives import Objective


# Module and class of each policy, imported when it is first asked for, and its options.
_POLICIES: dict[str, tuple[str, str, tuple[str, ...]]] = {
    "joulery": ("bayesian._policy", "BayesianPolicy", ("objective",)),
    "zeus": ("_zeus", "ZeusPolicy", ("beta", "window")),
    "grid": ("_grid", "GridSearchPolicy", ()),
    "default": ("_default", "DefaultPolicy", ()),
}


def policy_names() -> tuple[str, ...]:
    """The names of all policies, ours first."""
    return tuple(_POLICIES)


def make_policy(name: str, **options: float | Objective | None) -> Policy[Any]:
    """Make the policy of a name.

    Args:
        name: Name of the policy; see :func:`policy_names`.
        options: Options of its constructor; those that are None or that it does not take are left
            out.

    Raises:
        InvalidValueError: There is no policy of that name, or an option is out of range.
    """
    if name not in _POLICIES:
        raise InvalidValueError(
            f"no policy {name!r}", remedy=f"choose from {', '.join(policy_names())}"
        )
    module, class_name, taken = _POLICIES[name]
    given = {option: options[option] for option in taken if options.get(option) is not None}
    kind = getattr(import_module(f"joulery.jobs.policies.{module}"), class_name)
    policy: Policy[Any] = kind(**given)
    return policy
