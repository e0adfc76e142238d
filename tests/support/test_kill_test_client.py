"""Clients of a kill test go on where they died; otherwise it tests nothing but first tries."""

import random

from joulery.errors import StoreBusyError
from joulery.jobs import Decision, DecisionLease, Receipt
from joulery.jobs.policies import ActionKind
from support.history_file import Recorder, read_calls
from support.kill_test.client import Client


class Flaky:
    """Answers every other time, and the same to the same."""

    def __init__(self):
        self.asked = 0
        self.decided = {}
        self.reported = {}

    def _maybe(self):
        self.asked += 1
        if self.asked % 2:
            raise StoreBusyError("not now", remedy="ask again")

    def decide(self, job, key, after=None, *, probing=False):
        """A decision for each key, made whether or not it is told."""
        decision = self.decided.setdefault(key, f"{job}.{len(self.decided) + 1}")
        self._maybe()
        return Decision(decision, 0, ActionKind.TRAIN, 8, None, (), float("inf"), str(probing), 0.0)

    def heartbeat(self, decision, progress=None):
        """Taken."""
        return DecisionLease(
            held=progress is not None, expires_wall_seconds=float(len(decision.id))
        )

    def report(self, decision, outcome, key):
        """One outcome for each decision, and no other."""
        assert self.reported.setdefault(decision.id, (key, outcome)) == (key, outcome)
        self._maybe()
        return Receipt(decision.id, 1, late=False)


def live(backend, path, life, steps):
    """One life."""
    earlier = read_calls([path])
    with Recorder(path) as recorder:
        luck = random.Random(life)  # noqa: S311 - what to do, no secret
        client = Client(f"life{life}", backend, recorder, [1], luck, pause_seconds=0.0)
        client.resume(earlier)
        for _ in range(steps):
            client.step()


def test_every_request_in_doubt_is_made_again_until_it_is_answered(tmp_path):
    """A request that was carried out but not answered must be seen again under its key."""
    backend, path = Flaky(), tmp_path / "calls"
    for life in range(6):
        live(backend, path, life, steps=8)
    for life in range(6, 16):
        live(backend, path, life, steps=0)
    calls = read_calls([path])
    operations = {(call.operation, call.key) for call in calls if not call.open}
    assert {(call.operation, call.key) for call in calls} == operations
    assert len(backend.reported) > 10
    assert any(call.open for call in calls)


def test_no_life_reports_a_decision_otherwise_than_the_one_before(tmp_path):
    """Two outcomes of one decision would be refused, and pass for a fault of the server."""
    backend, path = Flaky(), tmp_path / "calls"
    for life in range(30):
        live(backend, path, life, steps=3)
    assert not any(call.refused for call in read_calls([path]))
