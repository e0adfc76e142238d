"""Journey: choose hardware before anything ran, judged by arithmetic and published figures."""

import json

import pytest

from joulery.cli import main

LLAMA_8B = {
    "name": "llama-8b",
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "kv_heads": 8,
    "feedforward": 14336,
    "vocabulary": 128256,
    "sequence": 4096,
}
LLAMA_405B = LLAMA_8B | {"name": "llama-405b", "layers": 126, "hidden": 16384, "heads": 128}
LLAMA_405B |= {"feedforward": 53248, "sequence": 8192}
PARAMETERS = 8.03e9
TPU = {"name": "TPU", "memory_bytes": 16e9, "memory_bytes_per_second": 819e9}
TPU |= {"tensor_flops": 197e12, "default_limit_watts": 200}


@pytest.fixture(autouse=True)
def _own_folder(tmp_path, monkeypatch):
    """Measured steps are kept in a folder of the test."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    for name, model in (("8b", LLAMA_8B), ("405b", LLAMA_405B)):
        (tmp_path / f"{name}.json").write_text(json.dumps(model), encoding="utf-8")


@pytest.fixture
def joulery(capsys):
    """Run a command and read its document; a refusal is its text."""

    def run(*words, code=0):
        assert main([*map(str, words), "--json"]) == code
        printed = capsys.readouterr()
        return json.loads(printed.out) if code == 0 else printed.err

    return run


def test_a_training_of_llama_405b_is_possible_and_takes_what_its_authors_say(joulery):
    """The largest published training is called impossible, or its time is far off."""
    plan = ("--plan", "dp128-tp8-pp16-vp8-mb1-zero2", "--batch-size", 2048)
    step = joulery("predict", "--model", "405b.json", "--device", "h100", *plan)
    # 400 teraflops per device (The Llama 3 Herd of Models, table 4), six operations per parameter
    # and token and those of causal attention.
    operations = 6 * 405.8e9 + 6 * 126 * 16384 * 8192
    published = 2048 * 8192 * operations / (16384 * 400e12)
    assert step["points"][-1]["seconds"] == pytest.approx(published, rel=0.3)
    answer = joulery(
        *("recommend", "--model", "405b.json", "--tokens", "15.6T", "--device", "h100"),
        *("--max-devices", 16384, "--batch-size", 2048, "--deadline", "180d"),
    )
    assert answer["best"]["devices"] <= 16384
    # Its model card says 30.84 million hours of devices.
    low, high = answer["best"]["seconds_90_per_cent"]
    assert low < 30.84e6 * 3600 / answer["best"]["devices"] < high
    assert answer["headline"].startswith("Least energy: train llama-405b on ")


def test_the_faster_of_choices_that_errors_cannot_tell_apart_is_taken_and_said(joulery):
    """Somebody waits weeks for a saving that is smaller than the error."""
    common = ("--model", "8b.json", "--tokens", "100B", "--device", "h100", "--max-devices", 72)
    answer = joulery("recommend", *common)
    best = answer["best"]
    least = min(answer["pareto"], key=lambda choice: choice["joules"])
    assert best["joules"] <= 1.03 * least["joules"]
    assert best["devices"] > 16
    assert any("cannot tell apart" in reason for reason in answer["reasons"])
    # Without a deadline a training does not take for ever, and the page says so.
    assert any("no deadline" in word for word in answer["assumed"])
    counts = {
        choice["devices"]
        for choice in joulery("recommend", *common, "--objective", "time")["pareto"]
    }
    assert 72 in counts


def test_regions_stand_side_by_side(joulery):
    """The same training is compared between grids only by running the command again."""
    answer = joulery(
        *("recommend", "--model", "8b.json", "--tokens", "10B", "--device", "h100"),
        *("--max-devices", 8, "--grid", "50,400,US-TX"),
    )
    (clean, low), (dirty, high), (texas, between) = answer["regions"]
    assert (clean, dirty, texas) == ("50", "400", "US-TX")
    joules = answer["best"]["joules"]
    assert high - low == pytest.approx(350 * joules / 3.6e6, rel=1e-6)
    assert low < between < high


def test_fine_tuning_with_adapters_takes_the_memory_that_arithmetic_says(joulery):
    """A fine-tuning that fits on one board is refused, or one that does not is not."""
    common = ("--model", "8b.json", "--plan", "dp1-mb1-transformers-chunked-loss-full-recompute")
    full = joulery("predict", *common, "--device", "b200")
    lora = joulery("predict", *common, "--device", "b200", "--task", "lora")
    qlora = joulery("predict", *common, "--device", "rtx4090", "--task", "qlora")
    # 16 bytes per parameter in mixed precision, 2 when they are frozen, 0.56 in four bits.
    assert 16 * PARAMETERS < full["memory_allocated_bytes"] < 18 * PARAMETERS
    assert 2 * PARAMETERS < lora["memory_allocated_bytes"] < 4 * PARAMETERS
    assert 0.5 * PARAMETERS < qlora["memory_allocated_bytes"] < 1.6 * PARAMETERS
    refused = joulery("predict", *common, "--device", "rtx4090", code=2)
    assert "→" in refused
    # No gradients of frozen weights: two products of three.
    ratio = lora["points"][-1]["seconds"] / full["points"][-1]["seconds"]
    assert 0.5 < ratio < 0.9


def test_preferences_cost_a_forward_pass_of_the_reference_and_rollouts_most_of_all(joulery):
    """DPO and GRPO are predicted like pre-training."""
    common = ("--model", "8b.json", "--device", "h100", "--batch-size", 64)
    plan = ("--plan", "dp8-mb1-zero3-full-recompute")
    plain, dpo, grpo = (
        joulery("predict", *common, *plan, "--task", task)["points"][-1]["seconds"]
        for task in ("sft", "dpo", "grpo")
    )
    assert 1.15 < dpo / plain < 1.4  # one forward pass beside four passes with recomputation
    assert grpo > 2 * dpo


def test_decoding_is_bound_by_memory_and_power_by_the_limit(joulery):
    """A served model is predicted faster than its memory can be read."""
    answer = joulery("predict", "--model", "8b.json", "--device", "h100", "--serve", "512:128")
    fastest = 2 * PARAMETERS / 3.35e12
    assert fastest < answer["token_seconds"] < 3 * fastest
    assert answer["joules_per_token"] < 700 * (answer["token_seconds"] + answer["prefill_seconds"])
    batch = joulery(
        *("predict", "--model", "8b.json", "--device", "h100", "--serve", "512:128"),
        *("--batch-size", 64),
    )
    assert batch["tokens_per_second"] > 10 * answer["tokens_per_second"]
    assert batch["joules_per_token"] < 0.2 * answer["joules_per_token"]
    serve = ("predict", "--model", "8b.json", "--device", "h100", "--serve")
    narrow = joulery(*serve, "512:128", "--precision", "fp8")
    assert 1.25 < answer["token_seconds"] / narrow["token_seconds"] < 2
    for ignored in (("--limits", 300), ("--plan", "dp4-pp2"), ("--task", "lora")):
        assert "does not use" in joulery(*serve, "512:128", *ignored, code=2)
    assert "do not divide" in joulery(*serve, "512:128", "--plan", "tp3", code=2)
    assert "lacks the tokens of the answer" in joulery(*serve, "512", code=2)


def test_a_device_from_a_file_works_everywhere_and_unknown_ones_say_what_to_do(joulery, tmp_path):
    """Hardware outside the catalog cannot be predicted, or is taken for something of like name."""
    file = tmp_path / "chip.toml"
    file.write_text("\n".join(f"{k} = {json.dumps(v)}" for k, v in TPU.items()), encoding="utf-8")
    plan = ("--plan", "dp16-mb1-zero3-full-recompute", "--batch-size", 16)
    step = joulery("predict", "--model", "8b.json", "--device", file, *plan)
    operations = 8 * PARAMETERS * 16 * 4096 / 16  # with recomputation, per device
    assert step["points"][-1]["seconds"] > operations / 197e12
    words = ("recommend", "--model", "8b.json", "--tokens", "1B", "--max-devices", 32)
    answer = joulery(*words, "--device", f"{file},h100")
    assert {"TPU", "H100"} >= {choice["device"] for choice in answer["pareto"]}
    assert "no power" in joulery(
        "predict", "--model", "8b.json", "--device", "tpu v5e", *plan, code=2
    )
    listed = joulery("predict", "--devices")["devices"]
    assert {"H800", "A800", "L4", "Gaudi2", "Gaudi3", "MI325X"} <= set(listed)
    # What the sheet does not say is assumed aloud; what it does say is taken.
    assert any("PCIe" in word for word in step["assumed"])
    linked = {"link_bytes_per_second": 450e9, "link_domain": 8, "l2_bytes": 50e6}
    linked |= {"network_bytes_per_second": 50e9}
    text = "\n".join(f"{k} = {json.dumps(v)}" for k, v in (TPU | linked).items())
    file.write_text(text, encoding="utf-8")
    faster = joulery("predict", "--model", "8b.json", "--device", file, *plan)
    assert not faster["assumed"]
    assert faster["points"][-1]["seconds"] < 0.5 * step["points"][-1]["seconds"]
    file.write_text(text.replace("197000000000000.0", "197"), encoding="utf-8")
    assert "another unit" in joulery(
        "predict", "--model", "8b.json", "--device", file, *plan, code=2
    )
    file.write_text('name = "half"', encoding="utf-8")
    assert "lacks" in joulery("predict", "--model", "8b.json", "--device", file, *plan, code=2)


def test_a_mistyped_step_is_left_out_and_can_be_forgotten(joulery, tmp_path):
    """One wrong figure spoils every later prediction."""
    plan = ("--plan", "dp8-mb1-zero3", "--batch-size", 64)
    words = ("predict", "--model", "8b.json", "--device", "b200", *plan)
    before = joulery(*words)["points"][-1]["seconds"]
    row = {"device": "h100", "plan": "dp8-mb1-zero3", "batch_size": 64, "seconds": 330.0}
    (tmp_path / "steps.json").write_text(json.dumps([row]), encoding="utf-8")
    assert joulery(*words, "--calibrate", "steps.json")["points"][-1]["seconds"] == before
    own = row | {"device": "b200", "seconds": 1.3 * before}
    (tmp_path / "steps.json").write_text(json.dumps([own]), encoding="utf-8")
    moved = joulery(*words, "--calibrate", "steps.json")
    assert moved["moved_by_measured_steps"] == pytest.approx(0.3, abs=0.06)
    assert joulery("predict", "--forget")["forgotten"] == 2
    assert joulery(*words)["points"][-1]["seconds"] == before


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"heads": 30}, ()),
        ({"layers": True}, ()),
        ({"kv_heads": 5}, ()),
        ({}, ("--calibrate", "long.json")),
        ({}, ("--calibrate", "future.json")),
        ({}, ("--calibrate", "deep.json")),
        ({}, ("--calibrate", "wats.json")),
        ({}, ("--calibrate", "kilowatts.json")),
        ({}, ("--calibrate", "empty.json")),
    ],
)
def test_input_that_cannot_be_is_refused_with_a_remedy(joulery, tmp_path, change, words):
    """Nonsense becomes a prediction."""
    (tmp_path / "model.json").write_text(json.dumps(LLAMA_8B | change), encoding="utf-8")
    row = {"device": "h100", "plan": "dp8-mb1-zero3", "batch_size": 64, "seconds": 9.0}
    flaws = {"long": {"seconds": 1e6}, "future": {"measured": "2099-01-01"}}
    flaws |= {"wats": {"wats": 600}, "kilowatts": {"watts": 0.6}}
    (tmp_path / "empty.json").write_text("[]", encoding="utf-8")
    for name, wrong in flaws.items():
        (tmp_path / f"{name}.json").write_text(json.dumps([row | wrong]), encoding="utf-8")
    (tmp_path / "deep.json").write_text("[" * 100_000, encoding="utf-8")
    plan = ("--device", "h100", "--plan", "dp8-mb1-zero3", "--batch-size", "64")
    assert "→" in joulery("predict", "--model", "model.json", *plan, *words, code=2)


def test_what_was_not_asked_for_or_is_less_than_a_step_is_refused(joulery, tmp_path):
    """A price of another device, a length nobody gave, or less than one step pass in silence."""
    common = ("recommend", "--model", "8b.json", "--tokens", "1B", "--device", "h100")
    assert "not among" in joulery(*common, "--rent", "h100=2,a100=1", code=2)
    tokens = ("recommend", "--model", "8b.json", "--tokens", "1M", "--device", "h100")
    assert "less than one step" in joulery(*tokens, code=2)
    config = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32}
    config |= {"intermediate_size": 14336, "vocab_size": 128256, "model_type": "llama"}
    config |= {"max_position_embeddings": 131072}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    plan = ("--device", "h100", "--plan", "dp8-mb1-zero3-full-recompute", "--batch-size", 8)
    assert "--sequence" in joulery("predict", "--model", "config.json", *plan, code=2)
    short = joulery("predict", "--model", "config.json", "--sequence", 2048, *plan)
    longer = joulery("predict", "--model", "config.json", "--sequence", 4096, *plan)
    assert 1.6 < longer["points"][-1]["seconds"] / short["points"][-1]["seconds"] < 2.4
