"""The attempts of one recurrence: each runs one decision, accounts for it and reports its end.

An attempt may raise; ``joulery.Run`` keeps that from the training. With several processes all
of them call the same methods in the same order, and rank 0 alone asks and reports.
"""

from __future__ import annotations

import logging
import math
import os
import uuid
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from joulery.background import driver_result
from joulery.client import STORE_VARIABLE, team_of
from joulery.errors import InvalidValueError, JouleryError, NotPossibleHereError
from joulery.jobs import Outcome, Request
from joulery.jobs.policies import ActionKind, RunEnd
from joulery.power import LimitPlan
from joulery.training._config import define_job
from joulery.training._early_stopping import CostLimit, ending_of
from joulery.training._energy import FRESH, EnergyAccount, Start, Usage, run_measurements
from joulery.training._live import DecisionHeartbeat

if TYPE_CHECKING:
    from collections.abc import Mapping

    from joulery.client import DecisionBackend, ResilientClient
    from joulery.jobs import Decision, Definition
    from joulery.metering import Meter
    from joulery.training._config import DecisionService, RunConfig, RunEnvironment
    from joulery.training._early_stopping import TargetTracker
    from joulery.training._tuning import RunPower

_log = logging.getLogger("joulery")

# Longest time that a training waits for an answer. The first use of a store makes its tables, and
# a server on a busy machine may take seconds to decide; one that is not there is given up sooner.
_ANSWER_SECONDS = 10.0
_REQUEST_SHARE = 0.9  # by hand: leaves a second to say what went wrong
_MOST_PROBES = 12  # by hand: more than the batch sizes of most jobs


@dataclass(frozen=True, slots=True)
class RunServices:
    """The parts that all attempts of a run share.

    Attributes:
        definition: Job that decisions are asked for.
        client: Client of the store or server; None on all ranks but the first.
        meter: Meter of the job's devices in this process.
        power: Power tuner of the run.
        config: Settings of the run.
        environment: Devices and processes of the run.
        processes: Number of processes that train together.
    """

    definition: Definition
    client: ResilientClient | None
    meter: Meter
    power: RunPower
    config: RunConfig
    environment: RunEnvironment
    processes: int = 1

    def close(self) -> None:
        """Deliver what waits, and stop measuring."""
        if self.client is not None:
            self.client.close()
        self.meter.close()


class Attempt:
    """One decision: it is begun, trained epoch by epoch, and reported once.

    Attributes:
        decision: Decision to run.
        account: Energy account while the attempt runs; None before and after.
        cost_limit: Cost limit within its epochs; None where they are not to be cut.
        stop_reason: Reason why the attempt ended before its target; None otherwise.
        ended: Whether the attempt has ended.
        is_last: Whether no other attempt may follow.
    """

    def __init__(
        self,
        services: RunServices,
        decision: Decision,
        request: Request,
        start: Start,
        *,
        is_last: bool = False,
    ) -> None:
        self.decision = decision
        self.account: EnergyAccount | None = None
        self.cost_limit: CostLimit | None = None
        self.stop_reason: str | None = None
        self.ended = False
        self.is_last = is_last
        self._services = services
        self._request = request
        self._start = start
        self._heartbeat: DecisionHeartbeat | None = None
        self._can_resume = False  # a checkpoint was taken of the attempt

    @property
    def is_probe(self) -> bool:
        """Whether the decision is to measure for some seconds only."""
        return self.decision.kind == ActionKind.PROBE

    def begin(self) -> None:
        """Begin to run the decision, unless it is running or has ended."""
        if self.account is not None or self.ended:
            return
        services = self._services
        group, clock = services.environment.group, services.environment.clock
        self.account = EnergyAccount(services.meter, group, self._start)
        if services.client is not None and self.decision.id:
            self._heartbeat = DecisionHeartbeat(
                services.client, self.decision, self.account, services.power, services.processes
            )
            self._heartbeat.start(clock)
        can_be_cut = self._may_stop and group is None  # ranks leave their loops together
        if can_be_cut and math.isfinite(self.decision.cost_ceiling_joules):
            self.cost_limit = CostLimit(self.decision, services.definition.job, self.account, clock)

    def continue_from(self, probe: EnergyAccount) -> None:
        """Begin within the epoch of a probe of the same batch size, so that its epochs count."""
        self._start = self._start._replace(epochs=probe.epochs)
        self.begin()
        account = cast("EnergyAccount", self.account)
        account.begin_epoch(self._services.power.limit())
        account.begin_training(probe.steps_per_epoch)

    @property
    def outside_training(self) -> Usage:
        """What an epoch takes besides training, as far as is known."""
        return self._start.outside_training

    @property
    def meter(self) -> Meter | None:
        """Meter of the devices while the attempt runs."""
        return None if self.account is None else self._services.meter

    def limit_plan(self) -> LimitPlan | None:
        """Power limits that the decision asks for; None leaves them to the tuner."""
        limits, decision = self._services.definition.job.limits_watts, self.decision
        if self.account is None or not limits:
            return None
        if self._services.config.dry_run:
            return LimitPlan(limits)
        if self.is_probe:
            end_probe = self._services.power.end_probe
            return LimitPlan(limits, None, decision.probe_limits_watts, end_probe)
        return LimitPlan(limits, decision.power_limit_watts, decision.probe_limits_watts)

    def state(self, epochs: int) -> dict[str, Any] | None:
        """The decision under way and its cost, to keep in a checkpoint; None without one."""
        usage = None if self.account is None else self.account.here()
        if usage is None or not usage.known:
            return None
        self._can_resume = True
        return {
            "id": self.decision.id,
            "request": self._request.to_document(),
            "asked": int(self._request.key.rpartition("-")[2]),
            "epochs": epochs,
            "seconds": usage.seconds,
            "joules": usage.joules,
        }

    # Epochs.

    @property
    def _may_stop(self) -> bool:
        return self._services.config.early_stop and not self.is_last

    def begin_epoch(self, target: TargetTracker) -> bool:
        """Begin an epoch, if another one is to be trained; every rank has to ask."""
        account = self.account
        if account is None:
            return not target.is_over
        environment, job = self._services.environment, self._services.definition.job
        limit = CostLimit(self.decision, job, account, environment.clock)
        reason = limit.exceeded_by_next_epoch()  # every rank has to ask
        reason = reason if self._may_stop and not target.is_over else None
        target.synchronize(environment.group)
        if environment.group is not None:
            reason = environment.group.broadcast(reason)
        self.stop_reason = reason or self.stop_reason
        if target.is_over or reason:
            return False
        account.begin_epoch(self._services.power.limit())
        return True

    def end_epoch(self) -> None:
        """End the epoch under way."""
        if self.account is not None:
            self.account.end_epoch(self._services.power.limit())

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

    # The end.

    def finish(self, target: TargetTracker, *, abandoned: bool = False) -> None:
        """Report how the attempt ended, once; every rank has to, unless it was abandoned."""
        account, group = self.account, self._services.environment.group
        if account is None:
            return
        self.ended, self.account, self.cost_limit = True, None, None
        if self._heartbeat is not None:
            self._heartbeat.stop()
        if not abandoned:
            target.synchronize(group)
        end, self.stop_reason, is_last = ending_of(
            self.decision.kind, target, self.stop_reason, account.epochs, abandoned=abandoned
        )
        self.is_last = self.is_last or is_last
        if target.diverged and end == RunEnd.EXHAUSTED:
            # No number of epochs would have been enough.
            account.epochs = self._services.definition.job.max_epochs
        if abandoned and (group is not None or self._can_resume):
            account.close()
            return  # the other ranks may be gone, or it continues elsewhere; the lease will expire
        self._report(account, end)

    def _report(self, account: EnergyAccount, end: RunEnd) -> None:
        outcome = self._outcome(account, end)
        self._start = Start(outside_training=account.outside_training())
        devices = account.by_device()  # every rank has to
        client, definition = self._services.client, self._services.definition
        if client is not None:
            measurements = partial(run_measurements, self.decision, outcome, devices, definition)
            client.report(self.decision, outcome, self._request.key, measurements)

    def _outcome(self, account: EnergyAccount, end: RunEnd) -> Outcome:
        usage = account.total()
        account.close()
        if not usage.known:
            # Nothing is claimed of what was not measured.
            _log.warning("joulery: nothing is learned from this run: its energy is not known")
            return Outcome(RunEnd.PROBED if self.is_probe else RunEnd.ABANDONED, 0.0, 0.0, 0.0)
        job, power = self._services.definition.job, self._services.power
        limit = power.chosen_watts() if job.limits_watts else None
        epochs = 0.0 if self.is_probe else float(min(account.epochs, job.max_epochs))
        measured = account.measured(job, power.estimates())
        return Outcome(end, epochs, *usage, limit, measured)

    def withdraw(self) -> None:
        """Report that the attempt was never begun, so that others need not wait for it."""
        client = self._services.client
        if client is not None and self.account is None and not self.ended:
            outcome = Outcome(RunEnd.ABANDONED, 0.0, 0.0, 0.0)
            client.report(self.decision, outcome, self._request.key)


class Recurrence:
    """Asks for one attempt after the other, until the target is reached or none is left.

    Attributes:
        trainings: Number of trainings decided.
        skipped: Reason why nothing is decided; None while decisions are made.
    """

    def __init__(self, config: RunConfig, environment: RunEnvironment, power: RunPower) -> None:
        self.trainings = 0
        self.skipped: str | None = None
        self.services: RunServices | None = None
        self._config = config
        self._environment = environment
        self._power = power
        self._key, self._asked = uuid.uuid4().hex, 0
        self._after: str | None = None
        self._checkpoint: tuple[Request, Start] | None = None
        self._probes_help = True

    def resume(self, state: Mapping[str, Any]) -> None:
        """Continue the decision of a checkpoint; before anything is decided."""
        request = Request.from_document(state["request"])
        usage = Usage(float(state["seconds"]), float(state["joules"]))
        self._asked = int(state["asked"]) - 1
        self._checkpoint = request, Start(int(state["epochs"]), usage)
        self._key = request.key.rpartition("-")[0]
        self._after = request.after

    def next_attempt(
        self, earlier: Attempt | None = None, *, can_probe: bool = False, is_last: bool = False
    ) -> Attempt | None:
        """The attempt of the next decision; None where nothing can be decided.

        Args:
            earlier: Attempt before it, if there was one.
            can_probe: Whether the loop can be begun again after a probe.
            is_last: Whether no other attempt will follow, so that this one must not be stopped.
        """
        if self.skipped is not None:
            return None
        start = FRESH if earlier is None else Start(outside_training=earlier.outside_training)
        try:
            services = self.services = self.services or self._prepare_on_all_ranks()
            request = self._request(can_probe=can_probe and self._probes_help)
            decision = self._decide_on_all_ranks(services, request)
        except JouleryError as error:
            self.skipped = str(error)
            size = self._config.default_batch_size
            _log.warning("joulery: batch size %d, since nothing is decided: %s", size, error)
            return None
        self.trainings += decision.kind == ActionKind.TRAIN
        self._after = decision.id or self._after
        if self._checkpoint is not None:
            (_, start), self._checkpoint = self._checkpoint, None
        is_last = is_last or bool(self._config.dry_run)
        return Attempt(services, decision, request, start, is_last=is_last)

    def follow_probe(self, probe: Attempt, target: TargetTracker) -> Attempt:
        """End a probe and ask what follows; where the batch size is the same, it has begun.

        The epochs of the probe then count, and nothing has to be built again. Where nothing is
        decided any more, the probe itself is returned.
        """
        account = cast("EnergyAccount", probe.account)
        self._probes_help = bool(account.steps_per_epoch)  # or the cost of an epoch stays unknown
        probe.finish(target)
        attempt = self.next_attempt(probe, can_probe=True)
        if attempt is None:
            return probe
        if attempt.decision.batch_size == probe.decision.batch_size:
            attempt.continue_from(account)
        return attempt

    def close(self) -> None:
        """Release everything."""
        services, self.services = self.services, None
        if services is not None:
            services.close()

    def _prepare_on_all_ranks(self) -> RunServices:
        """Prepare on every rank or on none: one that cannot must not leave the others waiting."""
        group = self._environment.group
        if group is None:
            return self._prepare()
        services: RunServices | None = None
        failure: Exception | None = None
        try:
            services = self._prepare()
        except Exception as error:  # noqa: BLE001 - raised below, once all know
            failure = error
        ready = group.all_gather(failure is None)
        if failure is not None:
            raise failure
        if services is None or not all(ready):
            raise NotPossibleHereError(
                "another rank could not begin", remedy="see what it says on stderr"
            )
        return replace(services, processes=len(ready))

    def _prepare(self) -> RunServices:
        from joulery.metering import Meter

        environment, config = self._environment, self._config
        group, clock = environment.group, environment.clock
        if environment.processes > 1 and group is None:
            raise InvalidValueError(
                "several processes train together and cannot agree on a batch size",
                remedy="give Run their process_group; for torch, joulery.integrations.torch_ranks",
            )
        definition = define_job(config, environment)

        def start_meter() -> Meter:
            return Meter(environment.boards() or environment.metered(), clock=clock).start()

        asks = group is None or group.rank == 0
        client = self._new_client(definition) if asks else None
        meter = driver_result(start_meter, clock)
        return RunServices(definition, client, meter, self._power, config, environment)

    def _new_client(self, definition: Definition) -> ResilientClient:
        from joulery.client import ResilientClient, open_backend

        service = cast("DecisionService", self._config.store)
        clock = self._environment.clock
        location = str(service.location or os.environ.get(STORE_VARIABLE) or "")

        def open_store() -> DecisionBackend:
            # A little less than the bound, so that what went wrong can still be said.
            seconds = _REQUEST_SHARE * _ANSWER_SECONDS
            return open_backend(
                location or None, service.team, service.token, seconds=seconds, clock=clock
            )

        return ResilientClient(
            open_store,
            location,
            _ANSWER_SECONDS,
            definition,
            team=team_of(service.team),
            clock=clock,
        )

    def _request(self, *, can_probe: bool) -> Request:
        """The next request; that of a checkpoint again, since its key gives the same decision."""
        config, environment = self._config, self._environment
        can_probe = (
            can_probe
            and environment.group is None
            and not config.dry_run
            and self._asked < _MOST_PROBES
            and bool(environment.boards())
        )
        self._asked += 1
        if self._checkpoint is not None:
            return self._checkpoint[0]
        only = config.default_batch_size if config.dry_run else None
        return Request(f"{self._key}-{self._asked}", self._after, can_probe, only)

    def _decide_on_all_ranks(self, services: RunServices, request: Request) -> Decision:
        """The answer to a request of rank 0, the same on every rank."""
        group = self._environment.group
        if group is None:
            return self._decide(services, request)
        decision: Decision | None = None
        if services.client is not None:
            # The others wait for an answer, whatever goes wrong here.
            try:
                decision = self._decide(services, request)
            except Exception:
                group.broadcast(None)
                raise
        decision = group.broadcast(decision)
        if decision is None:
            raise NotPossibleHereError(
                "rank 0 could not find out what to run", remedy="see what it says on stderr"
            )
        return decision

    def _decide(self, services: RunServices, request: Request) -> Decision:
        client, config = cast("ResilientClient", services.client), self._config
        decision = client.decide(request)
        first = self._asked == 1 and decision.id and decision.recurrence == 0
        if first and client.defined is not None and client.defined.warm_start:
            _log.warning("joulery: %s: %s", config.name, client.defined.warm_start)
        if config.dry_run and decision.volunteered:
            size, reason = decision.batch_size, decision.reason
            _log.warning("joulery: dry run at batch size %d: %s", size, reason)
        return decision
