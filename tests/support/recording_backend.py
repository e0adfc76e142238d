"""A backend that records its calls, and fails as a test wants it to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulery.client import open_backend

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from joulery.clock import Clock


class RecordingBackend:
    """A backend on a store of its own.

    Args:
        path: Path of the store.
        clock: Real or virtual clock.

    Attributes:
        inner: Backend that does the work.
        calls: Names of the methods that were called.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self.inner = open_backend(path, "team", clock=clock)
        self.calls: list[str] = []

    def before(self, name: str) -> None:
        """Hook that is called before each method; its error is raised instead."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.inner, name)

        def call(*args: Any, **options: Any) -> Any:
            self.calls.append(name)
            self.before(name)
            return method(*args, **options)

        return call
