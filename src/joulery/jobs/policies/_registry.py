"""Policies by the name that users type."""

from __future__ import annotations

from dataclasses import fields
from importlib import import_module
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError

if TYPE_CHECKING:
    from joulery.jobs.policies._base import Policy


# Module and class of each policy, imported when it is first asked for.
_POLICIES = {
    "joulery": ("bayesian._policy", "BayesianPolicy"),
    "zeus": ("_zeus", "ZeusPolicy"),
    "grid": ("_grid", "GridSearchPolicy"),
    "default": ("_default", "DefaultPolicy"),
}


def policy_names() -> tuple[str, ...]:
    """The names of all policies, ours first."""
    return tuple(_POLICIES)


def make_policy(name: str, /, **options: Any) -> Policy[Any]:
    """Make the policy of a name.

    Args:
        name: Name of the policy; see :func:`policy_names`.
        options: Fields of its class; those that are None or that it does not have are left out.

    Raises:
        InvalidValueError: There is no policy of that name, or an option is out of range.
    """
    if name not in _POLICIES:
        raise InvalidValueError(
            f"no policy {name!r}", remedy=f"choose from {', '.join(policy_names())}"
        )
    module, class_name = _POLICIES[name]
    kind = getattr(import_module(f"joulery.jobs.policies.{module}"), class_name)
    arguments = {field.name: options.get(field.name) for field in fields(kind)}
    policy: Policy[Any] = kind(
        **{field: value for field, value in arguments.items() if value is not None}
    )
    return policy
