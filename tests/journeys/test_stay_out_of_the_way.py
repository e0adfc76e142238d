"""Journey: where Joulery can do little, a training runs, prints and ends as it would without it."""

import subprocess
import sys

import pytest

from support.journeys import TRAINING

# It prints what is no text, too. With a Run it trains on, in silence, until power is not tuned.
SCRIPT = (
    TRAINING
    + """
is_loop, last, breaks_at = sys.argv[1] == "loop", int(sys.argv[2]), int(sys.argv[3])
node.set_load(0, work)
run = joulery.Run("own", objective="least-energy:slowdown=5%") if is_loop else None
number, patience = 0, time.monotonic() + 60
while number < last or run and run.tuning_skipped is None and time.monotonic() < patience:
    train(number)
    if number == breaks_at:
        node.lose(0)
    if run:
        run.step()
    if number < last and number % 20 == 0:
        print("step", number, flush=True)
    number += 1
if run:
    run.close()
os.write(1, bytes(range(256)))
raise SystemExit(last % 5)
"""
)
REASONS = {
    "GPU": "no GPU with a power limit was found",
    "driver": "no GPU with a power limit was found",
    "rights": "Insufficient Permissions",
    "board": "cannot be read",
}


@pytest.mark.parametrize("way", ["loop", "command"])
@pytest.mark.parametrize("lack", REASONS)
def test_a_training_is_as_it_would_be_without(world, lack, way):
    """A training fails, or what it prints is spoiled, for the sake of some joules."""
    (world.folder / "train.py").write_text(SCRIPT, "utf-8")
    last = world.draw.randrange(40, 80)
    breaks_at = world.draw.randrange(last) if lack == "board" else -1
    environment = world.env | ({"CUDA_VISIBLE_DEVICES": ""} if lack in {"GPU", "driver"} else {})
    if lack == "driver":
        environment["LD_LIBRARY_PATH"] = ""
    if lack == "rights":
        world.node.deny(0)
    command = ["-m", "joulery", "run", "--", sys.executable] if way == "command" else []
    done = subprocess.run(
        [sys.executable, *command, "train.py", way, str(last), str(breaks_at)],
        cwd=world.folder,
        env=environment,
        capture_output=True,
        timeout=120,
        check=False,
    )
    lines = "".join(f"step {number}\n" for number in range(0, last, 20))
    assert done.returncode == last % 5, done.stderr
    assert done.stdout == lines.encode() + bytes(range(256))
    if way == "loop":
        (line,) = done.stderr.decode().splitlines()
        assert "training continues" in line
        assert REASONS[lack] in line
