"""Energy in the results that a training function reports to Ray Tune or Ray Train."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from joulery.training import CallbackLoop, callback_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Self

    from joulery.metering import Measurement, Meter
    from joulery.training import Run


class RayTraining:
    """A training inside a worker of Ray; its results carry its energy.

    Args:
        run: Run whose power is tuned; without one nothing is changed.
        report: Function that takes a dictionary of results, ``ray.tune.report`` or
            ``ray.train.report``.
        meter: Meter of the devices; one over this job's devices unless given.

    Attributes:
        measurement: Energy of the training; None before it has ended.

    Examples:
        >>> def train(config):                                             # doctest: +SKIP
        ...     with RayTraining(report=ray.tune.report) as training:
        ...         for epoch in range(10):
        ...             training.report({"loss": train_one_epoch(config)})
    """

    def __init__(self, run: Run | None = None, *, report: Any, meter: Meter | None = None) -> None:
        self.measurement: Measurement | None = None
        self._report = report
        self._loop = CallbackLoop(run, meter=meter)

    __repr__ = callback_text

    def __enter__(self) -> Self:
        self._loop.begin()
        self._loop.begin_epoch()
        self._loop.begin_step()
        return self

    def step(self) -> None:
        """Report the end of a training step."""
        self._loop.end_step()
        self._loop.begin_step()

    def report(self, results: Mapping[str, Any], **options: Any) -> None:
        """Report results to Ray, with the figures; options are Ray's, ``checkpoint``."""
        self._loop.pause()
        self._report({**results, **self._loop.log()}, **options)
        self._loop.begin_step()

    def __exit__(self, *_: object) -> None:
        self.measurement = self._loop.end()
