"""The policy joulery: what it does first, tries, stops, and comes to."""

import dataclasses

import numpy as np
import pytest

from joulery.jobs.policies import ActionKind, CounterRng, JobBatch, Outcomes, RunEnd, WarmStart
from joulery.jobs.policies.bayesian._policy import DEFAULT_EXPLORATION, BayesianPolicy
from joulery.objectives import UNBOUNDED, Bounds, EnergyDelayProduct, LeastEnergy
from joulery.simulate import SimulationConfig, discarded_becomes_best, scale_epochs, simulate
from joulery.testing.workloads import made_up_workload

ROW = np.zeros(1, dtype=np.int64)
FIRST, BEST, TRY, PROBE, UNREACHED, SCOUT, WARM = range(7)
SEEDS = range(6)


class One:
    """A single job that learns how its actions ended."""

    def __init__(self, load=None, **options):
        self.policy = BayesianPolicy(**options)
        self.load = load or made_up_workload()
        self.jobs = JobBatch.of([self.load.job()], [7])
        self.beliefs = self.policy.start(self.jobs)
        self.recurrence = 0

    def decide(self):
        """What would be done next."""
        return self.policy.decide(self.beliefs, ROW, CounterRng.of(self.jobs.seeds, ROW))

    def begin(self):
        """Hand it out."""
        actions = self.decide()
        self.policy.begin(self.beliefs, ROW, actions)
        return actions

    def end(self, actions, end, epochs=0.0, *, measures=True):
        """Tell how it ended, with exact figures of every limit if it measures."""
        arm = actions.arm
        seconds, joules = self.load.epoch_seconds[arm], self.load.epoch_joules[arm]
        if not measures:
            seconds, joules = np.full_like(seconds, np.nan), np.full_like(joules, np.nan)
        one = np.ones(1)
        self.policy.learn(
            self.beliefs,
            Outcomes(
                job=ROW,
                recurrence=np.array([self.recurrence]),
                kind=actions.kind,
                arm=arm,
                limit=actions.limit,
                end=np.array([end]),
                epochs=epochs * one,
                seconds=one,
                joules=one,
                cost=one,
                epoch_seconds=seconds,
                epoch_joules=joules,
                relative_error=np.where(np.isnan(seconds), np.nan, 0.005),
            ),
        )
        self.recurrence += end == RunEnd.REACHED

    def first_run(self):
        """The default, reached in 30 epochs."""
        self.end(self.begin(), RunEnd.REACHED, 30.0)


def test_the_default_runs_first_and_to_its_end():
    """The owner's choice is the only one known to work; it also shows every limit."""
    actions = One().decide()
    assert actions.kind[0] == ActionKind.TRAIN
    assert actions.arm[0] == 4
    assert np.isinf(actions.ceiling[0])
    assert actions.probe_limits.all()
    assert actions.reason[0] == FIRST


def test_seconds_of_probing_come_before_a_try():
    """A batch size whose epochs are too expensive is found out in seconds, not in a run."""
    one = One()
    one.first_run()
    actions = one.begin()
    assert actions.kind[0] == ActionKind.PROBE
    assert actions.reason[0] == PROBE
    assert actions.probe_limits.sum() == 1


def test_a_try_is_bounded_by_the_best():
    """No try may cost more than its share of what is known to work."""
    one = One()
    one.first_run()
    best = 30.0 * one.load.epoch_cost()[4].min()
    for _ in range(20):
        actions = one.begin()
        if actions.kind[0] == ActionKind.PROBE:
            one.end(actions, RunEnd.PROBED)
        elif actions.reason[0] == TRY:
            assert actions.ceiling[0] < 1.1 * DEFAULT_EXPLORATION.max_cost_ratio * best
            return
        else:
            one.end(actions, RunEnd.REACHED, 30.0)
    pytest.fail("nothing was ever tried")


def test_a_try_that_could_not_afford_an_epoch_is_not_repeated_for_ever(monkeypatch):
    """It ends at once and costs nothing, so only beliefs can stop it from being asked for again."""
    monkeypatch.setattr("joulery.jobs.policies.bayesian._policy._PROBE_SHARE", 0.0)
    one = One()
    one.first_run()
    for _ in range(40):
        actions = one.begin()
        if actions.reason[0] != TRY:
            return
        one.end(actions, RunEnd.STOPPED, 0.0, measures=False)
    pytest.fail("the same try was asked for forty times")


@pytest.mark.parametrize("factor", [2.0, 15.0])
def test_no_two_runs_in_a_row_are_stopped(factor):
    """A job that became many times as long would get no model night after night."""
    load = made_up_workload(never=(16, 512))
    options, load = SimulationConfig(keep_actions=True), scale_epochs(load, 12, factor)
    actions = simulate([load], BayesianPolicy(), 40, SEEDS, options).actions
    for job in SEEDS:
        ends = actions.end[(actions.job == job) & (actions.kind == ActionKind.TRAIN)]
        assert not ((ends[1:] == RunEnd.STOPPED) & (ends[:-1] == RunEnd.STOPPED)).any()


def test_what_is_believed_best_is_not_stopped_twice():
    """The run after a stopped one is the best known, without a ceiling, whatever it costs."""
    one = One(made_up_workload((64,), default=64))
    one.first_run()
    stopped = one.begin()
    assert np.isfinite(stopped.ceiling[0])
    one.end(stopped, RunEnd.STOPPED, 120.0)
    again = one.begin()
    assert (again.reason[0], again.ceiling[0]) == (BEST, np.inf)
    one.end(again, RunEnd.REACHED, 450.0)
    assert np.isfinite(one.decide().ceiling[0])


def test_far_batch_sizes_are_approached_step_by_step():
    """A size far from what was trained may never reach the target, at the price of two runs."""
    load = made_up_workload((8, 16, 32, 64, 128, 256, 1024), default=128)
    log = simulate([load], BayesianPolicy(), 30, SEEDS, SimulationConfig(keep_actions=True))
    for job in SEEDS:
        mine = (log.actions.job == job) & (log.actions.kind == ActionKind.TRAIN)
        seen = set()
        for arm in log.actions.arm[mine].tolist():
            assert not seen or min(seen) - 1 <= arm <= max(seen) + 1
            seen.add(arm)


def test_jobs_of_few_epochs_are_expected_to_be_flat():
    """Fine-tuning takes three epochs at any batch size; to try all costs more than it saves."""
    long, short = One(), One()
    for one, epochs in ((long, 30.0), (short, 3.0)):
        one.end(one.begin(), RunEnd.REACHED, epochs)
    assert np.ptp(short.beliefs.epochs.mean) < 0.5 * np.ptp(long.beliefs.epochs.mean)
    assert short.beliefs.epochs.variance[0, 0] < 0.3 * long.beliefs.epochs.variance[0, 0]


def test_a_default_that_fails_gives_way():
    """A wrong hint costs one failed run, not a job that never trains."""
    one = One()
    for _ in range(4):
        actions = one.begin()
        assert actions.kind[0] == ActionKind.TRAIN
        assert np.isinf(actions.ceiling[0])
        one.end(actions, RunEnd.EXHAUSTED, 100.0)
    assert actions.arm[0] != 4
    assert actions.reason[0] == UNREACHED


def test_overlapping_submissions_do_not_all_try_the_same(monkeypatch):
    """What is under way is foreseen; ten tries of one batch size teach little more than one."""
    monkeypatch.setattr("joulery.jobs.policies.bayesian._policy._PROBE_SHARE", 0.0)
    one = One()
    one.first_run()
    arms = [int(one.begin().arm[0]) for _ in range(10)]
    assert len(set(arms)) >= 3


def test_a_few_of_many_first_submissions_scout():
    """Ten runs of a bad default at once teach no more than one."""
    one = One()
    begun = [one.begin() for _ in range(10)]
    arms = [int(actions.arm[0]) for actions in begun]
    assert arms[0] == 4
    assert arms.count(4) >= 6
    assert len(set(arms)) >= 3
    assert {
        (arm == 4, int(actions.reason[0])) for arm, actions in zip(arms, begun, strict=True)
    } == {
        (True, FIRST),
        (False, SCOUT),
    }


def test_abandoned_runs_leave_nothing_behind():
    """A dead worker is not the batch size's fault."""
    one = One()
    one.first_run()
    before = one.decide()
    actions = one.begin()
    one.end(actions, RunEnd.ABANDONED, np.nan, measures=False)
    assert one.decide().arm[0] == before.arm[0]
    assert one.beliefs.under_way.sum() == 0


def last_costs(load, log):
    """Expected cost of the last five settings over the optimum's; the median, for late tries."""
    _, last = load.stages[-1]
    cost = last.expected_cost()[log.arm[:, -5:], log.limit[:, -5:]]
    return float(np.median((cost / last.optimum()[2]).mean(axis=1)))


@pytest.mark.parametrize("default", [16, 64, 256, 512])
def test_settles_on_the_best_from_any_default(default):
    """Whatever the owner hints, the job ends up at its optimum."""
    load = made_up_workload(default=default)
    log = simulate([load], BayesianPolicy(), 60, SEEDS)
    assert log.reached.all()
    assert last_costs(load, log) < 1.05


def test_copes_with_unreachable_batch_sizes():
    """Some never reach the target; a job must not go back to them."""
    load = made_up_workload((8, 16, 32, 64, 128, 256, 512, 1024), never=(8, 512, 1024))
    log = simulate([load], BayesianPolicy(), 60, SEEDS)
    assert log.reached.all()
    assert last_costs(load, log) < 1.05


def test_all_batch_sizes_need_twice_the_epochs():
    """Stale ceilings must not stop every run; the job goes on and stays at its best."""
    load = scale_epochs(made_up_workload(), 30, 2.0)
    log = simulate([load], BayesianPolicy(), 60, SEEDS)
    assert log.reached.all()
    # A change may make any batch size the best, so each of the six may be tried again, twice or so.
    assert (log.attempts[:, 30:].sum(axis=1) < 30 + 18).all()
    assert last_costs(load, log) < 1.1


def test_heavy_tails_do_not_derail():
    """One run in five takes three times as long, at every batch size."""
    load = made_up_workload()
    epochs = load.epochs.copy()
    epochs[:, 0] = np.minimum(3.0 * epochs[:, 0], 99.0)
    load = dataclasses.replace(load, epochs=epochs)
    log = simulate([load], BayesianPolicy(), 80, SEEDS)
    assert log.reached.all()
    assert last_costs(load, log) < 1.15
    assert (log.cost.sum(axis=1) < log.default[2].sum(axis=1)).all()


@pytest.mark.parametrize("overlap", [10, 50])
def test_overlapping_jobs_come_to_the_same_end(overlap):
    """Fifty submissions at once must neither deadlock nor mislead."""
    load = made_up_workload()
    log = simulate(
        [load], BayesianPolicy(), 40 + 2 * overlap, SEEDS, SimulationConfig(overlap=overlap)
    )
    assert log.reached.all()
    assert last_costs(load, log) < 1.1


def test_other_objectives_lead_elsewhere():
    """What is minimised is what the owner asked for, not the cost that is charged."""
    load = made_up_workload()
    log = simulate([load], BayesianPolicy(objective=EnergyDelayProduct()), 60, SEEDS)
    mean = load.mean_epochs()[:, None]
    product = mean**2 * load.epoch_seconds * load.epoch_joules
    assert (product[log.arm[:, -5:], log.limit[:, -5:]] / product.min()).mean() < 1.1


def test_a_deadline_is_kept():
    """Least energy within a deadline holds a higher limit than least energy alone."""
    load = made_up_workload()
    mean = load.mean_epochs()[:, None]
    seconds = mean * load.epoch_seconds
    joules = mean * load.epoch_joules
    deadline = 1.6 * seconds.min()
    log = simulate(
        [load], BayesianPolicy(objective=LeastEnergy(deadline_seconds=deadline)), 60, SEEDS
    )
    last = log.arm[:, -5:], log.limit[:, -5:]
    assert (seconds[last] <= 1.05 * deadline).mean() > 0.9
    assert joules[last].mean() < 1.15 * joules[seconds <= deadline].min()


def test_least_energy_within_a_slowdown_finds_the_fastest_too():
    """The bound refers to the fastest setting, which has to be found before it can be kept."""
    load = made_up_workload()
    objective = LeastEnergy(max_slowdown=0.05)
    options = SimulationConfig(objective=objective)
    log = simulate([load], BayesianPolicy(objective=objective), 80, SEEDS, options)
    assert log.within[:, -5:].mean() > 0.9
    assert np.median(log.expected[:, -5:] / log.optimal[:, -5:]) < 1.02


class MostlyEnergy:
    """A user's own objective: joules squared times seconds, relative to the fastest run."""

    def __init__(self, bounds=UNBOUNDED):
        self.bounds = bounds

    def value(self, seconds, joules, reference):
        """Not in proportion to epochs, and dependent on the reference."""
        return (joules / reference.joules) ** 2 * seconds / reference.seconds


@pytest.mark.parametrize("slowdown", [None, 0.1])
def test_an_objective_of_ones_own_is_pursued(slowdown):
    """A new objective would need changes of the policy and of the simulator."""
    load = made_up_workload()
    objective = MostlyEnergy(Bounds(max_slowdown=slowdown))
    options = SimulationConfig(objective=objective)
    log = simulate([load], BayesianPolicy(objective=objective), 80, SEEDS, options)
    assert log.within[:, -5:].mean() > 0.9
    assert np.median(log.expected[:, -5:] / log.optimal[:, -5:]) < 1.03


def test_a_job_that_becomes_cheaper_is_not_left_at_a_worse_batch_size():
    """A try before the change is certain seems cheap beside old runs, and is repeated for good."""
    load = scale_epochs(made_up_workload(), 20, 0.15)
    log = simulate([load], BayesianPolicy(), 45, range(40))
    assert (log.cost / log.optimal - 1.0)[:, 20:].sum(axis=1).max() < 10.0


def test_a_discarded_batch_size_is_found_again():
    """After a change, what was too expensive may be the best; a job must not stay away from it."""
    load = discarded_becomes_best(made_up_workload(), 30)
    log = simulate([load], BayesianPolicy(), 80, SEEDS)
    assert last_costs(load, log) < 1.1


def test_inherited_epochs_choose_the_first_batch_size():
    """On another GPU a job need not start from its default again."""
    load = made_up_workload()
    sizes = load.batch_sizes
    epochs = tuple(np.log(load.mean_epochs()).tolist())
    known = WarmStart(sizes, epochs, (0.05,) * len(sizes))
    assert One(warm_start=known).decide().reason[0] == WARM
    fresh, warm = (
        simulate([load], policy, 40, SEEDS).final_regret().mean()
        for policy in (BayesianPolicy(), BayesianPolicy(warm_start=known))
    )
    assert warm < 0.5 * fresh


def test_a_batch_size_that_became_cheaper_unseen_is_found():
    """If this fails, what was once thought worse is never tried again."""
    load = made_up_workload()
    steep = np.nanmin(load.expected_cost(), axis=1)
    best = int(steep.argmin())
    flat = 1.0 + 0.25 * np.abs(np.arange(len(steep)) - best)
    load = dataclasses.replace(
        load,
        epochs=load.epochs * (flat * steep.min() / steep)[:, None],
        default=load.batch_sizes[best],
    )
    factors = np.where(np.arange(len(steep)) > best, 0.6, 1.0)
    log = simulate([scale_epochs(load, 40, factors)], BayesianPolicy(), 140, SEEDS)
    assert (log.arm[:, 35:40] == best).all()
    assert (log.arm[:, -20:] > best).mean() > 0.5
