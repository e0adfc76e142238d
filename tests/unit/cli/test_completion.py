"""`joulery completion`: what the scripts complete."""

import shutil
import subprocess

import pytest

from joulery.cli import COMMANDS, main


@pytest.fixture(scope="module")
def bash_script(tmp_path_factory):
    """The script for bash, in a file."""
    import contextlib
    import io

    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main(["completion", "bash"]) == 0
    path = tmp_path_factory.mktemp("completion") / "joulery"
    path.write_text(printed.getvalue())
    return path


def completions(script, line):
    """Words that bash offers for the last word of a line."""
    words = line.split(" ")
    quoted = " ".join(f"'{word}'" for word in words)
    program = f"""source {script}; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}
        _joulery; printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(["bash", "-c", program], check=True, capture_output=True, text=True)
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
def test_bash_completes_commands_actions_and_options(bash_script):
    """The tab key offers files, or options of another command."""
    assert set(COMMANDS) <= set(completions(bash_script, "joulery "))
    assert completions(bash_script, "joulery dem") == ["demo"]
    assert completions(bash_script, "joulery serve token c") == ["create"]
    assert "--device" in completions(bash_script, "joulery jobs show --d")
    assert "--limits" not in completions(bash_script, "joulery jobs show --")
    assert completions(bash_script, "joulery measure -- --") == []


@pytest.mark.parametrize(("shell", "word"), [("zsh", "bashcompinit"), ("fish", "commandline")])
def test_other_shells_have_a_script(capsys, shell, word):
    """Users of zsh and fish get none."""
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert word in script
    assert "serve token create" in script
