"""The cell magic in a real IPython shell."""

import pytest


@pytest.fixture
def shell(world, monkeypatch):
    """A shell with the extension, whose cells load a simulated board."""
    from IPython.testing.globalipapp import start_ipython

    made = start_ipython() or __import__("IPython").get_ipython()
    made.run_line_magic("load_ext", "joulery.integrations.ipython")
    from joulery.integrations import ipython

    monkeypatch.setattr(ipython, "_meter", world.meter)
    made.user_ns["world"] = world
    return made


def test_a_cell_shows_its_energy_and_keeps_it(shell, world, capsys):
    """If this fails, the magic measures nothing, or breaks when a cell is run again."""
    for _ in range(2):  # cells are run again and again
        before = world.gpu.true_joules()
        result = shell.run_cell("%%joulery spent\nworld.load()\nvalue = 7\nvalue * 6")
        assert result.success
        spent = world.gpu.true_joules() - before
        assert shell.user_ns["spent"].joules == pytest.approx(spent, rel=0.2)
    assert shell.user_ns["value"] == 7
    out = capsys.readouterr().out
    assert " J" in out
    assert "42" in out


def test_a_failing_cell_fails(shell, capsys):
    """If this fails, `Run all` goes on after an error inside the magic."""
    result = shell.run_cell("%%joulery\nundefined_name")
    assert not result.success
    assert capsys.readouterr().out.count("NameError") >= 1


def test_a_wrong_argument_is_named(shell, capsys):
    """If this fails, a typo runs the cell under a name that nobody can use."""
    result = shell.run_cell("%%joulery 3 things\npass")
    assert not result.success
    assert "name of a variable" in "".join(capsys.readouterr())


def test_a_cell_that_is_run_again_frees_its_board(shell, world):
    """If this fails, a limit stays lowered until the kernel ends, and the new run waits for it."""
    cell = "run = world.run()\nruns = [*globals().get('runs', []), run]\nrun.step()"
    for _ in range(2):
        assert shell.run_cell(cell, store_history=True).success
    first, second = shell.user_ns["runs"]
    assert first._closed
    assert not second._closed
    second.close()
