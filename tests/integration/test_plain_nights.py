"""Few nights of clients that make one training each: what looking around costs them."""

import math
import random

from joulery.clock import VirtualClock
from joulery.jobs import Definition, Job, JobService, Outcome, Request
from joulery.jobs.policies import RunEnd
from joulery.objectives import Cost
from joulery.storage import Store

JOBS, NIGHTS, MAX_WATTS = 20, 8, 300.0
COST = Cost(0.5, MAX_WATTS)


def draw_epochs(draw):
    """Epochs to the target, seconds of an epoch and watts by batch size, of a made-up job."""
    sizes = [2**exponent for exponent in range(4, draw.choice((8, 9, 10, 12)))]
    best, bend, epochs = draw.choice(sizes), draw.uniform(0.03, 0.3), draw.uniform(8.0, 40.0)
    knee = draw.uniform(16.0, 256.0)
    return {
        size: (
            epochs * (1.0 + bend * math.log2(size / best) ** 2),
            30.0 * (1.0 + knee / size),
            120.0 + 150.0 * size / (size + knee),
        )
        for size in sizes
    }


def train_night(service, clock, job, night, truth, scatter):
    """Cost of one training, and whether it reached the target."""
    decision = service.decide(job, Request(f"{night}", probing=False))
    mean, seconds, watts = truth[decision.batch_size]
    epochs = max(1, round(mean * scatter))
    epoch_cost = COST.of(seconds, seconds * watts)
    reached = epochs * epoch_cost <= decision.cost_ceiling_joules
    if not reached:
        epochs = max(1, int(decision.cost_ceiling_joules / epoch_cost))
    clock.sleep(epochs * seconds)
    end = RunEnd.REACHED if reached else RunEnd.STOPPED
    outcome = Outcome(end, float(epochs), epochs * seconds, epochs * seconds * watts)
    service.report(decision, outcome, f"{night}")
    return epochs * epoch_cost, reached


def test_a_week_of_plain_nights_costs_little_more_than_the_default():
    """A client that cannot probe would be sent far from what is known, at several runs' cost."""
    draw = random.Random(29)  # noqa: S311 - not for secrets
    clock, ratios = VirtualClock(wall_seconds=1.7e9), []
    with Store.open(":memory:") as store:
        service = JobService(store, clock)
        for number in range(JOBS):
            truth = draw_epochs(draw)
            default = draw.choice(list(truth))
            job = Job(f"job {number}", tuple(truth), default, COST, max_epochs=2000)
            identity = service.define(Definition(job), seed=number).id
            total = plain = 0.0
            for night in range(NIGHTS):
                scatter = math.exp(0.05 * draw.gauss(0.0, 1.0))
                cost, reached = train_night(service, clock, identity, night, truth, scatter)
                assert reached, (number, night)
                mean, seconds, watts = truth[default]
                total += cost
                plain += max(1, round(mean * scatter)) * COST.of(seconds, seconds * watts)
            ratios.append(total / plain)
    losses = [max(0.0, ratio - 1.0) for ratio in ratios]
    assert sum(losses) / JOBS < 0.04, losses
    assert max(losses) < 0.25, losses
    assert math.exp(sum(map(math.log, ratios)) / JOBS) < 0.85, ratios
