"""Loops of torch with accumulation, mixed precision, compiled models, schedulers, checkpoints."""

import pytest

from joulery import Run
from support.torch_on_use import torch
from support.training_loop import TrainingLoop

EPOCHS, BATCHES = 3, 40


def trained(feature, run=None, loop=None, state=None):
    """The weights, learning rate and optimizer steps of a small training, with or without a run."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    forward = torch.compile(model, backend="eager") if feature == "compile" else model
    scaler = torch.amp.GradScaler("cpu", enabled=feature == "amp")
    every = 4 if feature == "accumulation" else 1
    steps, first = 0, 0
    if state is not None:
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        scheduler.load_state_dict(state["scheduler"])
        run.load_state_dict(state["joulery"])
        first = state["epoch"]
    for epoch in range(first, EPOCHS) if run is None else run.epochs():
        data = torch.utils.data.TensorDataset(torch.randn((BATCHES * 8, 4)) + epoch)
        batches = [batch for (batch,) in torch.utils.data.DataLoader(data, 8)]
        groups = [batches[start : start + every] for start in range(0, len(batches), every)]
        for group in groups if run is None else run.steps(groups):
            for batch in group:
                with torch.autocast("cpu", torch.bfloat16, enabled=feature == "amp"):
                    loss = (forward(batch) - batch.sum(1, keepdim=True)).square().mean()
                scaler.scale(loss / every).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            steps += 1
            if loop is not None:
                loop.run(lambda: None, steps=1)  # the simulated board works as long
        scheduler.step()
        if feature == "checkpoint" and state is None and epoch == 1:
            parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "joulery": run}
            saved = {name: part.state_dict() for name, part in parts.items() if part is not None}
            return {"epoch": epoch + 1, **saved}
    return [weight.tolist() for weight in model.parameters()], scheduler.get_last_lr(), steps


@pytest.mark.parametrize("feature", ["accumulation", "amp", "compile", "scheduler"])
def test_training_is_the_same_with_and_without_a_run(feature):
    """Tuning would change what is learned, or count batches that are accumulated as steps."""
    loop = TrainingLoop()
    run = Run(max_epochs=EPOCHS, devices=loop.gpus)
    with_run = trained(feature, run, loop)
    assert with_run == trained(feature)
    assert run.total_steps == with_run[2]
    assert run.tuning_skipped is None
    assert run.result is not None


def test_a_training_goes_on_from_a_torch_checkpoint(tmp_path):
    """A resumed training would count its epochs anew, or the checkpoint could not be saved."""
    loop = TrainingLoop()
    state = trained("checkpoint", Run(max_epochs=EPOCHS, devices=loop.gpus), loop)
    torch.save(state, tmp_path / "checkpoint.pt")
    state = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    run = Run(max_epochs=EPOCHS, devices=loop.gpus)
    _, rate, steps = trained("checkpoint", run, loop, state)
    assert (steps, run.total_steps) == (BATCHES, EPOCHS * BATCHES)
    assert rate == [0.05 * 0.5**EPOCHS]
