"""Trainings on simulated boards, whose epochs to the target hang on the batch size."""

import dataclasses
import math
import random

import pytest

from joulery.clock import VirtualClock
from joulery.hardware import SimulatedGpu, catalog
from joulery.training import REPORTS_VARIABLE, DecisionService, Run

# Its counter refreshes once a second: hours pass here, and each refresh is read.
BOARD = dataclasses.replace(catalog.board("V100"), counter_period_seconds=1.0)
WORK = catalog.workload("resnet50", BOARD)
EPOCHS = {32: 14, 64: 10, 128: 9, 256: 10, 512: 16, 1024: 30}
SAMPLES = 2048


@pytest.fixture(autouse=True)
def _own_world(tmp_path, monkeypatch):
    """Profiles, reports and decisions of one test must not reach another."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    names = ("OBJECTIVE", "DRY_RUN", "STORE", "TOKEN", "TEAM")
    for name in (REPORTS_VARIABLE, *(f"JOULERY_{name}" for name in names)):
        monkeypatch.delenv(name, raising=False)
    for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)


class Shop:
    """A simulated board, and trainings on it.

    Attributes:
        clock: Virtual.
        gpu: The board.
        store: Where decisions are kept.
        samples: Samples of an epoch.
    """

    def __init__(self, folder):
        self.clock = VirtualClock()
        self.gpu = SimulatedGpu(BOARD, self.clock)
        self.store = folder / "store.sqlite"
        self.limits = []
        self.samples = SAMPLES

    def run(self, **options):
        """A recurring run on this board."""
        wanted = {
            "batch_sizes": sorted(EPOCHS),
            "default_batch_size": 1024,
            "target": 0.9,
            "max_epochs": 60,
            "devices": [self.gpu],
            "store": DecisionService(self.store, policy=options.pop("policy", "joulery")),
        }
        return Run("nightly", **{**wanted, **options})

    def epochs_to_target(self, batch_size, seed):
        """How many a training needs; None for never."""
        scatter = random.Random(seed).gauss(0, 0.05)  # noqa: S311 - no secret
        return max(1, round(EPOCHS[batch_size] * math.exp(scatter)))

    def train(self, run, need):
        """One attempt; how many epochs were trained."""
        size = run.batch_size
        work = WORK.scaled(0.05 + 0.95 * size / 256)
        done = 0
        for _ in run.epochs():
            for _ in run.steps(range(self.samples // size)):
                self.gpu.run(work)
                self.limits.append(self.gpu.power_limits().current_watts)
            self.clock.sleep(1.0)
            done += 1
            run.report(0.95 if done >= need else 0.5)
        return done

    def recur(self, seed, **options):
        """A whole recurrence: (seconds, joules, batch sizes, the run)."""
        began, used = self.clock.now(), self.gpu.read_energy().joules
        run, sizes = self.run(**options), []
        for _ in run.attempts():
            sizes.append(run.batch_size)
            self.train(run, self.epochs_to_target(run.batch_size, seed))
        return self.clock.now() - began, self.gpu.read_energy().joules - used, sizes, run

    def decisions(self):
        """All decisions of the job with their outcomes."""
        from joulery.client import open_backend

        backend = open_backend(self.store, clock=self.clock)
        try:
            return [e for job in backend.jobs()[0] for e in backend.decisions(job.id)[0]]
        finally:
            backend.close()


@pytest.fixture
def place(tmp_path):
    """Somewhere to train."""
    return Shop(tmp_path)
