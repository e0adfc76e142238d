"""``joulery completion``: a script that completes commands and options in a shell."""

from __future__ import annotations

import argparse
import importlib
from typing import TYPE_CHECKING

from joulery.cli import COMMANDS
from joulery.cli.dispatch import Output, Parser
from joulery.cli.options import Action, option

if TYPE_CHECKING:
    from collections.abc import Iterator

_BASH = """\
_joulery_words() {{
    case "$1" in
{cases}
    esac
}}
_joulery() {{
    local path="" word
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        [ "$word" = "--" ] && return
        [ -n "$(_joulery_words "$path $word")" ] && path="$path $word"
    done
    COMPREPLY=($(compgen -W "$(_joulery_words "$path")" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _joulery joulery
"""
_ZSH = "autoload -U +X compinit bashcompinit && compinit && bashcompinit\n"
_FISH = """\
function __joulery_words
    switch "$argv"
{cases}
    end
end
function __joulery
    set -l path
    for word in (commandline -opc)[2..-1]
        test "$word" = "--"; and return
        test -n "$(__joulery_words $path $word)"; and set path $path $word
    end
    __joulery_words $path
end
complete -c joulery -a '(__joulery)'
"""


def _run(arguments: argparse.Namespace) -> Output:
    words = {"": " ".join([*COMMANDS, "--help", "--version"])}
    for name in COMMANDS:
        parser = Parser(prog=f"joulery {name}")
        importlib.import_module(f"joulery.cli.{name}").COMMAND.define(parser)
        words.update(_completions(name, parser))
    script = _fish(words) if arguments.shell == "fish" else _bash(words)
    script = _ZSH + script if arguments.shell == "zsh" else script
    return Output({"shell": arguments.shell, "script": script}, script)


def _completions(path: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
    """Words that may follow a command or action, by its path."""
    actions = parser._actions  # noqa: SLF001 - argparse has no public list of its options
    words = [flag for action in actions for flag in action.option_strings if flag[:2] == "--"]
    for action in actions:
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 - nor of subparsers
            words += action.choices
            for name, child in action.choices.items():
                yield from _completions(f"{path} {name}", child)
        elif action.choices and not action.option_strings:
            words += map(str, action.choices)
    yield path, " ".join(words)


def _bash(words: dict[str, str]) -> str:
    lines = [f'        "{path and " " + path}") echo "{words[path]}" ;;' for path in words]
    return _BASH.format(cases="\n".join(lines))


def _fish(words: dict[str, str]) -> str:
    cases = [
        f"        case '{path}'\n            string split ' ' -- '{text}'"
        for path, text in words.items()
    ]
    return _FISH.format(cases="\n".join(cases))


COMMAND = Action(
    _run,
    (option("shell", "bash, zsh or fish", choices=("bash", "zsh", "fish")),),
    epilog="""\
examples:
  joulery completion bash > ~/.local/share/bash-completion/completions/joulery
  joulery completion zsh >> ~/.zshrc
  joulery completion fish > ~/.config/fish/completions/joulery.fish
""",
)
