"""Keep our own errors from the program that we run inside of: training and serving continue."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


class FailOpen(Protocol):
    """An object whose methods may be decorated with ``fail_open``."""

    def fail(self, error: Exception) -> None:
        """Log the error and do without the part that failed. Must not raise."""
        ...


def fail_open(
    otherwise: T,
) -> Callable[[Callable[Concatenate[Any, P], T]], Callable[Concatenate[Any, P], T]]:
    """Decorate a method of a ``FailOpen`` so that it never raises.

    Args:
        otherwise: Result in place of an exception, which goes to the object's ``fail``.

    Examples:
        >>> class Part:
        ...     def fail(self, error):
        ...         print("training continues:", error)
        ...     @fail_open(0)
        ...     def joules(self):
        ...         raise RuntimeError("a bug")
        >>> Part().joules()
        training continues: a bug
        0
    """

    def decorate(method: Callable[Concatenate[Any, P], T]) -> Callable[Concatenate[Any, P], T]:
        @wraps(method)
        def guarded(self: FailOpen, /, *args: P.args, **options: P.kwargs) -> T:
            try:
                return method(self, *args, **options)
            except Exception as error:  # noqa: BLE001 - the one guard of programs that are not ours
                self.fail(error)
                return otherwise

        return guarded

    return decorate
