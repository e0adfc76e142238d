"""Sink that writes figures to MLflow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import mlflow

if TYPE_CHECKING:
    from collections.abc import Mapping


class MlflowSink:
    """Figures as metrics of a run of MLflow.

    Args:
        run_id: Run to log to; the active one unless given.
    """

    def __init__(self, run_id: str | None = None) -> None:
        self._run_id = run_id

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Log the metrics of one step."""
        mlflow.log_metrics(dict(figures), step=step, run_id=self._run_id)

    def close(self) -> None:
        """Leave the run to its maker."""
