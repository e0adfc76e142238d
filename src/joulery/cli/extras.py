"""Optional packages: which extra brings them, and a refusal that names it before work begins."""

from __future__ import annotations

from importlib.util import find_spec

from joulery.errors import MissingExtraError

# For each extra: modules that it installs, and its purpose.
EXTRAS = {
    "server": (
        ("uvicorn", "httptools", "fastapi", "prometheus_client", "jinja2"),
        "a server for a team, its dashboard, metrics for Prometheus",
    ),
    "plots": (("matplotlib",), "frontiers as PNG"),
    "instruments": (("pyvisa",), "SCPI wattmeters for the whole node"),
    "amd": (("amdsmi",), "AMD GPUs"),
    "gaudi": (("pyhlml",), "Intel Gaudi cards"),
}


def missing_modules(extra: str) -> list[str]:
    """Modules of an extra that are not installed."""
    return [module for module in EXTRAS[extra][0] if find_spec(module) is None]


def install_command(extra: str) -> str:
    """The command that installs an extra."""
    return f"pip install 'joulery[{extra}]'"


def require(extra: str, *modules: str) -> None:
    """Refuse to begin what needs an extra that is not installed.

    Args:
        extra: Name of the extra.
        modules: Modules of it that are needed; all unless given.

    Raises:
        MissingExtraError: A module is missing.
    """
    missing = [name for name in missing_modules(extra) if not modules or name in modules]
    if missing:
        raise MissingExtraError(f"this needs {', '.join(missing)}", remedy=install_command(extra))
