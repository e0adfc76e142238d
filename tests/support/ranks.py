"""Ranks of a training on emulated boards: frameworks, each with its one line of Joulery.

``ranks.py FOLDER FRAMEWORK...`` forks two ranks for each emulated node whose state ``RANKS_STATES``
names, with the environment of torchrun: they share the time that it takes to import frameworks.
Each rank writes what each framework showed to ``FOLDER/FRAMEWORK-RANK.json``, with the true power
of all boards.
"""

import importlib
import json
import os
import sys
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

SECONDS = 1.5  # of each training


class Line(torch.nn.Module):
    """A linear model with the interface that the Trainer of transformers asks for."""

    def __init__(self):
        super().__init__()
        self.weights = torch.nn.Linear(4, 1)

    def forward(self, x, labels=None):
        """Prediction and loss, after the board's part of a step."""
        time.sleep(0.02)
        prediction = self.weights(x).squeeze(-1)
        return {"loss": ((prediction - x.sum(-1)) ** 2).mean(), "logits": prediction}


def plain(wrap):
    """A loop of one's own: the run's energy and what it prints."""
    from joulery import Run

    model = wrap(Line())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with Run("plain") as run:
        for _ in range(int(SECONDS / 0.02)):
            optimizer.zero_grad()
            model(torch.randn(4, 4))["loss"].backward()
            optimizer.step()
            run.step()
    return run.measurement, str(run)


def ddp(_folder):
    """DistributedDataParallel."""
    return plain(torch.nn.parallel.DistributedDataParallel)


def fsdp(_folder):
    """Fully sharded."""
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
    return plain(lambda model: fully_shard(model, mesh=mesh))


def accelerate(folder):
    """A loop with an Accelerator, which calls trackers on the main process only."""
    from accelerate import Accelerator

    from joulery.integrations.accelerate import AccelerateTracker
    from joulery.integrations.files import FileSink

    log = Path(folder) / "accelerate.jsonl"
    tracker = AccelerateTracker(sinks=[FileSink(log)] if dist.get_rank() == 0 else [])
    accelerator = Accelerator(cpu=True, log_with=[tracker])
    accelerator.state.destroy_process_group = lambda: None  # other frameworks follow
    accelerator.init_trackers("line")
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    for step in range(int(SECONDS / 0.02)):
        optimizer.zero_grad()
        accelerator.backward(model(torch.randn(4, 4))["loss"])
        optimizer.step()
        if step % 20 == 0:
            accelerator.log({"loss": 1.0}, step=step)
    accelerator.end_training()
    last = log.read_text().splitlines()[-1] if dist.get_rank() == 0 else ""
    return tracker.measurement, last


def transformers(folder):
    """The Trainer, reporting to TensorBoard: the energy is in its event files and its log."""
    from transformers import Trainer, TrainingArguments

    from joulery.integrations.transformers import TransformersCallback

    callback = TransformersCallback()
    rows = [{"x": torch.randn(4), "labels": torch.tensor(1.0)} for _ in range(400)]
    os.environ["TENSORBOARD_LOGGING_DIR"] = f"{folder}/board"
    arguments = TrainingArguments(
        output_dir=f"{folder}/trainer",
        per_device_train_batch_size=1,
        max_steps=int(SECONDS / 0.02),
        logging_steps=25,
        report_to=["tensorboard"],
        save_strategy="no",
        disable_tqdm=True,
        use_cpu=True,
        ddp_backend="gloo",
    )
    trainer = Trainer(Line(), arguments, train_dataset=rows, callbacks=[callback])
    trainer.train()
    entries = [entry for entry in trainer.state.log_history if "joulery/joules" in entry]
    return callback.measurement, json.dumps(entries[-1] if entries else {})


def lightning(folder):
    """Lightning: the energy is among the metrics of the trainer."""
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.strategies import DDPStrategy

    from joulery.integrations.lightning import LightningCallback

    class Module(LightningModule):
        def __init__(self):
            super().__init__()
            self.line = Line()

        def training_step(self, batch, _):
            return self.line(batch)["loss"]

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    callback = LightningCallback()
    trainer = Trainer(
        accelerator="cpu",
        devices=2,
        num_nodes=2,
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_epochs=2,
        logger=False,
        callbacks=[callback],
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        default_root_dir=folder,
    )
    count = 4 * int(SECONDS / 0.02 / 2)
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(count, 4)))
    metrics = {name: float(value) for name, value in trainer.callback_metrics.items()}
    return callback.measurement, json.dumps(metrics)


def main(folder, names):
    """Train with each framework in turn."""
    from joulery.hardware import catalog
    from joulery.testing.emulator import EmulatedNode, Phase

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    node, local = EmulatedNode.attached(), int(os.environ["LOCAL_RANK"])
    # Every board draws another power, so that none can stand for another.
    share = 0.2 + 0.2 * dist.get_rank()
    board = node.specs[local].board
    node.set_load(local, catalog.workload("resnet50", board), [Phase(share, 0.1)])
    for name in names:
        dist.barrier()
        measured, text = globals()[name](folder)
        watts: list = [None] * dist.get_world_size()
        dist.all_gather_object(watts, node.truth(local).watts)
        document = {**(measured.to_dict() if measured else {}), "text": text, "true_watts": watts}
        Path(folder, f"{name}-{dist.get_rank()}.json").write_text(json.dumps(document))
        dist.barrier()
    dist.destroy_process_group()


def fork(folder, names, states):
    """Fork two ranks for each node, as torchrun would start them; whether all succeeded."""
    for name in ("accelerate", "transformers", "lightning"):
        importlib.import_module(f"joulery.integrations.{name}")
    processes = []
    for rank in range(2 * len(states)):
        node, local = divmod(rank, 2)
        process = os.fork()
        if process == 0:
            os.environ |= {
                "RANK": str(rank),
                "WORLD_SIZE": str(2 * len(states)),
                "LOCAL_RANK": str(local),
                "LOCAL_WORLD_SIZE": "2",
                "GROUP_RANK": str(node),
                "NODE_RANK": str(node),
                "JOULERY_NODE": f"node{node}",
                "JOULERY_EMULATOR_STATE": states[node],
                "TORCHELASTIC_RUN_ID": "ranks",
            }
            code = 1
            try:
                main(folder, names)
                code = 0
            except BaseException:  # noqa: BLE001 - a fork ends here, whatever went wrong
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(code)
        processes.append(process)
    codes = [os.waitpid(process, 0)[1] for process in processes]
    return not any(codes)


if __name__ == "__main__":
    states = os.environ["RANKS_STATES"].split(os.pathsep)
    sys.exit(0 if fork(sys.argv[1], sys.argv[2:], states) else 1)
