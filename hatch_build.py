"""Puts templates, profiles, locks and the built glm5-kernel wheel into the glm5-deploy wheel."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.builders.wheel import WheelBuilder

DATA = "glm5_deploy/_data"
FOLDERS = {
    "templates": "templates",
    "inventory/profiles": "profiles",
    "inventory/locks": "locks",
}
FILES = {"inventory/demo.yml": "demo.yml"}


class DataHook(BuildHookInterface):  # type: ignore[type-arg]
    """An editable installation needs none of this: it reads the checkout's own folders."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return
        root = Path(self.root)
        include: dict[str, str] = build_data["force_include"]
        for source, name in (FOLDERS | FILES).items():
            include[str(root / source)] = f"{DATA}/{name}"
        wheel = self._kernel_wheel(root / "kernel")
        include[str(wheel)] = f"{DATA}/wheels/{wheel.name}"

    def _kernel_wheel(self, kernel: Path) -> Path:
        self._scratch = tempfile.TemporaryDirectory()
        builder = WheelBuilder(str(kernel))
        return Path(next(iter(builder.build(directory=self._scratch.name, versions=["standard"]))))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        del version, build_data, artifact_path
        if hasattr(self, "_scratch"):
            self._scratch.cleanup()
