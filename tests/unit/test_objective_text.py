"""Objectives written as text."""

import pytest

from joulery.errors import InvalidValueError
from joulery.objective_text import HELP, parse_objective
from joulery.objectives import (
    Bounds,
    ConstantSignal,
    Cost,
    EnergyDelayProduct,
    EnergyDelaySum,
    FastestWithin,
    LeastCarbon,
    LeastEnergy,
    LeastMoney,
)


@pytest.mark.parametrize(
    ("text", "objective"),
    [
        ("cost", Cost(0.5, 300.0)),
        ("cost:eta=0.25", Cost(0.25, 300.0)),
        ("cost:eta=25%,max_watts=1e3", Cost(0.25, 1000.0)),
        ("cost:eta=1,max_watts=0", Cost(1.0, 0.0)),
        ("least-energy", LeastEnergy()),
        ("least-energy:slowdown=5%", LeastEnergy(max_slowdown=0.05)),
        ("least-energy:slowdown=0", LeastEnergy(max_slowdown=0.0)),
        ("least-energy:deadline=3600", LeastEnergy(deadline_seconds=3600.0)),
        ("least-energy:deadline=60,slowdown=0.1", LeastEnergy(0.1, 60.0)),
        ("edp", EnergyDelayProduct()),
        ("edp:", EnergyDelayProduct()),
        ("eds", EnergyDelaySum(2.0)),
        ("eds:k=1.5", EnergyDelaySum(1.5)),
        ("fastest:joules=1e6", FastestWithin(1e6)),
        ("carbon:intensity=400", LeastCarbon(ConstantSignal(400.0))),
        (
            "carbon:intensity=400,slowdown=10%",
            LeastCarbon(ConstantSignal(400.0), bounds=Bounds(max_slowdown=0.1)),
        ),
        ("money:price=0.3", LeastMoney(ConstantSignal(0.3))),
        (
            "money:price=0.3,rent=2,deadline=60",
            LeastMoney(ConstantSignal(0.3), 2.0, bounds=Bounds(60.0)),
        ),
        (" EDS : k = 2 , ", EnergyDelaySum(2.0)),
    ],
)
def test_reads_every_objective(text, objective):
    """What the help promises must be understood."""
    assert parse_objective(text, max_watts=300.0) == objective


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "unknown objective ''"),
        ("speed", "unknown objective 'speed'"),
        ("cost", "max_watts, which is missing"),
        ("cost:eta", "cannot read 'eta'"),
        ("cost:eta=", "cannot read 'eta='"),
        ("cost:eta=half", "cannot read 'eta=half'"),
        ("cost:eta=%", "cannot read"),
        ("cost:eta=2,max_watts=1", "eta must be at most 1"),
        ("cost:eta=nan,max_watts=1", "eta must be finite"),
        ("edp:k=2", "no option 'k'"),
        ("eds:k=0", "at least 1"),
        ("least-energy:slowdown=-5%", "at least 0"),
        ("fastest", "needs joules="),
        ("carbon", "needs intensity="),
        ("money:rent=2", "needs price="),
        ("cost:eta=0.1,eta=0.9,max_watts=1", "eta twice"),
    ],
)
def test_explains_what_it_cannot_read(text, says):
    """A typo in an objective must not choose something else in silence."""
    with pytest.raises(InvalidValueError, match=says) as caught:
        parse_objective(text)
    assert caught.value.remedy


def test_the_help_names_every_objective():
    """Unlisted objectives are unused ones."""
    for example in HELP.replace("%%", "%").split(": ", 1)[1].split(" | "):
        values = {"SECONDS": "1", "J": "1", "G_PER_KWH": "1", "PER_KWH": "1", "PER_HOUR": "1"}
        head, colon, options = example.partition(":")
        for word, value in values.items():
            options = ",".join(
                f"{option.split('=')[0]}={value}" if option.endswith(f"={word}") else option
                for option in options.split(",")
            )
        parse_objective(head + colon + options, max_watts=1.0)
