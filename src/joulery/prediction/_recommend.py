"""Choose device type, count, parallel plan, batch sizes and power limit before the run."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from joulery.arguments import check_whole
from joulery.errors import (
    FileError,
    InfeasibleError,
    InvalidValueError,
    JouleryError,
    flaw_text,
)
from joulery.objectives import Totals, parse_objective, score
from joulery.prediction._assumptions import (
    Assumptions,
    embodied_grams,
    lost_time,
    waiting_share,
)
from joulery.prediction._bayes import Interval
from joulery.prediction._calibrate import Calibration, best_probe
from joulery.prediction._devices import PRECISIONS, Accelerator, accelerator
from joulery.prediction._inference import ROLLOUTS_LACK
from joulery.prediction._memory import FITS_SHARE, plan_memory
from joulery.prediction._model import training_model
from joulery.prediction._plan import Plan
from joulery.prediction._search import OBJECTIVES, Work, leanest_plan, least_memory, tabulate
from joulery.prediction._task import Task
from joulery.tables import Tabular, html_table
from joulery.units import (
    finite,
    grams_co2,
    human,
    human_dollars,
    human_duration,
    quantity,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from joulery.prediction._model import Transformer
    from joulery.prediction._search import CandidateTable, Rows

SCHEMA = "joulery.recommendation/1"
_FIGURES = (
    "power_limit_watts",
    "seconds",
    "joules",
    "dollars",
    "grams_co2",
    "memory_bytes",
    "relative_error_time",
    "relative_error_energy",
)


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to do the whole training.

    Attributes:
        device: Accelerator type.
        plan: Parallel plan.
        power_limit_watts: Power limit per device.
        seconds: Time of the training, with what it loses beside its steps.
        joules: Energy of the building: devices, hosts, cooling.
        dollars: Rent.
        grams_co2: Carbon of energy and manufacture.
        memory_bytes: Peak that the allocator takes on the fullest device.
        relative_error_time: Standard deviation of the time, relative.
        relative_error_energy: Standard deviation of the energy, relative.
        source: Evidence behind the prediction, in words.
        rent_guessed: Whether the rent of the device type is a guess.
    """

    device: str
    plan: Plan
    power_limit_watts: float
    seconds: float
    joules: float
    dollars: float
    grams_co2: float
    memory_bytes: float
    relative_error_time: float
    relative_error_energy: float
    source: str
    rent_guessed: bool = False

    def __str__(self) -> str:
        return f"{self.devices} × {self.device}, {self.plan}, {self.power_limit_watts:.0f} W"

    def error(self, objective: str) -> float:
        """Relative standard deviation of a cost, as far as time and energy are uncertain."""
        if objective in ("time", "money") or objective.startswith("fastest"):
            return self.relative_error_time
        return self.relative_error_energy

    def interval(self, objective: str) -> Interval:
        """90 % interval of a cost."""
        return Interval.around(self.value(objective), self.error(objective))

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.plan.devices

    @property
    def money(self) -> str:
        """Its dollars, marked where they are a guess."""
        return human_dollars(self.dollars) + " (guess)" * self.rent_guessed

    def row(self) -> dict[str, Any]:
        """Its row in a table."""
        names = ("device", "devices", "plan", "power_limit_watts", "seconds", "joules", "dollars")
        document = self.to_dict()
        return {name: document[name] for name in names}

    def value(self, objective: str) -> float:
        """The quantity that an objective minimises."""
        names = {"energy": "joules", "time": "seconds", "money": "dollars", "carbon": "grams_co2"}
        if objective in names:
            return float(getattr(self, names[objective]))
        goal = parse_objective(objective, self.joules / self.seconds)
        return float(score(goal, self.seconds, self.joules, Totals(self.seconds, self.joules)))

    def rank(self, objective: str) -> tuple[bool, float]:
        """Key of its place by an objective: a guessed rent comes after all that are known."""
        return objective == "money" and self.rent_guessed, self.value(objective)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self) | {
            "devices": self.devices,
            "plan": str(self.plan),
            "precision": self.plan.precision,
            "batch_size": self.plan.batch_size,
            "seconds_90_per_cent": list(self.interval("time")),
            "joules_90_per_cent": list(self.interval("energy")),
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Choice:
        """The inverse of ``to_dict``.

        Raises:
            InvalidValueError: A figure or the plan is invalid.
            KeyError, TypeError: The document is of another kind.
        """
        figures = {name: finite(document[name], name, minimum=0.0) for name in _FIGURES}
        plan = Plan.parse(document["plan"], int(document["batch_size"]), document["precision"])
        device, source = str(document["device"]), str(document["source"])
        guessed = bool(document.get("rent_guessed", False))
        return cls(device=device, plan=plan, source=source, rent_guessed=guessed, **figures)


@dataclass(frozen=True, slots=True, repr=False)
class Recommendation(Tabular):
    """The best choice, the Pareto set, and what the choice hangs on.

    Attributes:
        best: The choice of least cost by the objective that keeps the deadline.
        pareto: Choices that no other beats in time, energy, money and carbon at once.
        rivals: The best choice on each other device type that keeps the deadline.
        reasons: Reasons for the best choice, one sentence each.
        changes: Changes that would make another one the best, one sentence each.
        candidates: Number of candidates looked at.
        probe: The measurement that would narrow the answer most; empty where none helps much.
        assumed: Rent of each device type with its source, cooling and grid.
        left_out: Device types that were named but cannot do it, with the reason.
        work: The training, in words.
        deadline_seconds: Time that the training may take; None for any.
        headline: The choice as a sentence.
        regions: Grams of CO2 of the best choice by grid, where several were asked for.
    """

    best: Choice
    pareto: tuple[Choice, ...]
    rivals: tuple[Choice, ...]
    reasons: tuple[str, ...]
    changes: tuple[str, ...]
    candidates: int
    probe: str
    assumed: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    work: str = ""
    deadline_seconds: float | None = None
    headline: str = ""
    regions: tuple[tuple[str, float], ...] = ()

    def __str__(self) -> str:
        return self.headline or str(self.best)

    def rows(self) -> list[dict[str, Any]]:
        """A row for the best choice and for each of the Pareto set."""
        return [choice.row() for choice in dict.fromkeys((self.best, *self.pareto))]

    def short_list(self) -> list[dict[str, str]]:
        """The best choice and others, in words: what they are best at, and what for.

        Others are those of least time, money, energy and CO2, and the best on other device types.
        """
        merits: dict[Choice, list[str]] = {self.best: ["recommended"]}
        choices = dict.fromkeys((*self.pareto, self.best, *self.rivals))
        ends = [
            (min(choices, key=lambda choice: choice.rank(objective)), merit)
            for objective, merit in _MERITS.items()
            if objective != "money" or not all(choice.rent_guessed for choice in choices)
        ]
        rivals = [(choice, f"best on {choice.device}") for choice in self.rivals]
        for choice, merit in (*ends, *rivals):
            merits.setdefault(choice, []).append(merit)
        return [
            {
                "choice": ", ".join(words),
                "devices": f"{choice.devices} × {choice.device}, {choice.power_limit_watts:.0f} W",
                "time": _lasting(choice.seconds),
                "energy": human(choice.joules / 3600, "Wh"),
                "money": choice.money,
                "plan": _SAME
                if choice is not self.best and choice.plan == self.best.plan
                else str(choice.plan),
            }
            for choice, words in merits.items()
        ]

    def _repr_html_(self) -> str:
        """The sentence and the short list."""
        return html_table(f"{self} (predicted)", self.short_list())

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        return {
            "schema": SCHEMA,
            "provenance": "predicted",
            "lost_time": asdict(lost_time()),
            **{field.name: getattr(self, field.name) for field in fields(self)},
            "best": self.best.to_dict(),
            "pareto": [choice.to_dict() for choice in self.pareto],
            "rivals": [choice.to_dict() for choice in self.rivals],
        }

    @classmethod
    def from_dict(cls, document: Any) -> Recommendation:
        """The inverse of ``to_dict``.

        Raises:
            FileError: The document is no recommendation.
        """
        try:
            deadline = document["deadline_seconds"]
            sentences = ("reasons", "changes", "assumed", "left_out")
            return cls(
                best=Choice.from_dict(document["best"]),
                pareto=tuple(map(Choice.from_dict, document["pareto"])),
                rivals=tuple(map(Choice.from_dict, document["rivals"])),
                candidates=int(document["candidates"]),
                probe=str(document["probe"]),
                work=str(document["work"]),
                headline=str(document.get("headline", "")),
                regions=tuple(
                    (str(name), finite(grams, "grams", minimum=0.0))
                    for name, grams in document.get("regions", ())
                ),
                deadline_seconds=None if deadline is None else finite(deadline, "deadline"),
                **{name: tuple(map(str, document[name])) for name in sentences},
            )
        except (KeyError, TypeError, ValueError, JouleryError) as error:
            raise FileError(
                f"this is no recommendation: {flaw_text(error)}",
                remedy="write it with `joulery recommend --json`",
            ) from None


# What the least of each cost is called, the most asked for first.
_MERITS = {"time": "fastest", "money": "cheapest", "energy": "least energy", "carbon": "least CO2"}
_SAME = "the same"
# Costs of two plans on one device type that differ by less are alike: half of what one plan
# deviates from another of the same model (0.06, Megatron-Bridge's tables). Those of two device
# types are alike by the same rule: where they differ by less than half of the comparison's error.
_ALIKE = 0.03
# Choices that another one beats or equals within this share in every cost say nothing new; by hand.
_EQUAL = 0.005
# Time that a training may take where no deadline is given; by hand: half a year.
_HORIZON_SECONDS = 180 * 86400.0
_LARGEST_MEMORY = 310e9  # of a device type of 2026: MI355X
_WORTH_SAYING = 0.01  # by hand: of the money
_MOST_TOKENS = 1e18  # by hand: ten thousand times the largest trainings of 2026
# No deadline is said to be kept with more confidence: 25 trainings say how long they took in all.
_SUREST = 0.95
_HARDLY_NARROWER = 0.85  # by hand: less is not worth renting a machine for


@dataclass(frozen=True, slots=True)
class _Search:
    """Candidates by device type, of which those count that keep the deadline."""

    model: Transformer
    tables: dict[str, CandidateTable]
    calibration: Calibration
    deadline: float | None
    asked: bool = True  # whether somebody asked for the deadline

    def list_eligible(self) -> list[tuple[CandidateTable, Rows]]:
        """Candidates that keep the deadline, of the device types that have any."""
        pairs = (
            (candidates, candidates.within(self.deadline)) for candidates in self.tables.values()
        )
        return [(candidates, rows) for candidates, rows in pairs if len(rows)]

    def rank(self, objective: str) -> list[Choice]:
        """The best choice on each device type, the best first.

        Of choices that the errors cannot tell apart the fastest is taken; of those faster by less
        than a training takes to start, the cheapest.
        """
        start = lost_time().start_seconds
        best = []
        for candidates, rows in self.list_eligible():
            cost = candidates.cost(objective)[rows]
            slack = start if objective == "time" else 0.0
            alike = rows[cost <= max((1 + _ALIKE) * cost.min(), cost.min() + slack)]
            seconds = candidates.costs["time"][alike]
            alike = alike[seconds <= seconds.min() + start]
            cheapest = alike[np.argmin(candidates.costs["money"][alike])]
            best.append(self.choice(candidates, int(cheapest)))
        return sorted(best, key=lambda choice: choice.rank(objective))

    def choose(self, objective: str) -> list[Choice]:
        """The recommended choice, then the best on each other device type, the best first.

        Of device types whose costs the errors cannot tell apart, but whose times they can, the
        fastest is taken.
        """
        least, *others = ranked = self.rank(objective)
        faster = [
            choice
            for choice in others
            if choice.seconds < least.seconds
            and choice.rank(objective)[0] == least.rank(objective)[0]
            and _are_alike(choice, least, objective)
            and not _are_alike(choice, least, "time")
        ]
        winner = min(faster, key=lambda choice: choice.seconds, default=least)
        return [winner, *(choice for choice in ranked if choice is not winner)]

    def least(self, objective: str, device: str) -> Choice:
        """The choice of least predicted cost on a device type."""
        candidates = self.tables[device]
        rows = candidates.within(self.deadline)
        return self.choice(candidates, int(rows[np.argmin(candidates.cost(objective)[rows])]))

    def cheapest_limit(self, choice: Choice) -> Choice:
        """The same plan at the power limit of least rent; the deadline holds where it held."""
        candidates = self.tables[choice.device]
        rows = np.flatnonzero(candidates.plan == candidates.plans.index(choice.plan))
        return self.choice(candidates, int(rows[np.argmin(candidates.costs["money"][rows])]))

    def choice(self, candidates: CandidateTable, row: int) -> Choice:
        """A candidate as a choice."""
        error, lost = float(candidates.deviation[row]), lost_time().deviation
        power = float(candidates.power_deviation[row])
        return Choice(
            candidates.device.name,
            candidates.plans[int(candidates.plan[row])],
            float(candidates.limit[row]),
            float(candidates.costs["time"][row]),
            float(candidates.costs["energy"][row]),
            float(candidates.costs["money"][row]),
            float(candidates.costs["carbon"][row]),
            float(candidates.memory[row]),
            math.hypot(error, lost),
            math.hypot(error, power, waiting_share() * lost),
            self.calibration.source(candidates.device),
            candidates.rent_guessed,
        )

    def pareto(self) -> tuple[Choice, ...]:
        """Choices that no other beats in all four costs, fastest first."""
        pairs = self.list_eligible()
        costs = np.concatenate(
            [np.stack([t.costs[name][rows] for name in OBJECTIVES], axis=1) for t, rows in pairs]
        )
        origin = [(candidates, int(row)) for candidates, rows in pairs for row in rows]
        best: list[int] = []
        front = np.empty((0, costs.shape[1]))
        for row in np.lexsort((costs[:, 0], costs[:, 1])):  # by time, then energy
            if len(front) and (front <= (1 + _EQUAL) * costs[row]).all(axis=1).any():
                continue
            best.append(int(row))
            front = np.vstack([front, costs[row]])
        return tuple(self.choice(*origin[row]) for row in best)


def recommend(  # noqa: PLR0913 - all but three by keyword only
    model: Transformer | dict[str, Any] | str | Path,
    work: Work | float | str,
    devices: Sequence[str | Path | Accelerator] | str | Path | Accelerator,
    *,
    max_devices: int = 512,
    sequence: int | None = None,
    objective: str = "energy",
    regions: Mapping[str, float] | None = None,
    assumptions: Assumptions | None = None,
    calibration: Calibration | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> Recommendation:
    """Best device type, count, plan, batch sizes and power limit for a training.

    Args:
        model: Description of a transformer: object, document or JSON file.
        work: The training to be done, or the tokens to train on, such as ``100e9`` or ``"100B"``.
        devices: Names of device types in the catalog, TOML files, or accelerators; a single name
            too.
        max_devices: Largest number of devices.
        sequence: Tokens per sequence in training, where the description does not say.
        objective: ``energy``, ``time``, ``money`` or ``carbon``, or the text of an objective of
            time and energy, such as ``edp`` or ``cost:eta=0.5``.
        regions: Grams of CO2 per kilowatt-hour of grids to compare, by name.
        assumptions: Prices, cooling and carbon that differ from the catalog's.
        calibration: Measured steps that sharpen the predictions.
        on_progress: Function called now and then with the share of device types that are done.

    Raises:
        InfeasibleError: Nothing fits into memory or keeps the deadline; the remedy names the
            fastest that fits.
        UnknownDeviceError: No such device.

    Examples:
        >>> recommend("llama-8b.json", "100B", ["a100", "h100"])       # doctest: +SKIP
        <Recommendation: Least energy: train llama-8b on 512 × H100 at 450 W …>
    """
    description = training_model(model, sequence)
    assumed, calibration = assumptions or Assumptions(), calibration or Calibration()
    if not isinstance(work, Work):
        work = Work(quantity(work, "tokens", "#") if isinstance(work, str) else work)
    names = [devices] if isinstance(devices, str | Path | Accelerator) else devices or ()
    boards = {board.name: board for board in map(accelerator, names)}
    objective = _check(work, boards, max_devices, objective, assumed)
    Plan(task=work.task).check(description)
    if work.tokens < (step := work.sequences_per_step * description.sequence):
        raise InvalidValueError(
            f"{work.tokens:g} tokens are less than one step of {step} tokens "
            f"({work.sequences_per_step} sequences of {description.sequence})",
            remedy="give shorter sequences (--sequence), a smaller batch or more tokens",
        )
    tables, report_share = {}, on_progress or (lambda _: None)
    for position, board in enumerate(boards.values()):
        report_share(position / len(boards))
        candidates = tabulate(description, work, board, max_devices, assumed, calibration)
        if candidates is not None:
            tables[candidates.device.name] = candidates
    needs = {
        name: least_memory(description, work, board, max_devices)
        for name, board in boards.items()
        if name not in tables
    }
    if not tables:
        raise _too_large(description, work, boards, needs, max_devices)
    search = _Search(description, tables, calibration, work.deadline_seconds)
    if not search.list_eligible():
        raise _too_slow(search)
    deadline_notes, asked = [], objective
    if search.deadline is None:
        search, objective, note = _bound_time(search, objective)
        deadline_notes.append(f"no deadline: {note}")
    winner, *rivals = search.choose(objective)
    notes = (*_list_notes(search, work, winner), *deadline_notes)
    return Recommendation(
        best=winner,
        pareto=search.pareto(),
        rivals=tuple(rivals),
        reasons=tuple(_reasons(search, winner, rivals, objective)),
        changes=tuple(_changes(search, winner, rivals, objective)),
        candidates=sum(len(candidates.plan) for candidates in tables.values()),
        probe=_probe(search, winner, rivals, objective),
        assumed=(*_list_assumptions(assumed, tables.values(), regions or {}), *notes),
        left_out=tuple(_left_out(boards, search, needs, max_devices)),
        deadline_seconds=work.deadline_seconds,
        work=f"{_count_text(work.tokens)} tokens of {description.name or 'a transformer'}",
        headline=_headline(
            winner, _aim(asked, objective), work, description, tables[winner.device].device
        ),
        regions=_regions(winner, tables[winner.device].device, regions or {}),
    )


def _list_notes(search: _Search, work: Work, winner: Choice) -> Iterator[str]:
    """What was assumed of the training."""
    if work.batch_size is None:
        usual = "a fine-tuning" if work.task.is_tuning else "a training"
        yield (
            f"{work.sequences_per_step} sequences per step, as is usual for {usual}; --batch-size "
            "gives another"
        )
    boards = {name: candidates.device for name, candidates in search.tables.items()}
    for name, board in boards.items():
        if work.precision not in board.peaks:
            yield f"{name} computes in {board.sixteen_bits}, since it has no {work.precision}"
    if winner.plan.offload:
        state = plan_memory(search.model, replace(winner.plan, offload=False)).optimizer
        together = min(winner.devices, boards[winner.device].host_devices)
        yield f"hosts with {together * state / 1e9:.0f} GB for the optimizer's state (offload)"
    if work.task.kind == "grpo":
        yield f"nothing of {ROLLOUTS_LACK}"


def _bound_time(search: _Search, objective: str) -> tuple[_Search, str, str]:
    """Search and objective where no deadline was given, and what that means in words."""
    within = replace(search, deadline=_HORIZON_SECONDS, asked=False)
    days = f"{_HORIZON_SECONDS / 86400:.0f} days"
    if within.list_eligible():
        return within, objective, f"choices that take longer than {days} were left out"
    note = f"every choice takes longer than {days} at 90 % confidence; the fastest is shown"
    return search, "time", note


def _aim(asked: str, objective: str) -> str:
    """The objective of a choice, and why it is not the one that was asked for."""
    aim = f"Least {objective}" if objective in OBJECTIVES else f"Best by {objective}"
    if asked == objective:
        return aim
    return f"{aim} instead of {asked}, since all take over {_HORIZON_SECONDS / 86400:.0f} days"


def _headline(winner: Choice, aim: str, work: Work, model: Transformer, board: Accelerator) -> str:
    """The choice as a sentence."""
    plan = winner.plan
    batch = "" if plan.batch_size == work.sequences_per_step else f", {plan.batch_size} sequences"
    return (
        f"{aim}: train {model.name or 'the model'} on {winner.devices} × {winner.device} at "
        f"{winner.power_limit_watts:.0f} W ({plan}, {plan.precision}{batch}) in "
        f"{_lasting(winner.seconds)} ± {100 * winner.relative_error_time:.0f} %, with "
        f"{human(winner.joules / 3600, 'Wh')} ± {100 * winner.relative_error_energy:.0f} % and "
        f"{winner.money}; it fits into memory, with "
        f"{winner.memory_bytes / 1e9:.1f} of {board.memory_bytes / 1e9:.1f} GB"
    )


def _regions(
    winner: Choice, board: Accelerator, regions: Mapping[str, float]
) -> tuple[tuple[str, float], ...]:
    """Carbon of a choice by grid, with that of manufacture."""
    made = embodied_grams(board, winner.devices * winner.seconds)
    return tuple(
        (name, grams_co2(winner.joules, intensity) + made) for name, intensity in regions.items()
    )


def _left_out(
    boards: Mapping[str, Accelerator],
    search: _Search,
    needs: Mapping[str, float],
    max_devices: int,
) -> Iterator[str]:
    """Device types that were named but cannot do it, and why."""
    eligible = {candidates.device.name for candidates, _ in search.list_eligible()}
    for name, board in boards.items():
        if name in needs:
            yield f"{name}: {_shortage(board, needs[name], max_devices)}"
        elif name not in eligible:
            yield f"{name}: too slow for the deadline"


def _list_assumptions(
    assumed: Assumptions, tables: Collection[CandidateTable], regions: Mapping[str, float]
) -> Iterator[str]:
    for candidates in tables:
        rent = assumed.rent(candidates.device)
        yield f"{candidates.device.name} ${rent.dollars:.2f} an hour ({rent.source})"
        if candidates.device.assumed:
            yield f"{candidates.device.name} has {', '.join(candidates.device.assumed)}"
    yield from dict.fromkeys(assumed.host(candidates.device) for candidates in tables)
    grids = {name: f"{grams:g} g CO2 per kWh ({name})" for name, grams in regions.items()}
    plain = f"{assumed.grid():g} g CO2 per kWh"
    yield f"PUE {assumed.overhead():g}, {', '.join(grids.values()) or plain}"
    lost = lost_time()
    yield (
        f"{lost.factor:g} times the time of the steps, ± {100 * lost.deviation:.0f} %, for "
        f"restarts, checkpoints, evaluations and slower plans ({lost.source}), and "
        f"{_lasting(lost.start_seconds)} to start"
    )


def _lasting(seconds: float) -> str:
    return human_duration(seconds) if seconds < 2 * 86400 else f"{seconds / 86400:.1f} days"


def _check(
    work: Work,
    boards: Mapping[str, Accelerator],
    max_devices: int,
    objective: str,
    assumed: Assumptions,
) -> str:
    """Refuse what cannot be recommended for; the objective by its short name."""
    if finite(work.tokens, "tokens", minimum=1.0) > _MOST_TOKENS:
        raise InvalidValueError(
            f"{work.tokens:g} tokens are beyond every training",
            remedy=f"give {_MOST_TOKENS:g} or fewer, such as 2T",
        )
    if work.deadline_seconds is not None:
        finite(work.deadline_seconds, "seconds until the deadline", minimum=1.0)
    if work.precision not in PRECISIONS:
        raise InvalidValueError(
            f"no precision {work.precision!r}", remedy=f"one of {', '.join(PRECISIONS)}"
        )
    if not boards:
        raise InvalidValueError(
            "a recommendation needs at least one device type", remedy='name some, such as "h100"'
        )
    check_whole(max_devices, "largest number of devices")
    check_whole(work.sequences_per_step, "batch size")
    assumed.check_rents(boards)
    objective = _ALIASES.get(objective, objective)
    if objective not in OBJECTIVES:
        try:
            parse_objective(objective, 1.0)
        except InvalidValueError:
            raise InvalidValueError(
                f"no objective {objective!r}",
                remedy=f"one of {', '.join(OBJECTIVES)}, or of time and energy, such as edp",
            ) from None
    return objective


# Texts of objectives that `joulery run` takes, where a column says the same.
_ALIASES = {"least-energy": "energy", "fastest": "time"}


def _shortage(board: Accelerator, need: float, max_devices: int) -> str:
    """What a training needs at least of a device that has too little memory."""
    among = f"each of up to {max_devices} devices" if max_devices > 1 else "one device"
    return (
        f"{need / 1e9:.1f} GB or more are needed on {among}, of {board.memory_bytes / 1e9:.1f} GB, "
        f"{100 * (1 - FITS_SHARE):.0f} % of which stay free"
    )


def _too_large(
    model: Transformer,
    work: Work,
    boards: Mapping[str, Accelerator],
    needs: Mapping[str, float],
    max_devices: int,
) -> InfeasibleError:
    """The refusal where a training fits on none of the device types, with what would help."""
    lacks = [
        f"{name}: {_shortage(boards[name], need, max_devices)}" for name, need in needs.items()
    ]
    ways = ["more devices", "shorter sequences"]
    if (larger := min(needs.values()) / FITS_SHARE) < _LARGEST_MEMORY:
        ways.insert(0, f"a device type with {larger / 1e9:.0f} GB or more")
    frozen = replace(work, task=replace(work.task, adapter="qlora"))
    if work.task != Task() and work.task.adapter != "qlora":
        fitting = [
            name
            for name, board in boards.items()
            if least_memory(model, frozen, board, max_devices) <= FITS_SHARE * board.memory_bytes
        ]
        if fitting:
            ways.insert(0, f"--task {frozen.task}, which fits on {', '.join(fitting)}")
    for name, board in boards.items():
        plan = leanest_plan(model, work, board, max_devices)
        need = plan_memory(model, plan).reserved
        if need <= FITS_SHARE * board.memory_bytes:
            ways.append(
                f"an optimizer of fewer bits: `joulery predict --device {name} --plan {plan} "
                f"--batch-size {plan.batch_size}` fits, with {need / 1e9:.1f} GB"
            )
            break
    return InfeasibleError(
        f"{model.name or 'the model'} does not fit: {'; '.join(lacks)}",
        remedy=f"give {', or '.join(ways)}",
    )


def _too_slow(search: _Search) -> InfeasibleError:
    table = min(
        search.tables.values(), key=lambda candidates: float(candidates.late_seconds().min())
    )
    late = table.late_seconds()
    row = int(late.argmin())
    return InfeasibleError(
        f"nothing finishes within {_lasting(search.deadline or 0.0)} at 90 % confidence",
        remedy=f"the fastest takes {_lasting(float(table.costs['time'][row]))} on average and "
        f"{_lasting(float(late[row]))} at 90 % confidence: {search.choice(table, row)}; "
        "allow that, or more devices",
    )


def _reasons(
    search: _Search, winner: Choice, rivals: Sequence[Choice], objective: str
) -> Iterator[str]:
    for rival in rivals:
        excess = rival.value(objective) / winner.value(objective) - 1
        if rival.rank(objective)[0] != winner.rank(objective)[0]:
            more = f"{100 * abs(excess):.0f} % {'more' if excess > 0 else 'less'} {objective}"
            yield f"the rent of {rival.device} is a guess, by which it needs {more} at its best"
        elif excess < 0:
            yield _alike_but_slower(winner, rival, objective)
        else:
            yield f"{rival.device} needs {100 * excess:.0f} % more {objective} at its best"
    cheapest = search.least(objective, winner.device)
    if cheapest.seconds > 1.05 * winner.seconds:
        yield _alike_but_slower(winner, cheapest, objective)
    elif objective == "time" and cheapest.dollars > 1.05 * winner.dollars:
        gain = human_duration(winner.seconds - cheapest.seconds)
        yield (
            f"{cheapest} is {gain} faster, less than a training takes to start, for "
            f"{cheapest.dollars / winner.dollars:.1f} times the money"
        )
    table = search.tables[winner.device]
    default = table.device.limit_watts
    if winner.power_limit_watts < default:
        row = int(
            np.flatnonzero(
                (table.plan == table.plans.index(winner.plan)) & (table.limit == default)
            )[0]
        )
        saving = 1 - winner.joules / table.costs["energy"][row]
        slower = winner.seconds / table.costs["time"][row] - 1
        yield (
            f"the limit of {winner.power_limit_watts:.0f} W saves {100 * saving:.0f} % of the "
            f"energy and takes {100 * slower:.0f} % longer than {default:.0f} W"
        )
    if search.asked and (deadline := search.deadline) is not None:
        sure = NormalDist().cdf(math.log(deadline / winner.seconds) / winner.relative_error_time)
        bound = "over " if sure > _SUREST else ""
        yield (
            f"it uses {100 * winner.seconds / deadline:.0f} % of the deadline on average and keeps "
            f"it with {bound}{100 * min(sure, _SUREST):.2g} % confidence"
        )


def _alike_but_slower(winner: Choice, rival: Choice, objective: str) -> str:
    """Why a choice of less predicted cost is not taken."""
    less = 100 * (1 - rival.value(objective) / winner.value(objective))
    return (
        f"{rival} needs {less:.1f} % less {objective}, which the errors cannot tell apart, "
        f"and {rival.seconds / winner.seconds:.1f} times the time: the faster one is taken"
    )


def _changes(
    search: _Search, winner: Choice, rivals: Sequence[Choice], objective: str
) -> Iterator[str]:
    if rivals and rivals[0].rank(objective)[0] == winner.rank(objective)[0]:
        yield _overtaking(winner, rivals[0], objective)
    if search.asked and search.deadline is not None:
        rival = replace(search, deadline=None).choose(objective)[0]
        if rival.value(objective) < 0.95 * winner.value(objective):
            less = 1 - rival.value(objective) / winner.value(objective)
            late = float(rival.interval("time").high)
            yield (
                f"a deadline of {_lasting(late)} would allow {rival}, "
                f"{100 * less:.0f} % less {objective}"
            )
    if objective != "money":
        yield from _dearer_than(search.cheapest_limit(winner), winner)
    for name in OBJECTIVES:
        rival = search.rank(name)[0]
        if name != objective and (rival.device, rival.plan) != (winner.device, winner.plan):
            less = 1 - rival.value(name) / winner.value(name)
            share = f"{100 * less:.0f}" if less < 0.995 else "over 99"
            yield f"for least {name}: {rival}, {share} % less {name}"


def _dearer_than(rival: Choice, winner: Choice) -> Iterator[str]:
    """What a rented machine costs more for the power limit of the choice, where it does."""
    dearer = winner.dollars - rival.dollars
    if dearer < _WORTH_SAYING * winner.dollars:
        return
    energy = human((rival.joules - winner.joules) / 3600, "Wh")
    faster = 100 * (1 - rival.seconds / winner.seconds)
    yield (
        f"who rents pays {human_dollars(dearer)} more for the limit of "
        f"{winner.power_limit_watts:.0f} W, which saves {energy}: {rival.power_limit_watts:.0f} W "
        f"costs {human_dollars(rival.dollars)} and takes {faster:.0f} % less time"
    )


def _overtaking(winner: Choice, rival: Choice, objective: str) -> str:
    """How far off predictions must be for the closest rival to win, and the chance of that."""
    gap = math.log(rival.value(objective) / winner.value(objective))
    chance = NormalDist().cdf(-gap / _comparison_error(winner, rival, objective))
    odds = "below 1" if chance < 0.005 else f"{100 * chance:.0f}"
    if gap < 0:
        return f"{rival.device} needs less {objective} than {winner.device} with {odds} % chance"
    less = f"{100 * (1 - math.exp(-gap)):.0f} % less {objective}"
    return (
        f"{rival.device} would win if, compared with {winner.device}, it needed {less} than "
        f"predicted; the chance is {odds} %"
    )


def _are_alike(choice: Choice, other: Choice, objective: str) -> bool:
    """Whether costs on two device types differ by less than half of the comparison's error."""
    gap = abs(math.log(choice.value(objective) / other.value(objective)))
    return gap < _comparison_error(choice, other, objective) / 2


def _comparison_error(choice: Choice, other: Choice, objective: str) -> float:
    """Error of the ratio of two device types' costs."""
    return math.hypot(_own_error(choice, objective), _own_error(other, objective))


def _own_error(choice: Choice, objective: str) -> float:
    """Error of a cost without that of the lost time, which all choices share."""
    time = math.sqrt(max(choice.relative_error_time**2 - lost_time().deviation ** 2, 0.0))
    if choice.error(objective) == choice.relative_error_time:
        return time
    lost = waiting_share() * lost_time().deviation
    return math.sqrt(max(choice.relative_error_energy**2 - lost**2, 0.0))


def _count_text(count: float) -> str:
    """A count as people write it: 100 B for 1e11."""
    number, _, prefix = human(count, "").strip().partition(" ")
    return f"{float(number):g} {prefix}".strip().replace("G", "B")


def _probe(search: _Search, winner: Choice, rivals: Sequence[Choice], objective: str) -> str:
    """The step worth measuring, of the winner or of a rival too close to call; empty for none."""
    close = [
        rival
        for rival in rivals
        if math.log(rival.value(objective) / winner.value(objective)) < _own_error(rival, objective)
    ]
    target = close[0] if close else winner
    whose = f"step of {target.device}, whose {objective} is too close to tell from the winner's"
    whose = whose if close else "winner's step"
    table = search.tables[target.device]
    fewest = min(plan.devices for plan in table.plans)
    small = [plan for plan in table.plans if plan.devices == fewest]
    plan, remaining = best_probe(search.model, small, target.plan, table.device, search.calibration)
    if remaining > _HARDLY_NARROWER:
        return ""
    error = 100 * _own_error(target, "time")
    return (
        f"one step of {plan} on {plan.devices} × {target.device}: ± {error:.0f} % becomes about "
        f"± {error * remaining:.0f} % for the time of the {whose}"
    )
