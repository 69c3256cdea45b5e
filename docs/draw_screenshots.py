"""Take the screenshots of the page that the documents show: `python docs/draw_screenshots.py`.

They are of the real page, with the sample jobs of `dibs demo --serve`, in a headless Chromium.
"""

import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

DOCS = Path(__file__).parent
WIDTH, HEIGHT = 1280, 800
WARM_UP = 75  # seconds: by then a worker was killed, another one frozen, and jobs failed
SHOWN = {"overview": "", "pipeline": "pipelines", "job": "jobs?q=error:died"}


@contextmanager
def sample_jobs() -> Iterator[str]:
    """Run the sample jobs; yield the link that logs in."""
    words = [sys.executable, "-u", "-m", "dibs.cli", "demo", "--serve", "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as demo:  # noqa: S603
        assert demo.stdout is not None
        demo.stdout.readline()
        yield demo.stdout.readline().split()[-1]
        demo.send_signal(signal.SIGINT)


@contextmanager
def chromium() -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in ("--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"):
        options.add_argument(flag)
    with Chrome(options, Service(shutil.which("chromedriver"))) as browser:
        size = {"width": WIDTH, "height": HEIGHT, "deviceScaleFactor": 1, "mobile": False}
        browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        yield browser


def take(browser: Chrome, base: str, name: str, path: str) -> None:
    """Open a page, follow its first link to one thing, and take it in both colour schemes."""
    browser.get(base + path)
    first = browser.find_elements(By.CSS_SELECTOR, "tbody tr td.name a")
    if path and first:
        browser.get(first[0].get_attribute("href") or "")
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [feature]})
        time.sleep(1)
        browser.save_screenshot(str(DOCS / "images" / f"{name}-{scheme}.png"))


def main() -> None:
    (DOCS / "images").mkdir(exist_ok=True)
    with sample_jobs() as link, chromium() as browser:
        browser.get(link)
        time.sleep(WARM_UP)
        for name, path in SHOWN.items():
            take(browser, link.partition("login")[0], name, path)


if __name__ == "__main__":
    main()
