"""Finds a Chromium for the browser tests; as root on Debian or Ubuntu installs it where there is none.

`python tests/install_browser.py` prints its path, or one line that says what to install.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
MISSING = "No Chromium found: install it (apt-get install chromium) or set ALPAVIZ_CHROMIUM to its path."


def find_chromium() -> str | None:
    """Path of a Chromium: `ALPAVIZ_CHROMIUM`, else one on PATH."""
    given = os.environ.get("ALPAVIZ_CHROMIUM")
    if given:
        return given
    return next((path for name in NAMES if (path := shutil.which(name))), None)


def ensure_chromium() -> str | None:
    """Path of a Chromium, installed if it can be; else None."""
    found = find_chromium()
    is_root = hasattr(os, "geteuid") and os.geteuid() == 0
    if found or not is_root or shutil.which("apt-get") is None:
        return found
    print("Installing chromium with apt-get ...", file=sys.stderr, flush=True)
    env = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    for command in (
        ["apt-get", "update", "-q"],
        ["apt-get", "install", "-y", "-q", "--no-install-recommends", "chromium"],
    ):
        if subprocess.run(command, env=env, stdout=subprocess.DEVNULL, check=False).returncode != 0:
            break
    return find_chromium()


if __name__ == "__main__":
    path = ensure_chromium()
    print(path or MISSING)
    sys.exit(0 if path else 1)
