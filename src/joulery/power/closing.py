"""The ``with`` block of everything that has a ``close()``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self


class ClosedAtTheEnd(ABC):
    """Usable in a ``with`` block, whose end closes it, whatever happened inside."""

    @abstractmethod
    def close(self) -> None:
        """Give back what was found. May be called twice."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
