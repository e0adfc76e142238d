"""Offline batch inference with a deadline: as slow as the deadline allows, if that saves energy."""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING

import numpy as np

from joulery.clock import REAL_CLOCK
from joulery.errors import JouleryError
from joulery.serving._knobs import BoardsKnob, service_boards
from joulery.units import finite

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Self

    from joulery.clock import Clock
    from joulery.governor import Hold
    from joulery.hardware import Device
    from joulery.serving._controller import KnobCurves

_log = logging.getLogger("joulery")
# Share of the remaining time that is kept in reserve; decisions come this far apart.
_RESERVE, _DECISION_SECONDS = 0.08, 2.0
# Batches are mixed work; this much of their energy is that of prompts (simulated boards).
_PROMPT_SHARE = 0.5


class DeadlineController:
    """Chooses the position of a knob for work that must be done by a deadline.

    Args:
        total: Amount of work, in any unit.
        deadline_seconds: Time at which it must be done, on the clock of ``decide``.
        curves: Predicted effect of each position.
    """

    def __init__(self, total: float, deadline_seconds: float, curves: KnobCurves) -> None:
        self._total = finite(total, "amount of work", minimum=0.0)
        self._deadline = finite(deadline_seconds, "deadline in seconds")
        self._stretch = _PROMPT_SHARE * curves.prefill + (1 - _PROMPT_SHARE) * curves.decode
        joules = _PROMPT_SHARE * curves.prefill_joules + (1 - _PROMPT_SHARE) * curves.decode_joules
        self._cheapest = int(np.argmin(joules))
        self._top = len(self._stretch) - 1
        self._position = self._top
        self._latest: tuple[float, float] | None = None
        self._full_rate = math.nan

    def decide(self, now_seconds: float, done: float) -> int:
        """Position to use from now on, when ``done`` of the work is done."""
        if self._latest is None:
            self._latest = now_seconds, done
            return self._top
        seconds, work = now_seconds - self._latest[0], done - self._latest[1]
        if seconds < _DECISION_SECONDS or work <= 0:
            return self._position
        self._latest = now_seconds, done
        rate = work / seconds * float(self._stretch[self._position])
        known = self._full_rate
        self._full_rate = rate if math.isnan(known) else 0.7 * known + 0.3 * rate
        needed = (self._total - done) / self._full_rate
        available = (self._deadline - now_seconds) * (1 - _RESERVE)
        in_time = np.flatnonzero(needed * self._stretch <= available)
        slowest = int(in_time[0]) if len(in_time) else self._top
        self._position = max(slowest, self._cheapest)
        return self._position


class BatchRun:
    """Offline batch inference with a deadline, at the least energy that meets it.

    Never raises after its start; the boards return to their original setting at the end.

    Args:
        total: Number of requests, or any other amount of work.
        deadline_seconds: Time until which it must be done, from the start.
        devices: Boards of the job; its GPUs unless given.
        knob: ``clock``, ``limit`` or ``auto``.
        clock: Real or virtual clock.
        hold: Function that holds a board; a lease of the governor unless given.

    Examples:
        >>> with BatchRun(len(prompts), deadline_seconds=3600) as batch:  # doctest: +SKIP
        ...     for chunk in chunks:
        ...         answers += model.generate(chunk)
        ...         batch.step(len(chunk))
    """

    def __init__(
        self,
        total: float,
        deadline_seconds: float,
        *,
        devices: Sequence[Device] | None = None,
        knob: str = "auto",
        clock: Clock = REAL_CLOCK,
        hold: Hold | None = None,
    ) -> None:
        self._clock = clock
        self._terms = finite(total, "amount of work", minimum=0.0), deadline_seconds
        finite(deadline_seconds, "deadline in seconds", minimum=0.0)
        self._knob: BoardsKnob | None = None
        try:
            boards = service_boards(clock) if devices is None else devices
            self._knob = BoardsKnob(boards, knob, hold)
        except JouleryError as error:
            _log.warning("batch inference goes on without tuning: %s", error)
        self._controller: DeadlineController | None = None
        self.done = 0.0

    def __enter__(self) -> Self:
        if self._knob is not None:
            total, seconds = self._terms
            deadline = self._clock.now() + seconds
            self._controller = DeadlineController(total, deadline, self._knob.curves())
            self._controller.decide(self._clock.now(), 0.0)
        return self

    def step(self, done: float = 1.0) -> None:
        """Report that more work is done. Never raises."""
        self.done += done
        if self._controller is None or self._knob is None:
            return
        try:
            self._knob.set(self._controller.decide(self._clock.now(), self.done))
        except Exception as error:  # noqa: BLE001 - inference goes on whatever happens here
            _log.warning("batch inference goes on at the original setting: %s", error)
            self._controller = None

    def __exit__(self, *_: object) -> None:
        if self._knob is not None:
            try:
                self._knob.release()
            except JouleryError as error:
                _log.warning("the governor restores the setting: %s", error)
