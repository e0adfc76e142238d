"""``joulery predict`` and ``joulery recommend``: text, JSON and refusals."""

import json
from datetime import UTC, datetime

import pytest

from joulery import __version__
from joulery.cli import main

LLAMA = {
    "name": "llama-8b",
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "feedforward": 14336,
    "vocabulary": 128256,
    "sequence": 8192,
}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """Measured steps are kept in a folder of the test."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))


@pytest.fixture
def model(tmp_path):
    """A description in a file."""
    file = tmp_path / "llama.json"
    file.write_text(json.dumps(LLAMA))
    return str(file)


def asked(capsys, *arguments):
    """Exit code and what was printed."""
    code = main([str(word) for word in arguments])
    return code, capsys.readouterr()


PLAN = ("--plan", "dp8-mb1-zero3", "--batch-size", 64)


def test_a_prediction_shows_limits_memory_and_bars(capsys, model):
    """The human table is what most people see."""
    code, said = asked(capsys, "predict", "--model", model, "--device", "h100", *PLAN)
    assert code == 0
    assert "700 W" in said.out
    assert "±" in said.out
    assert "reserved" in said.out


@pytest.mark.parametrize("device", ["v100", "t4", "rtx2080ti", "p100", "k80", "mi50"])
def test_boards_without_bf16_take_fp16_and_say_so(capsys, tmp_path, device):
    """BF16 would run at the speed of tensor cores that compute none."""
    small = tmp_path / "small.json"
    small.write_text(json.dumps(LLAMA | {"layers": 1, "sequence": 512, "vocabulary": 32000}))
    request = ("predict", "--fresh", "--model", small, "--device", device)
    code, said = asked(capsys, *request)
    assert code == 0
    assert ", fp16, 1 sequences" in said.out
    assert "fp16, since it has no bf16" in said.out
    code, said = asked(capsys, *request, "--precision", "bf16")
    assert code == 2
    assert "does not compute in bf16" in said.err
    code, said = asked(capsys, *request, "--serve", "128:16")
    assert code == 0
    assert "fp16, since it has no bf16" in said.out
    code, said = asked(capsys, *request, "--serve", "128:16", "--precision", "bf16")
    assert code == 2


def test_a_prediction_as_json(capsys, model):
    """Tools read one document with points that are operating points."""
    asked_for = ("predict", "--model", model, "--device", "h100", *PLAN, "--json")
    code, said = asked(capsys, *asked_for, "--limits", "500,700")
    document = json.loads(said.out)
    assert code == 0
    assert [point["setting"]["power_limit_watts"] for point in document["points"]] == [500, 700]
    assert document["memory_allocated_bytes"] < document["memory_reserved_bytes"]


def test_a_served_model_says_how_sure_and_of_how_many_devices(capsys, model):
    """Watts of four devices would be read as those of one, and as if they were measured."""
    serve = ("predict", "--model", model, "--device", "h100", "--serve", "512:128")
    code, said = asked(capsys, *serve, "--plan", "tp4", "--json")
    document = json.loads(said.out)
    assert code == 0
    assert document["origin"] == "predicted"
    assert document["watts_per_device"] == pytest.approx(document["watts"] / 4)
    assert document["relative_error_joules"] > document["relative_error_watts"] > 0.1
    text = asked(capsys, *serve, "--plan", "tp4")[1].out
    assert f"{document['watts_per_device']:.0f} W per device ± 30 %" in text
    assert text.count("± ") == 5
    assert "per token of all devices" in text


def test_measured_steps_narrow_the_bar(capsys, model, tmp_path):
    """`--calibrate` must change the answer."""
    steps = tmp_path / "steps.json"
    row = {"device": "h100", "plan": "dp8-mb1-zero3", "batch_size": 64, "seconds": 8.0}
    steps.write_text(json.dumps([row]))
    plain = ("predict", "--model", model, "--device", "h100", *PLAN, "--json")
    before = json.loads(asked(capsys, *plain)[1].out)
    after = json.loads(asked(capsys, *plain, "--calibrate", steps)[1].out)
    assert after["relative_error_time"] < before["relative_error_time"]
    assert after["points"][-1]["seconds"] == pytest.approx(8.0, rel=0.03)
    later = json.loads(asked(capsys, *plain)[1].out)
    assert later["points"] == after["points"]
    fresh = json.loads(asked(capsys, *plain, "--fresh")[1].out)
    assert fresh["points"] == before["points"]


def test_stages_feed_the_planner(capsys, model, tmp_path):
    """Clocks of a pipeline can be planned before it runs."""
    file = tmp_path / "stages.csv"
    plan = ("--plan", "pp4-mb1-full-recompute", "--batch-size", 16)
    asked_for = ("predict", "--model", model, "--device", "h100", *plan, "--out", file)
    code, said = asked(capsys, *asked_for)
    assert code == 0
    assert "by stage" in said.out
    code, said = asked(capsys, "plan", "pipeline", "--profile", file, "--microbatches", 8)
    assert code == 0


def test_a_whole_training_has_a_total(capsys, model):
    """People ask for days and kilowatt-hours, not for steps."""
    plain = ("predict", "--model", model, "--device", "h100", *PLAN, "--clocks", "1200,1600")
    code, said = asked(capsys, *plain, "--steps", 100_000)
    assert code == 0
    assert "days" in said.out
    assert "1200 MHz" in said.out


def test_a_recommendation_names_winner_reasons_and_changes(capsys, model):
    """A table without a reason would be one more black box."""
    code, said = asked(
        capsys,
        *("recommend", "--model", model, "--tokens", "100B", "--deadline", "30d"),
        *("--device", "h100,b200", "--max-devices", 32),
    )
    assert code == 0
    for word in ("Why:", "What would change it:", "★ recommended", "limit"):
        assert word in said.out


def test_a_recommendation_as_json(capsys, model):
    """Schedulers read it."""
    code, said = asked(
        capsys,
        *(
            "recommend",
            "--model",
            model,
            "--tokens",
            "300B",
            "--device",
            "a100",
            "--max-devices",
            32,
            "--json",
        ),
        *("--objective", "money", "--rent", 1.5, "--pue", 1.1, "--grid", 50),
    )
    document = json.loads(said.out)
    assert code == 0
    assert document["best"]["device"] == "A100"
    least = min(choice["dollars"] for choice in document["pareto"])
    assert least <= document["best"]["dollars"] <= 1.03 * least


def test_a_recommendation_as_a_page(capsys, model, tmp_path):
    """The chart shows every device type with error bars, the choice and the deadline."""
    page = tmp_path / "choice.html"
    asked_for = ("recommend", "--model", model, "--tokens", "100B", "--deadline", "60d")
    asked_for += ("--max-devices", 32)
    code, _ = asked(capsys, *asked_for, "--device", "h100,b200", "--html", page)
    text = page.read_text(encoding="utf-8")
    assert code == 0
    for word in ("<svg", "B200", "deadline", "recommended", "predicted"):
        assert word in text
    body = text.split("<svg")[0] + text.rpartition("</svg>")[2]
    for word in ("± and error bars are one standard error", __version__, "--tokens 100B", "20"):
        assert word in body
    assert f"Made on {datetime.now(UTC).date()} with" in body
    code, said = asked(capsys, *asked_for, "--device", "h100", "--html", tmp_path / "no" / "x.html")
    assert code == 2
    assert "--html" in said.err


def test_clocks_out_of_range_are_refused_in_megahertz(capsys, model):
    """The option is in MHz, so that the remedy must be, too."""
    code, said = asked(
        capsys, "predict", "--model", model, "--device", "h100", "--clocks", 0, *PLAN
    )
    assert code == 2
    assert "1980 MHz" in said.err


@pytest.mark.parametrize(
    "wrong",
    [
        ("predict", "--device", "h1000"),
        ("predict", "--device", "h100", "--plan", "dp3", "--batch-size", "8"),
        ("predict", "--device", "h100", "--plan", "dp8-xx2", "--batch-size", "8"),
        ("predict", "--device", "a100", "--precision", "fp8"),
        ("predict", "--device", "h100", "--batch-size", "many"),
        ("predict", "--device", "h100", "--limits", "50"),
        ("predict", "--device", "t4"),
        ("predict", "--device", "h100", "--clocks", "9000", *PLAN),
        ("predict", "--device", "h100", "--out", "x.csv", *PLAN),
        ("predict", "--device", "h100", "--plan", "pp4-mb1", "--out", "/no/such/stages.csv"),
        ("predict", "--device", "h100", "--precision", "bf17", *PLAN),
        ("predict", "--device", "h100", "--plan", "dp0-mb1"),
        ("predict", "--device", "h100", "--plan", "dp8-mb1-dp4", "--batch-size", "8"),
        ("predict", "--device", "h100", "--plan", "dp8-mb1-zero7", "--batch-size", "8"),
        ("predict", "--device", "h100", "--calibrate", "nothing.json", *PLAN),
        ("recommend", "--tokens", "2T", "--device", "h100", "--precision", "fp9"),
        ("recommend", "--tokens", "2T", "--device", "h100", "--critical-batch", "0"),
        ("recommend", "--tokens", "2T", "--device", "h100", "--pue", "-1"),
        ("recommend", "--tokens", "2T", "--device", "h100", "--rent", "nan"),
        ("recommend", "--tokens", "2T", "--device", "h100", "--rent", "h100=cheap"),
        ("recommend", "--tokens", "2T", "--device", "h100", "--rent", "h1000=3"),
        ("recommend", "--tokens", "2X", "--device", "h100"),
        (
            "recommend",
            "--tokens",
            "2T",
            "--device",
            "h100",
            "--deadline",
            "1min",
            "--max-devices",
            "8",
        ),
        ("recommend", "--tokens", "2T", "--device", "h100", "--deadline", "soon"),
        ("recommend", "--tokens", "2T", "--device", ""),
    ],
)
def test_wrong_use_is_one_line_and_a_remedy(capsys, model, wrong):
    """Nobody should meet a traceback, and exit codes are a contract."""
    code, said = asked(capsys, wrong[0], "--model", model, *wrong[1:])
    assert code == 2
    assert len(said.err.strip().splitlines()) == 2
    assert "→" in said.err


def test_an_empty_file_of_steps_is_refused_with_a_step(capsys, model, tmp_path):
    """Somebody who left the file empty is sent to a page of help."""
    steps = tmp_path / "steps.json"
    steps.write_text("[]")
    command = ("predict", "--model", model, "--device", "h100", *PLAN, "--calibrate", steps)
    code, said = asked(capsys, *command)
    assert code == 2
    example = said.err[said.err.index("[{") : said.err.index("}]") + 2]
    steps.write_text(example)
    code, said = asked(capsys, *command)
    assert code == 0, said.err
