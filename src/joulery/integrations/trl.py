"""Phases of TRL's reinforcement learning: generation and updates have a setting each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from transformers import TrainerCallback

from joulery.errors import InvalidValueError
from joulery.integrations.transformers import TransformersCallback

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from joulery.training import Run, Sink


def tune_phases(trainer: Any, run: Run, *, sinks: Sequence[Sink] = ()) -> TransformersCallback:
    """Measure a trainer, and tune its generation and its updates each by itself.

    ``run.phases`` has what ``rollout`` and ``update`` used. Call it before ``trainer.train()``, on
    every rank; evaluation belongs to neither.

    Args:
        trainer: A ``GRPOTrainer`` or ``RLOOTrainer``.
        run: Run that tunes.
        sinks: Further places that figures are written to at every log entry.

    Returns:
        The callback that measures, which the trainer has now.

    Raises:
        InvalidValueError: The trainer does not generate, or the run is something else.

    Examples:
        >>> trainer = GRPOTrainer(model, rewards, args=arguments)            # doctest: +SKIP
        >>> tune_phases(trainer, joulery.Run("grpo", objective="least-energy:slowdown=5%"))
        ... # doctest: +SKIP
    """
    if not callable(getattr(trainer, "_generate_and_score_completions", None)):
        raise InvalidValueError(
            f"{type(trainer).__name__} has no phase that generates",
            remedy="give a GRPOTrainer or RLOOTrainer; others take TransformersCallback(run)",
        )
    callback = TransformersCallback(run, sinks=sinks)
    trainer.add_callback(callback)  # counts a step before the phase is left
    trainer.add_callback(_Phases(trainer, run))
    return callback


class _Phases(TrainerCallback):  # type: ignore[misc]
    """Updates last from the inputs of a step, or the end of generation, to the step's end."""

    def __init__(self, trainer: Any, run: Run) -> None:
        self._trainer = trainer
        self._run = run
        self._update: AbstractContextManager[None] | None = None
        self._generate = trainer._generate_and_score_completions  # noqa: SLF001 - no public place
        self._prepare = trainer._prepare_inputs  # noqa: SLF001
        trainer._generate_and_score_completions = self._roll_out  # noqa: SLF001
        trainer._prepare_inputs = self._prepare_inputs  # noqa: SLF001

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Leave the update."""
        self._leave()

    def _roll_out(self, *arguments: Any, **options: Any) -> Any:
        if not self._trainer.model.training:
            return self._generate(*arguments, **options)
        self._leave()
        with self._run.phase("rollout"):
            return self._generate(*arguments, **options)

    def _prepare_inputs(self, *arguments: Any, **options: Any) -> Any:
        inputs = self._prepare(*arguments, **options)
        if self._update is None and self._trainer.model.training:
            self._update = self._run.phase("update")
            self._update.__enter__()
        return inputs

    def _leave(self) -> None:
        update, self._update = self._update, None
        if update is not None:
            update.__exit__(None, None, None)
