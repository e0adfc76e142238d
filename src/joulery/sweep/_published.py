"""Published sweeps, to compare with.

G. Koszczał, J. Dobrosolski, M. Matuszek, P. Czarnul: Performance and Energy Aware Training of a
Deep Neural Network in a Multi-GPU Environment with Power Capping. Euro-Par 2023 workshops,
https://doi.org/10.1007/978-3-031-48803-0_1
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from joulery.sweep._table import Metric


@dataclass(frozen=True, slots=True)
class PublishedBest:
    """The best limit by one metric, as published.

    Attributes:
        gpus: Number of boards in use.
        metric: Metric in question.
        gain: Gain over the default limit in per cent.
        watts: Best limit; None where only the gain is stated.
    """

    gpus: int
    metric: Metric
    gain: float
    watts: float | None = None


@dataclass(frozen=True, slots=True)
class PublishedTime:
    """The time of one setting, as published."""

    gpus: int
    watts: float
    seconds: float


@dataclass(frozen=True, slots=True)
class PublishedSweep:
    """Figures of a paper about a node like a preset.

    Attributes:
        citation: Authors and place of publication.
        best: Best limits.
        times: Times of single settings.
    """

    citation: str
    best: tuple[PublishedBest, ...]
    times: tuple[PublishedTime, ...]

    def to_dict(self) -> dict[str, Any]:
        """JSON document of the figures."""
        return {
            "citation": self.citation,
            "best": [
                {
                    "gpus": best.gpus,
                    "metric": best.metric.value,
                    "power_limit_watts": best.watts,
                    "gain_percent": best.gain,
                }
                for best in self.best
            ],
            "times": [
                {"gpus": time.gpus, "power_limit_watts": time.watts, "seconds": time.seconds}
                for time in self.times
            ],
        }


PUBLISHED = {
    "rtx6000x8": PublishedSweep(
        "Koszczał et al., Euro-Par 2023 workshops",
        # Table 1, and for fewer boards the summary ("approx.").
        (
            PublishedBest(8, Metric.ENERGY, 25.39, 160.0),
            PublishedBest(8, Metric.DIFFERENCE, 15.03, 170.0),
            PublishedBest(8, Metric.EDP, 17.32, 170.0),
            PublishedBest(8, Metric.EDS_1_5, 2.26, 200.0),
            PublishedBest(8, Metric.EDS_2_0, 7.52, 170.0),
            PublishedBest(4, Metric.ENERGY, 11.5),
            PublishedBest(2, Metric.ENERGY, 5.5),
            PublishedBest(1, Metric.ENERGY, 3.0),
        ),
        # Fig. 7. Its 477.0 s belong to 170 W: the text states speed-ups from one board to eight of
        # 4.95 at 260 W (85.6 s) and 5.1 at 170 W (93.6 s), and 477.0 / 93.6 = 5.1.
        (
            PublishedTime(8, 260.0, 85.6),
            PublishedTime(8, 170.0, 93.6),
            PublishedTime(2, 260.0, 228.0),
            PublishedTime(2, 170.0, 256.0),
            PublishedTime(1, 170.0, 477.0),
        ),
    ),
}
