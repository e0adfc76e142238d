"""``joulery plan pipeline`` as users call it: figures, charts, JSON, and error messages."""

import contextlib
import io
import itertools
import json
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from joulery.cli import main
from joulery.pipeline import load_plan

_DATA = Path(os.environ.get("JOULERY_DATA", Path(__file__).parents[3] / "shared/data"))
_PROFILES = _DATA / "pipeline/profiles"


@pytest.fixture
def profile(tmp_path):
    """Three unequal stages over eight clocks."""
    path = tmp_path / "profile.csv"
    lines = ["stage,instruction,frequency,time,energy"]
    for stage, size in enumerate((1.0, 1.2, 0.8)):
        for kind, work in (("forward", 0.1), ("backward", 0.2)):
            for clock in range(1400, 1000, -50):
                seconds = size * work * (0.2 + 0.8 * 1400 / clock)
                watts = 100 + 300 * (clock / 1400) ** 3
                lines.append(f"{stage},{kind},{clock},{seconds},{seconds * watts}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _joulery(*arguments):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(["plan", "pipeline", *map(str, arguments)])
    return SimpleNamespace(returncode=code, stdout=out.getvalue(), stderr=err.getvalue())


def _document(*arguments):
    done = _joulery(*arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_as_a_command_of_the_shell(profile):
    """The command would work in this process only."""
    done = subprocess.run(
        f"{sys.executable} -m joulery plan pipeline --profile {profile} --microbatches 4".split(),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8", "COLUMNS": "100"},
    )
    assert done.returncode == 0, done.stderr
    assert "equal time" in done.stdout
    assert "★" in done.stdout


def test_savings_at_equal_time_and_with_a_straggler(profile):
    """The command would not show what there is to save."""
    done = _joulery(
        "--profile", profile, "--stages", 3, "--microbatches", 6, "--schedule", "1f1b",
        "--straggler", 1.1, "--blocking-power", 80,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "profile.csv: 1f1b, 3 ranks, 6 microbatches, 36 instructions" in done.stdout
    saved = {
        name: float(share)
        for name, share in re.findall(r"^(equal time|straggler × 1\.1) .* (\d+\.\d) % .*MHz$",
                                      done.stdout, re.MULTILINE)
    }  # fmt: skip
    assert 3 < saved["equal time"] < saved["straggler × 1.1"] < 60
    assert "energy in" in done.stdout
    assert done.stderr == ""


def test_the_document_holds_what_other_tools_build_on(profile):
    """Tools that read the document would break."""
    found = _document("--profile", profile, "--microbatches", 6, "--blocking-power", 80)
    assert {"planned_seconds", "frontier", "plans"} <= set(found)
    plan = found["plans"][0]
    assert found["planned_seconds"] == plan["seconds"]
    assert plan["seconds"] <= found["full_clocks"]["seconds"] * (1 + 1e-9)
    assert plan["lower_bound_joules"] <= plan["joules"] * (1 + 1e-9)
    assert len(plan["instructions"]) == 36
    for row in found["frontier"]:
        assert row["lower_bound_joules"] <= row["joules"] * (1 + 1e-9)
    seconds = [row["seconds"] for row in found["frontier"]]
    joules = [row["joules"] for row in found["frontier"]]
    assert seconds == sorted(seconds)
    assert joules == sorted(joules, reverse=True)


def test_no_rank_does_two_things_at_once(profile):
    """Instructions of a rank would overlap, or start before their data."""
    plan = _document("--profile", profile, "--microbatches", 5, "--communication", 0.01)["plans"][0]
    ends = {}
    for item in plan["instructions"]:
        ends[item["stage"], item["kind"], item["microbatch"]] = (
            item["start_seconds"] + item["seconds"]
        )
    for rank in range(3):
        own = [item for item in plan["instructions"] if item["rank"] == rank]
        for before, after in itertools.pairwise(own):
            end = before["start_seconds"] + before["seconds"]
            assert after["start_seconds"] >= end - 1e-9
    for item in plan["instructions"]:
        if item["kind"] == "forward" and item["stage"]:
            needed = ends[item["stage"] - 1, "forward", item["microbatch"]]
            assert item["start_seconds"] >= needed + 0.01 - 1e-9


def test_energy_of_the_document_adds_up(profile):
    """Promised joules would not be those of instructions and waiting."""
    found = _document(
        "--profile", profile, "--microbatches", 6, "--blocking-power", 80, "--devices-per-rank", 4
    )
    plan = found["plans"][0]
    work = sum(item["joules"] for item in plan["instructions"])
    busy = sum(item["seconds"] for item in plan["instructions"])
    waiting = 80 * 4 * (3 * found["full_clocks"]["seconds"] - busy)
    assert plan["joules"] == pytest.approx(work + waiting, rel=1e-9)


def test_a_saved_plan_is_the_one_that_was_shown(profile, tmp_path):
    """Processes that load the saved plan would run other clocks than the ones shown."""
    path = tmp_path / "plan.json"
    found = _document("--profile", profile, "--microbatches", 4, "--straggler", 1.1, "--out", path)
    plan = load_plan(path).at(1.1 * found["full_clocks"]["seconds"])
    shown = [item["clock_hertz"] for item in found["plans"][1]["instructions"]]
    assert plan.clocks_hertz.tolist() == shown


@pytest.mark.parametrize("name", ["gpipe", "interleaved", "zb-h1", "zbv", "dualpipe-v"])
def test_every_schedule_by_name(profile, name):
    """A schedule by name could not be planned."""
    found = _document("--profile", profile, "--microbatches", 6, "--schedule", name)
    assert found["schedule"] == name
    assert found["plans"][0]["saved"] > 0


def test_an_order_of_ones_own(profile, tmp_path):
    """A file with an order could not be planned."""
    order = tmp_path / "mine.json"
    order.write_text('[["0F0", "0B0"], ["1F0", "1B0"], ["2F0", "2B0"]]', encoding="utf-8")
    found = _document("--profile", profile, "--microbatches", 1, "--schedule", order)
    assert (found["schedule"], found["ranks"]) == ("mine", 3)
    wrong = _joulery("--profile", profile, "--microbatches", 2, "--schedule", order)
    assert wrong.returncode == 2
    assert "asked for 2 microbatches, but" in wrong.stderr


def test_the_schedule_chosen_together_with_the_clocks(profile):
    """Auto would not show which schedule wins at what number of microbatches."""
    arguments = ("--profile", profile, "--microbatches", 6, "--schedule", "auto",
                 "--blocking-power", 80, "--communication", 0.002)  # fmt: skip
    found = _document(*arguments)
    assert [one["microbatches"] for one in found["comparisons"]] == [3, 6]
    last = found["comparisons"][-1]
    assert found["schedule"] == last["best"]
    joules = {one["name"]: one["joules"] for one in last["schedules"]}
    assert joules[last["best"]] <= joules["1f1b"]
    text = _joulery(*arguments).stdout
    assert "★ best" in text
    assert "with memory to spare" in text


def test_layers_may_move(profile):
    """Partitions would not be compared, or a worse one taken."""
    arguments = ("--profile", profile, "--microbatches", 6, "--schedule", "auto",
                 "--blocking-power", 80, "--layers", "10,12,8")  # fmt: skip
    found = _document(*arguments)
    assert found["other_partition"]["layers"] == [10, 10, 10]
    best = found["comparisons"][-1]
    plain = next(one["joules"] for one in best["schedules"] if one["name"] == best["best"])
    if found["other_partition"]["chosen"]:
        assert found["other_partition"]["joules"] < plain
    assert "10,12,8" in _joulery(*arguments).stdout
    wrong = _joulery(*arguments[:-1], "10,12")
    assert wrong.returncode == 2
    assert "2 numbers of layers for 3 stages" in wrong.stderr


class _Page(HTMLParser):
    def __init__(self):
        super().__init__()
        self.open, self.boxes = [], 0

    def handle_starttag(self, tag, attributes):
        if tag != "meta":
            self.open.append(tag)
        assert tag != "script"
        for name, value in attributes:
            assert not (name in ("src", "href") and value), "nothing to fetch"

    def handle_startendtag(self, tag, attributes):
        self.boxes += tag == "polygon" and dict(attributes)["fill"].startswith("var(--heat")

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_has_charts_before_and_after(profile, tmp_path):
    """The page would be broken, or lack a chart."""
    page = tmp_path / "plan.html"
    done = _joulery("--profile", profile, "--microbatches", 4, "--straggler", 1.2, "--html", page)
    assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    parser = _Page()
    parser.feed(text)
    assert parser.open == []
    # Three charts of 24 instructions each.
    assert parser.boxes == 3 * 24
    assert "Full clocks" in text
    assert "Planned: straggler × 1.2" in text
    assert "forward of microbatch 0 on stage 0: 100.0 ms at 1400 MHz" in text


def test_long_iterations_are_drawn_in_part(profile, tmp_path):
    """A page of a long iteration would be too much for a browser."""
    page = tmp_path / "plan.html"
    done = _joulery("--profile", profile, "--microbatches", 600, "--html", page)
    assert done.returncode == 0, done.stderr
    text = page.read_text(encoding="utf-8")
    assert "Only the first" in text
    assert text.count("<rect") < 5000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--microbatches", "0"], "--microbatches: '0' is not a whole number"),
        (["--microbatches", "many"], "--microbatches: 'many' is not a whole number"),
        (["--microbatches", "4", "--schedule", "1f1c"], "unknown schedule '1f1c'"),
        (["--microbatches", "4", "--stages", "5"], "the profile has 3 stages, but the schedule 5"),
        (["--microbatches", "4", "--straggler", "0.9"], "is not a number of 1 or more"),
        (["--microbatches", "4", "--straggler", "nan"], "straggler"),
        (["--microbatches", "4", "--deadline", "0.1"], "0.1 s"),
        (["--microbatches", "4", "--blocking-power", "-1"], "--blocking-power"),
        (["--microbatches", "4", "--devices-per-rank", "0"], "--devices-per-rank: '0'"),
        (["--microbatches", "4", "--optimizer"], "no profile for optimizer of stage 0"),
        (["--microbatches", "4", "--repeat", "0"], "cannot scale work by 0"),
        (["--microbatches", "4", "--schedule", "dualpipe-v"], "dualpipe-v on 3 ranks cannot work"),
        (["--microbatches", "4", "--html", "/nowhere/plan.html"], "no folder /nowhere"),
        ([], "--microbatches"),
    ],
)
def test_mistakes_get_one_line_and_a_remedy(profile, arguments, message):
    """A mistake would show a traceback, or no way out."""
    done = _joulery("--profile", profile, *arguments)
    assert done.returncode == 2, (done.stdout, done.stderr)
    first, second = done.stderr.splitlines()
    assert first.startswith("joulery: ")
    assert message in first
    assert second.startswith("  → ")


def test_schedules_that_are_no_files(profile, tmp_path):
    """A name too long for a file, or a folder, would show a traceback."""
    for name, message in (("x" * 5000, "unknown schedule"), (tmp_path, "cannot read the order")):
        done = _joulery("--profile", profile, "--microbatches", 4, "--schedule", name)
        assert done.returncode == 2
        assert message in done.stderr


def test_missing_profile():
    """A missing file would show a traceback."""
    done = _joulery("--profile", "/nowhere.csv", "--microbatches", 4, "--json")
    assert done.returncode == 2
    assert json.loads(done.stdout)["exit_code"] == 2


@pytest.mark.data
@pytest.mark.skipif(not _DATA.is_dir(), reason="no measurements by others here")
def test_savings_on_measured_profiles():
    """Pipelines that others measured would show no savings, or more than is possible."""
    saved = []
    for path in sorted(_PROFILES.glob("A100_*_pp4_*.csv")):
        found = _document("--profile", path, "--microbatches", 16, "--blocking-power", 83.64)
        saved.append(found["plans"][0]["saved"])
        plan = found["plans"][0]
        assert plan["joules"] <= 1.01 * plan["lower_bound_joules"]
    assert saved
    assert np.all(np.array(saved) > 0.02)
    assert np.all(np.array(saved) < 0.4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layers", "4,4,4"], "--layers means nothing for the schedule 1f1b"),
        (["--memory", "30GB"], "--memory means nothing"),
        (["--chunks", "3"], "--chunks means nothing"),
        (["--blocking-power", "1000"], "cannot draw 1000 W while it waits"),
        (["--communication", "1,2,3,4"], "4 communication times for 3 ranks"),
        (["--reduction", "1,2"], "2 reduction times for 3 ranks"),
        (["--schedule", "auto", "--memory", "30GB"], "how much memory activations take"),
    ],
)
def test_options_that_would_change_nothing_are_refused(profile, options, message):
    """A mistyped command would seem to have taken an option into account."""
    done = _joulery("--profile", profile, "--microbatches", 4, *options)
    assert done.returncode == 2
    assert message in done.stderr


def test_what_the_profiler_writes_is_used(profile, tmp_path):
    """The power of waiting that was measured would count nothing."""
    header, *lines = profile.read_text(encoding="utf-8").splitlines()
    names = header.split(",")
    rows = [dict(zip(names, line.split(","), strict=True)) for line in lines]
    path = tmp_path / "profile.json"
    path.write_text(json.dumps([row | {"waiting_watts": 70.0} for row in rows]), encoding="utf-8")
    stated = _document("--profile", path, "--microbatches", 4)
    given = _document("--profile", profile, "--microbatches", 4, "--blocking-power", 70)
    assert stated["full_clocks"] == given["full_clocks"]
    rows[0]["instruction"] = "forwards"
    path.write_text(json.dumps(rows), encoding="utf-8")
    done = _joulery("--profile", path, "--microbatches", 4)
    assert "'forwards' names no instruction" in done.stderr


@pytest.fixture
def sized(profile, tmp_path):
    """The same stages, with a gigabyte of activations each."""
    path = tmp_path / "sized.csv"
    text = profile.read_text(encoding="utf-8").splitlines()
    path.write_text(
        "\n".join([text[0] + ",activation_bytes", *(line + ",1e9" for line in text[1:])]),
        encoding="utf-8",
    )
    return path


def test_links_reductions_and_memory(sized, tmp_path):
    """Settings of real pipelines would be ignored, or break the report."""
    options = ["--microbatches", 6, "--communication", "0.01,0.05", "--reduction", "0.3"]
    found = _document("--profile", sized, *options)
    kinds = [item["kind"] for item in found["plans"][0]["instructions"]]
    assert kinds.count("reduce") == 3
    done = _joulery("--profile", sized, *options, "--schedule", "auto", "--memory", "3GiB")
    assert done.returncode == 0, done.stderr
    assert "3.22 GB for activations per device" in done.stdout
    assert "3.00 GB" in done.stdout
    page = tmp_path / "page.html"
    assert _joulery("--profile", sized, *options, "--html", page).returncode == 0
    assert "reduce on stage 0" in page.read_text(encoding="utf-8")


def test_a_schedule_slower_than_1f1b_can_be_the_best(sized):
    """A pipeline that must recompute would end in an error about 1F1B's time."""
    options = ["--schedule", "auto", "--memory", "1GB"]
    done = _joulery("--profile", sized, "--microbatches", 4, *options)
    assert done.returncode == 2
    assert "no schedule gets by with 1.00 GB" in done.stderr
    options += ["--deadline", "30"]
    done = _joulery("--profile", sized, "--microbatches", 20, *options)
    assert done.returncode == 0, done.stderr
    assert "none fits" in done.stdout
    found = _document("--profile", sized, "--microbatches", 20, *options)
    assert found["schedule"] == "early-recompute"
    assert found["comparisons"][0]["best"] is None


def test_more_stages_than_were_measured_are_said(profile):
    """If it fails halves of stages pass for measured ones."""
    options = ("--profile", profile, "--stages", 6, "--microbatches", 4)
    words = "each of the 3 measured stages is split evenly into 2"
    assert any(words in note for note in _document(*options)["notes"])
    assert words in " ".join(_joulery(*options).stdout.split())


def test_a_saved_plan_keeps_the_budget_with_clocks_held(profile, tmp_path):
    """If it fails the clocks that ranks hold draw more than --budget."""
    out = tmp_path / "plan.json"
    options = ("--profile", profile, "--microbatches", 4, "--repeat", 0.1, "--budget", "800W")
    assert _joulery(*options, "--out", out).returncode == 0
    ranks = json.loads(out.read_text(encoding="utf-8"))["ranks"]
    # The power of a step is the highest while its clock is held, and waiting counts nothing.
    joules = sum(seconds * watts for rank in ranks for *_, seconds, watts in rank["steps"])
    assert 0.8 * 800 < joules / ranks[0]["seconds"] <= 800
