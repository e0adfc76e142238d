"""The plain install: each command is there, and one that needs an extra says which, at once."""

import subprocess
import sys

from joulery.cli.extras import EXTRAS

# Packages that only extras, other frameworks or the tests bring along.
_BLOCKED = {
    *(module for modules, _ in EXTRAS.values() for module in modules),
    *("anyio", "uvloop", "psycopg", "torch", "transformers", "pandas", "pyarrow", "scipy", "rich"),
}
_SCRIPT = """
import importlib.util, sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

def missing(name, package=None):
    return None if name in {blocked} else find_spec(name, package)

sys.meta_path.insert(0, Blocker())
find_spec, importlib.util.find_spec = importlib.util.find_spec, missing
from joulery.cli import COMMANDS, main

for command in COMMANDS:
    assert main([command, "--help"]) == 0, command
assert main(["doctor"]) == 0
for arguments in (["demo", "--serve"], ["serve"], ["export", "--device", "cpu"]):
    assert main(arguments) == 3, arguments
"""


def test_a_plain_install_names_the_extra_before_it_begins(tmp_path):
    """The first command that somebody tries ends in an internal error, after a minute of work."""
    script = _SCRIPT.format(blocked=sorted(_BLOCKED))
    process = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert process.returncode == 0, process.stderr
    assert process.stderr.count("→ pip install 'joulery[server]'") == 3
    assert list(tmp_path.iterdir()) == []
