"""A headless Chromium, the system's own, and the page in it."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webelement import WebElement

from dibs import Dibs
from dibs.app.dibs import SyncDibs
from dibs.cli.commands.serve import verify_lines
from dibs.dashboard import Dashboard
from dibs.integrations.service import Credentials, make_service
from tests.support.servers import find_binary
from tests.support.web_apps import on_a_port

AXE = "4.14.0"
TOKEN = "a token for tests only"
PATIENCE = 60  # seconds


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chrome]:
    with opened(tmp_path) as browser:
        yield browser


@pytest.fixture(scope="session")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    """One browser for all tests of the page: it takes a second to start."""
    with opened(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@contextmanager
def opened(folder: Path) -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = find_binary("chromium", "chromium")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in (
        "--headless=new",
        "--no-sandbox",  # tests may run as root, and only ever open pages of their own
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--window-size=1000,700",
        "--no-proxy-server",
        f"--user-data-dir={folder}/chromium",
    ):
        options.add_argument(flag)
    service = Service(find_binary("chromedriver", "chromium-driver"))
    with Chrome(options, service) as browser:
        yield browser


# -- the page -----------------------------------------------------------------------------------


class PageTab:
    """The page as an operator uses it, in one tab."""

    def __init__(self, browser: Chrome, base: str) -> None:
        self.browser = browser
        self.base = base

    def log_in(self, token: str = TOKEN) -> None:
        self.open("login")
        self.find("input[name=token]").send_keys(token)
        self.find("main button").click()
        self.until(lambda: self.page == "overview")

    def open(self, path: str) -> None:
        self.browser.get(f"{self.base}{path}")

    @property
    def page(self) -> str | None:
        return self.find("body").get_attribute("data-page")

    @property
    def text(self) -> str:
        return self.find("main").text

    def find(self, css: str) -> WebElement:
        return self.browser.find_element(By.CSS_SELECTOR, css)

    def all(self, css: str) -> list[WebElement]:
        return self.browser.find_elements(By.CSS_SELECTOR, css)

    def press(self, act: str, within: str = "") -> None:
        self.find(f'{within} [data-act="{act}"]').click()

    def until(self, condition: Callable[[], object], seconds: float = PATIENCE) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            try:
                if condition():
                    return
            except (NoSuchElementException, StaleElementReferenceException):  # the page has just changed
                pass
            time.sleep(0.05)
        raise TimeoutError(self.text)

    def complaints(self) -> list[str]:
        """Return what the browser complained about since the last time: errors, and refused content."""
        return [entry["message"] for entry in self.browser.get_log("browser")]

    def prefer(self, scheme: str) -> None:
        """Show the page in this scheme of colours; in the browser's own if it is empty."""
        wanted = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
        self.browser.execute_cdp_cmd("Emulation.setEmulatedMedia", wanted)

    def without_scripts(self, *, off: bool = True) -> None:
        self.browser.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": off})


@pytest.fixture
def store(empty_store: Callable[[str], str], engine: str) -> Iterator[SyncDibs]:
    with Dibs(empty_store(engine), stale_after=1).sync as app:
        yield app


@pytest.fixture
def tab(chromium: Chrome, store: SyncDibs) -> Iterator[PageTab]:
    """The page of `dibs serve`, logged in, on a port of its own."""
    with page_of(chromium, store._core.settings.url) as tab:
        yield tab


@contextmanager
def page_of(chromium: Chrome, url: str) -> Iterator[PageTab]:
    served = Dibs(url, stale_after=1)
    credentials = Credentials(token=TOKEN)
    page = Dashboard(served, authorize=credentials.login(), verify=verify_lines(served))
    web = make_service(served, credentials, page=page)
    with on_a_port(web, timeout_graceful_shutdown=1) as port:
        tab = PageTab(chromium, f"http://127.0.0.1:{port}/ui/")
        tab.log_in()
        tab.complaints()
        yield tab
        tab.without_scripts(off=False)
        chromium.get("about:blank")


@pytest.fixture(scope="session")
def axe(pytestconfig: pytest.Config) -> str:
    """The script of axe-core, which npm brings once."""
    folder = pytestconfig.rootpath / ".venv" / f"axe-core-{AXE}"
    if not (folder / "axe.min.js").exists():
        folder.mkdir(parents=True, exist_ok=True)
        npm = find_binary("npm", "npm")
        subprocess.run([npm, "pack", "--silent", f"axe-core@{AXE}"], cwd=folder, check=True)
        subprocess.run(["tar", "-xzf", f"axe-core-{AXE}.tgz", "package/axe.min.js"], cwd=folder, check=True)
        shutil.move(folder / "package" / "axe.min.js", folder)
    return (folder / "axe.min.js").read_text()


def barriers(tab: PageTab, axe: str) -> list[str]:
    """Return what axe finds on this page that keeps people out: findings that are serious or critical."""
    tab.browser.execute_cdp_cmd("Runtime.evaluate", {"expression": axe})
    found: Any = tab.browser.execute_async_script(
        "const done = arguments[0];"
        "axe.run(document, {resultTypes: ['violations']}).then((all) => done(JSON.stringify(all.violations)))"
    )
    return [
        f"{one['id']}: {[node['html'] for node in one['nodes'][:3]]}"
        for one in json.loads(found)
        if one["impact"] in ("serious", "critical")
    ]
