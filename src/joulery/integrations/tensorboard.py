"""Sink that writes figures to TensorBoard."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


class TensorBoardSink:
    """Figures as scalars of TensorBoard.

    Args:
        writer: A ``SummaryWriter``, or the folder for one of our own.
    """

    def __init__(self, writer: Any) -> None:
        self._own = not hasattr(writer, "add_scalar")
        if self._own:
            from torch.utils.tensorboard import SummaryWriter

            writer = SummaryWriter(writer)
        self._writer = writer

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Add the scalars of one step."""
        for name, value in figures.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Write what is pending; close a writer of our own."""
        self._writer.flush()
        if self._own:
            self._writer.close()
