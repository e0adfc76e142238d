"""Running a command: its exit code, its signals, and what cannot be run."""

import signal
import subprocess
import sys
import threading

import pytest

from joulery.errors import InvalidValueError, UsageError
from joulery.metering import _command, check_command, run_command


def shell(script):
    """A shell command."""
    return ["/bin/sh", "-c", script]


@pytest.mark.parametrize(
    ("script", "code"),
    [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)],
)
def test_the_exit_code_is_the_commands(script, code):
    """Scripts around a measured command would not see it fail."""
    assert run_command(shell(script)) == code


def test_standard_output_can_be_redirected(tmp_path):
    """A JSON report on standard output would be mixed with the command's own."""
    with (tmp_path / "out").open("wb") as out:
        run_command(shell("echo hello"), stdout=out)
    assert (tmp_path / "out").read_text() == "hello\n"


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT]
)
def test_signals_reach_the_command(number, monkeypatch):
    """A scheduler's warning before the end of a job would kill the measurement instead."""
    monkeypatch.setattr(_command, "in_foreground", lambda: False)
    name = signal.Signals(number).name.removeprefix("SIG")
    # The trap is set before the parent sends itself the signal, so none is lost.
    script = f"trap 'exit 42' {name}; kill -{name} $PPID; sleep 5 & wait $!; exit 1"
    assert run_command(shell(script)) == 42


def test_an_interrupt_from_the_keyboard_is_left_to_the_command(monkeypatch):
    """The command, which gets it too, would be interrupted again while it cleans up."""
    monkeypatch.setattr(_command, "in_foreground", lambda: True)
    script = "kill -INT $PPID; exit 5"
    assert run_command(shell(script)) == 5


def test_the_command_can_still_be_interrupted():
    """Ignored interrupts would be inherited: Ctrl-C could not stop the command."""
    script = (
        "import signal, sys; "
        "sys.exit(signal.getsignal(signal.SIGINT) is not signal.default_int_handler)"
    )
    assert run_command([sys.executable, "-S", "-c", script]) == 0


def test_handlers_are_given_back():
    """The caller's own signal handling would be gone after one command."""
    found = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    run_command(shell("exit 0"))
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == found


def test_handlers_are_given_back_when_it_cannot_be_run():
    """A typo would leave the caller deaf to signals."""
    found = signal.getsignal(signal.SIGTERM)
    with pytest.raises(UsageError):
        run_command(["/no/such/program"])
    assert signal.getsignal(signal.SIGTERM) == found


def test_it_runs_in_any_thread():
    """Only the main thread may set handlers; others could not measure a command at all."""
    codes = []
    thread = threading.Thread(target=lambda: codes.append(run_command(shell("exit 3"))))
    thread.start()
    thread.join()
    assert codes == [3]


def test_progress_is_called_while_waiting(monkeypatch):
    """Long commands would show no progress."""
    monkeypatch.setattr("joulery.metering._command._POLL_SECONDS", 0.01)
    calls = []
    run_command(shell("sleep 0.1"), on_wait=lambda: calls.append(None))
    assert len(calls) >= 2


def test_an_error_while_waiting_does_not_leave_the_command_behind(monkeypatch):
    """A command would run on unmeasured and unwatched."""
    monkeypatch.setattr("joulery.metering._command._POLL_SECONDS", 0.01)
    started = []
    popen = subprocess.Popen

    def recorded(*args, **options):
        started.append(popen(*args, **options))
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", recorded)
    with pytest.raises(ZeroDivisionError):
        run_command(shell("sleep 0.05"), on_wait=lambda: 1 / 0)
    assert started[0].returncode == 0


@pytest.mark.parametrize("command", [[], [""]])
def test_no_command_is_refused(command):
    """An empty command line would be passed to the system."""
    with pytest.raises(InvalidValueError, match="no command"):
        check_command(command)


def test_an_unknown_program_is_refused_before_measuring(tmp_path):
    """The meter would start for nothing."""
    with pytest.raises(UsageError, match="no-such-program"):
        check_command(["no-such-program"])
    plain = tmp_path / "data"
    plain.write_text("not a program")
    with pytest.raises(UsageError, match="not executable"):
        check_command([str(plain)])
    check_command([sys.executable])


def test_a_script_without_its_interpreter_is_refused_with_the_line_to_write(tmp_path, monkeypatch):
    """A script that is there would be called misspelt."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError, match="check the spelling"):
        check_command(["train.py"], "joulery run")
    (tmp_path / "train.py").write_text("print(1)")
    with pytest.raises(UsageError, match=r"`joulery run -- python train\.py --lr 0\.1`"):
        check_command(["train.py", "--lr", "0.1"], "joulery run")


def test_a_program_that_cannot_start_is_a_usage_error(tmp_path):
    """A broken interpreter line would end in a traceback."""
    broken = tmp_path / "broken"
    broken.write_text("#!/no/such/interpreter\n")
    broken.chmod(0o755)
    check_command([str(broken)])
    with pytest.raises(UsageError, match="broken"):
        run_command([str(broken)])
