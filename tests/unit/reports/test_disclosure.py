"""What a training used, in the forms that others ask for."""

import json
import re
from dataclasses import replace

import pytest

from joulery.cli import main
from joulery.errors import InvalidValueError
from joulery.frontier import Origin, Provenance
from joulery.jobs import Saved
from joulery.prediction import embodied_kilograms
from joulery.reports import (
    DISCLOSURES,
    Footprint,
    Report,
    Table,
    Terminal,
    footprint_report,
    usage_report,
)

MEASURED = Footprint(
    "tiny",
    joules=3.6e9,
    seconds=86400.0 * 2,
    provenance=Provenance(Origin.MEASURED, "NVML counter", 0.01),
    devices={"H100": 8},
    intensity=100.0,
    intensity_source="yearly mean of FR",
    location="FR",
    pue=1.2,
    embodied_grams=80000.0,
    training_flops=1.23456e21,
)


def test_the_sums_are_those_of_the_standard():
    """If this fails, emissions are stated in wrong units."""
    assert MEASURED.kilowatt_hours == pytest.approx(1200)
    assert MEASURED.grams == pytest.approx(120_000)
    (rate,) = [one for one in replace(MEASURED, units=1e6).figures if "intensity" in one.name]
    assert (rate.value, rate.unit) == (pytest.approx(0.2), "g CO2 per model")
    card = DISCLOSURES["huggingface"](MEASURED)["co2_eq_emissions"]
    assert card["emissions"] == 120_000
    assert "training_type" not in card  # pre-training or fine-tuning: nothing here knows which


def test_a_page_of_simulated_energy_says_so_before_all_else():
    """If this fails, the energy of an emulated board goes into a paper."""
    simulated = replace(MEASURED, provenance=Provenance(Origin.SIMULATED, "emulated", 0.05))
    assert "every figure here is simulated or assumed" in footprint_report(simulated).html()
    assert 'class="badge"' in usage_report(simulated).html()
    (in_all,) = [figure for figure in simulated.figures if figure.name == "CO2 in all"]
    assert str(in_all.provenance) == "simulated (the hardware's part is assumed)"
    both = replace(MEASURED, stages={"inference": simulated})
    for report in (footprint_report(MEASURED), usage_report(MEASURED), footprint_report(both)):
        assert 'class="badge"' not in report.html()


def test_plus_minus_is_one_standard_error_everywhere():
    """If this fails, one table has ± of one and of two standard errors."""
    text = footprint_report(MEASURED).text(Terminal(columns=120))
    assert "95 % error" in text
    assert "measured ±1 %" in text
    assert "± 95 %" not in text


def test_tables_for_a_paper_fit_its_lines_and_have_captions():
    """If this fails, provenance in LaTeX runs off the page, or a table is simulated unsaid."""
    simulated = replace(
        MEASURED, embodied_grams=None, provenance=Provenance(Origin.SIMULATED, "emulated", 0.05)
    )
    first, second = footprint_report(simulated).latex().split("\n\n")
    assert r"\usepackage{booktabs,array}" in first
    assert "Every figure here is simulated" in first
    assert r"& value & 95~\% error &" in first
    assert "price not stated" in first
    assert r"\label{tab:energy-and-carbon-of-tiny}" in first
    assert r"\caption{Energy and carbon of tiny: life cycle." in second
    assert r"\label{tab:energy-and-carbon-of-tiny-life-cycle}" in second
    for table in (first, second):
        assert table.count(r"\begin{table}") == table.count(r"\end{table}") == 1
        shares = map(float, re.findall(r"p\{([\d.]+)\\linewidth\}", table))
        assert 0.3 < sum(shares) < 0.8
    names = Table(["device", "energy"], [["A100", "1 J"]], "lr")
    assert r"\begin{tabular}{@{}lr@{}}" in Report("x", "", (names,)).latex()


def test_the_error_of_a_share_is_in_points():
    """If this fails, 46 % saved has an error of 1 % beside one of 0.2 %, and both are right."""
    saved = replace(MEASURED, saved=Saved(0.459, 0.002))
    (row,) = [
        line
        for line in usage_report(saved).text(Terminal(columns=200)).splitlines()
        if line.startswith("energy saved")
    ]
    assert "45.9 %  0.39 points  measured (comparison of runs by their reports)" in row
    (figure,) = [figure for figure in saved.figures if figure.name == "energy saved"]
    assert figure.to_dict()["relative_error"] == pytest.approx(0.002 / 0.459)


def test_the_form_of_the_eu_has_its_units():
    """If this fails, a regulator reads days as hours or kWh as MWh."""
    form = DISCLOSURES["eu"](MEASURED)
    assert form["training_energy_mwh"] == 1.2
    assert form["hardware_days"] == 16
    assert form["wall_clock_days"] == 2
    assert form["training_flops"] == 1.23e21
    assert form["measured_or_estimated"] == "measured"
    assert "95 % error is 2.0 %" in form["method"]


def test_the_form_of_the_eu_has_operations_of_inference():
    """If this fails, a regulator reads an estimate as a benchmark, or unknown as zero."""
    form = DISCLOSURES["eu"](MEASURED)
    assert form["inference_flops"] is form["inference_method"] is None
    form = DISCLOSURES["eu"](replace(MEASURED, parameters=7e9))
    assert form["inference_flops"] == 1.4e10
    assert form["inference_method"].startswith("estimated")
    form = DISCLOSURES["eu"](replace(MEASURED, parameters=7e9, inference_flops=3e15))
    assert (form["inference_flops"], form["inference_method"]) == (3e15, "as stated")


def test_unknown_hardware_is_unknown_in_every_form():
    """If this fails, making hardware that nobody named is disclosed as 0 g of CO2."""
    nameless = replace(MEASURED, devices={}, embodied_grams=None, units=1e6)
    figures = {figure.name: figure for figure in nameless.figures}
    for name in ("CO2 of making the hardware", "CO2 in all", "software carbon intensity"):
        assert (figures[name].value, figures[name].text) == (None, "unknown")
    assert nameless.to_dict()["hardware"] is None
    form = DISCLOSURES["eu"](nameless)
    assert form["hardware"] is form["hardware_days"] is None
    card = DISCLOSURES["huggingface"](nameless)["co2_eq_emissions"]
    assert card["hardware_used"] == "unknown"
    on_cpus = replace(nameless, processors={"AMD EPYC (estimated)": 1})
    card = DISCLOSURES["huggingface"](on_cpus)["co2_eq_emissions"]
    assert card["hardware_used"] == "1 x AMD EPYC (estimated)"
    assert on_cpus.to_dict()["hardware"] == {"AMD EPYC (estimated)": 1}
    with pytest.raises(InvalidValueError, match="needs all emissions"):
        DISCLOSURES["sci-ai"](nameless)


def test_provider_and_consumer_have_scores_of_their_own():
    """If this fails, inference is charged to the provider, or a stage is left out in silence."""
    data = replace(MEASURED, joules=3.6e8, embodied_grams=0.0)
    serving = replace(MEASURED, joules=3.6e7, embodied_grams=800.0)
    model = replace(
        MEASURED, parameters=2e9, stages={"data": data, "inference": serving}, served=1e6
    )
    scores = DISCLOSURES["sci-ai"](model)
    provider, consumer = scores["provider"], scores["consumer"]
    assert provider["grams"] == 200_000 + 12_000
    assert provider["grams_per_unit"] == {"FLOP": 1.72e-16, "billion parameters": 106_000}
    assert provider["not_measured"] == ["prepare", "system integration", "end of life"]
    assert consumer == {"grams": 2000, "grams_per_unit": {"token": 0.002}}
    assert DISCLOSURES["sci-ai"](MEASURED)["consumer"] is None
    with pytest.raises(InvalidValueError, match="per operation"):
        DISCLOSURES["sci-ai"](replace(MEASURED, training_flops=None, units=1.0))
    unknown = replace(serving, embodied_grams=None, devices={"abacus": 1}, name="inference")
    with pytest.raises(InvalidValueError, match="emissions of inference"):
        DISCLOSURES["sci-ai"](replace(model, stages={"inference": unknown}))


def test_bills_of_materials_have_their_blocks():
    """If this fails, tools that read CycloneDX or SPDX do not find the energy."""
    (component,) = DISCLOSURES["cyclonedx"](MEASURED)["components"]
    considerations = component["modelCard"]["considerations"]["environmentalConsiderations"]
    (used,) = considerations["energyConsumptions"]
    assert used["activityEnergyCost"] == {"value": 1200, "unit": "kWh"}
    assert used["co2CostEquivalent"] == {"value": 0.12, "unit": "tCO2eq"}
    block = DISCLOSURES["spdx"](MEASURED)["ai_energyConsumption"]
    assert block["ai_trainingEnergyConsumption"][0]["ai_energyUnit"] == "kilowattHour"


def test_simulated_energy_is_said_to_be_simulated_in_every_form():
    """If this fails, a model card names the joules of a board that nobody had."""
    parts = [(Provenance(Origin.SIMULATED), 4000.0), (Provenance(Origin.ASSUMED), 900.0)]
    emulated = replace(
        MEASURED, provenance=Provenance.combined(parts), price=0.2, units=1e9, unit="token"
    )
    served = replace(MEASURED, stages={"inference": emulated})
    for form in DISCLOSURES.values():
        assert "simulated" in json.dumps(form(emulated))
        assert "inference was simulated" in json.dumps(form(served))
        assert "simulated" not in json.dumps(form(MEASURED))
    origins = {figure.name: figure.provenance.origin for figure in emulated.figures}
    assert origins.pop("CO2 of making the hardware") is Origin.ASSUMED
    assert set(origins.values()) == {Origin.SIMULATED}


def test_what_is_unknown_has_no_provenance():
    """If this fails, a price that nobody gave is said to be simulated, or stated."""
    simulated = replace(MEASURED, provenance=Provenance(Origin.SIMULATED), intensity=None)
    figures = [*replace(simulated, units=1e6).figures, *simulated.life_cycle]
    documents = [figure.to_dict() for figure in figures if figure.value is None]
    assert len(documents) == 7
    for document in documents:
        assert document["provenance"] is document["source"] is document["relative_error"] is None
    (cost,) = [one for one in documents if one["name"].startswith("cost")]
    assert (cost["validity"], cost["remedy"]) == ("price not stated", "give --price")


def test_advice_on_options_is_for_the_terminal_only():
    """If this fails, the readers of a paper are told to give --price."""
    report = footprint_report(replace(MEASURED, intensity=None))
    text = report.text(Terminal(columns=160))
    assert "price not stated: give --price" in text
    assert "not measured: add a log with --phase data=FILE" in text
    for published in (report.latex(), report.markdown(), report.html()):
        assert "price not stated" in published
        assert "not measured" in published
        assert "give --" not in published
        assert "phase" not in published


def test_what_is_unknown_is_not_zero():
    """If this fails, a missing carbon intensity is published as no emissions."""
    unknown = replace(
        MEASURED, intensity=None, embodied_grams=None, provenance=Provenance(Origin.ASSUMED)
    )
    unknown = replace(unknown, devices={"abacus": 1})
    assert "| CO2 of the electricity | unknown |" in footprint_report(unknown).markdown()
    assert "| CO2 of making the hardware | unknown |" in footprint_report(unknown).markdown()
    assert "| CO2 in all | unknown |" in footprint_report(unknown).markdown()
    assert DISCLOSURES["eu"](unknown)["measured_or_estimated"] == "estimated"
    assert "co2CostEquivalent" not in json.dumps(DISCLOSURES["cyclonedx"](unknown))
    with pytest.raises(InvalidValueError, match="carbon intensity"):
        DISCLOSURES["huggingface"](unknown)
    per_unit = footprint_report(replace(unknown, units=1.0)).markdown()
    assert "| software carbon intensity | unknown |" in per_unit
    with pytest.raises(InvalidValueError, match="effectiveness"):
        replace(MEASURED, pue=0.5)


def test_the_command_shows_a_log_in_every_form(tmp_path, capsys):
    """If this fails, `joulery disclose --as` breaks on the logs that `measure` writes."""
    log = tmp_path / "energy.jsonl"
    line = {
        "schema": "joulery.energy-log/1", "session": "a", "label": "", "started": 1.0,
        "seconds": 3600.0, "joules": 7.2e6, "provenance": "measured", "relative_error": 0.01,
        "systematic_error_joules": 0.0, "devices": {"nvidia:0": 7.2e6}, "flags": [], "final": True,
    }  # fmt: skip
    log.write_text(json.dumps(line) + "\n")
    options = ["--grid", "fr", "--hardware", "H100=2", "--parameters", "7B"]
    assert main(["disclose", str(log), "--markdown", *options]) == 0
    assert "2 × H100" in capsys.readouterr().out
    for form in DISCLOSURES:
        assert main(["disclose", str(log), "--as", form, *options]) == 0
        assert json.loads(capsys.readouterr().out)
    assert main(["disclose", str(log), "--as", "eu", "--hardware", "H100"]) == 2
    assert main(["disclose", str(log), "--as", "huggingface"]) == 2
    assert "--grid FR" in capsys.readouterr().err
    assert main(["disclose", str(tmp_path / "missing")]) == 2
    assert "joulery measure --log" in capsys.readouterr().err


def test_every_figure_states_how_it_was_obtained_and_what_it_holds_for():
    """If this fails, an estimate is published like a measurement, or carbon is counted twice."""
    footprint = replace(MEASURED, embodied_grams=None, price=0.2, units=1e9, unit="token")
    figures = {figure.name: figure for figure in footprint.figures}
    assert all(figure.validity for figure in figures.values())
    assert figures["energy of the devices"].value == pytest.approx(1000)
    assert figures["energy of the devices"].provenance.origin is Origin.MEASURED
    assert figures["energy with cooling"].value == pytest.approx(1200)
    made = figures["CO2 of making the hardware"]
    per_board = embodied_kilograms("H100") * 2 / (4 * 365.25)
    assert made.value == pytest.approx(8 * per_board, rel=1e-3)
    assert (made.provenance.origin, "NVIDIA" in made.provenance.source) == (Origin.ASSUMED, True)
    assert figures["CO2 in all"].value == pytest.approx(120 + made.value)
    rate = figures["software carbon intensity"]
    assert rate.value == pytest.approx((120_000 + 1000 * made.value) / 1e9)
    assert rate.unit == "g CO2 per token"
    assert figures["cost of the electricity"].value == pytest.approx(240)
    phases = {figure.name: figure.value for figure in footprint.life_cycle}
    assert phases == {"data": None, "experiments": None, "training": 1000, "inference": None}


def test_energy_per_unit_has_the_error_of_the_energy_that_is_divided():
    """If this fails, a figure with an assumed effectiveness in it has the error of the devices."""
    stated = {figure.name: figure for figure in replace(MEASURED, units=2e12).figures}
    whole, share = stated["energy with cooling"], stated["energy per unit"]
    assert whole.provenance == share.provenance == Provenance(Origin.ASSUMED, "as stated")
    assert whole.validity == share.validity == "times a power usage effectiveness of 1.2"
    for name in ("CO2 of the electricity", "CO2 in all", "software carbon intensity"):
        assert stated[name].provenance.relative_error is None
    plain = {figure.name: figure for figure in replace(MEASURED, units=2e12, pue=1.0).figures}
    assert plain["energy per unit"].provenance == MEASURED.provenance


def test_a_report_is_the_same_in_every_form():
    """If this fails, the page, the terminal and Markdown tell different figures."""
    report = footprint_report(replace(MEASURED, name="a|b <c>"))
    for shown in (report.html(), report.markdown(), report.text(Terminal(columns=200))):
        assert "1.20 MWh" in shown
        assert "120 kg CO2" in shown
        assert "NVML counter" in shown
    assert "a|b &lt;c&gt;" in report.html()
    assert "@media print" in report.html()
    rows = [line for line in report.markdown().splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {6}
