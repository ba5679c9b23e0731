"""A JupyterLab of its own, a Chromium, and a notebook as a person uses it: what the browser tests work with."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from playwright.sync_api import Browser, Page, Route

REPOSITORY = Path(__file__).parents[2]
SCREENSHOTS = REPOSITORY / "build" / "screenshots"
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip
START_S = 90


@dataclass(frozen=True)
class Lab:
    """A running server: its address, the folder that it serves, its log."""

    url: str
    root: Path
    log: Path


def _find_free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _make_environment(home: Path) -> dict[str, str]:
    """Config, data, runtime and settings folders of its own: nothing leaks from or to the user's Jupyter."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("JUPYTER", "JPY_"))}
    env |= {
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTERLAB_WORKSPACES_DIR": str(home / "workspaces"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "IPYTHONDIR": str(home / "ipython"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(REPOSITORY), env.get("PYTHONPATH")])),
        # the user's folder before the environment's, so that the checkout's extension wins over an installed one
        "JUPYTER_PREFER_ENV_PATH": "0",
    }
    apputils = home / "settings/@jupyterlab/apputils-extension"
    apputils.mkdir(parents=True)
    notifications = {"fetchNews": "false", "checkForUpdates": False}
    (apputils / "notification.jupyterlab-settings").write_text(json.dumps(notifications))
    built = REPOSITORY / "alpaviz" / "labextension"
    if built.exists():
        extensions = home / "data/labextensions"
        extensions.mkdir(parents=True)
        (extensions / "alpaviz-lab").symlink_to(built)
    return env


@contextmanager
def run_lab(folder: Path) -> Iterator[Lab]:
    """A JupyterLab without password on this machine only; it and its kernels end with the block."""
    root, home, log = folder / "root", folder / "home", folder / "lab.log"
    root.mkdir(parents=True)
    home.mkdir()
    port = _find_free_port()
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--expose-app-in-browser",
        "--ServerApp.ip=127.0.0.1", f"--ServerApp.port={port}", "--ServerApp.port_retries=0",
        "--IdentityProvider.token=", "--ServerApp.password=", "--ServerApp.disable_check_xsrf=True",
        f"--ServerApp.root_dir={root}", "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate", "--LabApp.extension_manager=readonly",
    ]  # fmt: skip
    with log.open("wb") as out:
        process = subprocess.Popen(command, env=_make_environment(home), stdout=out, stderr=subprocess.STDOUT)
    lab = Lab(f"http://127.0.0.1:{port}", root, log)
    try:
        _wait_for_server(lab, process)
        yield lab
    finally:
        _stop(lab, process)


def _wait_for_server(lab: Lab, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(f"{lab.url}/api", timeout=2).close()
            return
        except OSError:
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"JupyterLab did not start:\n{lab.log.read_text()}") from None
            time.sleep(0.1)


def _stop(lab: Lab, process: subprocess.Popen[bytes]) -> None:
    try:
        request = urllib.request.Request(f"{lab.url}/api/shutdown", method="POST")
        urllib.request.urlopen(request, timeout=5).close()
        process.wait(15)
    except (OSError, subprocess.TimeoutExpired):
        process.terminate()
        process.wait(10)


class Notebook:
    """A page with a notebook in JupyterLab.

    `console` holds (type, text) of what the page logged, `outside` requests that tried to leave this machine; they are
    blocked.
    """

    def __init__(self, lab: Lab, browser: Browser, width: int = 1400, height: int = 1000) -> None:
        self.lab = lab
        self._context = browser.new_context(viewport={"width": width, "height": height})
        self.page: Page = self._context.new_page()
        self.console: list[tuple[str, str]] = []
        self.outside: list[str] = []
        self.page.on("console", lambda message: self.console.append((message.type, message.text)))
        self.page.on("pageerror", lambda error: self.console.append(("pageerror", str(error))))
        self.page.route("**/*", self._gate)

    def _gate(self, route: Route) -> None:
        url = route.request.url
        if url.startswith((self.lab.url, "data:", "blob:")):
            route.continue_()
        else:
            self.outside.append(url)
            route.abort()

    def close(self) -> None:
        self._context.close()

    @property
    def errors(self) -> list[str]:
        """Uncaught errors of the page that name our code."""
        return [text for kind, text in self.console if kind == "pageerror"]

    # Opening.

    def open(self, name: str, cells: Sequence[str] | None = None, *, has_kernel: bool = True) -> Notebook:
        """Open notebook `name` of the server's folder; `cells` makes it first."""
        if cells is not None:
            kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
            made = nbformat.v4.new_notebook(
                cells=[nbformat.v4.new_code_cell(cell) for cell in cells], metadata={"kernelspec": kernel}
            )
            nbformat.write(made, self.lab.root / name)
        self.page.goto(f"{self.lab.url}/lab/tree/{name}?reset")
        self.page.wait_for_selector(".jp-NotebookPanel .jp-Cell", timeout=60_000)
        if has_kernel:
            self.page.wait_for_function(
                """() => { const w = window.jupyterapp?.shell.currentWidget;
                return w?.sessionContext?.isReady && w.sessionContext.session?.kernel?.status === 'idle' }""",
                timeout=60_000,
            )
        return self

    def open_file(self, name: str) -> None:
        """Open any file as a double click in the file browser does."""
        self.page.goto(f"{self.lab.url}/lab/tree/{name}?reset")

    def set_theme(self, is_light: bool) -> None:
        name = "JupyterLab Light" if is_light else "JupyterLab Dark"
        self.command("apputils:change-theme", {"theme": name})
        self.page.wait_for_function(f"document.body.dataset.jpThemeLight === '{str(is_light).lower()}'", timeout=20_000)
        self.page.wait_for_timeout(400)

    # Running.

    def command(self, name: str, args: dict[str, Any] | None = None) -> None:
        self.page.evaluate("([name, args]) => { window.jupyterapp.commands.execute(name, args) }", [name, args or {}])

    def run_all(self, wait: bool = True) -> None:
        self.command("notebook:run-all-cells")
        if wait:
            self.wait_idle()

    def run_cell(self, index: int, wait: bool = True) -> None:
        self.page.evaluate(
            """i => { window.jupyterapp.shell.currentWidget.content.activeCellIndex = i;
            window.jupyterapp.commands.execute('notebook:run-cell') }""",
            index,
        )
        if wait:
            self.wait_idle()

    def wait_idle(self, timeout_s: float = 60) -> None:
        """Wait until no cell runs or waits to run."""
        self.page.wait_for_timeout(150)
        self.page.wait_for_function(
            """() => { const w = window.jupyterapp.shell.currentWidget;
            const prompts = [...document.querySelectorAll('.jp-Notebook .jp-InputPrompt')];
            return !prompts.some(e => e.textContent.includes('*'))
              && w.sessionContext.session.kernel.status === 'idle' }""",
            timeout=timeout_s * 1000,
        )

    def text(self, index: int) -> str:
        """Text outputs of cell `index`, tracebacks included."""
        return str(
            self.page.evaluate(
                """i => window.jupyterapp.shell.currentWidget.content.widgets[i].model.outputs.toJSON()
                .map(o => o.text ? [o.text].flat().join('')
                    : o.traceback ? o.traceback.join('\\n') : (o.data?.['text/plain'] ?? '')).join('')""",
                index,
            )
        )

    def ask(self, index: int) -> str:
        """Run cell `index` (a `print`) and return what it prints."""
        self.run_cell(index)
        return self.text(index).strip()

    def count_cells(self) -> int:
        return int(self.page.evaluate("() => window.jupyterapp.shell.currentWidget.content.widgets.length"))

    # Saving.

    def save(self) -> None:
        self.command("docmanager:save")
        self.page.wait_for_function("() => !window.jupyterapp.shell.currentWidget.context.model.dirty", timeout=20_000)

    def shut_down_kernel(self) -> None:
        self.page.evaluate("() => window.jupyterapp.shell.currentWidget.sessionContext.shutdown()")

    def screenshot(self, name: str, selector: str | None = None) -> Path:
        """A PNG in build/screenshots/, of the page or of one element."""
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        path = SCREENSHOTS / f"{name}.png"
        if selector is None:
            self.page.screenshot(path=path)
        else:
            self.page.locator(selector).first.screenshot(path=path)
        return path
