"""The example app in a real browser: upload, watch, kill the worker, recover, done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from selenium.common.exceptions import NoSuchElementException, StaleElementReferenceException
from selenium.webdriver import Chrome
from selenium.webdriver.common.by import By

from tests.support.servers import free_port

INGEST = Path(__file__).parents[2] / "examples" / "ingest"
PATIENCE = 90


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            if condition():
                return
        except (NoSuchElementException, StaleElementReferenceException):  # the page has just changed
            pass
        time.sleep(0.05)
    raise TimeoutError


class Page:
    """The page as a person uses it."""

    def __init__(self, browser: Chrome, port: int) -> None:
        self._browser = browser
        browser.get(f"http://127.0.0.1:{port}/")

    def upload(self, file: Path) -> None:
        self._browser.find_element(By.NAME, "file").send_keys(str(file))
        self._browser.find_element(By.CSS_SELECTOR, "#upload button").click()

    def sign_in(self, name: str) -> None:
        self._browser.find_element(By.NAME, "name").send_keys(name)
        self._browser.find_element(By.CSS_SELECTOR, "#who button").click()

    def shows(self, kind: str, what: str) -> str:
        """What the table says of the newest job of a kind."""
        rows = self._browser.find_elements(By.CSS_SELECTOR, "#jobs tr")
        found = [each for each in rows if each.find_element(By.CLASS_NAME, "kind").text == kind]
        return found[0].find_element(By.CLASS_NAME, what).text if found else ""

    def fraction(self) -> float:
        return float(self._browser.find_element(By.CSS_SELECTOR, "progress").get_attribute("value") or 0)

    def recover(self) -> None:
        self._browser.find_element(By.CSS_SELECTOR, "tr[data-state=running] button").click()

    def text(self, id: str) -> str:
        return self._browser.find_element(By.ID, id).text

    def keep_screenshot(self, file: Path) -> None:
        self._browser.save_screenshot(str(file))


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("DIBS_")}
    settings = {"DIBS_URL": f"sqlite:///{tmp_path}/ingest.db", "DIBS_STALE_AFTER": "1", "PACE": "0.05"}
    return {**kept, **settings, "PORT": str(free_port()), "RUN_WORKER": "false", "PYTHONPATH": str(INGEST)}


@contextmanager
def started(env: dict[str, str], *words: str) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, *words], cwd=INGEST, env=env)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def worker(env: dict[str, str]) -> tuple[dict[str, str], *tuple[str, ...]]:
    return env, "-m", "dibs.cli", "work", "app:app"


@contextmanager
def opened(browser: Chrome, env: dict[str, str]) -> Iterator[Page]:
    with started(env, "app.py"):
        until(lambda: _answers(int(env["PORT"])))
        yield Page(browser, int(env["PORT"]))


def _answers(port: int) -> bool:
    try:
        with urlopen(f"http://127.0.0.1:{port}/dibs/healthz") as answer:
            return answer.status == 200
    except (URLError, ConnectionError):
        return False


def test_a_file_is_imported_though_its_worker_is_killed(
    browser: Chrome, env: dict[str, str], tmp_path: Path
) -> None:
    lines = (INGEST / "readings.csv").read_text().splitlines()[:101]
    (tmp_path / "readings.csv").write_text("\n".join(lines))
    total = sum(int(line.split(",")[1]) for line in lines[1:])

    with opened(browser, env) as page:
        with started(*worker(env)) as first:
            page.upload(tmp_path / "readings.csv")
            until(lambda: page.shows("import_csv", "state") == "running")
            until(lambda: page.fraction() > 0.1)
            seen = page.fraction()
            until(lambda: page.fraction() > seen)
            page.keep_screenshot(tmp_path / "page.png")
            first.send_signal(signal.SIGKILL)

        page.recover()
        until(lambda: "give your name first" in page.text("notice"))
        page.sign_in("alice")
        page.recover()
        until(lambda: "may still be running" in page.text("notice") or _back(page))
        until(lambda: _recovered(page))

        with started(*worker({**env, "PACE": "0"})):
            until(lambda: page.shows("import_csv", "state") == "succeeded")
            until(lambda: page.shows("recalculate", "state") == "succeeded")
            until(lambda: page.text("totals") == f"energy 2026: {total}")
        assert page.shows("import_csv", "attempts") == "1"


def _back(page: Page) -> bool:
    return page.shows("import_csv", "state") == "ready"


def _recovered(page: Page) -> bool:
    if not _back(page):
        page.recover()
        time.sleep(0.5)
    return _back(page) and page.shows("import_csv", "attempts") == "0"


@pytest.mark.parametrize("store", ["sqlite", "postgresql"])
def test_one_command_is_enough(
    browser: Chrome, env: dict[str, str], store: str, request: pytest.FixtureRequest
) -> None:
    alone = {**env, "RUN_WORKER": "true", "PACE": "0"}
    if store == "postgresql":
        alone["DIBS_URL"] = request.getfixturevalue("postgresql").fresh_database()

    with opened(browser, alone) as page:
        page.upload(INGEST / "readings.csv")

        until(lambda: page.text("totals").startswith("energy 2026:"))


def test_what_ended_while_the_server_was_away_is_shown_when_it_is_back(
    browser: Chrome, env: dict[str, str]
) -> None:
    with opened(browser, env) as page:
        page.upload(INGEST / "readings.csv")
        until(lambda: page.shows("import_csv", "state") == "ready")
    subprocess.run(
        [sys.executable, "-m", "dibs.cli", "work", "app:app", "--until-idle"],
        cwd=INGEST,
        env={**env, "PACE": "0"},
        check=True,
    )

    with started(env, "app.py"):
        until(lambda: page.shows("import_csv", "state") == "succeeded")
