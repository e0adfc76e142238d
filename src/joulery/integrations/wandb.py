"""Sink that writes figures to Weights & Biases."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import wandb

if TYPE_CHECKING:
    from collections.abc import Mapping


class WandbSink:
    """Figures in the history of a run of Weights & Biases, over an axis of their own.

    Args:
        run: Run to log to; the one that is active when the first figures come unless given.
    """

    def __init__(self, run: Any = None) -> None:
        self._run = run
        self._defined = False

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Add the figures to what is logged next: the run's own steps stay its own."""
        if self._run is None:
            self._run = wandb.run
        if self._run is None:
            raise RuntimeError("no run is active; call wandb.init first")
        if not self._defined:
            self._run.define_metric("joulery/step")
            self._run.define_metric("joulery/*", step_metric="joulery/step")
            self._defined = True
        self._run.log({**figures, "joulery/step": step}, commit=False)

    def close(self) -> None:
        """Log what is pending; the run is its maker's to finish."""
        if self._run is not None:
            self._run.log({})
