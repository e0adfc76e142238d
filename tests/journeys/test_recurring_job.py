"""Journey: a job that is trained every night has its batch size chosen from earlier nights."""

import json
import signal

import pytest

from support.journeys import TRAINING

SIZES = (64, 128, 256)
SCRIPT = (
    TRAINING
    + """
epochs_needed = {int(size): epochs for size, epochs in json.loads(sys.argv[1]).items()}
nights = []
for night in range(int(sys.argv[2])):
    run = joulery.Run(
        "nightly",
        batch_sizes=list(epochs_needed),
        default_batch_size=max(epochs_needed),
        target=0.76,
        max_epochs=50,
    )
    joules = 0.0
    for epoch in run.epochs():
        node.set_load(0, work)
        joules -= node.true_joules(0)
        for batch in run.steps(range(512 // run.batch_size)):
            node.wait_steps(0, run.batch_size / 64)
        joules += node.true_joules(0)
        node.set_load(0, None)
        run.report(0.8 if epoch + 1 >= epochs_needed[run.batch_size] else 0.5)
    nights.append([run.batch_size, joules])
print(json.dumps(nights))
"""
)


@pytest.fixture
def epochs_needed(draw):
    """Epochs to the target by batch size: small ones need fewer, as they do at this scale."""
    return dict(zip(SIZES, (2, draw.randrange(3, 5), draw.randrange(7, 10)), strict=True))


def train_nights(world, nights, epochs_needed, **environment):
    """Batch size and true joules of each of so many nights."""
    command = [*world.script("nightly.py", SCRIPT), json.dumps(epochs_needed), str(nights)]
    return json.loads(world.run(command, **environment).splitlines()[-1])


def judge(document, nights):
    """Compare what was stored with what happened."""
    sizes = [size for size, _ in nights]
    assert sizes[0] == max(SIZES)  # nothing was known yet
    assert min(joules for _, joules in nights[1:]) < 0.7 * nights[0][1]
    assert [entry["decision"]["batch_size"] for entry in document["decisions"]] == sizes
    stored = [recurrence["joules"] for recurrence in document["recurrences"]]
    assert len(stored) == len(nights)
    for joules, (_, true_joules) in zip(stored, nights, strict=True):
        # Nights last a second here, so that one refresh of the counter shows.
        assert joules == pytest.approx(true_joules, rel=0.25)


@pytest.mark.slow
def test_nights_with_a_store_of_ones_own(world, epochs_needed):
    """Nights pass without anything learned, or their energy is not that of the boards."""
    nights = train_nights(world, 5, epochs_needed)
    document = world.joulery("jobs", "show", "nightly")
    judge(document, nights)
    assert nights[-1][0] != max(SIZES)
    assert document["saved"]["energy"]["share"] > 0.1


@pytest.mark.slow
def test_a_job_on_two_boards_is_disclosed_with_both(make_world, epochs_needed):
    """A regulator reads half of the hardware days, and of boards that no catalog has."""
    world = make_world(boards=2)
    train_nights(world, 1, epochs_needed)
    form = world.joulery("disclose", "--job", "nightly", "--as", "eu")
    (boards,) = form["hardware"].items()
    assert boards[1] == 2
    assert "×" not in boards[0]
    assert form["hardware_days"] == pytest.approx(2 * form["wall_clock_days"], rel=0.05)
    figures = world.joulery("disclose", "--job", "nightly")["figures"]
    making = next(figure for figure in figures if "making" in figure["name"])
    assert making["value"] > 0


@pytest.mark.slow
def test_nights_with_a_server(world, epochs_needed):
    """Trainings that share a server learn nothing from each other."""
    with world.start("serve", "--listen", "127.0.0.1:0", "--json") as server:
        try:
            address = json.loads(server.stdout.readline())["address"]
            nights = train_nights(world, 2, epochs_needed, JOULERY_STORE=address)
            nights += train_nights(world, 1, epochs_needed, JOULERY_STORE=address)
            judge(world.joulery("jobs", "show", "nightly", "--store", address), nights)
        finally:
            server.send_signal(signal.SIGTERM)
            server.communicate(timeout=60)
    assert server.returncode == 0
    stored = world.joulery("store", "check")
    assert stored["rows"]["decisions"] == 3
