"""Pipelines of torch.distributed.pipelining on CPU processes, with clocks set on the way."""

import importlib.util
import json
import os
import signal
import sys
import time
from types import SimpleNamespace

import pytest

from joulery.errors import InvalidValueError
from joulery.integrations.torch_pipelining import observed
from support.forked_ranks import ForkedRanks
from support.governor.node import GovernedNode

TRAINING = """
import json, os, sys, time
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
MICROBATCHES, UNIT = 4, 0.02
torch.set_num_threads(1)
dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=ranks)


class Slow(torch.autograd.Function):
    # Forwards and backwards that take a known time without needing a core.
    @staticmethod
    def forward(ctx, x):
        time.sleep(UNIT)
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        time.sleep(2 * UNIT)
        return grad


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x):
        return Slow.apply(torch.tanh(self.linear(x)))


class Training:
    def __init__(self):
        torch.manual_seed(rank)
        self.model = Layer()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        stage = PipelineStage(self.model, rank, ranks, torch.device("cpu"))
        self.schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)

    def step(self, number):
        noise = torch.Generator().manual_seed(number)
        x = torch.randn(2 * MICROBATCHES, 8, generator=noise)
        losses = []
        self.optimizer.zero_grad()
        if rank == 0:
            self.schedule.step(x)
        elif rank == ranks - 1:
            self.schedule.step(target=x.flip(1), losses=losses)
        else:
            self.schedule.step()
        self.optimizer.step()
        return [loss.item() for loss in losses]


def rows(stages):
    # Unequal work, as the profile sees it: the second stage is the slowest.
    return [
        {
            "stage": stage,
            "instruction": kind,
            "frequency": clock,
            "time": UNIT * work * size * (0.4 + 0.6 * 1410 / clock),
            "energy": UNIT * work * size * (80 + 300 * (clock / 1410) ** 2.5),
        }
        for stage, size in zip(range(stages), (0.8, 1.0, 0.7, 0.9))
        for kind, work in (("forward", 1.0), ("backward", 2.0))
        for clock in (1410, 1305, 1200, 1095, 990, 885, 780)
    ]


def planned(schedule):
    from joulery.integrations.torch_pipelining import schedule_of
    from joulery.pipeline import PipelineConfig, PlanCache
    from joulery.pipeline import plan_pipeline, profiles_from_rows

    profiles = profiles_from_rows(rows(ranks), smooth=False)
    config = PipelineConfig(blocking_watts=60.0)
    plan = plan_pipeline(profiles, schedule=schedule_of(schedule), config=config)
    return PlanCache(plan, 0.006)
"""

STEERED = (
    TRAINING
    + """
from joulery.clock import REAL_CLOCK
from joulery.hardware import SimulatedGpu, catalog
from joulery.hardware.simulated._physics import Workload
from joulery.integrations.torch_pipelining import observed
from joulery.pipeline import ClockController, ClockSetter

gpu = SimulatedGpu(catalog.board("A100"), REAL_CLOCK, index=rank)
LOADS = {
    "forward": Workload("forward", UNIT, UNIT / 3, 0.0, 0.8),
    "backward": Workload("backward", 2 * UNIT, UNIT, 0.0, 0.9),
}


class Watching:
    # Passes everything on, and notes the clock that was in force as each instruction ended.
    def __init__(self, observer):
        self.observer, self.seen = observer, []

    def begin_iteration(self, reached, *, microbatches=None):
        self.observer.begin_iteration(reached, microbatches=microbatches)

    def end_iteration(self, reached):
        self.observer.end_iteration(reached)

    def before(self, stage, kind, microbatch, reached):
        self.observer.before(stage, kind, microbatch, reached)
        gpu.set_load(LOADS[kind])

    def after(self, stage, kind, microbatch, reached):
        self.seen.append((kind, microbatch, gpu._locked_hertz))
        gpu.set_load(None)
        self.observer.after(stage, kind, microbatch, reached)


free = Training()
without = [free.step(number) for number in range(4)]
steered = Training()
plans = planned(steered.schedule)
plan = plans.ranks(1.0)[rank]
controller = ClockController(plan, ClockSetter([gpu], set_seconds=0.002))
watching = Watching(controller)
with controller, observed(steered.schedule, watching):
    with_clocks = [steered.step(number) for number in range(4)]
    failure = controller.failure
after_close = gpu._locked_hertz
print(json.dumps({
    "without": without,
    "with": with_clocks,
    "failure": str(failure) if failure else None,
    "seen": watching.seen,
    "after_close": after_close,
    "steps": [[s.instruction.kind, s.instruction.microbatch, s.hertz] for s in plan.steps],
    "still_wrapped": "step" in vars(steered.schedule),
}))
"""
)

GOVERNED = (
    TRAINING
    + """
from joulery.hardware import discover
from joulery.hardware._device import DeviceKind
from joulery.integrations.torch_pipelining import observed
from joulery.pipeline import ClockController, ClockSetter

gpu = [device for device in discover() if device.info.kind is DeviceKind.GPU][rank]
free = Training()
without = [free.step(number) for number in range(5)]
steered = Training()
plan = planned(steered.schedule).ranks(1.3)[rank]
controller = ClockController(plan, ClockSetter([gpu]))
losses = []
with controller, observed(steered.schedule, controller):
    for number in range(5):
        losses.append(steered.step(number))
        if rank == 0 and number == 1:
            sys.stderr.write("steering\\n")
            sys.stderr.flush()
            while not os.path.exists(f"{folder}/killed"):
                time.sleep(0.01)
        dist.barrier()
print(json.dumps({
    "same": losses == without,
    "iteration": controller.iteration,
    "clocks": [step.hertz for step in plan.steps],
}))
"""
)


ORDERS = """
import json, sys
import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining import schedules as theirs
from joulery.integrations.torch_pipelining import observed, schedule_of

rank, ranks, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=ranks)


class Noting:
    def __init__(self):
        self.began, self.ended, self.iterations = [], [], 0

    def begin_iteration(self, reached, *, microbatches=None):
        self.iterations += microbatches == 4

    def end_iteration(self, reached):
        pass

    def before(self, stage, kind, microbatch, reached):
        assert reached is None
        self.began.append((stage, kind, microbatch))

    def after(self, stage, kind, microbatch, reached):
        self.ended.append((stage, kind, microbatch))


NAMES = {
    "ScheduleGPipe": 1,
    "Schedule1F1B": 1,
    "ScheduleInterleaved1F1B": 2,
    "ScheduleInterleavedZeroBubble": 2,
    "ScheduleZBVZeroBubble": 2,
    "ScheduleDualPipeV": 2,
}
found = {}
for name, chunks in NAMES.items():
    kind = getattr(theirs, name)
    numbers = [rank + ranks * chunk for chunk in range(chunks)]
    if name in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV"):
        numbers = [rank, 2 * ranks - 1 - rank]
    stages = [
        PipelineStage(torch.nn.Linear(4, 4), number, ranks * chunks, torch.device("cpu"))
        for number in numbers
    ]
    schedule = kind(stages[0] if chunks == 1 else stages, 4, loss_fn=torch.nn.functional.mse_loss)
    noting = Noting()
    x = torch.randn(8, 4)
    first, last = 0 in numbers, ranks * chunks - 1 in numbers
    with observed(schedule, noting):
        schedule.step(*([x] if first else []), **({"target": x} if last else {}))
    order = [(s.stage, s.kind, s.microbatch) for s in schedule_of(schedule).ranks[rank]]
    found[name] = [noting.began == order, noting.ended == order, noting.iterations]
print(json.dumps(found))
"""


@pytest.fixture
def with_torch():
    """These run torch; without it they are left out, but not in CI."""
    if importlib.util.find_spec("torch") is None and os.environ.get("CI") != "true":
        pytest.skip("torch is not installed")


def _reports(ranks):
    """What each rank printed, a single line: nothing of ours went to standard output."""
    return [(json.loads(output), errors) for output, errors in ranks.outputs()]


@pytest.mark.slow
def test_torch_runs_at_the_planned_clocks_with_equal_losses(with_torch, tmp_path):
    """If it fails clocks are not those of the plan, or setting them changes the training."""
    for report, _ in _reports(ForkedRanks(STEERED, 3, tmp_path)):
        assert report["failure"] is None
        assert report["with"] == report["without"]
        assert report["after_close"] is None
        assert not report["still_wrapped"]
        steps = report["steps"]
        assert [seen[:2] for seen in report["seen"]] == 4 * [step[:2] for step in steps]
        # The first iteration is compared with the plan, at full clocks.
        assert {seen[2] for seen in report["seen"][: len(steps)]} == {None}
        report["seen"] = report["seen"][len(steps) :]
        assert {seen[2] for seen in report["seen"]} <= {step[2] for step in steps} | {None}
        # Higher clocks come early, by as much as this machine takes to change them.
        own = [seen[2] == step[2] for seen, step in zip(report["seen"], 3 * steps, strict=True)]
        assert any(own)


@pytest.mark.slow
def test_training_survives_the_end_of_the_governor(with_torch, tmp_path):
    """If it fails a governor that dies takes a training job with it, or changes its result."""
    with GovernedNode(("A100", "A100")) as governed:
        ranks = ForkedRanks(GOVERNED, 2, tmp_path, governed.env)
        while "steering\n" not in ranks.errors(0).read_text():
            time.sleep(0.05)
        held = [device["held"] for device in governed.status()]
        governed.stop(signal.SIGKILL)
        audit = (governed.state / "audit.jsonl").read_text().splitlines()
        (tmp_path / "killed").touch()
        reports = _reports(ranks)
    assert all(held)
    clocks = {entry.get("hertz") for entry in map(json.loads, audit) if entry["event"] == "set"}
    assert clocks & set(reports[0][0]["clocks"])
    assert clocks <= {hertz for report, _ in reports for hertz in report["clocks"]} | {None}
    for report, err in reports:
        assert report["same"]
        assert report["iteration"] == 4
        assert err.count("pipeline clocks") <= 1


@pytest.mark.slow
def test_every_schedule_of_torch_runs_as_it_is_planned(with_torch, tmp_path):
    """If it fails a plan's instructions are not those that torch runs, and clocks stay off."""
    for report, _ in _reports(ForkedRanks(ORDERS, 2, tmp_path)):
        assert len(report) == 6
        assert all(found == [True, True, 1] for found in report.values()), report


class Stage:
    """As much of torch's stage as is wrapped."""

    def __init__(self, device="cpu"):
        self.stage_index, self.device = 3, SimpleNamespace(type=device)

    def forward_one_chunk(self, microbatch, args, kwargs=None):
        """Run."""
        return "forward", microbatch, args

    def backward_one_chunk(self, microbatch, *arguments, **named):
        """Run."""

    def backward_weight_one_chunk(self, microbatch, **named):
        """Run."""


class Schedule:
    """As much of torch's schedule as is wrapped."""

    def __init__(self, stage):
        self._stage, self._has_backward = stage, True

    def step(self, error=None):
        """Run everything once."""
        found = self._stage.forward_one_chunk(0, ("input",), {})
        self._stage.backward_one_chunk(0, loss=1.0, last_backward=True)
        self._stage.backward_one_chunk(1, full_backward=False)
        self._stage.backward_weight_one_chunk(1, last_backward=True)
        if error is not None:
            raise error
        return found


class Recorder:
    """Records the callbacks."""

    def __init__(self):
        self.log = []

    def begin_iteration(self, reached, *, microbatches=None):
        """Note it."""
        self.log.append("iteration")

    def end_iteration(self, reached):
        """Note it."""
        self.log.append("end")

    def before(self, stage, kind, microbatch, reached):
        """Note it."""
        self.log.append((stage, kind, microbatch))
        self.reached = reached

    def after(self, stage, kind, microbatch, reached):
        """Note it."""
        assert self.log[-1] == (stage, kind, microbatch)


def test_kinds_of_work_are_distinguished():
    """If it fails halves of a backward pass for whole ones."""
    schedule, recorder = Schedule(Stage()), Recorder()
    with observed(schedule, recorder):
        assert schedule.step() == ("forward", 0, ("input",))
    assert recorder.log == [
        "iteration",
        (3, "forward", 0),
        (3, "backward", 0),
        (3, "backward_input", 1),
        (3, "backward_weight", 1),
        "end",
    ]
    schedule.step()
    assert len(recorder.log) == 6


def test_evaluation_is_not_observed():
    """If it fails evaluation runs at the clocks of training, or out of step with the plan."""
    schedule, recorder = Schedule(Stage()), Recorder()
    schedule._has_backward = False
    with observed(schedule, recorder):
        schedule.step()
    assert recorder.log == []


def test_errors_of_training_pass_through():
    """If it fails an error in training is swallowed, or the schedule stays wrapped."""
    schedule, recorder = Schedule(Stage()), Recorder()
    with pytest.raises(KeyError), observed(schedule, recorder):
        schedule.step(KeyError("theirs"))
    assert recorder.log[-1] == "end"
    assert "step" not in vars(schedule)
    assert "forward_one_chunk" not in vars(schedule._stage)


def test_queued_work_is_marked_with_an_event(monkeypatch):
    """If it fails clocks follow the host, which is ahead of a CUDA device."""
    recorded = []

    class Event:
        def __init__(self, *, blocking):
            assert blocking

        def record(self):
            recorded.append(self)

        def synchronize(self):
            return "there"

    fake = SimpleNamespace(cuda=SimpleNamespace(Event=Event))
    monkeypatch.setitem(sys.modules, "torch", fake)
    schedule, recorder = Schedule(Stage("cuda")), Recorder()
    with observed(schedule, recorder):
        schedule.step()
    assert recorder.reached() == "there"
    assert len(recorded) == 10


def test_objects_without_stages_are_refused():
    """If it fails any object passes for a schedule."""
    with (
        pytest.raises(InvalidValueError, match="int has no stages to observe"),
        observed(3, Recorder()),
    ):
        pass
