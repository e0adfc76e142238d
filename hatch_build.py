"""What a package holds besides the sources: compiled libraries, and links that work elsewhere.

C is compiled into wheels, where there is a C compiler.

Without one the wheel is pure Python: a library is then compiled when it is first used, which needs
a C compiler or ziglang; the rest needs neither. Editable installs compile on first use too, so that
a change to the sources counts.
"""

from __future__ import annotations

import os
import re
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

_LINK = re.compile(r"(!?)(\[[^\]]*\])\((?!https?:|#)([^)]+)\)")


class CompiledCoreHook(BuildHookInterface):
    """Adds the shared libraries to the wheel, and the platform to the wheel's name."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, before the wheel is put together."""
        if self.target_name != "wheel" or version == "editable":
            return
        sys.path.insert(0, str(Path(self.root) / "src"))
        from joulery.compiled import compiler
        from joulery.pipeline.planning.native import build as pipeline

        if compiler() is None:
            self.app.display_warning(
                "no C compiler: the wheel is pure Python, without the planner's core"
            )
            return
        # The builder copies the file after this returns, and removes nothing: so the folder stays
        # until the process ends.
        self._scratch = tempfile.TemporaryDirectory()
        library = Path(self._scratch.name) / pipeline.file_name()
        pipeline.SOURCES.compile(library)
        folder = "joulery/pipeline/planning/native"
        build_data["force_include"][str(library)] = f"{folder}/{library.name}"
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"


class ReadmeHook(MetadataHookInterface):
    """README and links of the package's page, where the files beside README are not.

    ``PROJECT_URL`` names the place of the repository; without it links stay as they are.
    """

    PLUGIN_NAME = "custom"

    def update(self, metadata: dict[str, Any]) -> None:
        """Add what depends on where the project is published."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        url = os.environ.get("PROJECT_URL", "").rstrip("/")
        if url:
            metadata["urls"] = {
                "Homepage": url,
                "Documentation": f"{url}/blob/HEAD/docs/index.md",
                "Changes": f"{url}/blob/HEAD/CHANGELOG.md",
            }
            text = _LINK.sub(lambda link: _absolute(url, *link.groups()), text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def _absolute(url: str, mark: str, words: str, path: str) -> str:
    """A link of README, or an image, as one that works everywhere."""
    return f"{mark}{words}({url}/{'raw' if mark else 'blob'}/HEAD/{path})"
