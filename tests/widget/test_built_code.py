"""What hatch_build.py builds: small, and with nothing that asks the network."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
STATIC = REPOSITORY / "alpaviz/static"

pytestmark = pytest.mark.skipif(not (STATIC / "widget.js").exists(), reason="the browser code is not built here")


def test_bundle_is_small() -> None:
    assert (STATIC / "widget.js").stat().st_size < 300_000
    assert (STATIC / "widget.css").stat().st_size < 60_000


def test_bundle_names_no_host() -> None:
    hosts = set(re.findall(r"https?://[\w.-]+", (STATIC / "widget.js").read_text()))
    assert hosts <= {"http://www.w3.org"}, "the SVG namespace is a name, not an address"


def test_lock_file_names_no_registry() -> None:
    lock = json.loads((REPOSITORY / "extension/package-lock.json").read_text())
    assert not [name for name, package in lock["packages"].items() if "resolved" in package]


def test_extension_is_built_for_jupyterlab() -> None:
    package = json.loads((REPOSITORY / "alpaviz/labextension/package.json").read_text())
    assert package["jupyterlab"]["_build"]["extension"]
