"""Hold the compiled decision of the policy ``joulery`` against the one on arrays."""

from __future__ import annotations

import copy
import dataclasses
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from joulery.recurring.draws import Draws
from joulery.recurring.joulery import Joulery
from joulery.recurring.native import library

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.recurring.joulery_beliefs import JouleryBeliefs
    from joulery.recurring.lanes import Lanes
    from joulery.recurring.policy import Actions, Outcomes

_CEILING_ERROR = 1e-9  # relative
# Decisions that a change of beliefs by this much turns over are ties: either form may be right.
_TIE = 1e-12
_SHAKES = 16


def differing(one: Actions, other: Actions) -> NDArray[np.int64]:
    """Rows in which two sets of actions are not the same."""
    assert one.probe_limits is not None
    assert other.probe_limits is not None
    same = (one.probe_limits == other.probe_limits).all(axis=1)
    for name in ("kind", "arm", "limit", "why"):
        same &= getattr(one, name) == getattr(other, name)
    ceilings = np.isclose(one.ceiling, other.ceiling, rtol=_CEILING_ERROR, atol=0.0)
    return np.flatnonzero(~(same & ceilings))


@dataclasses.dataclass(slots=True, eq=False)
class Compared:
    """The policy ``joulery``, every decision of which is made in both forms.

    Attributes:
        policy: That decides.
        decisions: How many were compared.
        ties: How many differed, rightly: the twelfth digit of a belief turns them over.
        reasons_seen: (reasons,), how often each was given.
    """

    policy: Joulery
    decisions: int = 0
    ties: int = 0
    reasons_seen: NDArray[np.int64] = dataclasses.field(
        default_factory=lambda: np.zeros(len(Joulery.reasons), dtype=np.int64)
    )

    name: ClassVar[str] = Joulery.name
    reasons: ClassVar[tuple[str, ...]] = Joulery.reasons

    def start(self, lanes: Lanes) -> JouleryBeliefs:
        """As the policy does."""
        return self.policy.start(lanes)

    def begin(self, beliefs: JouleryBeliefs, rows: NDArray[np.int64], actions: Actions) -> None:
        """As the policy does."""
        self.policy.begin(beliefs, rows, actions)

    def learn(self, beliefs: JouleryBeliefs, outcomes: Outcomes) -> None:
        """As the policy does."""
        self.policy.learn(beliefs, outcomes)

    def decide(self, beliefs: JouleryBeliefs, rows: NDArray[np.int64], draws: Draws) -> Actions:
        """In the compiled form, after the other was asked too.

        Raises:
            AssertionError: They differ and it is no tie, or there is no compiled form.
        """
        assert library.loaded() is not None, "not compiled here"
        compiled = self.policy.decide(beliefs, rows, draws)
        expected = self.policy.decide_on_arrays(beliefs, rows, draws)
        for at in differing(compiled, expected).tolist():
            row, own = rows[at : at + 1], Draws(draws.words[at : at + 1])
            assert self._is_tie(beliefs, row, own, one_of(compiled, at)), (
                f"lane {row[0]}: compiled {_told(compiled, at)}, on arrays {_told(expected, at)}"
            )
            self.ties += 1
        self.decisions += len(rows)
        np.add.at(self.reasons_seen, compiled.why, 1)
        return compiled

    def _is_tie(
        self, beliefs: JouleryBeliefs, row: NDArray[np.int64], draws: Draws, compiled: Actions
    ) -> bool:
        """Whether beliefs that are as good as the same decide on arrays as compiled code did."""
        chance = np.random.default_rng(0)
        for _ in range(_SHAKES):
            shaken = copy.deepcopy(beliefs)
            for array in (shaken.epochs.mean, shaken.cost.mean, shaken.profiles.logs):
                array[...] *= 1.0 + _TIE * chance.uniform(-1.0, 1.0, array.shape)
            if not differing(compiled, self.policy.decide_on_arrays(shaken, row, draws)).size:
                return True
        return False


def one_of(actions: Actions, at: int) -> Actions:
    """One of many actions."""
    parts = (getattr(actions, part.name) for part in dataclasses.fields(actions))
    return type(actions)(*(part[at : at + 1] for part in parts))


def _told(actions: Actions, at: int) -> str:
    return ", ".join(
        f"{part.name} {getattr(actions, part.name)[at]}" for part in dataclasses.fields(actions)
    )
