"""Journey: a slip of the hand names a script where a command writes its result."""

import json
import sqlite3

import pytest

from joulery.cli import main
from support.small_traces import write_traces

SCRIPT = "train()\n"
# Commands that write what --OPTION or the last word names, up to that name.
COMMANDS = {
    "page of a log": "report energy.jsonl --html",
    "charts of a log": "report energy.jsonl --charts",
    "page of a comparison": "compare energy.jsonl energy.jsonl --html",
    "log of a measurement": "measure --log",
    "bundle": "doctor --bundle",
    "self-test": "doctor --selftest --out",
    "page of a trace": "cluster simulate --trace trace.csv --jobs jobs.json --gpus 8 --html",
    "budget": "cluster shape --jobs jobs.json --signal DE --start 2026-05-03T00:00Z"
    " --deadline 5h --work 1h --out",
    "plan": "plan pipeline --profile stages.csv --microbatches 2 --out",
    "page of a plan": "plan pipeline --profile stages.csv --microbatches 2 --html",
    "readings of a service": "serving meter --engine http://127.0.0.1:9 --csv",
    "figures of a service": "serving meter --engine http://127.0.0.1:9 --prometheus",
    "page of a service": "serving sweep --engine http://127.0.0.1:9 --html",
    "frontier of a service": "serving sweep --engine http://127.0.0.1:9 --frontier",
    "actions of a simulation": "jobs simulate --trace traces --log",
    "backup": "store backup",
    "export": "store export",
    "backup that replaces": "store backup --replace",
    "export that replaces": "store export --replace",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a store, inputs and a script."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JOULERY_STORE", str(tmp_path / "store.sqlite"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert main(["serve", "token", "create", "--team", "vision"]) == 0
    assert main(["measure", "--log", "energy.jsonl", "--", "true"]) == 0
    points = [[100, 0.2], [400, 1.0]]
    jobs = {"jobs": [{"id": "llama", "gpus": 8, "points": points}]}
    (tmp_path / "jobs.json").write_text(json.dumps(jobs))
    rows = "submit_seconds,duration_seconds,gpus,workload\n0,5400,8,llama\n"
    (tmp_path / "trace.csv").write_text(rows)
    stages = ["stage,instruction,frequency,time,energy"]
    stages += [f"{n},{name},1000,0.1,20" for n in (0, 1) for name in ("forward", "backward")]
    (tmp_path / "stages.csv").write_text("\n".join(stages))
    write_traces(tmp_path / "traces")
    return tmp_path


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_takes_the_place_of_a_file_of_another_kind(folder, capsys, name):
    """The script that trains is gone, and its author looks at a chart."""
    script, database = folder / "train.py", folder / "runs.sqlite"
    script.write_text(SCRIPT)
    with sqlite3.connect(database) as connection:
        connection.execute("CREATE TABLE runs (name TEXT)")
    connection.close()
    for file in (script, database):
        before, words = file.read_bytes(), COMMANDS[name].split()
        words += [file.name, *(["--", "true"] if words[0] == "measure" else [])]
        assert main(words) in (1, 2), words
        said = capsys.readouterr().err
        assert file.name in said
        assert "→" in said
        assert file.read_bytes() == before
