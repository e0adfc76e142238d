"""Snapshots are exact or not used."""

import hashlib
from dataclasses import dataclass, field

import numpy as np
import pytest

from joulery.jobs import _snapshot as snapshot_module
from joulery.jobs._snapshot import _layout, deserialize, fold_version, serialize
from joulery.jobs.policies import JobBatch, ZeusPolicy, make_policy, policy_names
from joulery.testing.policy_contract import Drive, assert_identical
from joulery.testing.workloads import made_up_workload


@pytest.mark.parametrize("policy", policy_names())
def test_beliefs_come_back_bit_for_bit(policy):
    """A restarted server would decide otherwise."""
    drive = Drive(make_policy(policy), [made_up_workload()], [1])
    for _ in range(30):
        drive.step(np.arange(1))
    fresh = make_policy(policy).start(drive.jobs)
    assert deserialize(fresh, serialize(drive.beliefs, {"a": [0.1 + 0.2]})) == {"a": [0.1 + 0.2]}
    assert_identical(fresh, drive.beliefs)


def test_what_does_not_fit_is_not_used():
    """Half of another job's beliefs would pass for this one's."""
    loads = made_up_workload(), made_up_workload((32, 64, 128), default=64)
    zeus, grid = make_policy("zeus"), make_policy("grid")
    beliefs = [zeus.start(JobBatch.of([load.job()], [1])) for load in loads]
    untouched = zeus.start(JobBatch.of([loads[0].job()], [1]))
    assert deserialize(beliefs[0], serialize(beliefs[1], {})) is None
    assert (
        deserialize(beliefs[0], serialize(grid.start(JobBatch.of([loads[0].job()], [1])), {}))
        is None
    )
    whole = serialize(beliefs[0], {})
    turned = bytes([*whole[:-1], whole[-1] ^ 1])
    for damaged in (b"", b"nonsense", whole[: len(whole) // 2], whole[:-1], turned):
        assert deserialize(beliefs[0], damaged) is None
    assert_identical(beliefs[0], untouched)


def test_beliefs_of_other_make_have_no_snapshot():
    """What is not an array would be lost on the way."""

    @dataclass
    class Listed:
        seen: list = field(default_factory=list)

    @dataclass
    class Counted:
        seen: int = 0

    assert serialize(Listed(), {}) is None
    assert deserialize(Counted(), serialize(Counted(), {})) == {}
    assert deserialize(Counted(), serialize(Counted(3), {})) is None


# Digests of beliefs after a fixed history, by policy and version.
DIGESTS = {
    ("joulery", 2): "c9ac12e8f652c431",
    ("zeus", 1): "2c24929dba4a1404",
    ("grid", 1): "efd6665a97f5c76a",
    ("default", 1): "e903af1c330a25ef",
}


def _digest(policy):
    """All arrays of the beliefs after a fixed history, to six digits.

    What should be zero differs from one processor to another.
    """
    drive = Drive(policy, [made_up_workload()], [1])
    for _ in range(30):
        drive.step(np.arange(1))
    arrays = _layout(drive.beliefs)[0]
    values = [np.where(np.abs(array) < 1e-6, 0, array).ravel() for array in arrays]
    texts = [" ".join(f"{value:.6g}" for value in array) for array in values]
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:16]


@pytest.mark.parametrize("name", ["joulery", "zeus", "grid", "default"])
def test_other_beliefs_have_another_version(name):
    """A policy that learns differently would continue from snapshots of the one before.

    If this fails, raise the policy's ``version`` and pin the digest that the failure shows.
    """
    policy = make_policy(name)
    assert DIGESTS[name, policy.version] == _digest(policy)


def test_versions_are_part_of_the_key(monkeypatch):
    """Snapshots of an older policy or fold would be used by a newer one."""
    before = fold_version(make_policy("zeus"))
    assert fold_version(make_policy("grid")) != before
    monkeypatch.setattr(ZeusPolicy, "version", 99)
    newer_policy = fold_version(make_policy("zeus"))
    monkeypatch.setattr(snapshot_module, "_FOLD_VERSION", 99)
    assert len({before, newer_policy, fold_version(make_policy("zeus"))}) == 3
