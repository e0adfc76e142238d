"""The power tuner of a run, and its report to the ``joulery run`` that started the process."""

from __future__ import annotations

import json
import logging
import os
import sys
from concurrent.futures import wait
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from joulery.background import DRIVER_SECONDS, DriverThread, driver_result
from joulery.clock import REAL_CLOCK
from joulery.errors import MissingHardwareError, NotPossibleHereError
from joulery.fail_open import fail_open
from joulery.files import write_atomic
from joulery.frontier import Setting
from joulery.hardware import Capability
from joulery.power import TunerConfig, TunerState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from concurrent.futures import Future

    from joulery.hardware import Device, PowerLimit
    from joulery.metering import Meter
    from joulery.objectives import Objective
    from joulery.power import (
        Estimate,
        Knob,
        LimitKnob,
        LimitPlan,
        PhaseTuner,
        PhaseUse,
        PowerProfile,
        PowerTuner,
        ProfileFile,
        TuningResult,
    )
    from joulery.training._config import RunConfig, RunEnvironment

_log = logging.getLogger("joulery")

REPORTS_VARIABLE = "JOULERY_RUN_REPORTS"
# Longest wait at the end for a tuner that was never there, to say why; by hand.
_REASON_SECONDS = 2.0
_PHASES = {
    TunerState.WARMUP: "warming up",
    TunerState.PROBING: "profiling {}",
    TunerState.HOLDING: "holding {}",
    TunerState.DRIFTED: "profiling again, since the steps have changed",
    TunerState.STOPPED: "training",
}
_FIRST_CHOICE = "about 30 s or 110 steps, whichever is longer"  # by hand, for steady steps
_FRAMEWORKS = ("torch", "tensorflow", "jax", "mxnet", "paddle")


class LimitState(NamedTuple):
    """The power limit in force.

    Attributes:
        watts: Limit; None where it is unknown.
        changes: Number of times that it was set.
    """

    watts: float | None
    changes: int


UNKNOWN_LIMIT = LimitState(None, 0)


class RunPower:
    """Tunes the power of a run; made anew for each decision. Nothing is raised.

    Attributes:
        tuner: Active tuner; None before ``begin``, and where nothing is tuned.
        steps: Number of steps reported.
        original_watts: Original power limit; None before it is known.
        begun: Whether ``begin`` was called.
        is_due: Whether a tuner is still to be made.
        earlier_profile: Profile of an earlier part of the run; None for none.
        earlier_steps: Steps of an earlier part of the run.
        probed: Whether a probe has measured all that it should.
    """

    def __init__(self, config: RunConfig, environment: RunEnvironment) -> None:
        self.tuner: PowerTuner | None = None
        self.original_watts: float | None = None
        self.steps = 0
        self.begun = False
        self.is_due = True
        self.earlier_profile: PowerProfile | None = None
        self.earlier_steps = 0
        self.probed = False
        self._config = config
        self._all_steps = config.max_steps
        self._environment = environment
        self._report_name = f"{REAL_CLOCK.wall():.6f}-{os.getpid()}"
        self._driver = DriverThread(environment.clock)
        self._pending: Future[PowerTuner] | None = None
        self._knob: LimitKnob | None = None
        self._skipped: str | None = None
        self._phase_tuner: PhaseTuner | None = None

    @fail_open(None)
    def begin(
        self, batch_size: int | None, plan: LimitPlan | None = None, meter: Meter | None = None
    ) -> None:
        """Have the tuner made, beside the training: finding devices may take long.

        Args:
            batch_size: Batch size that is run, if it is known.
            plan: Power limits of the decision that is run; None for any whole watt.
            meter: Meter of the boards; the tuner makes its own unless given.
        """
        self.begun = True
        self._pending = self._driver.submit(partial(self._make, batch_size, plan, meter))

    def note_length(self, epoch_steps: int | None) -> None:
        """Note the number of steps of an epoch, where it is known: that of the run follows."""
        if self._all_steps is None and epoch_steps and self._config.max_epochs:
            self._all_steps = epoch_steps * self._config.max_epochs

    @fail_open(None)
    def take_tuner(self, wait_seconds: float = 0.0) -> None:
        """Take the tuner once it is made; ranks of a group wait for it, all at the same step."""
        pending, group = self._pending, self._environment.group
        if pending is None:
            return
        if wait_seconds or group is not None:
            wait([pending], wait_seconds or DRIVER_SECONDS)
        if not pending.done() and group is None and self._driver.failure is None:
            return
        self.is_due, self._pending = False, None
        failure = self._driver.failure
        if group is not None and not all(group.all_gather(failure is None)) and failure is None:
            self._skip("another rank cannot, see what it says on stderr")
        elif failure is not None:
            self._skip(str(failure))
        else:
            self.tuner, self._skipped = pending.result(), None

    def leave_to_parent(self) -> None:
        """Stop here, in a copy of the process, what was begun; nothing is given back or said."""
        if self.begun or self._phase_tuner is not None:
            self.tuner, self._phase_tuner, self._pending, self.is_due = None, None, None, False

    def _make(
        self, batch_size: int | None, plan: LimitPlan | None, meter: Meter | None
    ) -> PowerTuner:
        from joulery.power import LimitKnob, PowerTuner

        environment = self._environment
        boards, objective = self._survey()
        self._knob = None if plan is None else LimitKnob(boards, plan=plan)
        decided = plan is not None and plan.is_decided
        return PowerTuner(
            boards,
            objective,
            knob=self._knob or self._choose_knob(boards),
            meter=meter,
            clock=environment.clock,
            config=self._tuner_config(decided=decided),
            # A decision that states what to hold or to measure has more data than a local profile.
            profile=None if decided else self._profile(batch_size, boards, objective),
            earlier=None if decided else self.earlier_profile,
            process_group=environment.group,
        )

    def _tuner_config(self, *, decided: bool = False) -> TunerConfig:
        steps = self._all_steps
        # A decision answers for the deadline itself.
        left = int(decided) or None if steps is None else max(1, steps - self.earlier_steps)
        return TunerConfig(dry_run=bool(self._config.dry_run), work_steps=left)

    def _survey(self) -> tuple[list[Device], Objective]:
        """The boards to tune and the objective on them; notes the original limit.

        Raises:
            NotPossibleHereError: There are none, or other processes set them too.
        """
        from joulery.metering import local_rank
        from joulery.power import weighed_cost

        environment = self._environment
        boards = environment.boards()
        if not boards:
            raise MissingHardwareError(
                "no GPU with a power limit was found", remedy="see `joulery doctor`"
            )
        limits = [cast("PowerLimit", board).power_limits().current_watts for board in boards]
        self.original_watts = max(limits)
        rank = local_rank(environment.environ)
        if rank is not None and rank.size > 1 and environment.group is None:
            raise NotPossibleHereError(
                "several processes train together", remedy="give Run their process_group"
            )
        return boards, self._config.objective_for(weighed_cost(1.0, boards).max_watts)

    @fail_open(None)
    def enter_phase(self, name: str) -> None:
        """Begin a phase; the first one ends the tuning of the run as a whole."""
        if self._phase_tuner is None and self.is_due:
            self.begun, self.is_due = True, False
            self._pending = None
            self._phase_tuner = driver_result(self._make_phases, self._environment.clock)
        if self.tuner is not None:
            self.tuner.close()
        if self._phase_tuner is not None:
            self._phase_tuner.enter(name)

    def leave_phase(self, steps: int) -> None:
        """End the phase, in which so many steps were reported."""
        if self._phase_tuner is not None:
            self._phase_tuner.leave(steps)

    @property
    def phases(self) -> dict[str, PhaseUse]:
        """Time, energy and setting of each phase."""
        return {} if self._phase_tuner is None else self._phase_tuner.phases

    def _make_phases(self) -> PhaseTuner:
        from joulery.power import ClockKnob, LimitKnob, PhaseTuner

        boards, objective = self._survey()
        lockable = all(Capability.CLOCK_LOCK in board.capabilities for board in boards)
        return PhaseTuner(
            boards,
            objective,
            # A clock acts at once, and on work that draws less than any limit too.
            LimitKnob(boards)
            if self._config.knob == "limit" or not lockable
            else ClockKnob(boards),
            clock=self._environment.clock,
            config=self._tuner_config(),
            process_group=self._environment.group,
        )

    def _choose_knob(self, boards: Sequence[Device]) -> Knob:
        """The knob of a run whose decision lists no limits."""
        from joulery.power import BothKnobs, ClockKnob, LimitKnob

        if self._config.knob == "clock":
            return ClockKnob(boards)
        limit = LimitKnob(boards)
        lockable = all(Capability.CLOCK_LOCK in board.capabilities for board in boards)
        if self._config.knob == "limit" or not lockable:
            return limit
        return BothKnobs(limit, ClockKnob(boards))

    def fail(self, error: Exception) -> None:
        """Do without tuning because of an error; see ``joulery.fail_open``."""
        self._skip(str(error))

    def _skip(self, reason: str) -> None:
        self._skipped = reason
        _log.warning("power is not tuned, training continues: %s", reason)

    def end_probe(self) -> None:
        """Note that a probe has measured all that it should."""
        self.probed = True

    def close(self) -> None:
        """Restore the original power limit, and report on the run."""
        if self._environment.group is None:
            self.take_tuner(_REASON_SECONDS)
        self._pending = None
        self._driver.close()
        if self.tuner is not None:
            self.tuner.close()
        if self._phase_tuner is not None:
            self._phase_tuner.close()
        if self.begun:
            self.write_report(ended=True)

    def renew(self) -> None:
        """Make ready for another decision, once closed."""
        self.tuner = self._knob = self.original_watts = None
        self.begun, self.is_due, self.probed = False, True, False

    @property
    def result(self) -> TuningResult | None:
        """Result of tuning; None before the choice is made, or without tuning."""
        return None if self.tuner is None else self.tuner.result

    @property
    def skipped(self) -> str | None:
        """Reason why the power is not tuned; None while it is."""
        if self.tuner is not None and self.tuner.failure is not None:
            return str(self.tuner.failure)
        return self._skipped

    @property
    def profile(self) -> PowerProfile | None:
        """The profile for a later part of the run; None before there is one."""
        return self.earlier_profile if self.tuner is None else self.tuner.profile

    def limit(self) -> LimitState:
        """The power limit in force."""
        tuner, knob = self.tuner, self._knob
        if tuner is None or knob is None:
            return LimitState(self.original_watts, 0)
        stopped = tuner.state is TunerState.STOPPED
        watts = self.original_watts if stopped else knob.watts
        return LimitState(watts, knob.changes + stopped)

    def chosen_watts(self) -> float | None:
        """The power limit that was chosen and is in force; the original one before that."""
        holding = self.tuner is not None and self.tuner.state is TunerState.HOLDING
        return self.limit().watts if holding else self.original_watts

    def phase(self) -> str:
        """Phase of tuning, in words such as ``holding 160 W``."""
        tuner = self.tuner
        if tuner is None:
            return "training"
        setting = replace(tuner.setting or Setting(), device=None, devices=None)
        return _PHASES[tuner.state].format(setting)

    @property
    def summary(self) -> str:
        """What tuning has come to, in words; empty without a tuner."""
        tuner = self.tuner
        if tuner is None:
            return self.skipped or ""
        if tuner.failure is not None:
            return f"tuning stopped: {tuner.failure}"
        if self.result is not None:
            return self.result.summary
        if tuner.state is not TunerState.STOPPED:
            return self.phase()
        return f"ended before a limit was chosen, which takes {_FIRST_CHOICE}"

    def estimates(self) -> dict[float, Estimate]:
        """Estimates of a step by power limit, as far as the decision lists limits."""
        return {} if self._knob is None else self._knob.estimates()

    def _profile(
        self, batch_size: int | None, boards: Sequence[Device], objective: Objective
    ) -> ProfileFile | None:
        """The profile of this job on this machine; None for a run without a name."""
        if not self._config.name:
            return None
        from joulery.power import ProfileFile

        return ProfileFile(
            job=self._config.name,
            batch_size=batch_size or 0,
            device=boards[0].info.name,
            software=_software(),
            objective=repr(objective),
            devices=len(boards),
        )

    def write_report(self, *, ended: bool = False) -> None:
        """Report on the run to the ``joulery run`` that started it; once for all of its ranks."""
        if not _is_first_here(self._environment):
            return
        try:
            result = self.result
            write_report(
                {
                    "name": self._config.name,
                    "objective": self._config.objective_label,
                    "steps": self.steps,
                    "ended": ended,
                    "tuning_skipped": self.skipped,
                    "phases": {name: use.to_dict() for name, use in self.phases.items()},
                    "result": None if result is None else result.to_dict(),
                    "summary": self.summary if ended else None,
                },
                self._report_name,
            )
        except Exception as error:  # noqa: BLE001 - training continues without a report
            _log.warning("no report on this run: %s", error)


def write_report(document: Mapping[str, Any], name: str) -> None:
    """Write the report of a run in place of its earlier one; a failure is ignored.

    ``joulery run`` names a folder in the environment and reads one small file per run from it.
    """
    folder = os.environ.get(REPORTS_VARIABLE)
    if not folder:
        return
    with suppress(OSError):
        content = json.dumps(document, allow_nan=False).encode()
        write_atomic(Path(folder) / f"{name}.json", content)


def read_reports(folder: Path) -> list[dict[str, Any]]:
    """Reports of all runs, in the order in which they began; damaged ones are left out."""
    documents = []
    for path in sorted(folder.glob("*.json")):
        with suppress(OSError, ValueError):
            document = json.loads(path.read_text(encoding="utf-8"))
            if isinstance(document, dict):
                documents.append(document)
    return documents


def _is_first_here(environment: RunEnvironment) -> bool:
    """Whether this is the first on its node of the processes that decide together."""
    if environment.group is None:
        return True
    from joulery.metering import local_rank

    local = local_rank(environment.environ)
    return (environment.group.rank if local is None else local.rank) == 0


def _software() -> str:
    """Frameworks that this process uses, with their versions: another one runs other kernels."""
    loaded = {name: sys.modules.get(name) for name in _FRAMEWORKS}
    return " ".join(
        f"{name} {getattr(module, '__version__', '?')}" for name, module in loaded.items() if module
    )
