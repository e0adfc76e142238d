"""Files that nobody meant to give us: every command refuses them with a remedy."""

import contextlib
import io
import json
import os
import random
import re

import pytest

from joulery.cli import main

# Files of each kind for each command; JOULERY_HOSTILE_FILES=30 tries all of them.
FILES = int(os.environ.get("JOULERY_HOSTILE_FILES") or 4)
SEED = int(os.environ.get("JOULERY_JOURNEY_SEED") or random.SystemRandom().randrange(10**6))
DEEP = 100_000
HUGE = "1" + "0" * 400
CONTENTS = {
    "empty": b"",
    "blank": b"\n\n \n",
    "NUL bytes": b"\0" * 64,
    "NUL in text": b'{"a": "\\u0000", "b\0": 1}',
    "not UTF-8": b"\xff\xfe\x80name,value\n",
    "lone surrogate": b'{"name": "\\ud800", "jobs": ["\\ud800"]}',
    "deep list": b"[" * DEEP + b"]" * DEEP,
    "deep object": b'{"a":' * DEEP + b"1" + b"}" * DEEP,
    "huge number": f'{{"a": {HUGE}, "budget_watts": {HUGE}}}'.encode(),
    "huge list": f"[{HUGE}, -{HUGE}, 1e999]".encode(),
    "huge CSV": f"time,watts\n{HUGE},{HUGE}\n-{HUGE},nan\n".encode(),
    "huge TOML": f"a = {HUGE}\nb = 1e999\n".encode(),
    "not a number": b'{"a": NaN, "b": Infinity}',
    "null": b"null",
    "true": b"true",
    "number": b"12",
    "text": b'"text"',
    "list": b"[]",
    "list of lists": b"[[[]], [1, [2]], {}]",
    "object": b"{}",
    "wrong types": b'{"jobs": 1, "points": {"a": []}, "schema": [], "sensor": 5, "nodes": "x"}',
    "JSON lines": b'{"a": 1}\n[]\n"x"\n',
    "CSV of one column": b"a\n1\n2\n",
    "CSV of no rows": b"time,watts\n",
    "CSV with quotes": b'time,watts\n"1,2\n3,4\n',
    "long line": b"a," * 50_000,
    "SQLite": b"SQLite format 3\0" + b"\1" * 200,
    "Parquet": b"PAR1" + b"\0" * 40 + b"PAR1",
    "gzip": b"\x1f\x8b\x08\0" + b"\1" * 20,
    "TOML table": b"[[allow]]\nusers = {a = [[[1]]]}\n[nodes]\nx = 1979-05-27T07:32:00Z\n",
}
# Files as they should be; a test gives one of them, or a flawed copy, as FILE.
JOBS = {
    "jobs": [{"id": "a", "gpus": 2, "weight": 2, "points": [[100, 0.2], [200, 0.6], [300, 1.0]]}]
}
MODEL = {
    "name": "small",
    "layers": 2,
    "hidden": 64,
    "heads": 2,
    "kv_heads": 2,
    "feedforward": 128,
    "vocabulary": 100,
    "sequence": 1024,
}
POINTS = [{"seconds": 1.0, "joules": 100.0, "setting": {"power_limit_watts": 300.0}}]
GOOD = {
    "FRONTIER": json.dumps({"schema": "joulery.frontier/1", "points": POINTS}),
    "JOBS": json.dumps(JOBS),
    "MODEL": json.dumps(MODEL),
    "TREE": json.dumps({"name": "all", "watts": 3000, "children": [{"name": "a", "watts": 2000}]}),
    "EVENTS": json.dumps([{"id": "e", "start": 60, "end": 120, "reduction": 0.25}]),
    "TRACE": "submit_seconds,duration_seconds,gpus,workload\n0,540,2,a\n60,360,2,a\n",
    "REQUESTS": "arrival_seconds,prompt_tokens,output_tokens\n0,100,10\n1,50,5\n",
    "POWER": "seconds,watts\n" + "".join(f"{n / 10},{900 + n % 7}\n" for n in range(40)),
    "SIGNAL": "time,value\n2020-01-01T00:00Z,100\n2070-01-01T00:00Z,90\n",
    "LIMITS": "range_watts = 500\nramp_seconds = 1.0\n",
    "POLICY": '[[allow]]\nusers = ["*"]\ndevices = ["*"]\nlimits_watts = [100, 400]\n',
    "SETTINGS": (
        'budget_watts = 9000\nstate = "state"\ntoken_file = "TOKEN"\n[nodes]\nn1 = "127.0.0.1:1"\n'
    ),
}
# Commands that read FILE, or what _write makes beside it, and the name of a file that they accept.
_SERVING = "serving simulate --device a100 --ttft 1s --tpot 100ms"
_SHAPE = "cluster shape --start 2026-01-01T00:00Z --deadline 2h --work 1h"
COMMANDS = {
    "report FILE": "FRONTIER",
    "report FRONTIER --grid FILE.csv": "SIGNAL",
    "disclose FILE": "",
    "compare FILE FILE": "",
    "governor check-policy FILE": "POLICY",
    "store restore FILE --store NEW": "",
    "store import FILE --store NEW": "",
    "store check --store FILE": "",
    "jobs list --store FILE": "",
    "runs list --store FILE": "",
    "serve token list --store FILE": "",
    "cluster allocate --jobs FILE --budget 3kW": "JOBS",
    "cluster allocate --jobs JOBS --tree FILE": "TREE",
    "cluster simulate --trace FILE --jobs JOBS --gpus 4 --budget 3kW": "TRACE",
    "cluster simulate --trace TRACE --jobs JOBS --gpus 4 --budget 3kW --events FILE": "EVENTS",
    "cluster replay --jobs JOBS --power FILE": "POWER",
    f"{_SHAPE} --jobs JOBS --signal FILE.csv": "SIGNAL",
    "cluster swings FILE": "POWER",
    "cluster swings POWER --limits FILE": "LIMITS",
    "cluster agent --settings FILE --ticks 1 --shadow": "SETTINGS",
    "cluster status --state FOLDER": "",
    "cluster record --state FOLDER --slurm 1": "",
    "plan pipeline --profile FILE --microbatches 4": "",
    "predict --model FILE --device a100": "MODEL",
    "predict --model MODEL --device FILE.toml": "",
    "predict --model MODEL --device a100 --calibrate FILE": "",
    "recommend --model FILE --tokens 1e9 --device a100 --max-devices 2": "MODEL",
    f"{_SERVING} --trace FILE --model MODEL": "REQUESTS",
    f"{_SERVING} --trace REQUESTS --model FILE": "MODEL",
    f"{_SERVING} --trace REQUESTS --model MODEL --calibrate FILE": "",
    "jobs replay --trace FOLDER --groups FILE": "",
    "jobs simulate --trace FOLDER": "",
    "measure --grid FILE.csv -- true": "SIGNAL",
    "calibrate --show": "",
    "doctor": "",
}
LEAVES = (None, True, -1, 0, 1e308, 10**400, "", "x\0", "\ud800", [], {}, [[[]]], {"a": [1]})
WORDS = ("", "nan", "-1", "1e999", "x", "\0", '"', "=", "[[", HUGE)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with files of ours, which is also the user's."""
    monkeypatch.chdir(tmp_path)
    for name in ("DATA", "STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path))
    monkeypatch.setenv("JOULERY_SENSORS", str(tmp_path / "FILE"))
    monkeypatch.delenv("JOULERY_TRACEBACK", raising=False)
    for name, text in GOOD.items():
        (tmp_path / name).write_text(text, "utf-8")
    (tmp_path / "TOKEN").write_text("secret of this test\n", "utf-8")
    (tmp_path / "TOKEN").chmod(0o600)
    (tmp_path / "FOLDER").mkdir()
    (tmp_path / "joulery").mkdir()
    return tmp_path


@pytest.fixture
def draw(request):
    """Random numbers of this test; the seed is printed if it fails."""
    print(f"repeat with JOULERY_JOURNEY_SEED={SEED}")  # noqa: T201 - pytest shows it on failure
    return random.Random(f"{SEED} {request.node.name}")  # noqa: S311 - not for secrets


def _write(folder, content):
    for name in ("FILE", "FILE.toml", "FILE.csv", "joulery/calibrations.json"):
        (folder / name).write_bytes(content)
    for name in ("agent.json", "status.json", "summary_train.csv"):
        (folder / "FOLDER" / name).write_bytes(content)


def _run(words):
    """Exit code and errors of a command."""
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        code = main(words)
    return code, errors.getvalue()


def _flawed(text, draw):
    """A file of ours with one value or word replaced."""
    if not text.startswith("{"):
        words = re.split(r"([,\n =\[\]]+)", text)
        words[draw.randrange(len(words))] = draw.choice(WORDS)
        return "".join(words).encode()
    document = json.loads(text)
    place = document
    while True:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key = draw.choice(keys)
        if not isinstance(place[key], dict | list) or not place[key] or draw.random() < 0.2:
            break
        place = place[key]
    place[key] = draw.choice(LEAVES)
    return json.dumps(document).encode()


@pytest.mark.parametrize("command", COMMANDS)
def test_hostile_files_are_refused(folder, draw, command):
    """Somebody who gives the wrong file is told of an internal error."""
    sample = GOOD.get(COMMANDS[command])
    files = {
        name: CONTENTS[name] for name in draw.sample(sorted(CONTENTS), min(FILES, len(CONTENTS)))
    }
    if sample is not None:
        files |= {f"flaw {number}": _flawed(sample, draw) for number in range(FILES)}
    for name, content in files.items():
        _write(folder, content)
        code, errors = _run(command.split())
        assert code in {0, 1, 2, 3}, (name, content[:300], errors)
        assert "internal error" not in errors, (name, content[:300], errors)


def test_the_good_files_are_good(folder):
    """Commands refuse the file beside the hostile one, so that nothing is tested."""
    for command, sample in COMMANDS.items():
        if sample:
            _write(folder, GOOD[sample].encode())
            code, errors = _run(command.split())
            without_slurm = command.startswith("cluster agent")
            assert code == (3 if without_slurm else 0), (command, errors)
