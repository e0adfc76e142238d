"""A training step of JAX whose energy is measured and whose power is tuned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar

import jax

from joulery.training import CallbackLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Self

    from joulery.metering import Measurement, Meter
    from joulery.training import Run, Sink

P = ParamSpec("P")
R = TypeVar("R")


class JaxStep(Generic[P, R]):
    """A training step, usually jitted, that is counted and measured when called.

    JAX returns before the device is done. Each call waits for the step before it, so the device
    always has the next step queued, and the pace of calls is that of the device.

    Args:
        step: Function of one training step.
        run: Run whose power is tuned; without one nothing is changed.
        meter: Meter of the devices; one over this job's devices unless given.
        sinks: Places that ``log`` writes figures to.

    Attributes:
        measurement: Energy of the training; None before it has ended.

    Examples:
        >>> with JaxStep(jax.jit(update)) as update:      # doctest: +SKIP
        ...     for batch in batches:
        ...         state = update(state, batch)
        >>> update.measurement.joules                     # doctest: +SKIP
    """

    def __init__(
        self,
        step: Callable[P, R],
        run: Run | None = None,
        *,
        meter: Meter | None = None,
        sinks: Sequence[Sink] = (),
    ) -> None:
        self.measurement: Measurement | None = None
        self._step = step
        self._loop = CallbackLoop(run, meter=meter, sinks=sinks)
        self._latest: Any = None

    def __enter__(self) -> Self:
        self._loop.begin()
        self._loop.begin_epoch()
        return self

    def __call__(self, *args: P.args, **options: P.kwargs) -> R:
        """Make a step."""
        self._loop.begin_step()
        result = self._step(*args, **options)
        earlier, self._latest = self._latest, result
        next(_ready(earlier), None)  # what a jitted step returns is ready together
        self._loop.end_step()
        return result

    def pause(self) -> None:
        """Something other than training follows, such as validation, until the next call."""
        list(_ready(self._latest))
        self._loop.pause()

    def log(self) -> dict[str, float]:
        """Figures until now, also written to the sinks."""
        return self._loop.log()

    @property
    def goes_on(self) -> bool:
        """Whether to train on; False once the run's cost limit is reached."""
        return self._loop.goes_on

    def __exit__(self, *_: object) -> None:
        list(_ready(self._latest))
        self._latest = None
        self.measurement = self._loop.end()


def _ready(result: Any) -> Iterator[jax.Array]:
    """Arrays of a result, each once it is ready; buffers given away by donation are left out."""
    for leaf in jax.tree.leaves(result):
        if isinstance(leaf, jax.Array) and not leaf.is_deleted():
            yield leaf.block_until_ready()
