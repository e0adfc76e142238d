"""Clocks are set ahead of instructions, and nothing that goes wrong reaches training."""

import logging
import threading
import time
from contextlib import contextmanager
from dataclasses import replace

import pytest

from joulery.clock import REAL_CLOCK, VirtualClock
from joulery.errors import DeviceError, MissingRightsError
from joulery.hardware import SimulatedGpu, Workload, settle
from joulery.pipeline import ClockController, ClockSetter, Instruction, RankPlan, RankStep
from support.simulated_boards import simulated_node

HIGH, MIDDLE, LOW = 1.41e9, 1.2e9, 0.9e9


def rank_plan(*steps):
    """Forwards of (clock, seconds)."""
    return RankPlan(
        0,
        sum(seconds for _, seconds in steps),
        tuple(
            RankStep(Instruction(0, 0, "forward", number), hertz, seconds, 100.0)
            for number, (hertz, seconds) in enumerate(steps)
        ),
    )


class Setter:
    """Notes what is set and when."""

    def __init__(self, clock, set_seconds=0.01):
        self.clock, self.set_seconds = clock, set_seconds
        self.log, self.error, self.released = [], None, 0

    def set(self, hertz, watts=None, *, watch=None):
        """Note the clock."""
        if self.error is not None:
            raise self.error
        self.log.append((round(self.clock.now(), 9), hertz))

    def reset(self):
        """Note full clocks."""
        self.log.append((round(self.clock.now(), 9), None))

    def release(self):
        """Note full clocks, and count."""
        self.reset()
        self.released += 1

    def promise(self, watts):
        """Note it among the clocks."""
        self.log.append(("promise", watts))

    def share_watts(self):
        """What others leave the board."""
        return 250.0


@pytest.fixture
def clock():
    """Time that tests turn."""
    return VirtualClock()


def confirmed(plan, setter, clock=REAL_CLOCK):
    """A controller that has seen an iteration of its plan, in no time."""
    controller = ClockController(plan, setter, clock=clock)
    call(controller, plan.order)
    return controller


def begin(controller, plan, reached=None):
    """Begin an iteration of as many microbatches as planned."""
    controller.begin_iteration(
        reached, microbatches=1 + max(step.instruction.microbatch for step in plan.steps)
    )


def call(controller, order, microbatches=None):
    """An iteration that takes no time."""
    if microbatches is None:
        microbatches = 1 + max((item.microbatch for item in order), default=-1)
    controller.begin_iteration(microbatches=microbatches)
    for item in order:
        controller.before(*item.key)
        controller.after(*item.key)
    controller.end_iteration()


def run(controller, clock, plan, waits=0.0):
    """One iteration that goes exactly as planned, waiting before each instruction."""
    begin(controller, plan)
    for step in plan.steps:
        clock.sleep(waits)
        controller.before(*step.instruction.key)
        clock.sleep(step.seconds)
        controller.after(*step.instruction.key)
    controller.end_iteration()


def test_higher_clocks_come_early_and_lower_ones_when_the_work_before_ended(clock):
    """If it fails an instruction starts below its clock, or one is slowed down before it ends."""
    setter = Setter(clock)
    plan = rank_plan((LOW, 0.1), (HIGH, 0.1), (LOW, 0.1))
    controller = confirmed(plan, setter, clock)
    run(controller, clock, plan)
    assert setter.log == [(0.0, LOW), (0.09, HIGH), (0.2, LOW), (0.3, None)]
    assert controller.failure is None


def test_waiting_time_is_used_to_change_clocks(clock):
    """If it fails a rank that waits changes its clock only once work is there."""
    setter = Setter(clock)
    plan = rank_plan((LOW, 0.1), (HIGH, 0.1))
    run(confirmed(plan, setter, clock), clock, plan, waits=0.05)
    # Ordered early, as the wait was not foreseen; nothing left to do when it ends.
    assert setter.log == [(0.0, LOW), (0.14, HIGH), (0.3, None)]


def test_a_change_longer_than_instructions_is_ordered_before_them(clock):
    """If it fails boards that change slowly run instructions below their clock."""
    setter = Setter(clock, set_seconds=0.25)
    plan = rank_plan((LOW, 0.1), (LOW, 0.1), (LOW, 0.1), (LOW, 0.1), (HIGH, 0.1), (LOW, 0.4))
    run(confirmed(plan, setter, clock), clock, plan)
    # 0.25 s before it is needed, within the second instruction.
    assert setter.log == [(0.0, LOW), (0.15, HIGH), (0.5, LOW), (0.9, None)]
    reports = []
    controller = confirmed(plan, Setter(clock, set_seconds=0.25), clock)
    controller.on_iteration = reports.append
    run(controller, clock, plan)
    # None of these had its own clock throughout, so none is compared with the plan.
    assert len(reports[0].ratios.get((0, "forward"), ())) == 0


def test_equal_clocks_are_set_once(clock):
    """If it fails the driver is bothered for nothing."""
    setter = Setter(clock)
    plan = rank_plan((LOW, 0.1), (LOW, 0.1), (LOW, 0.1))
    run(confirmed(plan, setter, clock), clock, plan)
    assert setter.log == [(0.0, LOW), (0.3, None)]


class LaggingGpu(SimulatedGpu):
    """A board whose clock changes 10 ms after the command."""

    def lock_clock(self, hertz):
        """Later."""
        self.clock.call_at(
            self.clock.now() + 0.01, lambda: super(LaggingGpu, self).lock_clock(hertz)
        )

    def unlock_clock(self):
        """Later."""
        self.clock.call_at(self.clock.now() + 0.01, super().unlock_clock)


@contextmanager
def held(device):
    """A lease of a device without a governor."""

    class Held:
        def set(self, *, watts=None, clock_hertz=None):
            if clock_hertz is not None:
                device.lock_clock(clock_hertz)
            if watts is not None:
                device.set_power_limit(watts)

        def reset(self):
            device.unlock_clock()
            device.set_power_limit(device.board.default_limit_watts)

    yield Held()


def work_seconds(gpu, amount):
    """Run on the board until so much work is done, whatever its clock does meanwhile."""
    load = Workload("work", amount, 0.0, 0.0, 0.5)
    gpu.set_load(load)
    begin, remaining = gpu.clock.now(), 1.0
    while remaining > 0:
        moment = min(0.0005, remaining * gpu.steady().seconds)
        remaining -= moment / gpu.steady().seconds
        gpu.clock.sleep(moment)
    gpu.set_load(None)
    return gpu.clock.now() - begin


def test_an_iteration_on_slow_hardware_takes_no_longer_than_planned(clock):
    """If it fails the time that a change takes makes iterations longer."""
    board = simulated_node("A100", 1, clock)[0].board
    gpu = LaggingGpu(board, clock)
    clocks = [LOW, HIGH, LOW, MIDDLE, LOW, HIGH]
    times = [
        settle(board, Workload("work", 0.05, 0.0, 0.0, 0.5), 400, hertz).seconds for hertz in clocks
    ]
    plan = rank_plan(*zip(clocks, times, strict=True))
    controller = confirmed(plan, ClockSetter([gpu], hold=held, clock=clock), clock)
    for _ in range(3):
        start = clock.now()
        begin(controller, plan)
        for number in range(len(clocks)):
            controller.before(0, "forward", number)
            work_seconds(gpu, 0.05)
            controller.after(0, "forward", number)
        # The first clock of an iteration is high from before, which costs energy but no time.
        assert clock.now() - start <= plan.seconds * (1 + 1e-6)
        assert clock.now() - start >= plan.seconds * 0.9
        clock.sleep(0.05)
    controller.close()
    assert controller.failure is None


def test_an_error_gives_clocks_back_and_is_said_once(clock, caplog):
    """If it fails a refused driver call ends training, or floods the log."""
    setter = Setter(clock)
    setter.error = MissingRightsError("may not", remedy="ask")
    plan = rank_plan((LOW, 0.1), (HIGH, 0.1))
    controller = confirmed(plan, setter, clock)
    with caplog.at_level(logging.WARNING, "joulery"):
        for _ in range(3):
            run(controller, clock, plan)
    assert controller.failure is setter.error
    assert len(caplog.records) == 1
    assert "training goes on at full clocks: may not" in caplog.text
    assert setter.log == [(0.0, None)]
    assert setter.released == 1


def test_a_passing_error_is_tried_again_later(clock):
    """If it fails a governor that restarts is lost for the rest of the job."""
    setter = Setter(clock)
    setter.error = DeviceError("timed out", remedy="wait")
    plan = rank_plan((LOW, 0.1), (HIGH, 0.1))
    controller = confirmed(plan, setter, clock)
    run(controller, clock, plan)
    setter.error = None
    run(controller, clock, plan)
    assert not [hertz for _, hertz in setter.log if hertz]
    clock.sleep(60.0)
    run(controller, clock, plan)
    assert [hertz for _, hertz in setter.log][-3:] == [LOW, HIGH, None]


def test_the_first_iteration_runs_at_full_clocks(clock):
    """If it fails a plan is followed before anybody knows that it fits."""
    setter = Setter(clock)
    plan = rank_plan((LOW, 0.1), (HIGH, 0.1))
    controller = ClockController(plan, setter, clock=clock)
    run(controller, clock, plan)
    assert setter.log == []
    run(controller, clock, plan)
    assert [hertz for _, hertz in setter.log] == [LOW, HIGH, None]


@pytest.mark.parametrize(
    ("order", "reason"),
    [
        ([(1, "forward", 0), (1, "forward", 1)], "has the stages 0, the schedule runs 1"),
        ([(s, "forward", m) for s in (0, 1) for m in (0, 1)], "the schedule runs 0, 1"),
        ([(0, "backward", 0), (0, "backward", 1)], "kinds of work forward, the schedule runs back"),
        ([(0, "forward", 0)], "has the microbatches 0, 1, the schedule runs 0"),
        ([(0, "forward", 1), (0, "forward", 0)], "instruction 1 of rank 0 is forward of microba"),
        ([(0, "forward", 0)] * 2 + [(0, "forward", 1)], "instruction 2"),
        ([], "the schedule runs none"),
    ],
)
def test_a_plan_that_does_not_fit_is_not_followed_and_said_why_once(clock, caplog, order, reason):
    """If it fails another rank's plan, or one for another schedule, sets clocks in silence."""
    setter = Setter(clock)
    plan = rank_plan((LOW, 0.1), (HIGH, 0.1))
    wrong = [Instruction(stage, 0, kind, microbatch) for stage, kind, microbatch in order]
    controller = ClockController(plan, setter, clock=clock)
    with caplog.at_level(logging.WARNING, "joulery"):
        for _ in range(3):
            call(controller, wrong, microbatches=2)
        begin(controller, plan)
    assert setter.log == []
    assert reason in controller.mismatch
    assert len(caplog.records) == 1
    assert reason in caplog.text
    assert controller.failure is None
    call(controller, plan.order)  # the schedule is the planned one from now on
    run(controller, clock, plan)
    assert [hertz for _, hertz in setter.log] == [LOW, HIGH, None]
    assert controller.mismatch == ""


def test_an_iteration_that_ends_early_leaves_full_clocks(clock):
    """If it fails the clocks of a short batch stay low until the next one, or in evaluation."""
    setter = Setter(clock)
    plan = rank_plan((LOW, 0.1), (LOW, 0.1), (HIGH, 0.1))
    controller = confirmed(plan, setter, clock)
    begin(controller, plan)
    controller.before(0, "forward", 0)
    clock.sleep(0.1)
    controller.after(0, "forward", 0)
    assert setter.log == [(0.0, LOW)]
    controller.end_iteration()
    assert setter.log[-1] == (0.1, None)
    call(controller, plan.order)
    assert len(setter.log) == 2
    run(controller, clock, plan)
    assert [hertz for _, hertz in setter.log[2:]] == [LOW, HIGH, None]


def test_an_iteration_of_another_size_runs_at_full_clocks(clock, caplog):
    """If it fails the last batch of an epoch is slowed down by a plan that is not its own."""
    setter = Setter(clock)
    plan = rank_plan((LOW, 0.1), (HIGH, 0.1))
    controller = confirmed(plan, setter, clock)
    with caplog.at_level(logging.WARNING, "joulery"):
        for _ in range(2):
            call(controller, plan.order[:1], microbatches=1)
            assert setter.log == []
        call(controller, plan.order, microbatches=2)
    assert [hertz for _, hertz in setter.log][-1] is None
    assert LOW in [hertz for _, hertz in setter.log]
    assert caplog.text.count("it has 1 of 2 planned microbatches; plan as many as") == 1


def test_an_iteration_of_unknown_size_runs_at_full_clocks(clock, caplog):
    """If it fails a short batch that nobody announced begins at the clocks of a full one."""
    setter = Setter(clock)
    plan = rank_plan((LOW, 0.1), (LOW, 0.1), (HIGH, 0.1))
    controller = confirmed(plan, setter, clock)
    run(controller, clock, plan)
    changes = len(setter.log)
    with caplog.at_level(logging.WARNING, "joulery"):
        for _ in range(2):
            controller.begin_iteration()
            for item in plan.order[:2]:
                controller.before(*item.key)
                controller.after(*item.key)
            controller.end_iteration()
    assert setter.log[-1][1] is None
    assert len(setter.log) == changes
    assert caplog.text.count("pass begin_iteration(microbatches=…)") == 1
    run(controller, clock, plan)
    assert controller.mismatch == ""
    assert [hertz for _, hertz in setter.log[changes:]] == [LOW, HIGH, None]


@pytest.mark.parametrize("microbatches", [1, 2, None])
def test_a_planned_optimizer_step_that_is_left_out_leaves_full_clocks(clock, microbatches):
    """If it fails a skipped step, as after an overflow, leaves its clock to the next iteration."""
    setter = Setter(clock)
    optimizer = RankStep(Instruction(0, 0, "optimizer", -1), LOW, 0.1, 100.0)
    plan = RankPlan(0, 0.2, (*rank_plan((LOW, 0.1)).steps, optimizer))
    controller = confirmed(plan, setter, clock)
    call(controller, plan.order[:1])
    assert [hertz for _, hertz in setter.log] == [LOW]
    controller.begin_iteration(microbatches=microbatches)
    assert [hertz for _, hertz in setter.log] == [LOW, None]


def test_an_instruction_that_does_not_end_leaves_full_clocks(clock):
    """If it fails an error in the last instruction, which training survives, leaves its clock."""
    setter = Setter(clock)
    plan = rank_plan((LOW, 0.1))
    controller = confirmed(plan, setter, clock)
    begin(controller, plan)
    controller.before(0, "forward", 0)
    controller.end_iteration()
    assert [hertz for _, hertz in setter.log] == [LOW, None]


def test_an_instruction_out_of_order_ends_the_planned_clocks_at_once(clock):
    """If it fails the rest of such an iteration runs at clocks of other instructions."""
    setter = Setter(clock)
    plan = rank_plan((LOW, 0.1), (LOW, 0.1), (HIGH, 0.1))
    controller = confirmed(plan, setter, clock)
    begin(controller, plan)
    controller.before(0, "forward", 0)
    controller.before(0, "forward", 2)
    assert [hertz for _, hertz in setter.log] == [LOW, None]


def test_planned_optimizer_steps_may_come_after_the_schedule(clock):
    """If it fails a planned optimizer step, which torch runs by itself, makes no plan fit."""
    setter = Setter(clock)
    steps = rank_plan((LOW, 0.1)).steps
    optimizer = RankStep(Instruction(0, 0, "optimizer", -1), MIDDLE, 0.1, 100.0)
    plan = RankPlan(0, 0.2, (*steps, optimizer))
    controller = ClockController(plan, setter, clock=clock)
    for _ in range(2):
        begin(controller, plan)
        controller.before(0, "forward", 0)
        controller.after(0, "forward", 0)
        controller.before(0, "reduce", -1)  # the plan has none, which is fine
        controller.after(0, "reduce", -1)
        controller.end_iteration()
        controller.before(0, "optimizer", -1)
        controller.after(0, "optimizer", -1)
    assert [hertz for _, hertz in setter.log] == [LOW, MIDDLE, None]


def test_plans_change_at_the_iteration_agreed_upon(clock):
    """If it fails ranks follow different plans."""
    setter = Setter(clock)
    first, second = rank_plan((LOW, 0.1)), rank_plan((MIDDLE, 0.1))
    controller = confirmed(first, setter, clock)
    assert controller.follow(second, from_iteration=3)
    for _ in range(4):
        run(controller, clock, first)
    set_clocks = [hertz for _, hertz in setter.log if hertz]
    assert set_clocks == [LOW, LOW, MIDDLE, MIDDLE]
    assert not controller.follow(first, from_iteration=4)
    controller.follow_first_plan()
    run(controller, clock, first)
    assert [hertz for _, hertz in setter.log if hertz][-1] == LOW


def test_a_plan_is_promised_while_it_is_followed(clock):
    """If it fails an agent lifts the cap of a board that runs at full clocks."""
    plan = replace(rank_plan((LOW, 0.1), (LOW, 0.1)), peak_watts=200.0)
    setter, seen = Setter(clock), []
    controller = confirmed(plan, setter, clock)
    controller.on_iteration = seen.append
    run(controller, clock, plan)
    assert not [entry for entry in setter.log if entry[0] == "promise"]
    controller.follow_shares()
    run(controller, clock, plan)
    assert seen[-1].share_watts == 250.0
    controller.begin_iteration(microbatches=1)
    controller.end_iteration()
    assert [entry for entry in setter.log if entry[0] == "promise"] == [
        ("promise", 200.0),
        ("promise", None),
    ]


def test_times_of_an_iteration_are_reported(clock):
    """If it fails stragglers and drift go unnoticed."""
    reports = []
    plan = rank_plan((LOW, 0.2), (LOW, 0.2), (LOW, 0.2))
    controller = confirmed(plan, Setter(clock), clock)
    controller.on_iteration = reports.append
    for _ in range(2):
        begin(controller, plan)
        for number in range(3):
            controller.before(0, "forward", number)
            clock.sleep(0.22)
            controller.after(0, "forward", number)
    assert [times.iteration for times in reports] == [1, 2]
    assert reports[1].seconds == pytest.approx(0.66)
    assert reports[1].planned_seconds == pytest.approx(0.6)
    assert reports[1].ratios[0, "forward"] == pytest.approx((1.1, 1.1, 1.1))


def test_times_of_short_work_under_a_changing_clock_are_left_out(clock):
    """If it fails changes of clock pass for drift."""
    reports = []
    plan = rank_plan((LOW, 0.02), (HIGH, 0.02), (HIGH, 0.02))
    controller = confirmed(plan, Setter(clock), clock)
    controller.on_iteration = reports.append
    run(controller, clock, plan)
    assert len(reports[0].ratios[0, "forward"]) == 1


def test_queued_work_counts_from_when_the_device_gets_there(clock):
    """If it fails clocks run ahead of a device whose work is queued."""
    setter = Setter(clock)
    plan = rank_plan((LOW, 0.1), (HIGH, 0.1))
    controller = confirmed(plan, setter, clock)
    begin(controller, plan, lambda: clock.sleep(0.2))
    controller.before(0, "forward", 0, lambda: clock.sleep(0.5))
    clock.sleep(0.1)
    assert setter.log == [(0.2, LOW), (0.79, HIGH)]


def test_an_error_while_waiting_for_the_device_is_caught(clock):
    """If it fails a lost device raises out of a callback."""
    plan = rank_plan((LOW, 0.1))
    controller = confirmed(plan, Setter(clock), clock)
    begin(controller, plan)
    controller.before(0, "forward", 0, lambda: 1 / 0)
    assert isinstance(controller.failure, ZeroDivisionError)


class Stuck(Setter):
    """A driver that hangs until released."""

    def __init__(self, clock):
        super().__init__(clock)
        self.go = threading.Event()

    def set(self, hertz, watts=None, *, watch=None):
        """Hang, then note."""
        self.go.wait(60.0)
        super().set(hertz)


def test_a_hanging_governor_does_not_hang_training():
    """If it fails a lease that does not answer stops every instruction."""
    setter = Stuck(REAL_CLOCK)
    plan = rank_plan(*[(LOW, 0.1), (HIGH, 0.1)] * 100)
    controller = confirmed(plan, setter)
    start = time.monotonic()
    begin(controller, plan)
    for number in range(200):
        controller.before(0, "forward", number)
        controller.after(0, "forward", number)
    assert time.monotonic() - start < 30.0
    setter.go.set()
    controller.close()
    controller.close()
    # What the rank is long past is not set any more.
    assert len([hertz for _, hertz in setter.log if hertz]) <= 3
    assert setter.released == 1


def test_the_background_thread_sets_clocks_in_time():
    """If it fails clocks change only when the next instruction has begun."""
    setter = Setter(REAL_CLOCK, set_seconds=0.03)
    plan = rank_plan((LOW, 0.1), (HIGH, 0.02))
    controller = confirmed(plan, setter)
    start = time.monotonic()
    begin(controller, plan)
    controller.before(0, "forward", 0)
    while len(setter.log) < 2 and time.monotonic() < start + 60:
        time.sleep(0.005)
    controller.close()
    assert [hertz for _, hertz in setter.log[:2]] == [LOW, HIGH]
    assert setter.log[1][0] - start >= 0.065
