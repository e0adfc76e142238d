"""Call the compiled decision on beliefs as they are in memory.

What is passed lies in two structures, in the order of ``decide.h``: rules, the same for all jobs of
a policy, and the addresses of what is believed. Both are made once and kept as long as the beliefs.
"""

from __future__ import annotations

import ctypes
import functools
from ctypes import Structure, c_char, c_double, c_int64, c_void_p
from typing import TYPE_CHECKING, Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np

from joulery.recurring import normal, planning
from joulery.recurring.limit_choice import LEAST_DISTURBANCE, SETTLED_SD
from joulery.recurring.native.library import loaded
from joulery.recurring.outlook import SPARE_EPOCH, SPARE_ERRORS
from joulery.recurring.policy import Actions, Kind
from joulery.recurring.profiles import BORROWED_SD, BORROWED_SHARE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from joulery.recurring.draws import Draws, Floats
    from joulery.recurring.joulery import Tuning
    from joulery.recurring.joulery_beliefs import JouleryBeliefs

_MOST_NODES = 16  # room for them in the structure
_FLOAT, _INTEGER, _BOOLEAN = np.dtype(np.float64), np.dtype(np.int64), np.dtype(np.bool_)
_WORD = np.dtype(np.uint64)


class _Table(Structure):
    _fields_ = (
        ("first", c_double),
        ("steps", c_double),
        ("count", c_int64),
        ("values", c_void_p),
    )


class _Rules(Structure):
    _fields_ = (
        *(
            (name, c_double)
            for name in (
                *("horizon", "dearest_try", "trial_runs"),
                *("scouts", "patience", "slice_seconds", "probe_share", "probe_variance"),
            )
        ),
        *((name, c_int64) for name in ("train", "probe")),
        *(
            (f"why_{name}", c_int64)
            for name in ("first", "best", "try", "probe", "unreached", "scout", "heir")
        ),
        *(
            (name, c_double)
            for name in (
                *("spare_epoch", "spare_errors", "borrowed_share", "borrowed_variance"),
                *("settled_variance", "least_disturbance"),
            )
        ),
        ("nodes", c_int64),
        *(
            (name, c_double * _MOST_NODES)
            for name in ("node", "weight", "left", "stop", "tail_mean", "tail_variance")
        ),
        ("excess", _Table),
        ("log_repeats", _Table),
    )


class _Beliefs(Structure):
    _fields_ = (
        *((name, c_int64) for name in ("lanes", "arms", "limits")),
        *((name, c_double) for name in ("noise_runs", "noise_scatter")),
        *(
            (name, c_void_p)
            for name in (
                *("epochs_mean", "epochs_covariance", "cost_mean", "cost_covariance"),
                *("runs", "under_way", "scatter", "compared", "logs", "precision"),
                *("log_sizes", "log_most_epochs", "joule_weight", "second_weight"),
                *("default_arm", "valid", "informed"),
            )
        ),
    )


class _Ruled(NamedTuple):
    """Rules, what they were made from, and where they are."""

    tuning: Tuning
    figures: _Rules
    address: int


class _Known:
    """Addresses of one set of beliefs, whose arrays change in place.

    Attributes:
        limits: How many there are.
        address: Of the structure; 0 where its arrays are not laid out as C expects them.
        ruled: The rules last used.
    """

    __slots__ = ("_arrays", "_figures", "address", "limits", "ruled")

    def __init__(self, beliefs: JouleryBeliefs) -> None:
        self._arrays = _arrays(beliefs)  # as long as their addresses are kept, so are they
        lanes, noise = beliefs.lanes, beliefs.evidence.noise
        self.limits = lanes.limits_watts.shape[1]
        self.ruled: _Ruled | None = None
        self._figures = _Beliefs(
            *(len(lanes), lanes.valid.shape[1], self.limits, noise.runs, noise.runs * noise.sd**2),
            *(array.ctypes.data for array, _, _ in self._arrays),
        )
        fits = all(
            array.dtype == kind and array.shape == shape and array.flags.c_contiguous
            for array, kind, shape in self._arrays
        )
        self.address = ctypes.addressof(self._figures) if fits else 0


_known: WeakKeyDictionary[JouleryBeliefs, _Known] = WeakKeyDictionary()


def decide(
    beliefs: JouleryBeliefs,
    rows: NDArray[np.int64],
    draws: Draws,
    tuning: Tuning,
    why: tuple[int, ...],
) -> Actions | None:
    """The next action of each row, where the objective is the cost; None to decide in Python.

    Args:
        beliefs: Of all lanes.
        rows: Some of them.
        draws: The randomness of each.
        tuning: How bold the policy is.
        why: Positions of its reasons, in the order of the fields of the structure.
    """
    compiled = loaded()
    count = len(rows)
    if compiled is None or not count or rows.dtype != _INTEGER:
        return None
    known = _known.get(beliefs)
    if known is None:
        known = _known[beliefs] = _Known(beliefs)
    if not known.address:
        return None
    ruled = known.ruled  # once: another thread may put other rules there
    if ruled is None or ruled.tuning is not tuning:
        figures = _rules(tuning, why)
        ruled = known.ruled = _Ruled(tuning, figures, ctypes.addressof(figures))
    # One array for what goes in and what comes out: to make one and to tell its address takes
    # longer than to cut it.
    limits, flags = known.limits, 5 * count
    floats = np.empty(flags + (count * limits + 7) // 8)
    integers = floats.view(_INTEGER)
    kind = integers[:count]
    kind[:] = rows
    integers[4 * count : flags].view(_WORD)[:] = draws.words
    where = ctypes.addressof(c_char.from_buffer(floats.data))
    if compiled(ruled.address, known.address, count, where) != 0:
        return None
    return Actions(
        kind,
        arm=integers[count : 2 * count],
        limit=integers[2 * count : 3 * count],
        ceiling=floats[4 * count : flags],
        why=integers[3 * count : 4 * count],
        probe_limits=np.ndarray((count, limits), _BOOLEAN, floats, flags * floats.itemsize),
    )


def _arrays(
    beliefs: JouleryBeliefs,
) -> list[tuple[NDArray[Any], np.dtype[Any], tuple[int, ...]]]:
    """Every array with the type and shape that it must have, in the order of the structure."""
    lanes, evidence, profiles = beliefs.lanes, beliefs.evidence, beliefs.profiles
    each = (len(lanes),)
    arms, limits = (*each, lanes.valid.shape[1]), lanes.limits_watts.shape[1:]
    square = (*arms, arms[1])
    floats: list[tuple[Floats, tuple[int, ...]]] = [
        (beliefs.epochs.mean, arms),
        (beliefs.epochs.covariance, square),
        (beliefs.cost.mean, arms),
        (beliefs.cost.covariance, square),
        (evidence.runs, arms),
        (beliefs.under_way, arms),
        (evidence.scatter, each),
        (evidence.compared, each),
        (profiles.logs, (*arms, 2, *limits)),
        (profiles.precision, (*arms, *limits)),
        (np.log2(lanes.batch_sizes), arms),
        (np.log(lanes.max_epochs + 0.5), each),
        (lanes.joule_weight, each),
        (lanes.second_weight, each),
    ]
    return [
        *((array, _FLOAT, shape) for array, shape in floats),
        (lanes.default, _INTEGER, each),
        (lanes.valid, _BOOLEAN, arms),
        (beliefs.informed, _BOOLEAN, each),
    ]


@functools.cache
def _rules(tuning: Tuning, why: tuple[int, ...]) -> _Rules:
    """What does not change from decision to decision; policies are few, so all are kept."""
    prospects = tuning.prospects
    nodes = (
        *(planning.NODES, planning.WEIGHTS, planning.LEFT, planning.STOPS),
        *(planning.TAIL_MEAN, planning.TAIL_VARIANCE),
    )
    return _Rules(
        *(prospects.horizon, prospects.dearest_try, prospects.trial_runs),
        *(tuning.scouts, tuning.patience, tuning.slice_seconds),
        *(tuning.probe_share, tuning.probe_sd**2),
        *(int(Kind.TRAIN), int(Kind.PROBE)),
        *why,
        *(SPARE_EPOCH, SPARE_ERRORS, BORROWED_SHARE, BORROWED_SD**2),
        *(SETTLED_SD**2, LEAST_DISTURBANCE),
        len(planning.NODES),
        *((c_double * _MOST_NODES)(*array) for array in nodes),
        _table(normal.EXCESS, 0.0),
        _table(normal.LOG_REPEATS, normal.LOG_REPEATS_START),
    )


def _table(values: Floats, start: float) -> _Table:
    """Of values that live as long as their module."""
    return _Table(start * normal.TABLE_STEPS, normal.TABLE_STEPS, len(values), values.ctypes.data)
