"""The front door: dispatch, help, and every failure as a line, a remedy and a code."""

import io
import json
import sys
import types

import pytest

import joulery
from joulery.cli import COMMANDS, main
from joulery.cli.options import Action
from joulery.errors import DeviceError, FileError, MissingRightsError


@pytest.fixture
def command(monkeypatch):
    """Replaces `doctor` by whatever a test wants to happen."""

    def install(run):
        fake = types.ModuleType("joulery.cli.doctor")
        fake.COMMAND = Action(run)
        monkeypatch.setitem(sys.modules, "joulery.cli.doctor", fake)

    return install


def _raiser(error):
    def run(arguments):
        raise error

    return run


@pytest.mark.parametrize("word", ["--help", "-h", "help"])
def test_help_lists_every_command(word, capsys):
    """A command nobody sees does not exist."""
    assert main([word]) == 0
    out, err = capsys.readouterr()
    assert all(f"  {name} " in out and text in out for name, text in COMMANDS.items())
    assert err == ""


@pytest.mark.parametrize("columns", [40, 80])
def test_help_fits_the_terminal(columns, monkeypatch, capsys):
    """If this fails, a terminal of 80 columns breaks words of the list of commands."""
    monkeypatch.setenv("COLUMNS", str(columns))
    assert main(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    commands = [line for line in lines if line.startswith("  ") and line[2] != " "]
    assert [line.split()[0] for line in commands] == list(COMMANDS)


def test_no_arguments_is_wrong_use_but_helpful(capsys):
    """Scripts that forget the command must fail."""
    assert main([]) == 2
    assert "usage: joulery COMMAND" in capsys.readouterr().out


@pytest.mark.parametrize("word", ["--version", "-V"])
def test_version(word, capsys):
    """Bug reports start with it."""
    assert main([word]) == 0
    assert capsys.readouterr().out == f"joulery {joulery.__version__}\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help(name, capsys):
    """Each command explains itself, and takes --json as the main help promises."""
    assert main([name, "--help"]) == 0
    out = capsys.readouterr().out
    assert f"joulery {name}" in out
    assert "--json" in out


def test_unknown_command(capsys):
    """A typo gets one line and a way on."""
    assert main(["messure"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 2)
    assert "unknown command 'messure'" in err
    assert "→ did you mean measure?" in err
    assert main(["xyzzy"]) == 2
    assert "→ the commands are doctor, demo, emulate" in capsys.readouterr().err
    assert main(["serve", "--port", "80"]) == 2  # 80 is no action
    assert (
        "unknown argument '--port'\n  → it takes --json, --store, --listen"
        in capsys.readouterr().err
    )
    assert main(["messure", "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["exit_code"] == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FileError("no file", remedy="find it"), 2),
        (MissingRightsError("no rights", remedy="get them"), 3),
        (DeviceError("broken", remedy="mend it"), 1),
        (RuntimeError("bug"), 1),
    ],
    ids=lambda value: type(value).__name__,
)
@pytest.mark.parametrize("as_json", [False, True])
def test_every_error_becomes_a_line_a_remedy_and_a_code(command, capsys, error, code, as_json):
    """Users must never meet a traceback, nor scripts a wrong code."""
    command(_raiser(error))
    assert main(["doctor"] + ["--json"] * as_json) == code
    out, err = capsys.readouterr()
    message = getattr(error, "message", f"internal error: RuntimeError: {error}")
    assert err.splitlines()[0] == f"joulery: {message}"
    assert err.splitlines()[1].startswith("  → ")
    assert len(err.splitlines()) == 2
    if as_json:
        document = json.loads(out)
        assert (document["error"], document["exit_code"]) == (message, code)
        assert document["remedy"]
    else:
        assert out == ""


def test_tracebacks_are_there_for_those_who_ask(command, monkeypatch):
    """Reporting a bug needs the place where it happened."""
    command(_raiser(RuntimeError("bug")))
    monkeypatch.setenv("JOULERY_TRACEBACK", "1")
    with pytest.raises(RuntimeError, match="bug"):
        main(["doctor"])


def test_interruption_has_the_code_that_shells_expect(command, capsys):
    """Ctrl-C is no error to explain."""
    command(_raiser(KeyboardInterrupt()))
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "arguments",
    [["doctor", "--colour"], ["doctor", "extra"]],
    ids=" ".join,
)
def test_wrong_options_point_to_the_help(arguments, capsys):
    """Wrong use is one line, not a page of usage; shortened options are not guessed at."""
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert "→ it takes --json, --selftest, " in err
    assert f": see `joulery {arguments[0]} --help`" in err
    assert err.count("\n") == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["cluster", "allocate"], "joulery cluster allocate --jobs FILE"),
        (["cluster", "allocate", "--budget"], "--budget W"),
        (["governor", "check-policy"], "joulery governor check-policy FILE"),
        (["emulate"], "joulery emulate BOARDS -- COMMAND"),
    ],
    ids=["option", "value", "file", "command"],
)
def test_missing_arguments_are_written_out(arguments, words, capsys):
    """Somebody who forgot an argument is sent to a page of help to find out how it is written."""
    assert main(arguments) == 2
    assert f"→ write `{words}`: see `joulery" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        (["doctor", "--js"], "did you mean --json?"),
        (["measure", "--period", "--", "true"], "it takes --json"),
        (["sweep", "--limts=100:200:50"], "did you mean --limits?"),
        (["jobs", "shw"], "did you mean show?"),
        (["cluster", "status", "--state", "x", "--wach"], "did you mean --watch?"),
        (["emulate", "--", "true"], "write `joulery emulate a100 -- true`"),
        (["emulate", "--workload", "foo", "a100", "--", "true"], "--workload 'foo' is unknown"),
        (["report", "x.jsonl", "--pue", "x"], "write one, such as 1.5"),
        (["demo", "--device", "foo"], "lists all, such as V100, A100 and H100"),
    ],
)
def test_a_misspelled_word_is_answered_with_the_nearest(arguments, remedy, capsys):
    """A typing error costs a look into the help."""
    assert main(arguments) == 2
    assert remedy in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["report", "a\0b"], r"'a\x00b' contains a NUL character"),
        (["report", "--name", "a\0b"], "NUL"),
        (["measure", "--", "tr\0ue"], "NUL"),
        (["sweep", "--simulate", "rtx6000x8", "--out", "x" * 300], "File name too long"),
        (["jobs", "list", "--store", "x" * 300], "File name too long"),
        (["report", "points.json", "--html", "page.html", "--name", " "], "--name"),
    ],
    ids=lambda value: "",
)
def test_values_that_no_system_takes_are_wrong_use(capsys, tmp_path, monkeypatch, arguments, says):
    """If this fails, a slip in a script is called an internal error."""
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 2


def test_an_argument_that_is_no_utf8_is_wrong_use(command, capsys):
    """If this fails, bytes that a shell passes on are called an internal error."""
    command(lambda arguments: "\udcff".encode() and 0)
    assert main(["doctor"]) == 2
    assert r"'\udcff' is not valid text" in capsys.readouterr().err


def test_json_after_the_separator_belongs_to_the_command(capsys):
    """`measure -- prog --json` does not ask Joulery for JSON."""
    assert main(["measure", "--", "/no/such/program", "--json"]) == 127
    assert capsys.readouterr().out == ""


def test_poor_encodings_get_plain_letters(command, monkeypatch):
    """A terminal without UTF-8 must not turn output into an error."""
    raw = io.BytesIO()
    stdout = io.TextIOWrapper(raw, encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    command(lambda arguments: sys.stdout.write("5 µJ → 3\n") and 0)
    assert main(["doctor"]) == 0
    assert raw.getvalue() == b"5 uJ > 3\n"


def test_a_closed_stdout_is_no_error(command, monkeypatch):
    """Daemons run with closed streams, where Python has no stdout at all."""
    monkeypatch.setattr(sys, "stdout", None)
    assert main(["--version"]) == 0
    sys.stdout.close()


def test_a_full_disk_is_named(command, monkeypatch, capsys):
    """Output that got lost must not look like success."""

    class Full(io.StringIO):
        def flush(self):
            raise OSError(28, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    command(lambda arguments: 0)
    assert main(["doctor"]) == 1
    assert "cannot write: No space left on device" in capsys.readouterr().err
