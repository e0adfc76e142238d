"""Keeps what goes wrong in the recurring part of a run from the training."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.training.job_settings import Recurring
    from joulery.training.recurrence import Recurrence

T = TypeVar("T")

_log = logging.getLogger("joulery")


class Guard:
    """The recurring part of a run, if it has one and as long as nothing goes wrong in it.

    Args:
        wishes: What is asked for; None for a run that does not recur.
        batch_size: To run where nothing is decided.
        default: Batch size that the learning rate was chosen for.

    Attributes:
        part: The recurring part; None before :meth:`open`, and where there is none.
        default: As given, or the one that the recurring part has chosen.
    """

    def __init__(
        self, wishes: Recurring | None, batch_size: int | None, default: int | None
    ) -> None:
        self.part: Recurrence | None = None
        self.default = default
        self._wishes = wishes
        self._batch_size = batch_size

    @property
    def batch_size(self) -> int | None:
        """Samples per step over all devices, as far as they are known."""
        return self._batch_size if self.part is None else self.part.batch_size

    def open(self, make: Callable[[Recurring], Recurrence]) -> bool:
        """Make the recurring part, the first time; whether it was made now."""
        wishes, self._wishes = self._wishes, None
        if wishes is None:
            return False
        # The edge to somebody's training: whatever goes wrong in here must not end it.
        try:
            settings = wishes.in_order()
            self.default = settings.usual
            self._batch_size = settings.usual if settings.fixed is None else settings.fixed
            self.part = make(settings)
        except Exception as error:  # noqa: BLE001 - the fail-open guard
            _log.warning("joulery: nothing is decided, training goes on: %s", error)
        return self.part is not None

    def call(self, question: Callable[[Recurrence], T], otherwise: T | None = None) -> T | None:
        """What the recurring part answers; if it fails, the training goes on without it."""
        part = self.part
        if part is None:
            return otherwise
        # The edge to somebody's training: whatever goes wrong in here must not end it.
        try:
            return question(part)
        except Exception as error:  # noqa: BLE001 - the fail-open guard
            _log.warning("joulery: nothing is decided any more, training goes on: %s", error)
            self._batch_size, self.part = part.batch_size, None
            return otherwise
