"""Phases of verl's trainers, by their own timers: each has a setting."""

from __future__ import annotations

import sys
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from joulery.errors import InvalidValueError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from joulery.training import Run

# Timers around the work of boards that lasts; those around them and of bookkeeping are no phases.
PHASES = ("gen", "old_log_prob", "ref", "values", "update_critic", "update_actor")


def tune_phases(trainer: Any, run: Run, phases: Collection[str] = PHASES) -> None:
    """Tune the phases of a trainer each by itself; ``run.phases`` has what they used.

    Call it where the trainer is, before ``trainer.fit()``. The boards are those of this node.

    Args:
        trainer: A ``RayPPOTrainer``, or one derived from it.
        run: Run that tunes, with ``devices`` where Ray hides the boards from this process.
        phases: Names of verl's timers that are phases.

    Raises:
        InvalidValueError: The trainer has no timers.

    Examples:
        >>> tune_phases(trainer, joulery.Run("ppo", devices=joulery.discover()))  # doctest: +SKIP
    """
    modules = {sys.modules[kind.__module__] for kind in type(trainer).__mro__}
    timed = [module for module in modules if callable(getattr(module, "marked_timer", None))]
    if not timed:
        raise InvalidValueError(
            f"{type(trainer).__name__} has no timers of verl",
            remedy="give a RayPPOTrainer, or mark phases yourself: with run.phase('rollout')",
        )
    names = frozenset(phases)
    for module in timed:
        module.marked_timer = _with_phases(module.marked_timer, run, names)  # type: ignore[attr-defined]


def _with_phases(timer: Callable[..., Any], run: Run, names: frozenset[str]) -> Callable[..., Any]:
    """A timer that is a phase as well, except within another phase."""
    active = False

    @contextmanager
    def marked_timer(name: str, *arguments: Any, **options: Any) -> Iterator[Any]:
        nonlocal active
        begins = name in names and not active
        active = active or begins
        try:
            phase = run.phase(name) if begins else nullcontext()
            with phase, timer(name, *arguments, **options) as value:
                yield value
        finally:
            active = active and not begins

    return marked_timer
