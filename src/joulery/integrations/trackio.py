"""Sink that writes figures to Trackio."""

from __future__ import annotations

from typing import TYPE_CHECKING

import trackio

if TYPE_CHECKING:
    from collections.abc import Mapping


class TrackioSink:
    """Figures in the active run of Trackio (``trackio.init``)."""

    def write(self, figures: Mapping[str, float], step: int) -> None:
        """Log the figures of one step."""
        trackio.log({**figures, "joulery/step": step})

    def close(self) -> None:
        """Leave the run to its maker."""
