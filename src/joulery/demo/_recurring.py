"""The network retrained night after night: which batch size, at which limit, and what that saves.

Learning is real, so the epochs that a batch size needs are, too. Seconds and joules are what a
simulated board takes for as many steps of a workload of that batch size, on its virtual clock.
"""

from __future__ import annotations

import tempfile
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from joulery.clock import VirtualClock
from joulery.demo._learning import Recipe, Trainer
from joulery.hardware import SimulatedGpu
from joulery.objectives import Cost
from joulery.training import DecisionService, Run

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.hardware import Board, Workload

# The part of a step of the default batch size that does not depend on the batch size; by hand.
_FIXED_SHARE = 0.1
# Half the pictures of the demonstration, so that a dozen trainings take seconds.
RECIPE = Recipe(pictures=3000, test_pictures=1000)


@dataclass(frozen=True, slots=True)
class RecurringPlan:
    """Settings of the recurring demonstration.

    Attributes:
        board: Simulated accelerator.
        workload: Work of a step of the default batch size on it.
        nights: Number of trainings, each on pictures of its own.
        batch_sizes: Batch sizes to choose from.
        default: Batch size that the owner would run.
        target: Accuracy that is good enough.
        max_epochs: Number of epochs after which a training gives up.
        recipe: Pictures and network.
    """

    board: Board
    workload: Workload
    nights: int = 12
    batch_sizes: tuple[int, ...] = (12, 24, 48, 96)
    default: int = 96
    target: float = 0.92
    max_epochs: int = 40
    recipe: Recipe = RECIPE


@dataclass(frozen=True, slots=True)
class Night:
    """One recurrence, all of its attempts together.

    Attributes:
        batch_sizes: Batch sizes that were trained or probed, in order; the last one got there.
        epochs: Number of epochs of the last.
        accuracy: Accuracy that it reached; real.
        limit_watts: Power limit in force at its end.
        seconds: Time of all attempts; simulated, like the joules.
        joules: Energy of all attempts.
        reason: Reason why the last was chosen.
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
        plan: Network that was retrained, and its board.
        nights: Nights in order.
        unchanged: The same nights at the default batch size and limit.
    """

    plan: RecurringPlan
    nights: tuple[Night, ...]
    unchanged: tuple[Night, ...]

    def saved(self, latest: int = 0) -> tuple[float, float]:
        """Shares of energy and of time that were saved, over all nights or the latest ones."""
        now, before = self.nights[-latest:], self.unchanged[-latest:]
        return (
            1.0 - sum(night.joules for night in now) / sum(night.joules for night in before),
            1.0 - sum(night.seconds for night in now) / sum(night.seconds for night in before),
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        energy, time = self.saved()
        return {
            "board": self.plan.board.name,
            "origin": "simulated",
            "default": self.plan.default,
            "target": self.plan.target,
            "nights": [asdict(night) for night in self.nights],
            "unchanged": [asdict(night) for night in self.unchanged],
            "saved": {"energy": energy, "time": time},
        }


def retrain(plan: RecurringPlan, on_progress: Callable[[str], None]) -> RecurringStory:
    """Go through all nights, once as a recurring run and once with nothing changed.

    Raises:
        MissingExtraError: There is no store to learn in.
    """
    from joulery.client import open_backend

    unchanged, nights = [], []
    for night in range(plan.nights):
        on_progress(f"night {night + 1} of {plan.nights} with nothing changed")
        unchanged.append(_Setup(plan).unchanged(night))
    setup = _Setup(plan)
    with tempfile.TemporaryDirectory(prefix="joulery-demo-") as folder:
        store = f"{folder}/store.sqlite"
        open_backend(store).close()  # a run would only say that it cannot, and train all the same
        for night in range(plan.nights):
            on_progress(f"night {night + 1} of {plan.nights} as a recurring run")
            nights.append(setup.recurring(night, store))
    return RecurringStory(plan, tuple(nights), tuple(unchanged))


class _Setup:
    """A simulated board to train on."""

    def __init__(self, plan: RecurringPlan) -> None:
        self._plan = plan
        self._clock = VirtualClock()
        self._gpu = SimulatedGpu(plan.board, self._clock, seed=plan.recipe.seed)

    def unchanged(self, night: int) -> Night:
        """A night of the default batch size at the default limit, on a fresh board."""
        plan = self._plan
        trainer, work = self._make(night, plan.default, 1.0)
        for progress in trainer.epochs(lambda: self._gpu.run(work)):
            if progress.accuracy >= plan.target:
                break
        limit = plan.board.default_limit_watts
        reason = "nothing is changed"
        return Night(
            (plan.default,), progress.epoch, progress.accuracy, limit, *self._spent(), reason
        )

    def recurring(self, night: int, store: str) -> Night:
        """A night with whatever is decided."""
        plan, (began, joules) = self._plan, self._spent()
        run = Run(
            "the network of the demonstration",
            objective=Cost(0.5, plan.board.max_limit_watts),
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
            trainer, work = self._make(night, size, run.scaled_learning_rate(1.0))
            network, random = trainer.fresh(), trainer.shuffling()
            for epoch in run.epochs():
                for batch in run.steps(trainer.batches(random)):
                    trainer.step(network, batch)
                    self._gpu.run(work)
                accuracy, epochs = network.accuracy(trainer.test), epoch + 1
                limit = self._gpu.power_limits().current_watts
                run.report(accuracy)
        ended, total = self._spent()
        reason = "" if run.decision is None else run.decision.reason
        return Night(tuple(sizes), epochs, accuracy, limit, ended - began, total - joules, reason)

    def _make(self, night: int, batch_size: int, rate: float) -> tuple[Trainer, Workload]:
        """Pictures of that night in batches of that size, and the work of a step of it."""
        plan, recipe = self._plan, self._plan.recipe
        options = replace(
            recipe,
            seed=recipe.seed + night,
            epochs=plan.max_epochs,
            batch_size=batch_size,
            rate=rate * recipe.rate,
        )
        share = _FIXED_SHARE + (1.0 - _FIXED_SHARE) * batch_size / plan.default
        return Trainer(options), plan.workload.scaled(share)

    def _spent(self) -> tuple[float, float]:
        """Seconds and joules until now."""
        return self._clock.now(), self._gpu.read_energy().joules
