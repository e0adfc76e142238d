"""Snapshots are exact or not used."""

import inspect
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest

from joulery.jobs._snapshot import code_fingerprint, deserialize, serialize
from joulery.jobs.policies import JobBatch, make_policy, policy_names
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


def test_the_code_is_named_by_its_content():
    """A policy that was changed would go on with beliefs of the old one."""
    assert len(code_fingerprint()) == 32
    assert code_fingerprint() == code_fingerprint()


def test_changing_a_policy_changes_the_fingerprint(tmp_path):
    """Snapshots of an older policy would be used by a newer one."""
    inner = tmp_path / "policies" / "bayesian"
    inner.mkdir(parents=True)
    (inner / "evidence.py").write_text("before")
    before = code_fingerprint(tmp_path)
    (inner / "evidence.py").write_text("after")
    code_fingerprint.cache_clear()
    assert code_fingerprint(tmp_path) != before
    policies = Path(inspect.getfile(JobBatch)).parent
    assert policies.is_relative_to(Path(inspect.getfile(serialize)).parent)
