"""Builds the compiled core into wheels and editable installations; without a C compiler they go without it."""

from __future__ import annotations

import importlib.util
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CoreBuildHook(BuildHookInterface[Any]):
    """Compiles simulator/engine/compiled/core.c, as `library.build` does at first use in a checkout."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        path = Path(self.root, "simulator", "engine", "compiled", "library.py")
        spec = importlib.util.spec_from_file_location("core_library", path)
        if spec is None or spec.loader is None:
            raise ImportError(path)
        library = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(library)
        try:
            built = library.build()
        except (OSError, subprocess.CalledProcessError) as error:
            self.app.display_warning(f"without the compiled core: {error}")
            return
        # The library is called through ctypes, so that one wheel serves every Python 3 of a platform.
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform}"
        build_data["artifacts"].append(str(built.relative_to(self.root)))
