"""Policies by the name that users type: ours, registered ones, and those of installed packages.

Third parties add policies through the entry-point group ``joulery.policies``; the name of an entry
point is the policy's, its object a class. A class without ``start`` is a
``joulery.jobs.policies.ScalarPolicy``.
"""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from importlib.metadata import EntryPoint

    from joulery.jobs.policies._base import Policy

ENTRY_POINTS = "joulery.policies"

# Module and class of each policy, imported when it is first asked for.
_POLICIES = {
    "joulery": ("bayesian._policy", "BayesianPolicy"),
    "zeus": ("_zeus", "ZeusPolicy"),
    "grid": ("_grid", "GridSearchPolicy"),
    "default": ("_default", "DefaultPolicy"),
}
_registered: dict[str, type[Any]] = {}


def policy_names() -> tuple[str, ...]:
    """The names of our policies and of registered ones, ours first."""
    return (*_POLICIES, *_registered)


def register_policy(kind: type[Any]) -> type[Any]:
    """Make a policy known in this process by the ``name`` of its class.

    A server, a cron job and a notebook each have processes of their own: a package with the
    entry point ``joulery.policies`` makes a policy known in all of them.

    Args:
        kind: Class of an array policy or of a ``joulery.jobs.policies.ScalarPolicy``. The
            fields of a dataclass of type int or float are its parameters.

    Returns:
        The class, so that this can be used as a decorator.

    Raises:
        InvalidValueError: The name is one of ours, or the class cannot decide and learn.
    """
    name = getattr(kind, "name", None)
    if not isinstance(name, str) or not name.strip() or name in _POLICIES:
        raise InvalidValueError(
            f"a policy cannot have the name {name!r}",
            remedy=f"give the class a `name` other than {', '.join(_POLICIES)}",
        )
    _check_methods(name, kind)
    _registered[name] = kind
    return kind


def find_policy(name: str) -> type[Any]:
    """The class of a policy.

    Raises:
        InvalidValueError: There is no policy of that name.
    """
    if name in _POLICIES:
        module, class_name = _POLICIES[name]
        kind: type[Any] = getattr(import_module(f"joulery.jobs.policies.{module}"), class_name)
        return kind
    if name not in _registered:
        for point in _entry_points():
            if point.name == name:
                return _check_methods(name, point.load())
        installed = {point.name for point in _entry_points()} - set(policy_names())
        raise InvalidValueError(
            f"no policy {name!r}",
            remedy=f"choose from {', '.join((*policy_names(), *sorted(installed)))}",
        )
    return _registered[name]


def make_policy(name: str, /, **options: Any) -> Policy[Any]:
    """Make the policy of a name.

    Args:
        name: Name of the policy; see ``policy_names``.
        options: Fields of its class; those that are None or that it does not have are left out.

    Raises:
        InvalidValueError: There is no policy of that name, or an option is out of range.
    """
    kind = find_policy(name)
    names = [field.name for field in fields(kind)] if is_dataclass(kind) else []
    arguments = {field: options.get(field) for field in names}
    policy = kind(**{field: value for field, value in arguments.items() if value is not None})
    if hasattr(kind, "start"):
        return policy  # type: ignore[no-any-return]
    from joulery.jobs.policies._scalar import ScalarAdapter

    return ScalarAdapter(policy)


def policy_parameters(name: str) -> frozenset[str]:
    """The numbers that the owner of a job may set, by their names.

    Raises:
        InvalidValueError: There is no policy of that name.
    """
    kind = find_policy(name)
    if not is_dataclass(kind):
        return frozenset()
    numbers = (int, float, "int", "float")
    return frozenset(field.name for field in fields(kind) if field.type in numbers)


def _entry_points() -> Iterable[EntryPoint]:
    # Costs some 50 ms, so it is imported only for a name that is not ours.
    from importlib import metadata

    return metadata.entry_points(group=ENTRY_POINTS)


def _check_methods(name: str, kind: type[Any]) -> type[Any]:
    missing = [
        method for method in ("decide", "learn") if not callable(getattr(kind, method, None))
    ]
    if missing:
        raise InvalidValueError(
            f"the policy {name} has no method {' or '.join(missing)}",
            remedy="see joulery.jobs.policies.ScalarPolicy",
        )
    return kind
