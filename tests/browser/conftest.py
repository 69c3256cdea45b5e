"""A headless Chromium, the system's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

from tests.support.servers import find_binary


@pytest.fixture
def browser(tmp_path: Path) -> Iterator[Chrome]:
    options = ChromeOptions()
    options.binary_location = find_binary("chromium", "chromium")
    for flag in (
        "--headless=new",
        "--no-sandbox",  # tests may run as root, and only ever open pages of their own
        "--disable-dev-shm-usage",
        "--disable-gpu",
        "--window-size=1000,700",
        "--no-proxy-server",
        f"--user-data-dir={tmp_path}/chromium",
    ):
        options.add_argument(flag)
    service = Service(find_binary("chromedriver", "chromium-driver"))
    with Chrome(options, service) as browser:
        yield browser
