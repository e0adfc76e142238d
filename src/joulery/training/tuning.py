"""The power tuner of a run, as the run and its decision want it."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from joulery.training.attempt import AttemptPower

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from joulery.hardware.device import Device, PowerLimit
    from joulery.metering.meter import Meter
    from joulery.objectives import Objective
    from joulery.power.tuner import Memory, PowerTuner
    from joulery.training.environment import RunEnvironment
    from joulery.training.limit_plan import LimitPlan

_FRAMEWORKS = ("torch", "tensorflow", "jax", "mxnet", "paddle")


@dataclass(frozen=True, slots=True)
class Wishes:
    """How the power of a run is to be tuned.

    Attributes:
        name: Of the run; nothing is remembered without one.
        batch_size: That is run, if it is known.
        objective: What to minimise.
        observe: Leave the limit alone in the end.
        plan: What a decision asks of the limit; None for any whole watt.
        meter: Of the boards; one of the tuner's own unless given.
        probe_done: Called when a probe has measured all it should.
    """

    name: str
    batch_size: int | None
    objective: Objective | str
    observe: bool
    plan: LimitPlan | None
    meter: Meter | None
    probe_done: Callable[[], None]


def tuned(
    site: RunEnvironment, wishes: Wishes
) -> tuple[PowerTuner | None, AttemptPower, str | None]:
    """The tuner, what is known of the limit, and why there is no tuner if there is none."""
    from joulery.metering.attribution import local_rank
    from joulery.power.knob import LimitKnob
    from joulery.power.rules import Rules
    from joulery.power.tuner import PowerTuner
    from joulery.training.limit_plan import ListedKnob

    boards = site.boards()
    if not boards:
        return None, AttemptPower(), "no GPU with a power limit was found (see `joulery doctor`)"
    found = max(cast("PowerLimit", board).power_limits().current_watts for board in boards)
    rank = local_rank(site.environ)
    if rank is not None and rank.size > 1 and site.group is None:
        why = "several processes train together; give Run a group, so that they decide together"
        return None, AttemptPower(found_watts=found), why
    knob = None
    if wishes.plan is not None:
        knob = ListedKnob(LimitKnob(boards), wishes.plan, len(boards), wishes.probe_done)
    objective = _parsed(wishes.objective, boards)
    tuner = PowerTuner(
        boards,
        objective,
        knob=knob,
        meter=wishes.meter,
        clock=site.clock,
        rules=Rules(observe_only=wishes.observe),
        memory=_memory(wishes, boards, objective),
        group=site.group,
    )
    return tuner, AttemptPower(tuner, knob, found), None


def _parsed(wanted: Objective | str, boards: Sequence[Device]) -> Objective:
    if not isinstance(wanted, str):
        return wanted
    from joulery.objectives import parse_objective
    from joulery.power.tuner import weighed_cost

    return parse_objective(wanted, weighed_cost(1.0, boards).max_watts)


def _memory(wishes: Wishes, boards: Sequence[Device], objective: Objective) -> Memory | None:
    """Where profiles of this job are kept on this machine; nowhere for a run without a name.

    A decision that says what to hold or to measure knows what is known, here and elsewhere.
    """
    plan = wishes.plan
    if not wishes.name or (plan is not None and plan.is_decided):
        return None
    from joulery.power.profiles import ProfileKey, ProfileStore
    from joulery.power.tuner import Memory

    key = ProfileKey(
        job=wishes.name,
        batch_size=wishes.batch_size or 0,
        device=boards[0].info.name,
        software=_software(),
        objective=repr(objective),
        devices=len(boards),
    )
    return Memory(ProfileStore(), key)


def _software() -> str:
    """Frameworks that this process uses, with their versions: another one runs other kernels."""
    loaded = {name: sys.modules.get(name) for name in _FRAMEWORKS}
    return " ".join(
        f"{name} {getattr(module, '__version__', '?')}" for name, module in loaded.items() if module
    )
