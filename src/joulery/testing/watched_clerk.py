"""A clerk that remembers what it was asked, and fails as a test wants it to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulery.client.local import LocalBackend

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from joulery.clock import Clock


class RecordingBackend:
    """A clerk on a store of its own.

    Args:
        path: Of the store.
        clock: Real or virtual.

    Attributes:
        inner: Who does the work.
        calls: What was asked, by name.
    """

    def __init__(self, path: Path, clock: Clock) -> None:
        self.inner = LocalBackend.open(path, "team", clock)
        self.calls: list[str] = []

    def before(self, name: str) -> None:
        """Called before each method; what it raises is raised instead."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.inner, name)

        def call(*args: Any, **options: Any) -> Any:
            self.calls.append(name)
            self.before(name)
            return method(*args, **options)

        return call
