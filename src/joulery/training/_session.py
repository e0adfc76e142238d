"""The decisions of one recurrence: asked for, run one after the other, and reported.

A session may raise; :class:`joulery.Run` keeps that from the training. With several processes all
of them call the same methods in the same order, and rank 0 alone asks and reports.
"""

from __future__ import annotations

import logging
import math
import os
import uuid
from dataclasses import replace
from enum import Enum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from msgspec.structs import replace as replace_fields

from joulery.background import PeriodicTask, driver_result
from joulery.client import STORE_VARIABLE, RunMeasurements, is_server, team_of
from joulery.errors import InvalidValueError, JouleryError, NotPossibleHereError
from joulery.frontier import ASSUMED, OperatingPoint, Provenance, Setting
from joulery.jobs import ASKED_FOR, EnergyEntry, Measured, Outcome, Request
from joulery.jobs.policies import ActionKind, RunEnd
from joulery.training._config import define_job
from joulery.training._early_stopping import CostLimit, ending_of
from joulery.training._energy import NOTHING, EnergyAccount, Usage
from joulery.training._live import LiveReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from joulery.client import DecisionBackend, ResilientClient
    from joulery.jobs import Decision, Definition, Job, LiveState
    from joulery.metering import Meter
    from joulery.power import LimitPlan
    from joulery.training._config import DecisionService, RunConfig, RunEnvironment
    from joulery.training._early_stopping import TargetTracker
    from joulery.training._energy import DeviceEnergy
    from joulery.training._tuning import RunPower

_log = logging.getLogger("joulery")

# Longest time that a training waits for an answer. The first use of a store makes its tables, and
# a server on a busy machine may take seconds to decide; one that is not there is given up sooner.
_ANSWER_SECONDS = 10.0
_REQUEST_SHARE = 0.9
_MOST_PROBES = 12
_SAME_WATTS = 0.5
# Least relative error of an epoch estimated from steps, whose stalls were left out.
_SLICE_ERROR = 0.01
_LARGEST_ERROR = 1.0  # what is known less well than this is not reported
_LONGEST_TEXT = 200
_HEARTBEATS_PER_LEASE = 5.0
_HEARTBEAT_SECONDS = 1.0, 60.0  # shortest and longest time between two
_WATCHED_SECONDS = 12.0  # longest time between two that a server shows to people


class _Stage(Enum):
    """Stage of an attempt."""

    WANTED = 0
    DECIDED = 1
    RUNNING = 2
    ENDED = 3


class _Resumed(NamedTuple):
    """A decision of which a part was run before a checkpoint."""

    request: Request
    epochs: int
    used: Usage


class DecisionSession:
    """Asks for the decisions of one recurrence, accounts for them, and reports how they ended.

    Attributes:
        decision: Decision that is or was run; None before the first, or where nothing was decided.
        stop_reason: Reason why the last attempt ended before its target; None while it goes on.
        account: Energy account of the attempt under way; None between attempts.
        cost_limit: Cost limit within the epochs of the attempt; None where they are not to be cut.
        meter: Meter of the job's devices; None before the first decision.
        trainings: Number of trainings begun.
    """

    def __init__(
        self,
        config: RunConfig,
        environment: RunEnvironment,
        power: RunPower,
        steps: Callable[[], int] = lambda: 0,
    ) -> None:
        self.decision: Decision | None = None
        self.stop_reason: str | None = None
        self.account: EnergyAccount | None = None
        self.cost_limit: CostLimit | None = None
        self.meter: Meter | None = None
        self.trainings = 0
        self._config = config
        self._environment = environment
        self._power = power
        self._steps = steps
        self._definition: Definition  # from the first decision on
        self._client: ResilientClient | None = None
        self._skipped: str | None = None
        self._stage = _Stage.WANTED
        self._key, self._asked = uuid.uuid4().hex, 0
        self._after: str | None = None
        self._request: Request | None = None
        self._resumed: _Resumed | None = None
        self._can_resume = False  # a checkpoint was taken of the attempt under way
        self._outside_training = NOTHING
        self._probes_useful = True
        self._last_attempt = False
        self._heartbeat: PeriodicTask | None = None
        self._live: LiveReader | None = None
        self._processes = 1

    @property
    def batch_size(self) -> int:
        """Samples per step over all devices."""
        if self.decision is not None:
            return self.decision.batch_size
        return cast("int", self._config.default_batch_size)

    @property
    def _job(self) -> Job:
        return self._definition.job

    # Deciding.

    def decide(self, *, can_probe: bool = False, last: bool = False) -> None:
        """Ask for the next decision, unless one waits to be run.

        Args:
            can_probe: Whether the loop can be begun again after a probe.
            last: Whether no other attempt will follow, so that this one must not be stopped.
        """
        if self._stage is not _Stage.WANTED or self._skipped is not None:
            return
        self._last_attempt = last or bool(self._config.dry_run)
        try:
            self._prepare_on_all_ranks()
            self.decision = self._decide_on_all_ranks(can_probe=can_probe and self._probes_useful)
        except JouleryError as error:
            self._skipped = str(error)
            size = self.batch_size
            _log.warning("joulery: batch size %d, since nothing is decided: %s", size, error)
            return
        self._stage = _Stage.DECIDED
        self.stop_reason = None
        if self.decision.kind == ActionKind.TRAIN:
            self.trainings += 1

    def _prepare_on_all_ranks(self) -> None:
        """Prepare on every rank or on none: one that cannot must not leave the others waiting."""
        if self.meter is not None:
            return
        group = self._environment.group
        if group is None:
            self._prepare()
            return
        failed: Exception | None = None
        try:
            self._prepare()
        except Exception as error:  # noqa: BLE001 - raised below, once all know
            failed = error
        ready = group.all_gather(failed is None)
        self._processes = len(ready)
        if failed is not None:
            raise failed
        if not all(ready):
            raise NotPossibleHereError(
                "another rank could not begin", remedy="see what it says on stderr"
            )

    def _prepare(self) -> None:
        from joulery.metering import Meter

        environment = self._environment
        group = environment.group
        if environment.processes > 1 and group is None:
            raise InvalidValueError(
                "several processes train together and cannot agree on a batch size",
                remedy="give Run their process_group; for torch, joulery.integrations.torch_ranks",
            )
        self._definition = define_job(self._config, environment)
        clock = environment.clock

        def started() -> Meter:
            return Meter(environment.boards() or environment.metered(), clock=clock).start()

        if group is None or group.rank == 0:
            self._client = self._new_client()
        self.meter = driver_result(started, clock)

    def _new_client(self) -> ResilientClient:
        from joulery.client import ResilientClient, open_backend

        service = cast("DecisionService", self._config.store)
        clock = self._environment.clock
        location = str(service.location or os.environ.get(STORE_VARIABLE) or "")

        def opened() -> DecisionBackend:
            # A little less than the bound, so that what went wrong can still be said.
            seconds = _REQUEST_SHARE * _ANSWER_SECONDS
            return open_backend(
                location or None, service.team, service.token, seconds=seconds, clock=clock
            )

        return ResilientClient(
            opened,
            location.rstrip("/") if is_server(location) else str(Path(location).resolve()),
            _ANSWER_SECONDS,
            self._definition,
            team=team_of(service.team),
            clock=clock,
        )

    def _decide_on_all_ranks(self, *, can_probe: bool) -> Decision:
        """The next decision, the same on every rank."""
        group = self._environment.group
        if group is None:
            return self._decide(can_probe=can_probe)
        decision: Decision | None = None
        if group.rank == 0:
            # The others wait for an answer, whatever goes wrong here.
            try:
                decision = self._decide(can_probe=False)
            except Exception:
                group.broadcast(None)
                raise
        decision = group.broadcast(decision)
        if decision is None:
            raise NotPossibleHereError(
                "rank 0 could not find out what to run", remedy="see what it says on stderr"
            )
        return decision

    def _decide(self, *, can_probe: bool) -> Decision:
        client, config = self._client, self._config
        assert client is not None  # noqa: S101 - prepared
        can_probe = (
            can_probe
            and not config.dry_run
            and self._asked < _MOST_PROBES
            and bool(self._environment.boards())
        )
        self._asked += 1
        only = config.default_batch_size if config.dry_run else None
        self._request = Request(self._report_key, self._after, can_probe, only)
        if self._resumed is not None:
            self._request = self._resumed.request  # the same key gives the same decision
        decision = client.decide(self._request)
        first = self._asked == 1 and decision.id and decision.recurrence == 0
        if first and client.defined is not None and client.defined.warm_start:
            _log.warning("joulery: %s: %s", config.name, client.defined.warm_start)
        if config.dry_run and decision.reason.startswith(ASKED_FOR):
            size, reason = decision.batch_size, decision.reason
            _log.warning("joulery: dry run at batch size %d: %s", size, reason)
        return decision

    @property
    def _report_key(self) -> str:
        """Idempotency key of the latest decision and of the report on it."""
        return f"{self._key}-{self._asked}"

    def state(self, epochs: int) -> dict[str, Any] | None:
        """The decision under way and its cost so far, to keep in a checkpoint; None without one."""
        account, decision, request = self.account, self.decision, self._request
        if account is None or decision is None or request is None or not account.here().known:
            return None
        used = account.here()
        self._can_resume = True
        return {
            "id": decision.id,
            "request": request.to_document(),
            "asked": self._asked,
            "epochs": epochs,
            "seconds": used.seconds,
            "joules": used.joules,
        }

    def resume(self, state: Mapping[str, Any]) -> None:
        """Go on with the decision of a checkpoint; before anything is decided."""
        request = Request.from_document(state["request"])
        used = Usage(float(state["seconds"]), float(state["joules"]))
        self._resumed = _Resumed(request, int(state["epochs"]), used)
        self._asked = int(state["asked"]) - 1
        self._key = request.key.rpartition("-")[0]
        self._after = request.after

    # Running.

    def begin(self, epochs: int = 0) -> None:
        """Begin to run what was decided, unless it is running.

        Args:
            epochs: Whole epochs trained before, under a probe.
        """
        meter, decision = self.meter, self.decision
        if self._stage is not _Stage.DECIDED or meter is None or decision is None:
            return
        self._stage, self._can_resume = _Stage.RUNNING, False
        group, clock = self._environment.group, self._environment.clock
        before, resumed, self._resumed = NOTHING, self._resumed, None
        if resumed is not None:
            epochs, before = resumed.epochs, resumed.used
        self.account = EnergyAccount(meter, group, self._power.limit, epochs, before)
        if self._client is not None and decision.id:
            self._start_heartbeat(decision.expires_wall_seconds - clock.wall())
        can_be_cut = self._may_stop and group is None  # ranks leave their loops together
        if can_be_cut and math.isfinite(decision.cost_ceiling_joules):
            self.cost_limit = CostLimit(decision, self._job, self.account, clock)

    def _start_heartbeat(self, lease_seconds: float) -> None:
        """Send heartbeats often enough that a few may be lost, and that people can watch."""
        shortest, longest = _HEARTBEAT_SECONDS
        seconds = min(max(lease_seconds / _HEARTBEATS_PER_LEASE, shortest), longest)
        clock, account, meter = self._environment.clock, self.account, self.meter
        watched = self._client is not None and self._client.watched
        if watched and account is not None and meter is not None:
            seconds = min(seconds, _WATCHED_SECONDS)
            measured, steps = account.measurement(), self._steps()
            self._live = LiveReader(meter.devices, clock, measured, steps, self._processes)
        task = PeriodicTask(self._beat, seconds=seconds, clock=clock, name="joulery-heartbeat")
        try:
            task.start()
        except RuntimeError as error:  # no more threads: the lease will expire
            _log.debug("joulery: no heartbeat: %s", error)
            return
        self._heartbeat = task

    def _beat(self) -> None:
        try:
            self.heartbeat()
        except Exception as error:  # noqa: BLE001 - a later one may succeed, training goes on
            _log.debug("joulery: a heartbeat failed: %s", error)

    def heartbeat(self) -> None:
        """Report that the decision is being worked on, and how far."""
        account, client, decision = self.account, self._client, self.decision
        if account is None or client is None or decision is None:
            return
        spent = account.here() if self._environment.group is None else account.latest_total
        if spent.known:
            epochs = self._reported_epochs(decision, account)
            progress = Outcome(RunEnd.ABANDONED, epochs, *spent)
            client.heartbeat(decision, progress, self._live_state(account))

    def _live_state(self, account: EnergyAccount) -> LiveState | None:
        """The live state for the dashboard; None without a server, or where it cannot be read."""
        live = self._live
        if live is None:
            return None
        try:
            phase = "validating" if account.is_validating else self._power.phase()
            seconds = account.here().seconds
            return live.read(account.measurement(), self._steps(), seconds, phase).checked()
        except Exception as error:  # noqa: BLE001 - the lease matters more
            _log.debug("joulery: no live state: %r", error)
            return None

    def limit_plan(self, probed: Callable[[], None]) -> LimitPlan | None:
        """Power limits that the decision asks for; None leaves them to the tuner.

        Args:
            probed: Function to call when a probe has measured all that it should.
        """
        from joulery.power import LimitPlan

        decision = self.decision
        if self.account is None or decision is None or not self._job.limits_watts:
            return None
        if self._config.dry_run:
            return LimitPlan(self._job.limits_watts)
        probe = decision.kind == ActionKind.PROBE
        return LimitPlan(
            self._job.limits_watts,
            None if probe else decision.power_limit_watts,
            decision.probe_limits_watts,
            probed if probe else None,
        )

    # Stopping.

    @property
    def _may_stop(self) -> bool:
        return self._config.early_stop and not self._last_attempt

    def may_begin_epoch(self, target: TargetTracker) -> bool:
        """Whether another epoch is to be trained; every rank has to ask, between epochs."""
        account, decision = self.account, self.decision
        if account is None or decision is None:
            return not target.is_over
        group = self._environment.group
        limit = CostLimit(decision, self._job, account, self._environment.clock)
        reason = limit.exceeded_by_next_epoch()  # every rank has to ask
        reason = reason if self._may_stop and not target.is_over else None
        target.synchronize(group)
        if group is not None:
            reason = group.broadcast(reason)
        if reason is not None:
            self.stop_reason = reason
        return not (target.is_over or reason)

    def stop_within_epoch(self) -> bool:
        """Whether the epoch under way is to be left, since it is over its cost limit."""
        account, limit = self.account, self.cost_limit
        if account is None or limit is None or not account.in_epoch:
            return False
        reason = limit.exceeded_within_epoch()
        if reason is not None:
            account.cut_epoch()
            self.stop_reason = reason
        return reason is not None

    # Reporting.

    def finish(self, target: TargetTracker, *, abandoned: bool = False) -> None:
        """Report how the attempt ended, once; every rank has to, unless it was abandoned."""
        account, decision, group = self.account, self.decision, self._environment.group
        if account is None or decision is None:
            return
        self._stage, self.account, self.cost_limit = _Stage.ENDED, None, None
        self._stop_heartbeat()
        if not abandoned:
            target.synchronize(group)
        end, self.stop_reason, is_last = ending_of(
            decision.kind, target, self.stop_reason, account.epochs, abandoned=abandoned
        )
        self._last_attempt = self._last_attempt or is_last
        if target.diverged and end == RunEnd.EXHAUSTED:
            account.epochs = self._job.max_epochs  # no number of epochs would have been enough
        if abandoned and (group is not None or self._can_resume):
            account.close()
            return  # the other ranks may be gone, or it goes on elsewhere; the lease will expire
        outcome = self._outcome(decision, account, end)
        self._outside_training = account.outside_training() or self._outside_training
        self._after = decision.id or self._after
        devices = account.by_device()  # every rank has to
        if self._client is not None:
            found = partial(measurements_of, decision, outcome, devices, self._definition)
            self._client.report(decision, outcome, self._report_key, found)

    def _outcome(self, decision: Decision, account: EnergyAccount, end: RunEnd) -> Outcome:
        spent = account.total()
        account.close()
        if not spent.known:
            # Nothing is claimed of what was not measured.
            _log.warning("joulery: nothing is learned from this run: its energy is not known")
            probe = decision.kind == ActionKind.PROBE
            return Outcome(RunEnd.PROBED if probe else RunEnd.ABANDONED, 0.0, 0.0, 0.0)
        limit = self._power.chosen_watts() if self._job.limits_watts else None
        epochs = self._reported_epochs(decision, account)
        return Outcome(end, epochs, *spent, limit, self._possible(self._measured(account)))

    def _reported_epochs(self, decision: Decision, account: EnergyAccount) -> float:
        if decision.kind == ActionKind.PROBE:
            return 0.0
        return float(min(account.epochs, self._job.max_epochs))

    def _possible(self, measured: Iterator[Measured]) -> tuple[Measured, ...]:
        """The figures, none above what the boards can draw: epochs of milliseconds are noisy."""
        most = self._job.cost.max_watts or math.inf
        return tuple(
            replace_fields(one, epoch_joules=min(one.epoch_joules, most * one.epoch_seconds))
            for one in measured
        )

    def _measured(self, account: EnergyAccount) -> Iterator[Measured]:
        """Cost of an epoch under each power limit that was held or measured."""
        limits, whole = self._job.limits_watts, account.epoch_costs()
        if not limits:
            yield from (one for one in whole if one.limit_watts is None)
            return
        slices = list(self._epochs_from_slices(account))
        for limit in limits:
            # Whole epochs at a limit, or slices of steps where their error is smaller.
            found = [
                next((one for one in seen if _same(one.limit_watts, limit)), None)
                for seen in (whole, slices)
            ]
            known = [one for one in found if one is not None]
            if known:
                best = min(known, key=lambda one: one.relative_error)
                yield replace_fields(best, limit_watts=limit)

    def _epochs_from_slices(self, account: EnergyAccount) -> Iterator[Measured]:
        """Cost of an epoch by power limit, from slices of steps."""
        count = account.steps_per_epoch
        outside = account.outside_training() or self._outside_training
        for watts, seen in self._power.estimates().items() if count else ():
            error = max(seen.seconds_error, seen.watts_error, _SLICE_ERROR)
            seconds = cast("int", count) * seen.seconds
            joules = seconds * seen.watts
            if error <= _LARGEST_ERROR and joules > 0:
                whole = seconds + outside.seconds, joules + outside.joules
                yield Measured(watts, *whole, error)

    # What follows.

    def continue_after_probe(self, target: TargetTracker) -> bool:
        """End a probe and ask what follows; whether it is the same batch size, so that it goes on.

        What was trained meanwhile then counts, and nothing has to be built again.
        """
        account, probed = self.account, self.decision
        if account is None or probed is None or probed.kind != ActionKind.PROBE:
            return True
        steps = account.steps_per_epoch
        self._probes_useful = bool(steps)  # else the cost of an epoch stays unknown
        self.finish(target)
        self.renew()
        self.decide(can_probe=True)
        if self.decision is None or self.decision.batch_size != probed.batch_size:
            return False
        self.begin(account.epochs)
        if self.account is not None:
            self.account.begin_epoch()
            self.account.begin_training(steps)
        return True

    def renew(self) -> None:
        """Make ready for another attempt, unless it was decided already."""
        if self._stage is _Stage.ENDED:
            self._stage = _Stage.WANTED

    def needs_another_attempt(self, target: TargetTracker) -> bool:
        """Whether another attempt should be made, once one has ended."""
        if self._skipped is not None or target.reached:
            return False
        waiting = self._stage is _Stage.DECIDED
        return waiting or (self.stop_reason is not None and not self._last_attempt)

    def close(self, target: TargetTracker) -> None:
        """Report what is known of an attempt that did not end, and release everything."""
        self.finish(target, abandoned=True)
        client, self._client = self._client, None
        if client is not None:
            if self._stage is _Stage.DECIDED and self.decision is not None:
                # It was asked for and never begun, so others need not wait for it.
                nothing = Outcome(RunEnd.ABANDONED, 0.0, 0.0, 0.0)
                client.report(self.decision, nothing, self._report_key)
            client.close()
        meter, self.meter = self.meter, None
        if meter is not None:
            meter.close()

    def _stop_heartbeat(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.stop(timeout_seconds=0.0)  # one that is under way may still end
            self._heartbeat = None
        if self._live is not None:
            self._live.close()
            self._live = None


def _same(watts: float | None, limit: float) -> bool:
    return watts is not None and abs(watts - limit) <= _SAME_WATTS


def measurements_of(
    decision: Decision, outcome: Outcome, devices: Sequence[DeviceEnergy], definition: Definition
) -> RunMeasurements:
    """Measurements of an attempt that are worth keeping besides its outcome."""
    origin = ASSUMED
    if devices:
        origin = Provenance.combined((one.provenance, one.joules) for one in devices)
    setting = Setting(
        batch_size=decision.batch_size,
        device=devices[0].name if devices else definition.device,
        devices=len(devices) if len(devices) > 1 else None,
    )

    def point(one: Measured) -> OperatingPoint:
        # Joules are seconds times watts, which err independently.
        error = math.sqrt(2.0) * one.relative_error
        return OperatingPoint(
            one.epoch_seconds,
            one.epoch_joules,
            replace(setting, power_limit_watts=one.limit_watts),
            Provenance(origin.origin, origin.source, error),
        )

    def energy(one: DeviceEnergy) -> EnergyEntry:
        error = one.provenance.relative_error
        return EnergyEntry(
            decision.id,
            one.id[:_LONGEST_TEXT],
            one.seconds,
            one.joules,
            one.provenance.origin.value,
            one.provenance.source[:_LONGEST_TEXT],
            None if error is None else round(error, 6),
        )

    return RunMeasurements(
        batch_size=decision.batch_size,
        device=definition.device,
        points=tuple(point(one) for one in outcome.measured),
        energy=tuple(energy(one) for one in devices),
        work=f"an epoch of {definition.job.name} at batch size {decision.batch_size}",
    )
