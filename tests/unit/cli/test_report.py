"""``joulery report``: logs, frontiers and clouds, in text and JSON."""

import json

import pytest

from joulery.cli import main
from joulery.frontier import Frontier, OperatingPoint, Setting

CLOUD = [
    {"seconds": 100, "joules": 30e3, "setting": {"power_limit_watts": 300}, "origin": "measured"},
    {"seconds": 104, "joules": 24e3, "setting": {"power_limit_watts": 250}, "origin": "measured"},
    {"seconds": 120, "joules": 20e3, "setting": {"power_limit_watts": 200}, "origin": "measured"},
    {"seconds": 125, "joules": 25e3, "setting": {"power_limit_watts": 150}, "origin": "measured"},
]


def _session(name, seconds, joules, *, final=True, origin="measured"):
    return json.dumps(
        {
            "schema": "joulery.energy-log/1",
            "session": name,
            "label": "train",
            "started": 1.7e9,
            "final": final,
            "seconds": seconds,
            "joules": joules,
            "provenance": origin,
            "relative_error": 0.02,
            "devices": {"gpu:0": joules},
            "flags": [],
        }
    )


@pytest.fixture
def file(tmp_path):
    """Writes a file and gives its name."""

    def write(content):
        path = tmp_path / "given"
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def test_a_cloud_becomes_its_frontier(file, capsys):
    """Dominated points are of no use to anybody."""
    assert main(["report", file(CLOUD), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document.pop("chosen") is None
    assert [point.seconds for point in Frontier.from_dict(document)] == [100, 104, 120]


def test_the_table_compares_with_the_fastest(file, capsys):
    """What a slower setting saves is the point of the table."""
    assert main(["report", file(CLOUD)]) == 0
    printed = capsys.readouterr().out
    rows = [line for line in printed.splitlines() if line[:6] in ("300 W ", "250 W ", "200 W ")]
    assert [row.split()[0] for row in rows] == ["300", "250", "200"]
    assert "20.0 %" in rows[1]
    assert "4.0 %" in rows[1]
    assert "energy in kJ (measured)" in printed


@pytest.mark.parametrize(
    ("objective", "watts"),
    [("least-energy:slowdown=5%", 250), ("least-energy", 200), ("cost:eta=0", 300), ("edp", 200)],
)
def test_the_choice_is_marked(file, capsys, objective, watts):
    """The chosen point is the answer people came for."""
    path = file(CLOUD)
    options = ["--objective", objective, "--max-watts", "300"]
    assert main(["report", path, *options]) == 0
    printed = capsys.readouterr().out.splitlines()
    marked = [line for line in printed if line.endswith("  chosen")]
    assert len(marked) == 1
    assert marked[0].split()[0] == str(watts)
    assert main(["report", path, *options, "--json"]) == 0
    chosen = json.loads(capsys.readouterr().out)["chosen"]
    assert chosen["setting"] == {"power_limit_watts": watts}


def test_a_frontier_file_is_shown_as_it_is(file, capsys):
    """What the demonstration writes must be readable here."""
    frontier = Frontier((OperatingPoint(1.0, 0.0, Setting(device="V100")),), "idle")
    assert main(["report", file(frontier.to_json())]) == 0
    assert "V100" in capsys.readouterr().out


def test_a_log_adds_up_its_sessions(file, capsys):
    """Restarts of one training are one training; a crash's torn line is told, not guessed."""
    text = "\n".join(
        [
            _session("a", 10, 1000, final=False),
            _session("a", 60, 6000),
            _session("b", 30, 2500, final=False),
            _session("c", 1, 1)[:40],
        ]
    )
    path = file(text)
    assert main(["report", path, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["seconds"], document["joules"]) == (90, 8500)
    assert document["devices"] == {"gpu:0": 8500}
    assert (document["sessions"], document["unfinished"]) == (2, 1)
    assert document["damaged_lines"] == [4]
    assert document["provenance"] == "measured"
    assert main(["report", path]) == 0
    out = capsys.readouterr().out
    assert "2 sessions, 1 of them unfinished: 1 min 30 s, 8.50 kJ (measured" in out
    assert "left out: 4" in out
    assert "gpu:0" in out


def test_one_session_is_singular(file, capsys):
    """Small words, but people read them."""
    assert main(["report", file(_session("a", 60, 6000))]) == 0
    assert capsys.readouterr().out.startswith("1 session: 1 min 00 s")


def test_unknown_energy_stays_unknown(file, capsys):
    """Nothing measured is not nothing used."""
    path = file(_session("a", 60, None))
    assert main(["report", path]) == 0
    assert "1 min 00 s, unknown" in capsys.readouterr().out
    assert main(["report", path, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["joules"] is None


def _frontier_document(*pairs, **more):
    return {"points": [{"seconds": s, "joules": j} for s, j in pairs], **more}


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        ("", [], "neither an energy log nor valid JSON"),
        ("{", [], "neither an energy log nor valid JSON"),
        ("\x00\x01", [], "neither an energy log nor valid JSON"),
        pytest.param("[" * 100_000, [], "neither", id="nested"),
        ("[]", [], "at least one point"),
        ("5", [], "not a frontier"),
        ({"schema": "other/1", "points": []}, [], "unknown frontier format"),
        (_frontier_document((1, 2), (1, 2)), [], "duplicate points"),
        (_frontier_document((1, 2), (2, 3)), [], "dominated"),
        ([{"seconds": "1", "joules": 1}], [], "must be a number"),
        ([{"seconds": 1}], [], "lacks 'joules'"),
        ([{"seconds": 1, "joules": 1, "setting": {"power_limit_watts": "x"}}], [], "a number"),
        ([{"seconds": 1, "joules": 1, "setting": {"volts": 1}}], [], "unknown knob 'volts'"),
        (CLOUD, ["--objective", ""], "unknown objective ''"),
        (CLOUD, ["--objective", "speed"], "unknown objective"),
        (CLOUD, ["--objective", "cost"], "max_watts"),
        (CLOUD, ["--objective", "least-energy:deadline=1"], "no operating point meets"),
        (CLOUD, ["--max-watts", "x"], "is no number"),
        (_session("a", 1, 1), ["--objective", "edp"], "no points to choose from"),
    ],
)
def test_bad_input_is_one_line_and_a_remedy(file, capsys, content, options, says):
    """Whatever the file holds, the answer is a sentence and exit code 2."""
    assert main(["report", file(content), *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert says in err.splitlines()[0]
    assert "internal error" not in err
    assert len(err.splitlines()) == 2


def test_missing_files_and_folders_are_named(tmp_path, capsys):
    """The path in the message is the one that was given."""
    for path in (tmp_path / "missing", tmp_path):
        assert main(["report", str(path)]) == 2
        assert f"cannot read {path}" in capsys.readouterr().err
