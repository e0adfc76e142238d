"""One training run: report its steps, and its power is tuned while it trains.

Fails open: without a GPU, without rights, with anything going wrong, the training goes on as it
would without us, and one line on stderr says what could not be done.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import weakref
from typing import TYPE_CHECKING, Any, TypeVar

from joulery.clock import REAL_CLOCK
from joulery.hardware.device import Capability, DeviceKind
from joulery.power.closing import ClosedAtTheEnd
from joulery.training.reports import write_report

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from joulery.clock import Clock
    from joulery.hardware.device import Device
    from joulery.objectives import Objective
    from joulery.power.result import TuningResult
    from joulery.power.tuner import Agreement, Memory, PowerTuner

T = TypeVar("T")

_log = logging.getLogger("joulery")

OBJECTIVE_VARIABLE = "JOULERY_OBJECTIVE"
OBSERVE_VARIABLE = "JOULERY_OBSERVE"
DEFAULT_OBJECTIVE = "cost:eta=0.5"
_FRAMEWORKS = ("torch", "tensorflow", "jax", "mxnet", "paddle")


class Run(ClosedAtTheEnd):
    """A training run whose power is tuned as it goes.

    Args:
        name: What recurs: runs of one name and batch size share what was learned about power.
        objective: What to minimise, as an objective or in words (``least-energy:slowdown=5%``);
            what ``joulery run`` was told unless given, or else ``cost:eta=0.5``.
        batch_size: Samples per step over all devices; part of what makes two runs alike.
        devices: The boards of this job; found unless given.
        observe: Only find out what could be saved, and leave the limit alone.
        group: The other processes of a data-parallel job, which decide together.
        clock: Real or virtual.

    Example:
        >>> run = joulery.Run("resnet", objective="least-energy:slowdown=5%")  # doctest: +SKIP
        >>> for epoch in run.epochs(90):                                       # doctest: +SKIP
        ...     for batch in run.steps(loader):
        ...         train(batch)
        ...     evaluate()
        >>> print(run.result)                                                  # doctest: +SKIP
    """

    def __init__(  # noqa: PLR0913 - all but the name by keyword, all with a default
        self,
        name: str = "",
        *,
        objective: Objective | str | None = None,
        batch_size: int | None = None,
        devices: Sequence[Device] | None = None,
        observe: bool | None = None,
        group: Agreement | None = None,
        clock: Clock = REAL_CLOCK,
    ) -> None:
        self.name = name
        self.batch_size = batch_size
        self.total_steps = 0
        self._objective = objective
        self._devices = devices
        self._observe = observe
        self._group = group
        self._clock = clock
        self._tuner: PowerTuner | None = None
        self._begun = self._closed = False
        self._why_not: str | None = None

    def step(self) -> None:
        """Say that a training step has ended."""
        self.total_steps += 1
        tuner = self._tuner
        if tuner is not None:
            tuner.step()
        elif not self._begun:
            self._begin()

    def steps(self, batches: Iterable[T]) -> Iterator[T]:
        """``batches``, with a step reported after each."""
        if self._tuner is not None:
            self._tuner.resume()
        for batch in batches:
            yield batch
            self.step()
        if self._tuner is not None:
            self._tuner.pause()  # what follows until the next loop is no training

    def epochs(self, max_epochs: int) -> Iterator[int]:
        """Epochs from 0; closes the run after the last."""
        yield from range(max_epochs)
        self.close()

    def close(self) -> None:
        """Give back what was found. May be called twice; the end of the process does it too."""
        if self._closed:
            return
        self._closed = self._begun = True
        if self._tuner is not None:
            self._tuner.close()
            self._report()

    @property
    def result(self) -> TuningResult | None:
        """What was found out about power; None before the choice is made, or without tuning."""
        return None if self._tuner is None else self._tuner.result

    @property
    def why_not(self) -> str | None:
        """Why the power is not tuned; None while it is."""
        if self._tuner is not None and self._tuner.failure is not None:
            return str(self._tuner.failure)
        return self._why_not

    def _begin(self) -> None:
        self._begun = True
        # The edge to somebody's training: whatever goes wrong in here must not end it.
        try:
            self._tuner = self._made_tuner(os.environ)
        except Exception as error:  # noqa: BLE001 - the fail-open guard
            self._why_not = str(error)
        if self._tuner is None:
            _log.warning("power is not tuned, training goes on: %s", self._why_not)
            self._report()
            return
        atexit.register(_close_if_alive, weakref.ref(self))
        self._tuner.step()
        self._report()

    def _made_tuner(self, environ: Mapping[str, str]) -> PowerTuner | None:
        from joulery.measure.attribution import local_rank
        from joulery.power.rules import Rules
        from joulery.power.tuner import PowerTuner

        boards = self._boards()
        if not boards:
            self._why_not = "no GPU with a power limit was found (see `joulery doctor`)"
            return None
        rank = local_rank(environ)
        if rank is not None and rank.size > 1 and self._group is None:
            self._why_not = (
                "several processes train together; give Run a group, so that they decide together"
            )
            return None
        observe = self._observe
        if observe is None:
            observe = bool(environ.get(OBSERVE_VARIABLE))
        return PowerTuner(
            boards,
            self._wanted(boards, environ),
            clock=self._clock,
            rules=Rules(observe_only=observe),
            memory=self._memory(boards, environ),
            group=self._group,
        )

    def _boards(self) -> list[Device]:
        found = self._devices
        if found is None:
            from joulery.measure.attribution import my_devices

            found = my_devices(self._clock)
        return [
            device
            for device in found
            if device.info.kind is DeviceKind.GPU
            and device.info.parent is None
            and Capability.POWER_LIMIT in device.capabilities
        ]

    def _wanted(self, boards: Sequence[Device], environ: Mapping[str, str]) -> Objective:
        wanted = self._objective or environ.get(OBJECTIVE_VARIABLE) or DEFAULT_OBJECTIVE
        if not isinstance(wanted, str):
            return wanted
        from joulery.objective_text import parse_objective
        from joulery.power.tuner import weighed_cost

        return parse_objective(wanted, weighed_cost(1.0, boards).max_watts)

    def _memory(self, boards: Sequence[Device], environ: Mapping[str, str]) -> Memory | None:
        """Where profiles of this job are kept; nowhere for a run without a name."""
        if not self.name:
            return None
        from joulery.power.profiles import ProfileKey, ProfileStore
        from joulery.power.tuner import Memory

        wanted = self._wanted(boards, environ)
        key = ProfileKey(
            job=self.name,
            batch_size=self.batch_size or 0,
            device=boards[0].info.name,
            software=_software(),
            objective=repr(wanted),
            devices=len(boards),
        )
        return Memory(ProfileStore(), key)

    def _report(self) -> None:
        try:
            write_report(self._told())
        except Exception as error:  # noqa: BLE001 - the fail-open guard
            _log.warning("no report on this run: %s", error)

    def _told(self) -> dict[str, Any]:
        result = self.result
        return {
            "name": self.name,
            "steps": self.total_steps,
            "why_not": self.why_not,
            "result": None if result is None else result.to_dict(),
            "summary": None if result is None else str(result),
        }


def _software() -> str:
    """Frameworks that this process uses, with their versions: another one runs other kernels."""
    loaded = {name: sys.modules.get(name) for name in _FRAMEWORKS}
    return " ".join(
        f"{name} {getattr(module, '__version__', '?')}" for name, module in loaded.items() if module
    )


def _close_if_alive(run: weakref.ref[Run]) -> None:
    alive = run()
    if alive is not None:
        alive.close()
