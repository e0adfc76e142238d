"""Settings of a run, checked when it is made; the devices that it runs on; the job of both."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field
from functools import partial
from os import PathLike
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from joulery.arguments import check_whole
from joulery.background import driver_result
from joulery.clock import REAL_CLOCK, Clock
from joulery.documents import check_name
from joulery.errors import InvalidValueError, MissingHardwareError
from joulery.hardware import Capability, DeviceKind, check_devices
from joulery.jobs import Definition, Job
from joulery.objectives import Cost, check_objective, objective_label, parse_objective
from joulery.power import TunerConfig, check_process_group
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from joulery.hardware import Device, PowerLimit
    from joulery.objectives import Objective
    from joulery.power import ProcessGroup

OBJECTIVE_VARIABLE = "JOULERY_OBJECTIVE"
KNOB_VARIABLE = "JOULERY_KNOB"
STEPS_VARIABLE = "JOULERY_STEPS"
KNOBS = ("auto", "limit", "clock")
DRY_RUN_VARIABLE = "JOULERY_DRY_RUN"
DEFAULT_OBJECTIVE = "cost:eta=0.5"
MANY_EPOCHS = 1000  # by hand: above what trainings to a target take
_STORES = "leave it out, or give http(s)://…, postgresql://… or the path of an SQLite file"
_SCHEMES = ("http", "https", "postgresql", "postgres")
_DEFAULT_ETA = 0.5  # energy and time weigh alike, as in You et al., NSDI'23
# Power limits of a recurring job: at most as many, at least as far apart (You et al., NSDI'23).
_MOST_LIMITS, _STEP_WATTS = 10, 25.0


@dataclass(frozen=True, slots=True)
class DecisionService:
    """The service that decides what a recurring run runs.

    Attributes:
        location: Path of an SQLite file, ``postgresql://…`` or ``http(s)://…`` of a server;
            ``$JOULERY_STORE`` unless given, or else a file in the user's data folder.
        team: Team of the job; ``$JOULERY_TEAM`` unless given, or else that of the token.
        token: Token for a server; ``$JOULERY_TOKEN`` unless given, or else the one that
            ``joulery serve`` left for this user.
        policy: Name of the policy that chooses the batch size.
    """

    location: str | Path | None = None
    team: str | None = None
    token: str | None = field(default=None, repr=False)
    policy: str = "joulery"

    def __post_init__(self) -> None:
        from joulery.jobs.policies import find_policy, policy_names

        if not isinstance(self.location, str | PathLike | None) or self.location == "":
            raise InvalidValueError(
                f"store={self.location!r} is not a store",
                remedy=_STORES,
            )
        scheme, separator, _ = str(self.location or "").partition("://")
        if separator and scheme.lower() not in _SCHEMES:
            raise InvalidValueError(
                f"no store at {scheme}://…",
                remedy=_STORES,
            )
        if not isinstance(self.token, str | None):
            raise InvalidValueError("the token is not a text", remedy="leave it out, or quote it")
        if self.team is not None:
            check_name(self.team, "a team")
        if self.policy not in policy_names():
            find_policy(self.policy)


@dataclass(slots=True, kw_only=True)
class RunConfig:
    """Settings of a run, checked; see ``joulery.Run``.

    Attributes:
        batch_sizes: Batch sizes to choose from, ascending; None for a run that does not recur.
        default_batch_size: Batch size that is run where nothing is decided; None if unknown.
        objective: Objective, or its text.
        knob: Knob that is tuned: limit, clock, or auto for limits and clocks where limits cannot
            save more.

    Raises:
        InvalidValueError: A setting is invalid.
    """

    name: str = ""
    batch_sizes: Sequence[int] | None = None
    default_batch_size: int | None = None
    target: float | None = None
    higher_is_better: bool = True
    objective: Objective | str | None = None
    knob: str | None = None
    max_epochs: int | None = None
    max_steps: int | None = None
    early_stop: bool = True
    dry_run: bool | None = None
    store: DecisionService | str | Path | None = None

    def __post_init__(self) -> None:
        if self.dry_run is None:
            self.dry_run = bool(os.environ.get(DRY_RUN_VARIABLE))
        self._check_types()
        for name in ("max_epochs", "max_steps"):
            if getattr(self, name) is not None:
                setattr(self, name, check_whole(getattr(self, name), name))
        if self.max_steps is None and (steps := os.environ.get(STEPS_VARIABLE, "")).isdecimal():
            self.max_steps = int(steps) or None
        if self.objective is None:
            # A text from the environment is checked by the command that set it.
            self.objective = os.environ.get(OBJECTIVE_VARIABLE) or DEFAULT_OBJECTIVE
        else:
            self._check_objective(self.objective)
        self._check_knob()
        if not isinstance(self.store, DecisionService):
            self.store = DecisionService(self.store)
        if self.default_batch_size is not None:
            self.default_batch_size = check_whole(self.default_batch_size, "the default batch size")
        if self.target is not None:
            self.target = finite(self.target, "the target")
        if self.batch_sizes is not None:
            self._check_recurring(_ascending(self.batch_sizes))

    def _check_objective(self, objective: Objective | str) -> None:
        if isinstance(objective, str):
            objective = parse_objective(objective, max_watts=1.0)
        check_objective(objective)
        # A loader may say how long an epoch is, and a recurring run's decisions keep its bounds.
        if self.max_epochs is None and self.batch_sizes is None:
            TunerConfig(work_steps=self.max_steps).check_length(objective)

    def _check_knob(self) -> None:
        if self.knob is None:
            self.knob = os.environ.get(KNOB_VARIABLE) or KNOBS[0]
        if self.knob not in KNOBS:
            raise InvalidValueError(
                f"{self.knob!r} is not a knob", remedy=f"give one of {', '.join(KNOBS)}"
            )

    def _check_types(self) -> None:
        if not isinstance(self.name, str):
            raise InvalidValueError(
                f"{self.name!r} is not the name of a job", remedy='write Run("resnet")'
            )
        if self.name:
            check_name(self.name, "the name of a run")
        for flag in ("early_stop", "dry_run", "higher_is_better"):
            if not isinstance(getattr(self, flag), bool):
                raise InvalidValueError(
                    f"{flag} is {getattr(self, flag)!r}", remedy="give True or False"
                )

    def _check_recurring(self, sizes: tuple[int, ...]) -> None:
        check_name(self.name, "the name of a recurring run")
        if self.knob == "clock":
            raise InvalidValueError(
                "recurring runs learn power limits, not clocks", remedy="leave knob out"
            )
        self.batch_sizes = sizes
        if self.default_batch_size is None:
            self.default_batch_size = sizes[(len(sizes) - 1) // 2]
        if self.default_batch_size not in sizes:
            raise InvalidValueError(
                f"the default batch size {self.default_batch_size} is not among "
                f"{', '.join(map(str, sizes))}",
                remedy="add it to batch_sizes, or choose one of them",
            )
        if self.target is None and len(sizes) > 1:
            raise InvalidValueError(
                "batch sizes cannot be compared without a target",
                remedy="give the metric that a run should reach: target=0.76",
            )

    @property
    def most_epochs(self) -> int:
        """Epochs after which training ends whatever the metric."""
        return self.max_epochs or (1 if self.target is None else MANY_EPOCHS)

    def objective_for(self, max_watts: float) -> Objective:
        """The objective on devices that draw at most ``max_watts`` together."""
        objective = cast("Objective | str", self.objective)
        return parse_objective(objective, max_watts) if isinstance(objective, str) else objective

    @property
    def objective_label(self) -> str:
        """Text of the objective, as it was given where it was a text."""
        objective = cast("Objective | str", self.objective)
        return objective if isinstance(objective, str) else objective_label(objective)


def _ascending(batch_sizes: Any) -> tuple[int, ...]:
    try:
        sizes = tuple(sorted({check_whole(size, "a batch size") for size in batch_sizes}))
    except TypeError:
        sizes = ()
    if not sizes:
        raise InvalidValueError(
            f"{batch_sizes!r} are no batch sizes", remedy="write batch_sizes=[64, 128, 256]"
        )
    return sizes


@dataclass(frozen=True, slots=True)
class RunEnvironment:
    """The devices and processes of a run; looked up when asked for, not before.

    Attributes:
        devices: Devices of this job and process; found unless given.
        group: All processes of a data-parallel job; None for one that decides alone.
        environ: Environment variables.
    """

    devices: Sequence[Device] | None = None
    group: ProcessGroup | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    def __post_init__(self) -> None:
        if self.devices is not None:
            devices = check_devices(self.devices)
            ids = {getattr(device.info, "id", id(device)) for device in devices}
            if len(ids) < len(devices):
                raise InvalidValueError(
                    "a device is given twice", remedy="give each board of the job once"
                )
            object.__setattr__(self, "devices", devices)
        check_process_group(self.group)

    @property
    def clock(self) -> Clock:
        """The clock of the given devices: simulated ones may live on a virtual clock."""
        clocks = (getattr(device, "clock", None) for device in self.devices or ())
        return next((clock for clock in clocks if isinstance(clock, Clock)), REAL_CLOCK)

    def all_devices(self) -> list[Device]:
        """All devices of this job and process."""
        if self.devices is not None:
            return list(self.devices)
        from joulery.metering import my_devices

        return my_devices(self.clock)

    def boards(self) -> list[Device]:
        """Accelerators whose power limit can be set."""
        return [
            device
            for device in self.all_devices()
            if Capability.POWER_LIMIT in device.capabilities
            and device.info.kind is DeviceKind.GPU
            and device.info.parent is None
        ]

    def shares_boards(self, other: RunEnvironment) -> bool:
        """Whether another run may set the same boards; runs that find theirs see the same ones."""
        if self.devices is None or other.devices is None:
            return self.devices is other.devices
        ids = {device.info.id for device in self.devices}
        return any(device.info.id in ids for device in other.devices)

    def metered(self) -> list[Device]:
        """Devices whose energy counts: the accelerators, or everything where there are none."""
        meters = [
            device
            for device in self.all_devices()
            if {Capability.ENERGY, Capability.POWER} & device.capabilities
            and device.info.parent is None
        ]
        return [device for device in meters if device.info.kind is DeviceKind.GPU] or meters

    @property
    def processes(self) -> int:
        """Number of processes that train together, on all machines, as far as is known."""
        from joulery.metering import local_rank

        everywhere = self.environ.get("WORLD_SIZE", "")
        if everywhere.isdecimal() and int(everywhere) > 0:
            return int(everywhere)
        rank = local_rank(self.environ)
        return 1 if rank is None else rank.size


def define_job(config: RunConfig, environment: RunEnvironment) -> Definition:
    """The job of a run on the devices of all its processes; every rank has to ask.

    Raises:
        MissingHardwareError: Nothing here measures energy.
    """
    survey = _survey_in_time(environment)
    device, count, watts = _over_ranks(survey, environment.group)
    if not count:
        raise MissingHardwareError(
            "nothing here measures the energy of a run, so nothing can be learned from it",
            remedy="see `joulery doctor` for how to get a meter",
        )
    objective = config.objective_for(watts if math.isfinite(watts) else 0.0)
    eta = objective.eta if isinstance(objective, Cost) else _DEFAULT_ETA
    if not math.isfinite(watts):
        if eta < 1:
            raise MissingHardwareError(
                "the most that these devices draw is not known, so time cannot be weighed",
                remedy="count energy only: objective='cost:eta=1'",
            )
        watts = 0.0
    job = Job(
        name=config.name,
        batch_sizes=tuple(config.batch_sizes or ()),
        default=cast("int", config.default_batch_size),
        cost=Cost(eta, watts),
        objective=None if isinstance(objective, Cost) else objective,
        max_epochs=config.max_epochs or MANY_EPOCHS,
        limits_watts=survey.limits_watts,
    )
    return Definition(job, device, cast("DecisionService", config.store).policy)


def listed_limits(boards: Sequence[Device]) -> tuple[float, ...]:
    """A handful of power limits that every board accepts, down from their default."""
    ranges = [cast("PowerLimit", board).power_limits() for board in boards]
    if not ranges:
        return ()
    low, high = (
        max(limits.min_watts for limits in ranges),
        max(limits.default_watts for limits in ranges),
    )
    step = max(_STEP_WATTS, 5.0 * math.ceil((high - low) / (_MOST_LIMITS - 1) / 5.0))
    count = max(0, math.floor((high - low) / step))
    return tuple(high - step * number for number in range(count, -1, -1))


class _Survey(NamedTuple):
    """The devices that measure this process: kind, number, highest power, limits to choose from."""

    name: str = ""
    devices: int = 0
    max_watts: float = 0.0
    limits_watts: tuple[float, ...] = ()


def _survey_in_time(environment: RunEnvironment) -> _Survey:
    """The survey of this process, within the time that drivers are given."""
    try:
        return driver_result(partial(_survey, environment), environment.clock)
    except Exception:
        if environment.group is None:
            raise
        return _Survey()  # the other ranks wait for what this one has, whatever went wrong


def _survey(environment: RunEnvironment) -> _Survey:
    from joulery.power import weighed_cost

    boards = environment.boards()
    devices = boards or environment.metered()
    if not devices:
        return _Survey()
    try:
        watts = weighed_cost(0.0, devices).max_watts
    except InvalidValueError:
        watts = math.nan  # some device does not say
    return _Survey(devices[0].info.name, len(devices), watts, listed_limits(boards))


def _over_ranks(survey: _Survey, group: ProcessGroup | None) -> tuple[str, int, float]:
    """Kind, number and highest power of the devices of all processes."""
    surveys = [survey] if group is None else list(group.all_gather(survey))
    total = sum(rank.devices for rank in surveys)
    name = next((rank.name for rank in surveys if rank.name), "")
    return (
        name if total == 1 else f"{name} × {total}",
        total,
        sum(rank.max_watts for rank in surveys),
    )
