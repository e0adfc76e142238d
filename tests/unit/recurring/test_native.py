"""The compiled decision: found, made, mended, and called on beliefs as they are."""

import copy
import dataclasses
import gc
import hashlib
import threading

import numpy as np
import pytest

from joulery import compiled
from joulery.errors import JouleryError
from joulery.objectives import Cost, EnergyDelayProduct, LeastEnergy
from joulery.recurring.draws import Draws
from joulery.recurring.inheritance import Inheritance
from joulery.recurring.job import Job
from joulery.recurring.joulery import TUNING, Joulery
from joulery.recurring.lanes import Lanes
from joulery.recurring.native import binding, library
from joulery.recurring.policy import End, Outcomes
from joulery.simulate.recurring import Options, simulate
from joulery.testing.decisions import Compared, differing
from joulery.testing.workloads import made_up_workload

ROW = np.zeros(1, dtype=np.int64)
HEIRLOOM = Inheritance((16, 64), (2.0, 2.4), (0.1, 0.05))


def job(sizes=(8, 16, 32, 64), limits=(100.0, 150.0, 200.0)):
    """One with a default in the middle."""
    return Job("job", sizes, sizes[len(sizes) // 2], Cost(0.5, 300.0), limits_watts=limits)


def draws(beliefs, rows=ROW):
    """The randomness of a decision."""
    return Draws.of(beliefs.lanes.seeds[rows], rows)


def tell(policy, beliefs, end=End.REACHED, epochs=12.0, lane=0, *, told=True):
    """Make the next action of a lane end, with figures of every limit or of none."""
    row = np.array([lane])
    actions = policy.decide(beliefs, row, draws(beliefs, row))
    policy.begin(beliefs, row, actions)
    limits = beliefs.lanes.limits_watts.shape[1]
    seconds = np.linspace(60.0, 50.0, limits)[None] if told else np.full((1, limits), np.nan)
    one = np.ones(1)
    outcomes = Outcomes(
        lane=row,
        recurrence=ROW,
        kind=actions.kind,
        arm=actions.arm,
        limit=actions.limit,
        end=np.array([end]),
        epochs=np.array([epochs]),
        seconds=one,
        joules=one,
        cost=one,
        epoch_seconds=seconds,
        epoch_joules=seconds * np.linspace(95.0, 190.0, limits),
        relative_error=np.full((1, limits), 0.005 if told else np.nan),
    )
    policy.learn(beliefs, outcomes)
    return actions


@pytest.fixture(autouse=True)
def _compiled():
    """Every test starts from a process that has it."""
    assert library.prepare()


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """What the compiler makes of the sources."""
    target = tmp_path_factory.mktemp("good") / "good.so"
    library.SOURCES.compile(target)
    return target.read_bytes()


@pytest.fixture(scope="module")
def foreign(tmp_path_factory):
    """A library, but not ours."""
    folder = tmp_path_factory.mktemp("foreign")
    (folder / "foreign.c").write_text("int other(void) { return 1; }")
    dataclasses.replace(library.SOURCES, folder=folder, files=("foreign.c",)).compile(
        folder / "foreign.so"
    )
    return (folder / "foreign.so").read_bytes()


@pytest.fixture
def fresh(monkeypatch, tmp_path, good):
    """A process that has found nothing yet, its empty cache, and a compiler that takes no time."""
    monkeypatch.setattr(
        library.SealedSources, "compile", lambda _, target: target.write_bytes(good)
    )
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(library, "_held", library._Held())
    return tmp_path / "joulery" / "recurring" / library.file_name()


def test_is_compiled_here():
    """If it fails every other test here compares arrays with themselves."""
    assert library.loaded() is not None
    assert binding.decide(
        Joulery().start(Lanes.of([job()], [0])),
        ROW,
        Draws(np.zeros(1, np.uint64)),
        TUNING,
        tuple(range(7)),
    )


@pytest.mark.parametrize("sizes", [(32,), (8, 16), (8, 24, 32, 100, 256), tuple(range(1, 65))])
@pytest.mark.parametrize("limits", [(), (250.0,), (100.0, 150.0, 200.0, 250.0)])
@pytest.mark.parametrize("inherited", [(), (HEIRLOOM,)], ids=["blank", "heir"])
def test_decides_as_on_arrays(sizes, limits, inherited):
    """From the first action on: what is run, held, measured and granted."""
    policy = Compared(Joulery(inherited=inherited))
    beliefs = policy.start(Lanes.of([job(sizes, limits)], [0]))
    for number in range(12):
        end = (End.STOPPED, End.REACHED, End.REACHED, End.EXHAUSTED)[number % 4]
        tell(policy, beliefs, end, 9.0 + number, told=number % 3 > 0)
    assert policy.decisions == 12
    assert policy.ties == 0


@pytest.mark.parametrize("overlap", [1, 6])
def test_simulated_histories_are_the_same(overlap):
    """Jobs of different numbers of batch sizes side by side, with runs under way."""
    loads = [
        made_up_workload(),
        made_up_workload((8, 16, 64), best=16, default=64, limits_watts=(100.0,)),
    ]
    policy = Compared(Joulery())
    simulate(loads, policy, 25, range(4), Options(overlap=overlap))
    assert policy.decisions > 200
    assert np.count_nonzero(policy.reasons_seen) >= 4
    assert policy.ties == 0


def test_a_bold_policy_is_as_bold():
    """Every figure of the tuning has to arrive in its own place."""
    bold = {"scouts": 0.9, "patience": 2.0, "slice_seconds": 9.0, "probe_share": 0.5}
    odd = dataclasses.replace(TUNING.prospects, horizon=31.0, dearest_try=3.0, trial_runs=2.0)
    policy = Compared(
        Joulery(tuning=dataclasses.replace(TUNING, prospects=odd, probe_sd=0.2, **bold))
    )
    simulate([made_up_workload()], policy, 30, range(4), Options(overlap=3))
    assert policy.decisions > 100
    assert policy.ties == 0


def test_nothing_believed_changes():
    """Decisions are asked for again at will, also by who only looks."""
    policy = Joulery()
    beliefs = policy.start(Lanes.of([job(), job((4, 8))], [0, 1]))
    tell(policy, beliefs)
    before = copy.deepcopy(beliefs)
    policy.decide(beliefs, np.arange(2), draws(beliefs, np.arange(2)))
    for (array, _, _), (same, _, _) in zip(
        binding._arrays(beliefs), binding._arrays(before), strict=True
    ):
        assert array.tobytes() == same.tobytes()


def test_addresses_stay_good_while_beliefs_change():
    """They are kept: an array that was replaced would be decided on as it was."""
    policy = Joulery()
    beliefs = policy.start(Lanes.of([job()], [0]))
    tell(policy, beliefs)
    kept = binding._known[beliefs]
    addresses = [array.ctypes.data for array, _, _ in kept._arrays]
    for number in range(30):
        tell(policy, beliefs, End.REACHED, 12.0 if number < 15 else 90.0)  # a change is noticed
    assert beliefs.changed[0]
    assert binding._known[beliefs] is kept
    constant = 10, 11  # worked out from jobs, which do not change
    now = [array.ctypes.data for array, _, _ in binding._arrays(beliefs)]
    assert [at for at, (old, new) in enumerate(zip(addresses, now, strict=True)) if old != new] == [
        *constant
    ]


def test_addresses_go_with_their_beliefs():
    """A server forgets jobs; what it kept of them must not pile up."""
    policy = Joulery()
    beliefs = policy.start(Lanes.of([job()], [0]))
    policy.decide(beliefs, ROW, draws(beliefs))
    assert beliefs in binding._known
    others = len(binding._known)
    del beliefs
    gc.collect()
    assert len(binding._known) < others


def test_policies_may_share_beliefs():
    """What-if questions ask another tuning about the same beliefs."""
    usual, eager = Joulery(), Joulery(tuning=dataclasses.replace(TUNING, patience=9.0))
    beliefs = usual.start(Lanes.of([job((8,))], [0]))
    tell(usual, beliefs)
    first = usual.decide(beliefs, ROW, draws(beliefs))
    assert eager.decide(beliefs, ROW, draws(beliefs)).ceiling[0] > first.ceiling[0]
    assert usual.decide(beliefs, ROW, draws(beliefs)).ceiling[0] == first.ceiling[0]


@pytest.mark.parametrize("objective", [EnergyDelayProduct(), LeastEnergy(max_slowdown=0.1)])
def test_other_objectives_are_decided_on_arrays(objective, monkeypatch):
    """The compiled form knows nothing but the cost."""
    monkeypatch.setattr(binding, "decide", lambda *_: pytest.fail("compiled"))
    policy = Joulery(objective)
    beliefs = policy.start(Lanes.of([job()], [0]))
    assert policy.decide(beliefs, ROW, draws(beliefs)).arm[0] == 2


def refused(beliefs, rows=ROW):
    """Whether it is left to arrays."""
    lots = Draws(np.zeros(len(rows), np.uint64))
    return binding.decide(beliefs, rows, lots, TUNING, tuple(range(7))) is None


@pytest.mark.parametrize("row", [-1, 1, 2**62])
def test_no_lane_beyond_the_last_is_read(row):
    """Memory that is not ours would be read."""
    beliefs = Joulery().start(Lanes.of([job()], [0]))
    assert refused(beliefs, np.array([0, row]))


@pytest.mark.parametrize(
    "rows", [np.zeros(0, dtype=np.int64), np.array([True]), np.array([0], dtype=np.int32)]
)
def test_rows_of_another_kind_are_left_to_arrays(rows):
    """They mean something else, or nothing."""
    assert refused(Joulery().start(Lanes.of([job()], [0])), rows)


def test_every_second_row():
    """Rows may lie apart in memory."""
    policy = Joulery()
    beliefs = policy.start(Lanes.of([job((2**i, 2 ** (i + 1))) for i in range(4)], range(4)))
    tell(policy, beliefs, lane=2)
    rows = np.arange(4)[::2]
    lots = Draws.of(beliefs.lanes.seeds[rows], np.arange(2))
    found = binding.decide(beliefs, rows, lots, TUNING, tuple(range(7)))
    assert not differing(found, policy.decide_on_arrays(beliefs, rows, lots)).size


@pytest.mark.parametrize(
    "beyond",
    [job(tuple(range(1, 66))), job(limits=tuple(float(watts) for watts in range(100, 165)))],
    ids=["batch sizes", "limits"],
)
def test_more_than_there_is_room_for(beyond):
    """Room is on the stack; beyond it arrays decide."""
    policy = Joulery()
    beliefs = policy.start(Lanes.of([beyond], [0]))
    assert refused(beliefs)
    assert policy.decide(beliefs, ROW, draws(beliefs)).probe_limits.all()


@pytest.mark.parametrize("turned", [np.asfortranarray, lambda array: array.astype(np.float32)])
def test_arrays_that_lie_otherwise_are_left_to_numpy(turned):
    """C would take their figures for others."""
    policy = Joulery()
    beliefs = policy.start(Lanes.of([job(), job()], [0, 1]))
    curve = dataclasses.replace(beliefs.epochs, covariance=turned(beliefs.epochs.covariance))
    other = dataclasses.replace(beliefs, epochs=curve)
    assert refused(other)
    assert policy.decide(other, ROW, draws(beliefs)).arm[0] == 2


@pytest.mark.parametrize("value", [np.nan, np.inf, 800.0])
def test_figures_beyond_reason_are_left_to_arrays(value):
    """What NumPy makes of infinities need not be written twice."""
    beliefs = Joulery().start(Lanes.of([job()], [0]))
    tell(Joulery(), beliefs)
    beliefs.epochs.mean[0, 1] = value
    assert refused(beliefs)


def test_threads_decide_at_once():
    """Nothing is kept between calls, so nothing can be mixed up."""
    policy = Joulery()
    sets = [policy.start(Lanes.of([job((2, 4, 8 * n))], [0])) for n in range(2, 8)]
    for number, beliefs in enumerate(sets):
        tell(policy, beliefs, epochs=5.0 + number)
    expected = [policy.decide_on_arrays(beliefs, ROW, draws(beliefs)) for beliefs in sets]
    wrong = []

    def ask(number):
        for _ in range(200):
            found = policy.decide(sets[number], ROW, draws(sets[number]))
            wrong.extend(differing(found, expected[number]))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(len(sets))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_nothing_is_compiled_unasked(fresh):
    """A training must not find a compiler running in it."""
    assert library.loaded() is None
    assert not fresh.exists()
    policy = Joulery()
    beliefs = policy.start(Lanes.of([job()], [0]))
    assert policy.decide(beliefs, ROW, draws(beliefs)).arm[0] == 2


def test_what_another_process_compiled_is_used(fresh, monkeypatch):
    """The next training on a machine that has simulated decides the quick way."""
    assert library.prepare()
    monkeypatch.setattr(library, "_held", library._Held())
    monkeypatch.setattr(compiled, "compiler", lambda: pytest.fail("compiles"))
    assert library.loaded() is not None
    assert library.prepare()


def test_preparing_late_takes_effect(fresh):
    """A process may have decided before it learns that it will decide a lot."""
    assert library.loaded() is None
    assert library.prepare()
    assert library.loaded() is not None
    assert [path.name for path in fresh.parent.iterdir()] == [fresh.name]


def test_simulations_prepare(fresh):
    """They make thousands of decisions."""
    simulate([made_up_workload()], Joulery(), 2, [0])
    assert library._held.decide is not None


def test_without_a_compiler_arrays_decide(monkeypatch, tmp_path):
    """The same actions, only slower."""
    policy = Joulery()
    beliefs = policy.start(Lanes.of([job()], [0]))
    expected = copy.deepcopy(beliefs)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(library, "_held", library._Held())
    assert not library.prepare()
    assert library.loaded() is None
    slow = [tell(policy, beliefs) for _ in range(4)]
    monkeypatch.undo()
    assert library.loaded() is not None
    for actions in slow:
        assert not differing(tell(policy, expected), actions).size


def test_a_compiler_is_asked_once(fresh, monkeypatch):
    """Every simulation prepares; one that refuses would otherwise be started every time."""
    asked = []

    def refuse(self, target):
        asked.append(target)
        raise JouleryError("no", remedy="none")

    monkeypatch.setattr(library.SealedSources, "compile", refuse)
    assert not library.prepare()
    assert not library.prepare()
    assert len(asked) == 1


def test_a_cache_that_cannot_be_written(fresh):
    """Containers have read-only homes."""
    fresh.parent.parent.write_text("a file where a folder should be")
    assert not library.prepare()


def test_no_home(monkeypatch):
    """Users without one exist."""

    def homeless():
        raise RuntimeError

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(library, "_held", library._Held())
    monkeypatch.setattr("pathlib.Path.home", homeless)
    assert library.loaded() is None
    assert not library.prepare()


def sealed(content):
    """As if it had been compiled."""
    return content + hashlib.sha256(content).digest()


@pytest.mark.parametrize("kind", ["empty", "text", "torn", "changed", "no library", "foreign"])
def test_a_broken_file_in_the_cache(kind, fresh, good, foreign):
    """It is never loaded, and mended by who prepares."""
    middle = len(good) // 2
    fresh.parent.mkdir(parents=True)
    fresh.write_bytes(
        {
            "empty": b"",
            "text": b"hello",
            "torn": good[:middle],
            "changed": good[:middle] + bytes([good[middle] ^ 1]) + good[middle + 1 :],
            "no library": sealed(b"hello"),
            "foreign": foreign,
        }[kind]
    )
    assert library.loaded() is None
    policy = Joulery()
    beliefs = policy.start(Lanes.of([job()], [0]))
    assert policy.decide(beliefs, ROW, draws(beliefs)).arm[0] == 2
    if kind != "foreign":  # a loader that has opened a path once does not look at it again
        assert library.prepare()
        assert fresh.read_bytes() == good
