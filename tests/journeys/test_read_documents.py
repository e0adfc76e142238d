"""Journey: a program reads the documents of commands, by the rule of SKILL.md.

A figure has the word of the nearest object around it: ``origin`` in a run, point or service and all
that it holds, ``provenance`` everywhere else. ``relative_error`` stands beside it.
"""

import json
import re

import pytest

from support.small_traces import write_traces

WORDS = {"measured", "predicted", "simulated", "assumed"}
FIGURE = re.compile(r"(^|_)(joules|watts|seconds|kilowatt_hours|grams_co2)$")
MODEL = {"layers": 8, "hidden": 2048, "heads": 16, "feedforward": 8192, "vocabulary": 32000}
MODEL |= {"sequence": 1024, "kv_heads": 16}
FILES = {
    "model.json": json.dumps(MODEL),
    "jobs.json": '{"jobs": [{"id": "a", "gpus": 8, "points": [[100, 0.3], [400, 1.0]]}]}',
    "trace.csv": "submit_seconds,duration_seconds,gpus,workload\n0,5400,8,a\n60,3600,8,a\n",
    "requests.csv": "arrival_seconds,prompt_tokens,output_tokens\n0,500,100\n1,300,90\n",
    "groups.csv": "group,submit_seconds,duration_seconds\na,0,60\na,30,60\nb,90,30\n",
    "profile.csv": "stage,instruction,frequency,time,energy\n"
    + "".join(f"{s},{kind},1400,0.1,30\n" for s in (0, 1) for kind in ("forward", "backward")),
}
STEP = "predict --fresh --model model.json --device h100 --batch-size 8"
OF_MODELS = {
    STEP: "provenance",
    f"{STEP} --serve 512:128": "origin",
    "recommend --model model.json --device h100 --tokens 1B --max-devices 2": "provenance",
    "plan pipeline --profile profile.csv --microbatches 4": "provenance",
    "cluster simulate --trace trace.csv --jobs jobs.json --gpus 16 --budget 3kW": "provenance",
    "jobs simulate --trace traces --policy default --seeds 2 --recurrences 4": "provenance",
    "jobs replay --trace traces --groups groups.csv": "provenance",
    "sweep --simulate rtx6000x8 --limits 150,260 --gpus 1 --repeat 1": "origin",
    "serving simulate --trace requests.csv --model model.json --device h100 --ttft 2s --tpot 1s": (
        "origin"
    ),
    "demo --seed 1": "origin",
}
# In this order: later ones read what earlier ones wrote. None: parts have words of their own.
OF_BOARDS = {
    "measure --log one.jsonl -- sleep 0.3": "provenance",
    "run -- sleep 0.3": "provenance",
    "measure --log two.jsonl -- sleep 0.3": "provenance",
    "doctor": None,
    "top --once --interval 0.2s": None,
    "report one.jsonl": "provenance",
    "disclose one.jsonl": "provenance",
    "compare one.jsonl two.jsonl": None,
    "runs list": None,
    "runs show 1": "origin",
    "compare 1 2": None,
}


def list_flaws(value, path="", word=None):
    """Places of a document where a figure has no word, or a word is out of place."""
    if isinstance(value, list):
        return [flaw for item in value for flaw in list_flaws(item, f"{path}[]", word)]
    if not isinstance(value, dict):
        return []
    words = {name: value[name] for name in ("provenance", "origin") if name in value}
    allowed = WORDS if value.get("value", 0) is not None else {None}  # what is unknown is neither
    flaws = [f"{path}: {words}"] * (len(words) > 1 or not allowed.issuperset(words.values()))
    flaws += [f"{path}: {words} within origin"] * (word == "origin" and "provenance" in words)
    outside = word != "origin" and path.endswith("/devices[]")
    flaws += [f"{path}: {words} of a device outside a run"] * (outside and "origin" in words)
    word = next(iter(words), word)
    for name, part in value.items():
        is_figure = FIGURE.search(name) and isinstance(part, float)
        if word is None and (is_figure or name.startswith("relative_error")):
            flaws.append(f"{path}/{name}: no word")
        flaws += list_flaws(part, f"{path}/{name}", word)
    return flaws


@pytest.fixture
def folder(world):
    """A world with the files that commands read."""
    for name, text in FILES.items():
        (world.folder / name).write_text(text, encoding="utf-8")
    write_traces(world.folder / "traces")
    return world


def check(world, command, word, **environment):
    """Read the document of a command."""
    document = world.joulery(*command.split(), **environment)
    assert {"provenance", "origin"} & document.keys() == ({word} - {None}), command
    assert list_flaws(document) == [], command


@pytest.mark.parametrize("command", OF_MODELS)
def test_every_computed_figure_says_what_it_is(folder, command):
    """A program takes a simulated or predicted figure for a measured one."""
    check(folder, command, OF_MODELS[command])


def test_every_measured_figure_says_what_it_is(folder):
    """A program finds the word under another name in each command."""
    for command, word in OF_BOARDS.items():
        check(folder, command, word, JOULERY_STORE="store.db")


def test_figures_that_are_given_have_no_word(folder):
    """A share of a budget is taken for a measurement."""
    document = folder.joulery(
        *["cluster", "allocate", "--jobs", "jobs.json", "--budget", "2kW"],
    )
    assert list(document)[:3] == ["policy", "budget_watts", "used_watts"]
    assert "provenance" not in str(document)
