"""Compile the pipeline planner's core into wheels, where there is a C compiler.

Without one the wheel is pure Python: the core is then compiled on first use, or HiGHS does its
work. Editable installs compile on first use too, so that a change to the sources takes effect.
"""

from __future__ import annotations

import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledCoreHook(BuildHookInterface):
    """Adds the shared library to the wheel, and the platform to the wheel's name."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, before the wheel is put together."""
        if self.target_name != "wheel" or version == "editable":
            return
        sys.path.insert(0, str(Path(self.root) / "src"))
        from joulery.compiled import compiler
        from joulery.pipeline.native.build import SOURCES, file_name

        if compiler() is None:
            self.app.display_warning("no C compiler: the wheel is pure Python, plans take longer")
            return
        # The builder copies the file after this returns, and removes nothing: so the folder stays
        # until the process ends.
        self._scratch = tempfile.TemporaryDirectory()
        library = Path(self._scratch.name) / file_name()
        SOURCES.compile(library)
        build_data["force_include"][str(library)] = f"joulery/pipeline/native/{file_name()}"
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
