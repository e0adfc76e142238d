"""A population that dies otherwise than it says would prove something else."""

import pytest

from joulery.testing.workloads import made_up_workload
from support.population import Comparison, Population, Setting

FEW = Setting(clients=40, at_once=4)


@pytest.mark.parametrize(("half", "died"), [("none", 0), ("every second", 20), ("the first", 20)])
def test_exactly_those_die_who_are_to(half, died):
    """Half of the clients is half, and all others complete their runs."""
    population = Population(made_up_workload(), "zeus", 3, half, FEW)
    life = population.run()
    assert (population.died, len(life.costs)) == (died, 40 - died)
    assert len(population.work) == 40


def test_work_of_the_dead_is_counted_in_part():
    """Who dies on the way has done some of the way."""
    population = Population(made_up_workload(), "zeus", 3, "every second", FEW)
    population.run()
    assert 20 < sum(population.work) < 40
    assert population.regret(5.0) < population.regret(20.0)


def test_doubt_counts_against_a_comparison():
    """A mean within the bound proves nothing while its error reaches beyond."""
    sure = Comparison(10.0, 0.01, 0.01, 0.0, 500.0, 1.0, 20)
    unsure = Comparison(10.0, 0.01, 0.05, 0.0, 500.0, 1.0, 20)
    assert sure.within(0.05)
    assert not unsure.within(0.05)
