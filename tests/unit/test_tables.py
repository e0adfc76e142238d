"""Objects that show themselves, and functions whose calls are added up."""

import math
import sys
import types

import pytest

import joulery
from joulery.clock import VirtualClock
from joulery.errors import InvalidValueError, MissingExtraError
from joulery.frontier import Frontier, OperatingPoint, Setting
from joulery.hardware import SimulatedGpu, catalog
from joulery.metering import Meter
from joulery.objectives import LeastEnergy, choose
from joulery.prediction import Plan, Work, prediction
from joulery.reports import Terminal, recommendation_report
from joulery.training import CallbackLoop, callback_text

POINTS = [
    OperatingPoint(1.0, 300.0, Setting(power_limit_watts=300.0)),
    OperatingPoint(1.04, 250.0, Setting(power_limit_watts=250.0)),
    OperatingPoint(1.5, 200.0, Setting(power_limit_watts=150.0)),
]


def test_a_frontier_shows_itself():
    """If this fails, a notebook shows a frontier as a page of constructor calls."""
    frontier = Frontier.from_points(POINTS, "an <epoch>")
    assert repr(frontier).startswith("<Frontier: 3 points of an <epoch>, 1.00 s and 300 J to")
    page = frontier._repr_html_()
    assert "an &lt;epoch&gt;" in page
    assert page.count("<tr>") == 4
    assert "<td>1.04 s</td><td>250 J</td>" in page
    assert "<th>time</th><th>energy</th><th>setting</th>" in page
    assert page.count("<th>") == 5  # the setting's text is enough


def test_rows_of_a_frontier_have_a_column_for_each_knob():
    """If this fails, energy cannot be plotted over the limit without reading texts apart."""
    rows = Frontier.from_points(
        [*POINTS, OperatingPoint(0.9, 400.0, Setting(device="A100"))]
    ).rows()
    assert [row["power_limit_watts"] for row in rows] == [None, 300.0, 250.0, 150.0]
    assert [row["device"] for row in rows] == ["A100", None, None, None]
    assert "batch_size" not in rows[0]


def test_what_people_hold_fits_into_a_line(monkeypatch, tmp_path):
    """If this fails, a prompt answers with pages of numbers, or with an address in memory."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))  # no profile of an earlier run
    board = catalog.board("V100")
    gpu = SimulatedGpu(board, VirtualClock())
    step = catalog.workload("resnet50", board)
    with joulery.Run("resnet", objective="edp", devices=[gpu]) as run:
        for _ in run.steps(range(200)):
            gpu.run(step)
    model = {"layers": 24, "hidden": 2048, "heads": 16, "feedforward": 8192, "vocabulary": 50304}
    model["sequence"] = 2048
    step = prediction(model, "h100", Plan())
    with Meter([gpu], clock=gpu.clock).window("epoch") as window:
        pass
    unbegun = Meter([gpu]).window("epoch")
    loop = CallbackLoop(meter=Meter([gpu]))
    held = (gpu, Meter([gpu]), run, run.result, run.energy, step, window, unbegun, POINTS[0])
    for shown in held:
        assert repr(shown).startswith(f"<{type(shown).__name__}")
        assert len(repr(shown)) < 250
        assert " object at " not in repr(shown)
    assert repr(POINTS[0]) == "<OperatingPoint: 300 W: 300 J in 1.00 s (assumed)>"
    assert callback_text(types.SimpleNamespace(_loop=loop)) == "<SimpleNamespace: not begun>"


def test_a_window_says_how_far_its_joules_are_known():
    """If this fails, a guess at a prompt looks like a measurement."""
    clock = VirtualClock()
    gpu = SimulatedGpu(catalog.board("V100"), clock)
    with Meter([gpu], clock=clock).window("epoch") as window:
        clock.sleep(100.0)
    assert repr(window).startswith("<Window 'epoch' closed: ")
    assert " ± " in repr(window)
    assert "(simulated)" in repr(window)
    assert "±" in window._repr_html_()


def test_a_recommendation_in_a_notebook_is_a_short_list():
    """If this fails, a notebook buries the answer under dozens of choices, with raw figures."""
    model = {"layers": 24, "hidden": 2048, "heads": 16, "feedforward": 8192, "vocabulary": 50304}
    model["sequence"] = 2048
    recommendation = joulery.recommend(model, 1e10, ["a100", "h100"], max_devices=64)
    page = recommendation._repr_html_()
    assert page.count("<tr>") <= 7 < len(recommendation.rows())
    assert "<td>recommended" in page
    assert "Wh</td><td>$" in page
    assert "(predicted)" in page
    report = recommendation_report(recommendation)
    terminal = report.text(Terminal(80)).splitlines()
    assert all(len(line) <= 80 for line in terminal)
    assert "…" not in "".join(terminal)
    head = " ".join(terminal[:24])
    for row in recommendation.short_list():
        assert row["energy"] in page
        assert row["energy"] in head
        assert row["energy"] in report.html()


def test_plans_and_tokens_are_taken_as_on_the_command_line():
    """If this fails, Python asks for classes where the command line takes a word."""
    model = {"layers": 24, "hidden": 2048, "heads": 16, "feedforward": 8192, "vocabulary": 50304}
    model["sequence"] = 2048
    plan = Plan(data=8, shard=3)
    told = joulery.predict(model, "h100", plan="dp8-mb1-zero3", batch_size=64)
    assert told == joulery.predict(model, "h100", plan=plan, batch_size=64)
    assert joulery.recommend(model, 1e10, "h100", max_devices=8) == joulery.recommend(
        model, Work(1e10), ["h100"], max_devices=8
    )
    assert joulery.recommend(model, "10B", "h100", max_devices=8) == joulery.recommend(
        model, 1e10, "h100", max_devices=8
    )
    with pytest.raises(InvalidValueError, match="dp8-mb1-zero3"):
        joulery.predict(model, "h100", plan=8)


def test_rows_become_a_data_frame_where_pandas_is(monkeypatch):
    """If this fails, results cannot be analysed further, or pandas has to be installed."""
    frontier = Frontier.from_points(POINTS)
    fake = types.ModuleType("pandas")
    fake.DataFrame = list
    monkeypatch.setitem(sys.modules, "pandas", fake)
    assert frontier.to_pandas() == frontier.rows()
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match="pip install pandas"):
        frontier.to_pandas()


@pytest.mark.parametrize(
    ("text", "watts"),
    [("least-energy:slowdown=5%", 250.0), ("least-energy", 150.0), ("cost:eta=0", 300.0)],
)
def test_points_are_chosen_by_the_text_of_an_objective(text, watts):
    """If this fails, `choose` and `Run` speak different languages."""
    assert choose(text, POINTS).setting.power_limit_watts == watts
    assert choose("least-energy:slowdown=5%", POINTS) == choose(LeastEnergy(0.05), POINTS)


def test_a_text_that_is_not_an_objective_is_refused():
    """If this fails, a slip in an objective chooses anything."""
    with pytest.raises(InvalidValueError):
        choose("leest-energy", POINTS)


def test_calls_of_a_decorated_function_add_up():
    """If this fails, a decorated function forgets what its calls have used."""
    clock = VirtualClock()
    gpu = SimulatedGpu(catalog.board("V100"), clock)
    work = catalog.workload("resnet50", gpu.board)
    with Meter([gpu], clock=clock) as meter:

        @meter.window("step")
        def step(fails):
            for _ in range(3):
                gpu.run(work)
            if fails:
                raise ValueError

        before = gpu.true_joules()
        for number in range(40):
            if number == 7:
                with pytest.raises(ValueError):  # noqa: PT011 - of the function itself
                    step(fails=True)
            else:
                step(fails=False)
        totals = step.totals
        assert totals.calls == 40
        assert totals.seconds == pytest.approx(clock.now(), rel=1e-6)
        assert totals.joules == pytest.approx(gpu.true_joules() - before, rel=0.02)
        assert "40 calls" in str(totals)
        assert not math.isnan(totals.rows()[0]["joules"])
        measured = meter.window("empty")
        with measured:
            pass
        assert "GPU" in repr(measured.measurement) or "J" in repr(measured.measurement)
