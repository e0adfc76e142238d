"""What the owner of a recurring job allows and wants, and the job that becomes of it on a site."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from joulery.errors import InvalidValueError, MissingHardwareError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from joulery.hardware.device import Device
    from joulery.jobs.job import Job
    from joulery.objectives import Objective
    from joulery.training.environment import RunEnvironment

MANY_EPOCHS = 1000
_USUAL_ETA = 0.5


@dataclass(frozen=True, slots=True)
class Recurring:
    """A recurring job as its owner states it.

    Attributes:
        name: What recurs.
        batch_sizes: That may be chosen, in samples per step over all devices.
        default: What the owner would run; the middle one unless given.
        target: Metric that ends a run; None for runs that only end with their epochs.
        max_epochs: After which a run gives up.
        policy: That chooses.
        store: Where decisions come from; see :func:`joulery.client.opening.open_backend`.
        team: Whose job it is.
        token: For a server.
        early_stop: Whether a run may be stopped at its cost ceiling.
        fixed: The batch size to run whatever would be chosen; None leaves the choice open.
    """

    name: str
    batch_sizes: Sequence[int]
    default: int | None = None
    target: float | None = None
    max_epochs: int | None = None
    policy: str = "joulery"
    store: str | Path | None = None
    team: str | None = None
    token: str | None = field(default=None, repr=False)
    early_stop: bool = True
    fixed: int | None = None

    def in_order(self) -> Recurring:
        """The same with its sizes in order, and a default among them.

        Raises:
            InvalidValueError: There is no name, or no size, or another one is to be run.
        """
        sizes = {int(size) for size in self.batch_sizes}
        if self.default is not None:
            sizes.add(int(self.default))
        ordered = tuple(sorted(sizes))
        if not self.name or not ordered or ordered[0] < 1:
            raise InvalidValueError(
                "a recurring run needs a name and batch sizes of 1 or more",
                remedy="write joulery.Run('my-job', batch_sizes=[64, 128, 256], default=128)",
            )
        if self.fixed is not None and self.fixed not in sizes:
            raise InvalidValueError(
                f"batch size {self.fixed} is none of those to choose from",
                remedy="add it to batch_sizes, or leave batch_size out",
            )
        middle = ordered[(len(ordered) - 1) // 2]
        default = middle if self.default is None else int(self.default)
        return replace(self, batch_sizes=ordered, default=default)

    @property
    def usual(self) -> int:
        """The default batch size."""
        assert self.default is not None  # noqa: S101 - in order, there is one
        return self.default

    def job(self, objective: Objective | str, site: RunEnvironment) -> tuple[Job, str]:
        """The job on a site, and the kind of device it runs on there.

        Raises:
            MissingHardwareError: Nothing here measures energy.
            InvalidValueError: It makes no sense.
        """
        from joulery.jobs.job import Job
        from joulery.objectives import Cost, parse_objective
        from joulery.training.limit_plan import listed_limits

        boards, metered = _devices(site)
        everywhere = _gathered(site, metered)
        if not everywhere.count:
            raise MissingHardwareError(
                "nothing here measures the energy of a run, so nothing can be learned from it",
                remedy="see `joulery doctor` for how to get a meter",
            )
        watts = everywhere.max_watts
        wanted = objective
        if isinstance(wanted, str):
            wanted = parse_objective(wanted, watts if math.isfinite(watts) else 0.0)
        eta = wanted.eta if isinstance(wanted, Cost) else _USUAL_ETA
        if not math.isfinite(watts):
            if eta < 1:
                raise MissingHardwareError(
                    "the most that these devices draw is not known, so time cannot be weighed",
                    remedy="count energy only: objective='cost:eta=1'",
                )
            watts = 0.0
        job = Job(
            name=self.name,
            batch_sizes=tuple(self.batch_sizes),
            default=self.usual,
            cost=Cost(eta, watts),
            objective=None if isinstance(wanted, Cost) else wanted,
            max_epochs=self.max_epochs or MANY_EPOCHS,
            limits_watts=listed_limits(boards),
        )
        return job, everywhere.name


@dataclass(frozen=True, slots=True)
class _Devices:
    """What the processes of a job have together."""

    name: str
    count: int
    max_watts: float


def _devices(site: RunEnvironment) -> tuple[list[Device], list[Device]]:
    """Boards with a power limit, and what measures the job."""
    try:
        boards = site.boards()
        return boards, boards or site.metered()
    except Exception:
        if site.ranks is None:
            raise
        return [], []  # the other ranks wait for what this one has, whatever went wrong


def _gathered(site: RunEnvironment, devices: Sequence[Device]) -> _Devices:
    from joulery.power.tuner import weighed_cost

    watts = math.nan
    try:
        watts = weighed_cost(0.0, devices).max_watts
    except InvalidValueError:
        watts = math.nan  # some device does not say
    name = devices[0].info.name if devices else ""
    mine = (name, len(devices), watts if devices else 0.0)
    each = [mine] if site.ranks is None else list(site.ranks.gather(mine))
    total = sum(count for _, count, _ in each)
    name = next((name for name, _, _ in each if name), "")
    return _Devices(
        name if total == 1 else f"{name} × {total}", total, sum(watts for _, _, watts in each)
    )
