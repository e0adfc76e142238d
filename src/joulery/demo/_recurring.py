"""The network retrained night after night: which batch size, at which limit, and what that saves.

Learning is real, so the epochs that a batch size needs are, too. Seconds and joules are what a
simulated board takes for as many steps of a workload of that batch size, on its virtual clock.
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from joulery.clock import VirtualClock
from joulery.demo._training import Recipe, Trainer
from joulery.hardware import SimulatedGpu
from joulery.objectives import Cost
from joulery.training import DecisionService, Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.hardware import Board, Workload

# The part of a step of the default batch size that does not hang on the batch size.
_FIXED_SHARE = 0.1
# Half the pictures of the demonstration, so that a dozen trainings take seconds.
RECIPE = Recipe(pictures=3000, test_pictures=1000)


@dataclass(frozen=True, slots=True)
class RecurringPlan:
    """What to retrain.

    Attributes:
        board: The simulated accelerator.
        workload: What a step of the default batch size asks of it.
        nights: How often the network is trained anew, on pictures of its own.
        batch_sizes: To choose from.
        default: What its owner would run.
        target: Accuracy that is good enough.
        max_epochs: After which a training gives up.
        eta: Weight of energy in the cost; the rest is time's.
        recipe: The pictures and the network.
    """

    board: Board
    workload: Workload
    nights: int = 12
    batch_sizes: tuple[int, ...] = (12, 24, 48, 96)
    default: int = 96
    target: float = 0.92
    max_epochs: int = 40
    eta: float = 0.5
    recipe: Recipe = RECIPE

    @property
    def cost(self) -> Cost:
        """What running costs."""
        return Cost(self.eta, self.board.max_limit_watts)


@dataclass(frozen=True, slots=True)
class Night:
    """One recurrence, all of its attempts together.

    Attributes:
        batch_sizes: That were trained or probed, in order; the last one got there.
        epochs: Of the last.
        accuracy: That it reached; real.
        limit_watts: Power limit in force at its end.
        seconds: Of all attempts; simulated, like the joules.
        joules: Of all attempts.
        reason: Why the last was chosen.
    """

    batch_sizes: tuple[int, ...]
    epochs: int
    accuracy: float
    limit_watts: float
    seconds: float
    joules: float
    reason: str


@dataclass(frozen=True, slots=True)
class RecurringStory:
    """All nights, and the same nights with nothing changed.

    Attributes:
        plan: What was asked for.
        nights: In order.
        unchanged: The same, at the default batch size and limit.
    """

    plan: RecurringPlan
    nights: tuple[Night, ...]
    unchanged: tuple[Night, ...]

    def saved(self, latest: int | None = None) -> tuple[float, float]:
        """Shares of energy and of time that were saved, over all nights or the latest ones."""
        first = 0 if latest is None else -latest
        now, before = self.nights[first:], self.unchanged[first:]
        return (
            1.0 - sum(one.joules for one in now) / sum(one.joules for one in before),
            1.0 - sum(one.seconds for one in now) / sum(one.seconds for one in before),
        )


def retrain(plan: RecurringPlan, on_progress: Callable[[str], None]) -> RecurringStory:
    """Go through all nights, once as a recurring run and once with nothing changed.

    Raises:
        MissingExtraError: There is no store to learn in.
    """
    from joulery.client import open_backend

    unchanged, nights = [], []
    for night in range(plan.nights):
        on_progress(f"night {night + 1} of {plan.nights} with nothing changed")
        unchanged.append(_Place(plan).unchanged(night))
    place = _Place(plan)
    with tempfile.TemporaryDirectory(prefix="joulery-demo-") as folder:
        store = f"{folder}/store.sqlite"
        open_backend(store).close()  # a run would only say that it cannot, and train all the same
        for night in range(plan.nights):
            on_progress(f"night {night + 1} of {plan.nights} as a recurring run")
            nights.append(place.recurring(night, store))
    return RecurringStory(plan, tuple(nights), tuple(unchanged))


class _Place:
    """A simulated board to train on."""

    def __init__(self, plan: RecurringPlan) -> None:
        self._plan = plan
        self._clock = VirtualClock()
        self._gpu = SimulatedGpu(plan.board, self._clock, seed=plan.recipe.seed)

    def unchanged(self, night: int) -> Night:
        """The default batch size at the default limit."""
        plan = self._plan
        began = self._spent()
        trainer, work = self._made(night, plan.default, 1.0)
        epochs, accuracy = 0, 0.0
        for learned in trainer.epochs(lambda: self._gpu.run(work)):
            epochs, accuracy = learned.epoch, learned.accuracy
            if accuracy >= plan.target:
                break
        limit = plan.board.default_limit_watts
        return self._night(began, (plan.default,), epochs, accuracy, limit)

    def recurring(self, night: int, store: str) -> Night:
        """Whatever is decided."""
        plan, began = self._plan, self._spent()
        run = Run(
            "the network of the demonstration",
            objective=plan.cost,
            batch_sizes=plan.batch_sizes,
            default_batch_size=plan.default,
            target=plan.target,
            max_epochs=plan.max_epochs,
            store=DecisionService(store, team="demo"),
            devices=[self._gpu],
            dry_run=False,
        )
        sizes: list[int] = []
        epochs, accuracy, limit = 0, 0.0, plan.board.default_limit_watts
        for _ in run.attempts():
            size = run.batch_size or plan.default
            sizes.append(size)
            trainer, work = self._made(night, size, run.scaled_learning_rate(1.0))
            network, random = trainer.fresh(), trainer.shuffling()
            for epoch in run.epochs():
                for batch in run.steps(trainer.batches(random)):
                    trainer.step(network, batch)
                    self._gpu.run(work)
                accuracy, epochs = network.accuracy(trainer.test), epoch + 1
                limit = self._gpu.power_limits().current_watts
                run.report(accuracy)
        reason = "" if run.decision is None else run.decision.reason
        return replace(self._night(began, tuple(sizes), epochs, accuracy, limit), reason=reason)

    def _made(self, night: int, batch_size: int, rate: float) -> tuple[Trainer, Workload]:
        """Pictures of that night in batches of that size, and what a step of it asks for."""
        plan, recipe = self._plan, self._plan.recipe
        rule = replace(recipe.rule, rate=rate * recipe.rule.rate)
        own = replace(
            recipe,
            seed=recipe.seed + night,
            epochs=plan.max_epochs,
            batch_size=batch_size,
            rule=rule,
        )
        share = _FIXED_SHARE + (1.0 - _FIXED_SHARE) * batch_size / plan.default
        return Trainer(own), plan.workload.scaled(share)

    def _spent(self) -> tuple[float, float]:
        return self._clock.now(), self._gpu.read_energy().joules

    def _night(
        self,
        began: tuple[float, float],
        sizes: tuple[int, ...],
        epochs: int,
        accuracy: float,
        limit: float,
    ) -> Night:
        seconds, joules = (now - then for now, then in zip(self._spent(), began, strict=True))
        return Night(sizes, epochs, accuracy, limit, seconds, joules, "nothing is changed")
