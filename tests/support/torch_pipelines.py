"""Train a pipeline of torch on four forked processes, each with an emulated board of its own.

    python torch_pipelines.py FOLDER

FOLDER has stages.json with the board and the work of each stage, and plans. Every rank leaves
RANK.json.
"""

import json
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from joulery.cli import main as joulery
from joulery.clock import REAL_CLOCK
from joulery.hardware import SimulatedGpu, Workload, catalog
from joulery.integrations.torch_pipelining import observed
from joulery.pipeline import ClockController, ClockProfiler, ClockSetter, load_rank_plan

RANKS, MICROBATCHES, MOMENT = 4, 4, 0.002


class Work(torch.autograd.Function):
    """Forwards and backwards that take as long as the clock of the board lets them."""

    rank = None

    @staticmethod
    def forward(ctx, x):
        """Work."""
        Work.rank.work("forward")
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        """Work."""
        Work.rank.work("backward")
        return grad


class Layer(torch.nn.Module):
    """A stage."""

    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        """The output of the stage."""
        return Work.apply(torch.tanh(self.linear(x)))


class Rank:
    """One process of the pipeline, with its board."""

    def __init__(self, folder, rank, document):
        self.folder, self.rank = folder, rank
        self.gpu = SimulatedGpu(catalog.board(document["board"]), REAL_CLOCK, index=rank)
        works = (Workload(**work) for stage, work in document["works"] if stage == rank)
        self.works = {work.name: work for work in works}
        self.lowest = {}
        Work.rank = self
        dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=RANKS)
        stage = PipelineStage(Layer(), rank, RANKS, torch.device("cpu"))
        self.schedule = Schedule1F1B(stage, MICROBATCHES, loss_fn=torch.nn.functional.mse_loss)

    def work(self, kind):
        """Load the board until an instruction is done, and note the lowest clock it had."""
        self.gpu.set_load(self.works[kind])
        share, last = 1.0, time.monotonic()
        while share > 0:
            clock, seconds = self.gpu.steady().clock_hertz, self.gpu.steady().seconds
            self.lowest[kind] = min(clock, self.lowest.get(kind, clock))
            time.sleep(min(MOMENT, share * seconds))
            now = time.monotonic()
            share, last = share - (now - last) / seconds, now
        self.gpu.set_load(None)

    def step(self):
        """One iteration; the clock that is locked after it."""
        x = torch.ones(2 * MICROBATCHES, 4)
        first, last = self.rank == 0, self.rank == RANKS - 1
        self.schedule.step(*([x] if first else []), **({"target": x} if last else {}))

    def follow(self, path, rank, iterations):
        """Train by a plan; what came of it."""
        self.lowest = {}
        setter = ClockSetter([self.gpu], set_seconds=0.002)
        with (
            ClockController(load_rank_plan(path, rank), setter) as controller,
            observed(self.schedule, controller),
        ):
            for _ in range(iterations):
                self.step()
            reason, failure = controller.mismatch, controller.failure
        return {"lowest": self.lowest, "reason": reason, "failure": str(failure or "")}

    def free(self):
        """Train without a plan; the clocks then are full ones."""
        self.lowest = {}
        self.step()
        return {"lowest": self.lowest}


def follow_wrong_plans(rank):
    """Another rank's plan, plans of another size and schedule, and the right one."""
    own, other = rank.rank, (rank.rank + 1) % RANKS
    return {
        "full": rank.free(),
        "neighbour": rank.follow(rank.folder / "plan.json", other, 2),
        "more": rank.follow(rank.folder / "more.json", own, 2),
        "chunks": rank.follow(rank.folder / "chunks.json", own, 2),
        "right": rank.follow(rank.folder / "plan.json", own, 3),
    }


def profile_and_follow(rank):
    """Profile in a folder, in two runs; plan what was found, and train by the plan."""
    supported = sorted(rank.gpu.supported_clocks())
    clocks = [supported[int(share * (len(supported) - 1))] for share in (0.8, 0.9, 1.0)]
    path = rank.folder / "profile" / f"rank{rank.rank}.json"
    iterations = []
    for most in (4, 60):
        profiler = ClockProfiler(rank.gpu, clocks, iterations_per_clock=1, path=path)
        with profiler, observed(rank.schedule, profiler):
            done, count = torch.tensor(0), 0
            while not done and count < most:
                rank.step()
                done, count = torch.tensor(int(profiler.done)), count + 1
                dist.all_reduce(done, dist.ReduceOp.MIN)
            iterations.append(count)
    result = {"failure": str(profiler.failure or ""), "iterations": iterations}
    failed = torch.tensor(int(profiler.failure is not None))
    dist.all_reduce(failed)
    if failed:
        return result
    if not rank.rank:
        files = ["--profile", str(path.parent), "--out", str(rank.folder / "found.json")]
        result["code"] = joulery(["plan", "pipeline", "--microbatches", str(MICROBATCHES), *files])
    dist.barrier()
    return result | rank.follow(rank.folder / "found.json", rank.rank, 2)


def main():
    """Fork the ranks, and wait for them."""
    folder = Path(sys.argv[1])
    document = json.loads((folder / "stages.json").read_text())
    torch.set_num_threads(1)
    children = []
    for number in range(RANKS):
        child = os.fork()
        if not child:
            code = 1
            try:
                rank = Rank(folder, number, document)
                result = follow_wrong_plans(rank) | {"profile": profile_and_follow(rank)}
                (folder / f"{number}.json").write_text(json.dumps(result))
                dist.destroy_process_group()
                code = 0
            finally:
                os._exit(code)
        children.append(child)
    sys.exit(max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))


if __name__ == "__main__":
    main()
