"""Texts that forge lines or hide, and secrets that would be shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dibs import BadRequest, Dibs, NewJob
from dibs.app.guards import Throttle
from dibs.integrations.prometheus import merge_processes
from dibs.integrations.service import Credentials
from dibs.jobs import payload
from dibs.log_format import one_line, safe_json
from dibs.settings import Settings

SECRET = "hunter2"


@pytest.mark.parametrize("end", ["\u2028", "\u2029", "\x85", "\x0b"], ids=ascii)
def test_a_queues_name_forges_no_sample(end: str) -> None:
    queue = f"a{end}dibs_lost_leases_total 99999{end}# x{end}b"
    text = f'# HELP dibs_jobs Jobs.\n# TYPE dibs_jobs gauge\ndibs_jobs{{queue="{queue}"}} 1\n'

    merged = merge_processes([text, text])

    assert merged == text


def test_characters_that_hide_or_turn_text_are_written_out() -> None:
    deceiving = "a\u202eb\u200bc\u2066d\ufeffe\x9bf"

    assert one_line(deceiving) == "a\\u202eb\\u200bc\\u2066d\\ufeffe\\x9bf"
    escaped = safe_json(json.dumps(deceiving, ensure_ascii=False))
    assert escaped.isascii()
    assert json.loads(escaped) == deceiving


class PostgresDsn:
    """A class of URLs that shows its password."""

    def __repr__(self) -> str:
        return f"PostgresDsn('postgresql://u:{SECRET}@db/shop')"


@pytest.mark.parametrize(
    "url", [PostgresDsn(), f"postgresql://u:{SECRET}@db/shop".encode()], ids=["dsn", "bytes"]
)
def test_a_url_of_the_wrong_type_is_not_shown(url: Any) -> None:
    with pytest.raises(BadRequest, match=rf"url={type(url).__name__} is of the wrong type") as refused:
        Dibs(url)

    assert SECRET not in str(refused.value)


def test_secrets_are_not_in_reprs() -> None:
    url = f"postgresql://u:{SECRET}@db/shop"
    credentials = Credentials(token=SECRET, read_token=SECRET, basic=f"u:{SECRET}", throttle=Throttle())

    assert SECRET not in repr(Settings(url=url, listen_url=url))
    assert SECRET not in repr(credentials)


@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "mariadb", "redis"])
def test_a_password_with_a_slash_is_refused_and_not_shown(scheme: str) -> None:
    with pytest.raises(BadRequest, match="%2F") as refused:
        Dibs(f"{scheme}://u:12/{SECRET}@db/shop")

    assert SECRET not in str(refused.value)


def test_a_file_may_have_an_at_in_its_path(tmp_path: Path) -> None:
    Dibs(f"sqlite:///{tmp_path}/me@home.db")


@pytest.mark.parametrize("name", ["a#b,c.db", "a\nb.db", "a b;é.db", "100%.db"], ids=repr)
def test_a_sqlite_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    with Dibs(f"sqlite:///{tmp_path}/{name}").sync as app:
        app.enqueue(NewJob("work"))

    assert (tmp_path / name).is_file()


@pytest.mark.parametrize("depth", [100, 101, 900])
def test_values_are_not_nested_deeper_than_any_reader_can_follow(depth: int) -> None:
    value: Any = 1
    for _ in range(depth):
        value = [value]

    if depth == 100:
        assert payload.decode(payload.encode(value, "args", 10_000)) == value
    else:
        with pytest.raises(BadRequest, match="more than 100 levels"):
            payload.encode(value, "args", 10_000)
