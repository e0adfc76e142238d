"""Time the hooks of each integration between steps of 10 ms, on an emulated board.

usage: python benchmarks/everyday_worker.py INTEGRATION (measures | tunes) STEPS
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING

import joulery

if TYPE_CHECKING:
    from collections.abc import Callable

STEP_SECONDS = 0.01
WARM_STEPS = 30
MOST_STEPS = 3000  # of a search

Hooks = tuple["Callable[[], object]", "Callable[[], object]"]


def loop(run: joulery.Run | None) -> Hooks:
    """What every integration is made of."""
    from joulery.training import CallbackLoop

    made = CallbackLoop(run)
    made.begin()
    made.begin_epoch()
    return made.begin_step, made.end_step


def nothing(_: joulery.Run | None) -> Hooks:
    """What two empty functions take: that of a machine that does other things meanwhile."""
    return (lambda: None), (lambda: None)


def torch(run: joulery.Run | None) -> Hooks:
    """The loop that a user writes: one call at the end of a step."""
    return (lambda: None), (run or joulery.Run()).step


def transformers(run: joulery.Run | None) -> Hooks:
    """The callback of transformers and TRL."""
    from joulery.integrations.transformers import TransformersCallback

    made = TransformersCallback(run)
    state = SimpleNamespace(log_history=[], global_step=0, num_train_epochs=1, max_steps=10**6)
    control = SimpleNamespace()
    made.on_train_begin(None, state, control)
    made.on_epoch_begin(None, state, control)
    return (
        lambda: made.on_step_begin(None, state, control),
        lambda: made.on_step_end(None, state, control),
    )


def lightning(run: joulery.Run | None) -> Hooks:
    """The callback of Lightning."""
    from joulery.integrations.lightning import LightningCallback

    made = LightningCallback(run)
    trainer = SimpleNamespace(global_step=0, num_training_batches=10**6, accumulate_grad_batches=1)
    made.on_train_start(trainer, None)
    made.on_train_epoch_start(trainer, None)

    def end() -> None:
        trainer.global_step += 1
        made.on_train_batch_end(trainer, None, None, None, 0)

    return (lambda: made.on_train_batch_start(trainer, None, None, 0)), end


def keras(run: joulery.Run | None) -> Hooks:
    """The callback of Keras."""
    os.environ["KERAS_BACKEND"] = "torch"
    from joulery.integrations.keras import KerasCallback

    made = KerasCallback(run)
    made.set_params({"steps": 10**6})
    made.on_train_begin()
    made.on_epoch_begin(0)
    return (lambda: made.on_train_batch_begin(0)), (lambda: made.on_train_batch_end(0))


def jax(run: joulery.Run | None) -> Hooks:
    """The step of JAX, around a function that returns what is there already."""
    import jax.numpy as jnp

    from joulery.integrations.jax import JaxStep

    loss = jnp.zeros(())
    made = JaxStep(lambda: loss, run)
    made.__enter__()
    return (lambda: None), made


def ray(run: joulery.Run | None) -> Hooks:
    """The training of Ray."""
    from joulery.integrations.ray import RayTraining

    made = RayTraining(run, report=print)
    made.__enter__()
    return (lambda: None), made.step


def zeus(run: joulery.Run | None) -> Hooks:
    """Zeus's optimizer, on a run that it did not make itself."""
    from joulery.integrations.zeus import GlobalPowerLimitOptimizer, ZeusMonitor
    from joulery.training import CallbackLoop

    made = GlobalPowerLimitOptimizer(ZeusMonitor(gpu_indices=[0]))
    made._loop = CallbackLoop(run, meter=made.monitor.meter)  # noqa: SLF001 - to see its result
    made.on_epoch_begin()
    return made.on_step_begin, made.on_step_end


INTEGRATIONS: dict[str, Callable[[joulery.Run | None], Hooks]] = {
    "nothing": nothing,
    "CallbackLoop": loop,
    "torch": torch,
    "transformers": transformers,
    "lightning": lightning,
    "keras": keras,
    "jax": jax,
    "ray": ray,
    "zeus": zeus,
}


MODES = dict.fromkeys(INTEGRATIONS, ("measures", "tunes")) | {
    "nothing": ("measures",),
    "torch": ("tunes",),
    "zeus": ("tunes",),
}


def microseconds(hooks: Hooks, steps: int, until: Callable[[], bool] = bool) -> float:
    """Median time in both hooks over some steps, fewer if ``until`` comes true."""
    begin, end = hooks
    spent = []
    for _ in range(steps):
        start = time.perf_counter()
        begin()
        middle = time.perf_counter()
        while time.perf_counter() < middle + STEP_SECONDS:
            sum(range(100))  # the thread is busy, as one that launches kernels
        late = time.perf_counter()
        end()
        spent.append(1e6 * (middle - start + time.perf_counter() - late))
        if until():
            break
    return statistics.median(spent)


def main() -> None:
    """Print the figures as JSON."""
    name, mode, steps = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if mode == "measures":
        hooks = INTEGRATIONS[name](None)
        microseconds(hooks, WARM_STEPS)
        print(json.dumps({"measures": microseconds(hooks, steps)}))
        return
    with joulery.Run("everyday", objective="least-energy:slowdown=5%") as run:
        hooks = INTEGRATIONS[name](run)

        def holds() -> bool:
            return run.result is not None and run.result.held

        found = {"searches": microseconds(hooks, MOST_STEPS, holds)}
        if holds():
            found["holds"] = microseconds(hooks, steps)
        print(json.dumps(found))


if __name__ == "__main__":
    main()
