"""The installed command in processes of its own: exit codes, signals, streams, imports."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from joulery.cli import COMMANDS, main

JOULERY = Path(sys.executable).with_name("joulery")
PYTHON = sys.executable
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if name == "PYTHONPATH" or not name.startswith(("PYTHON", "JOULERY", "CUDA_", "NVIDIA_"))
}

HEAVY = {"numpy", "matplotlib", "pynvml", "amdsmi", "pyhlml", "pyvisa", "torch", "scipy", "pandas"}
SLOW = HEAVY | {
    "argparse",
    "asyncio",
    "dataclasses",
    "email",
    "importlib.metadata",
    "inspect",
    "json",
    "logging",
    "multiprocessing",
    "socket",
    "ssl",
    "subprocess",
    "threading",
    "urllib.request",
}


def _joulery(*arguments, environment=None, **options):
    return subprocess.run(
        [JOULERY, *arguments],
        env={**ENVIRONMENT, **(environment or {})},
        capture_output=True,
        timeout=60,
        check=False,
        **options,
    )


def _imported_by(code):
    """The modules that `code` loads beyond what an empty interpreter has."""
    program = (
        "import sys; before = set(sys.modules)\n"
        f"{code}\n"
        "sys.stderr.write(' '.join(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [PYTHON, "-c", program], env=ENVIRONMENT, capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "code",
    [
        "import joulery",
        "import joulery; dir(joulery)",
        "from joulery.cli import main; main(['--help'])",
        "from joulery.cli import main; main(['--version'])",
    ],
)
def test_the_front_door_imports_next_to_nothing(code):
    """Every shell completion and every `import joulery` pays for what is loaded here."""
    loaded = _imported_by(code)
    assert "joulery" in loaded
    assert not loaded & SLOW


def test_help_of_a_command_imports_nothing_heavy():
    """Reading help must not wait for NumPy or a driver."""
    program = """
import json, sys
from joulery.cli import COMMANDS, main
loaded, before = {}, set(sys.modules)
for command in COMMANDS:  # in one process: what is heavy is named with the first that loads it
    main([command, "--help"])
    loaded[command] = sorted(set(sys.modules) - before)
    before = set(sys.modules)
json.dump(loaded, sys.stderr)
"""
    done = subprocess.run([PYTHON, "-c", program], env=ENVIRONMENT, capture_output=True, check=True)
    loaded = json.loads(done.stderr)
    assert list(loaded) == list(COMMANDS)
    for command, modules in loaded.items():
        heavy = HEAVY | {"asyncio", "importlib.metadata", "ssl"}
        assert not heavy.intersection(modules), command
    assert {f"joulery.cli.{command}" for command in COMMANDS} <= set().union(*loaded.values())


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 3", 3), ("exit 255", 255), ("kill -KILL $$", 137), ("kill $$", 143)],
)
def test_measure_passes_on_how_the_command_ended(script, code):
    """A failed training must fail the job that measures it."""
    done = _joulery("measure", "--", "sh", "-c", script)
    assert done.returncode == code
    assert f"exit code {code}" in done.stderr.decode()


def test_measure_leaves_the_commands_streams_alone():
    """A measured command must work in a pipe as it did before, byte for byte."""
    given = bytes(range(256)) * 10
    done = _joulery("measure", "--", "sh", "-c", "cat; echo complaint >&2", input=given)
    assert done.stdout == given
    assert done.stderr.startswith(b"complaint\n")
    assert b" mean, " in done.stderr


def test_measure_json_is_one_document():
    """Scripts parse standard output as it is: the command's own output moves to stderr."""
    done = _joulery("measure", "--json", "--grid", "400", "--", "sh", "-c", "echo out; exit 3")
    document = json.loads(done.stdout)
    assert done.returncode == document["exit_code"] == 3
    assert done.stderr == b"out\n"
    assert {"seconds", "joules", "mean_watts", "peak_watts", "devices"} <= set(document)
    assert 0 < document["seconds"] < 30
    for device in document["devices"]:
        assert {"name", "joules", "provenance", "relative_error"} <= set(device)
        assert device["provenance"] in ("measured", "predicted", "simulated", "assumed")
    known = [device["joules"] for device in document["devices"] if device["joules"] is not None]
    assert all(joules > 0 for joules in known)
    assert ("grams_co2" in document) == bool(known)


def _started(script, command="measure", **options):
    """A measured shell that is ready; scripts pause first, for `measure` to be ready too."""
    process = subprocess.Popen(
        [JOULERY, command, "--", "sh", "-c", script],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        **options,
    )
    assert process.stdout.readline() == b"ready\n"
    return process


WAITING = "sleep 0.2; echo ready; while :; do sleep 0.02; done"


@pytest.mark.parametrize("command", ["measure", "run"])
@pytest.mark.parametrize("name", ["TERM", "HUP", "USR1", "INT", "QUIT"])
def test_signals_are_forwarded(command, name):
    """A scheduler's warning must reach the training, which then ends in its own way."""
    script = f"trap 'echo {name}; exit 7' {name}; {WAITING}"
    with _started(script, command, start_new_session=True) as process:
        process.send_signal(signal.Signals[f"SIG{name}"])
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (7, f"{name}\n".encode())
    assert b"exit code 7" in err


def test_a_hang_up_that_is_ignored_stays_so():
    """If this fails, `nohup joulery measure -- python train.py` dies with its terminal."""
    script = "sleep 0.2; echo ready; sleep 0.5; echo done"
    ignoring = ["sh", "-c", 'trap "" HUP; exec "$@"', "-", JOULERY, "measure", "--"]
    with subprocess.Popen(
        [*ignoring, "sh", "-c", script],
        env=ENVIRONMENT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout.readline() == b"ready\n"
        process.send_signal(signal.SIGHUP)
        out, _ = process.communicate(timeout=60)
    assert (process.returncode, out) == (0, b"done\n")


CTRL_C = """
import os, pty, sys, time
pid, terminal = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
seen = b""
while b"ready" not in seen:
    seen += os.read(terminal, 1000)
os.write(terminal, b"\\x03")
try:
    while True:
        seen += os.read(terminal, 1000)
except OSError:
    pass
os.write(1, seen)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""


def test_an_interrupt_reaches_the_command_once():
    """Two would cut short what a training does on the first one; none would not stop it."""
    script = f"trap 'echo got INT; sleep 0.3; exit 5' INT; {WAITING}"
    done = subprocess.run(
        [PYTHON, "-c", CTRL_C, JOULERY, "measure", "--", "sh", "-c", script],
        env=ENVIRONMENT,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 5
    assert done.stdout.count(b"got INT") == 1
    assert b"exit code 5" in done.stdout
    assert b"Traceback" not in done.stdout


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Files that are broken in their own ways, and one that is not."""
    folder = tmp_path_factory.mktemp("files")
    twin = {"seconds": 1, "joules": 2}
    (folder / "good.json").write_text(json.dumps([twin]))
    (folder / "broken.json").write_text('{"points": [')
    (folder / "twins.json").write_text(json.dumps({"points": [twin, twin]}))
    (folder / "binary").write_bytes(bytes(range(256)))
    return folder


WRONG_USE = {
    "unknown-command": ["frobnicate"],
    "unknown-option": ["doctor", "--frobnicate"],
    "unknown-device": ["measure", "--device", "tpu:99", "--", "true"],
    "empty-command": ["measure", "--"],
    "negative-grid": ["measure", "--grid", "-1", "--", "true"],
    "textual-price": ["measure", "--price", "cheap", "--", "true"],
    "log-in-no-folder": ["measure", "--log", "missing/energy.log", "--", "true"],
    "log-of-another-kind": ["measure", "--log", "good.json", "--", "true"],
    "price-not-a-number": ["measure", "--price", "nan", "--", "true"],
    "missing-file": ["report", "missing.json"],
    "folder": ["report", "."],
    "broken-json": ["report", "broken.json"],
    "duplicate-points": ["report", "twins.json"],
    "binary": ["report", "binary"],
    "unknown-objective": ["report", "good.json", "--objective", "speed"],
    "infeasible": ["report", "good.json", "--objective", "fastest:joules=1"],
    "run-without-job": ["report", "--run", "1.1"],
    "wrong-epochs": ["demo", "--epochs", "many"],
    "unknown-board": ["demo", "--device", "Voodoo2"],
}


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["--device", "gpu", "--", "true"], 3),
        (["--", "/no/such/program"], 127),
        (["--", "/etc/passwd"], 127),
    ],
)
def test_missing_hardware_and_programs_have_exit_codes_of_their_own(files, arguments, code):
    """Scripts cannot tell a machine without GPU, or a missing program, from wrong use."""
    done = _joulery("measure", "--json", *arguments, cwd=files)
    assert done.returncode == code, done.stderr
    message, remedy = done.stderr.decode().splitlines()
    assert message.startswith("joulery: ")
    assert remedy.startswith("  → ")


def _check_wrong_use(code, out, err):
    assert code == 2, err
    message, remedy = err.splitlines()
    assert message.startswith("joulery: ")
    assert "internal error" not in message
    assert remedy.startswith("  → ")
    assert json.loads(out) == {
        "error": message.removeprefix("joulery: "),
        "remedy": remedy.removeprefix("  → "),
        "exit_code": 2,
    }


@pytest.mark.parametrize("arguments", WRONG_USE.values(), ids=WRONG_USE)
def test_wrong_use_is_one_line_a_remedy_and_exit_code_two(files, arguments, monkeypatch, capfd):
    """Users must never meet a traceback, and always a way on; with --json, as JSON."""
    monkeypatch.chdir(files)
    monkeypatch.setenv("XDG_DATA_HOME", str(files))  # where there is no store
    command, *rest = arguments
    _check_wrong_use(main([command, "--json", *rest]), *capfd.readouterr())


@pytest.mark.parametrize("name", ["unknown-command", "empty-command", "broken-json"])
def test_wrong_use_of_the_installed_command(files, name):
    """The installed command says something else than the function behind it."""
    command, *rest = WRONG_USE[name]
    done = _joulery(command, "--json", *rest, cwd=files)
    _check_wrong_use(done.returncode, done.stdout, done.stderr.decode())


_READ = ("--help", "--version", "report --help", "doctor", "doctor --json", "report good.json")
_READ += ("measure --json -- true", "report missing.json --json")


@pytest.mark.parametrize(
    ("arguments", "unbuffered"),
    [*((text.split(), "") for text in _READ), (["--help"], "1"), (["doctor"], "1")],
    ids=str,
)
def test_a_reader_that_left_is_no_cause_for_complaint(files, arguments, unbuffered):
    """`joulery doctor | head -1` must end quietly."""
    reading, writing = os.pipe()
    os.close(reading)
    try:
        done = subprocess.run(
            [JOULERY, *arguments],
            env={**ENVIRONMENT, "PYTHONUNBUFFERED": unbuffered},
            stdout=writing,
            stderr=subprocess.PIPE,
            text=True,
            timeout=60,
            check=False,
            cwd=files,
        )
    finally:
        os.close(writing)
    complaints = [line for line in done.stderr.splitlines() if "missing.json" not in line]
    assert [line for line in complaints if not line.startswith("  → ")] == []
    assert done.returncode in (0, 1, 2)


def test_doctor_looks_at_this_machine():
    """The first command people run must work everywhere, and its two forms agree."""
    document = json.loads(_joulery("doctor", "--json").stdout)
    text = _joulery("doctor")
    assert text.returncode == 0
    assert text.stderr == b""
    for device in document["devices"]:
        assert device["id"] in text.stdout.decode()
        assert device["provenance"] in ("measured", "simulated", "assumed")
    for obstacle in document["obstacles"]:
        assert obstacle["remedy"] in text.stdout.decode()


def test_doctor_on_a_poor_terminal():
    """Without UTF-8 some signs are lost, but not the answer."""
    done = _joulery("doctor", environment={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.isascii()


def test_a_log_outlives_restarts_and_crashes(tmp_path):
    """Sessions add up over restarts; a line torn by a crash costs that line only."""
    log = tmp_path / "energy.log"
    documents = []
    for _ in range(2):
        done = _joulery("measure", "--json", "--log", log, "--", "sleep", "0.05")
        documents.append(json.loads(done.stdout))
        with log.open("ab") as torn:
            torn.write(b'{"schema": "joulery.energy-log/1", "session": "to')
    totals = json.loads(_joulery("report", log, "--json").stdout)
    assert (totals["sessions"], totals["unfinished"]) == (2, 0)
    assert len(totals["damaged_lines"]) == 2
    assert totals["seconds"] == pytest.approx(sum(each["seconds"] for each in documents), rel=0.01)
    known = [each["joules"] for each in documents if each["joules"] is not None]
    if known:
        assert totals["joules"] == pytest.approx(sum(known), rel=0.05)
    text = _joulery("report", log).stdout.decode()
    assert "2 sessions: " in text
    assert "left out: " in text


@pytest.mark.parametrize("redirection", ["2>/dev/full", "2>&-", ">/dev/full", ">&-", "<&-"])
def test_measure_passes_on_the_exit_code_whatever_its_streams(redirection):
    """A full disk or a closed stream would cost a training run its result."""
    for options in ("", "--json"):
        script = f"exec {JOULERY} measure {options} -- sh -c 'exit 7' {redirection}"
        done = subprocess.run(["/bin/sh", "-c", script], env=ENVIRONMENT, check=False)
        assert done.returncode == 7


def test_output_that_cannot_be_written_is_explained(files):
    """A full disk is not an internal error."""
    script = f"exec {JOULERY} report {files}/good.json >/dev/full"
    command = ["/bin/sh", "-c", script]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "cannot write: No space left" in done.stderr
    assert "internal" not in done.stderr


def test_an_ascii_terminal_gets_plain_letters(files):
    """Question marks in place of rules and dashes make tables unreadable."""
    done = subprocess.run(
        [JOULERY, "report", files / "good.json"],
        env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.isascii()
    assert "?" not in done.stdout
    assert "-----" in done.stdout


@pytest.mark.parametrize("command", ["measure", "run"])
def test_a_misspelled_node_meter_is_refused(command):
    """If this fails, a night of training is measured without the meter that was asked for."""
    done = _joulery(command, "--", "echo", "ran", environment={"JOULERY_NODE_METER": "foo"})
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"unknown node meter 'foo' in JOULERY_NODE_METER" in done.stderr


def test_a_node_meter_that_does_not_answer_is_said():
    """If this fails, its figures are missing without a word."""
    done = _joulery("measure", "--", "true", environment={"JOULERY_NODE_METER": "ipmi:no.invalid"})
    assert done.returncode == 0
    assert b"node meter ipmi:no.invalid is left out: " in done.stderr
