"""The demonstration itself: train, sweep, choose, train again, all on a simulated board.

Loss and accuracy are real. Seconds, joules and watts are what the simulated board took for them
on its virtual clock: each real step also runs one step of a simulated workload.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from itertools import count
from typing import TYPE_CHECKING, Any

from joulery.clock import VirtualClock
from joulery.demo._learning import Learned, Recipe, Trainer
from joulery.frontier import Frontier, OperatingPoint, Setting
from joulery.governor import lease
from joulery.hardware import SimulatedGpu
from joulery.metering import Meter
from joulery.objectives import Gains, choose, gains
from joulery.sweep import accepted_limits, limit_range, spread_limits, sweep_power_limits

if TYPE_CHECKING:
    from collections.abc import Callable

    from joulery.hardware import Board, Workload
    from joulery.objectives import Objective

# How long the simulated board rests before each run, so that none inherits another's warmth.
_REST_SECONDS = 2.0  # by hand: shows the idle board between two runs


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """Settings of the demonstration.

    Attributes:
        board: Simulated accelerator.
        workload: Work of each step on it.
        objective: Objective that chooses the power limit, for the whole training run.
        limits_watts: Limits to sweep; empty for a spread over what the board accepts.
        recipe: Training.
    """

    board: Board
    workload: Workload
    objective: Objective
    limits_watts: tuple[float, ...] = ()
    recipe: Recipe = field(default_factory=Recipe)


@dataclass(frozen=True, slots=True)
class DemoEpoch:
    """One epoch: what was learned (real), and what it took (simulated)."""

    learned: Learned
    seconds: float
    joules: float


@dataclass(frozen=True, slots=True)
class TrainingRun:
    """One training run: its epochs, and the time and energy of all of it."""

    epochs: tuple[DemoEpoch, ...]
    cost: OperatingPoint

    @property
    def final(self) -> Learned:
        """Loss and accuracy at the end."""
        return self.epochs[-1].learned

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            **self.cost.to_dict(),
            "mean_watts": self.cost.watts,
            "loss": self.final.loss,
            "accuracy": self.final.accuracy,
            "epochs": [
                {**asdict(epoch.learned), "seconds": epoch.seconds, "joules": epoch.joules}
                for epoch in self.epochs
            ],
        }


@dataclass(frozen=True, slots=True)
class Story:
    """Everything that happened, in order.

    Attributes:
        plan: Plan of the demonstration.
        untrained_accuracy: Accuracy of the fresh network, by chance.
        default: Run under the board's default limit.
        sweep: Cost of one epoch under each limit, scaled to a run.
        frontier: Pareto set of the sweep.
        reference: Point that gains and slowdowns refer to: the default limit, from the sweep
            where it is among the limits.
        chosen: Point that the objective picked.
        retrained: Run under the chosen limit.
    """

    plan: DemoPlan
    untrained_accuracy: float
    default: TrainingRun
    sweep: tuple[OperatingPoint, ...]
    frontier: Frontier
    reference: OperatingPoint
    chosen: OperatingPoint
    retrained: TrainingRun

    @property
    def saved(self) -> Gains:
        """Gains of the second run over the first, in per cent."""
        return gains(self.retrained.cost, self.default.cost)

    @property
    def expected(self) -> Gains:
        """Gains that the sweep predicts, in per cent."""
        return gains(self.chosen, self.reference)

    def to_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON; each cost carries its origin."""
        recipe, first, second = self.plan.recipe, self.default.cost, self.retrained.cost
        return {
            "origin": first.provenance.origin.value,
            "note": "seconds, joules and watts are simulated; loss and accuracy are real",
            "board": self.plan.board.name,
            "workload": self.plan.workload.name,
            "seed": recipe.seed,
            "steps_per_epoch": recipe.steps_per_epoch,
            "untrained_accuracy": self.untrained_accuracy,
            "default": self.default.to_dict(),
            "sweep": [point.to_dict() for point in self.sweep],
            "frontier": self.frontier.to_dict(),
            "chosen": self.chosen.to_dict(),
            "retrained": self.retrained.to_dict(),
            "expected": _percent(self.expected),
            "saved": {
                "joules": first.joules - second.joules,
                "extra_seconds": second.seconds - first.seconds,
                **_percent(self.saved),
            },
        }


def _percent(change: Gains) -> dict[str, float]:
    return {"energy_saved_percent": change.energy, "time_lost_percent": change.time}


class Demonstration:
    """A simulated board with a meter on it, and a network to train.

    Args:
        plan: Settings of the demonstration.
        on_progress: Function called with a line about what is going on.
    """

    def __init__(self, plan: DemoPlan, on_progress: Callable[[str], None]) -> None:
        self.plan = plan
        self._clock = VirtualClock()
        self._gpu = SimulatedGpu(plan.board, self._clock, seed=plan.recipe.seed)
        self._say = on_progress

    def run(self) -> Story:
        """Train, sweep, choose, train again."""
        limits = self._limits()
        self._say("drawing the pictures")
        trainer = Trainer(self.plan.recipe)
        with Meter([self._gpu], clock=self._clock) as meter:
            default_watts = self.plan.board.default_limit_watts
            default = self._train(trainer, meter, default_watts, "default run")
            sweep = self._sweep(trainer, meter, limits)
            frontier = Frontier.from_points(sweep, f"demo: {self.plan.workload.name}")
            at_default = (point for point in sweep if _watts(point) == default_watts)
            reference = next(at_default, default.cost)
            chosen = choose(self.plan.objective, frontier, reference)
            retrained = self._train(trainer, meter, _watts(chosen), "second run")
        return Story(
            plan=self.plan,
            untrained_accuracy=trainer.fresh().accuracy(trainer.test),
            default=default,
            sweep=sweep,
            frontier=frontier,
            reference=reference,
            chosen=chosen,
            retrained=retrained,
        )

    def _limits(self) -> tuple[float, ...]:
        wished = self.plan.limits_watts or spread_limits(limit_range(self._gpu))
        return accepted_limits(self._gpu, wished)

    def _train(self, trainer: Trainer, meter: Meter, watts: float, name: str) -> TrainingRun:
        """One whole run under one limit."""
        self._clock.sleep(_REST_SECONDS)
        last = self.plan.recipe.epochs
        progress, windows = [], []
        epochs = trainer.epochs(self._simulated_step)
        with lease(self._gpu, watts=watts), meter.window(name) as run:
            for number in range(1, last + 1):
                with meter.window(f"{name}, epoch {number}") as window:
                    progress.append(next(epochs))
                windows.append(window)
                self._say(f"{name} at {watts:g} W: epoch {number} of {last}")
        # Figures are read only now: waiting for a counter would let time pass inside the run.
        measured = run.settle()
        cost = OperatingPoint(
            measured.seconds,
            measured.joules,
            Setting(power_limit_watts=watts, device=self.plan.board.name),
            measured.provenance,
        )
        pairs = zip(progress, windows, strict=True)
        return TrainingRun(
            tuple(DemoEpoch(lesson, window.seconds, window.joules) for lesson, window in pairs),
            cost,
        )

    def _sweep(
        self, trainer: Trainer, meter: Meter, limits: tuple[float, ...]
    ) -> tuple[OperatingPoint, ...]:
        """One epoch from the start under each limit, scaled to the length of a run."""
        numbers = count(1)

        def first_epoch() -> None:
            next(trainer.epochs(self._simulated_step))

        def note(point: OperatingPoint) -> None:
            self._say(f"sweep: {_watts(point):g} W, limit {next(numbers)} of {len(limits)}")
            self._clock.sleep(_REST_SECONDS)

        points = sweep_power_limits(self._gpu, limits, first_epoch, meter, on_point=note)
        return tuple(point.scaled(self.plan.recipe.epochs) for point in points)

    def _simulated_step(self) -> None:
        self._gpu.run(self.plan.workload)


def _watts(point: OperatingPoint) -> float:
    """The power limit of a point that was measured under one."""
    assert point.setting.power_limit_watts is not None  # noqa: S101 - every point here has one
    return point.setting.power_limit_watts
