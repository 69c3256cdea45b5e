"""The URLs of the guide to TLS are ones that dibs reads."""

from __future__ import annotations

import re

import pytest

from dibs import Dibs
from dibs.outbox.brokers import make_broker
from tests.support.guides import GUIDES

TEXT = (GUIDES / "tls-and-secrets.md").read_text()
STORES, BROKERS = (block.split() for block in re.findall(r"```text\n(.*?)```", TEXT, re.DOTALL))


@pytest.mark.parametrize("url", STORES)
def test_a_store_is_reached_as_the_guide_says(url: str) -> None:
    Dibs(url)


@pytest.mark.parametrize("url", BROKERS)
def test_so_is_a_broker(url: str) -> None:
    make_broker(url, "default")


def test_the_guide_names_every_sort_of_them() -> None:
    assert {url.partition(":")[0] for url in STORES} == {"postgresql", "mysql", "rediss"}
    assert {url.partition(":")[0] for url in BROKERS} == {"amqps", "tls", "rediss", "https"}
