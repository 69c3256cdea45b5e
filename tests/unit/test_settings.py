"""Settings: given, else from the environment, else the default."""

from datetime import timedelta
from pathlib import Path

import pytest

from dibs import BadRequest, Dibs
from dibs.settings import Settings, lease_micros, micros, read_settings


def test_without_anything_the_defaults_hold() -> None:
    settings = read_settings({}, {})

    assert settings == Settings(
        url="sqlite:///dibs.db",
        prefix="dibs",
        pool_size=10,
        poll=10,
        stale_after=1800,
        keep="all",
        keep_for=timedelta(days=7),
        max_payload=1024 * 1024,
    )


def test_each_setting_has_its_variable() -> None:
    settings = read_settings(
        {},
        {
            "DIBS_URL": "memory://",
            "DIBS_PREFIX": "shop",
            "DIBS_POOL_SIZE": "3",
            "DIBS_POLL": "0.5",
            "DIBS_STALE_AFTER": "60",
            "DIBS_KEEP": "failed",
            "DIBS_KEEP_FOR": "86400",
            "DIBS_MAX_PAYLOAD": "1000",
            "DIBS_LISTEN_URL": "postgresql://server/shop",
            "DIBS_POOLED": "true",
        },
    )

    assert (settings.url, settings.prefix, settings.pool_size) == ("memory://", "shop", 3)
    assert (settings.poll, settings.stale_after, settings.keep) == (0.5, 60, "failed")
    assert (settings.keep_for, settings.max_payload) == (timedelta(days=1), 1000)
    assert (settings.listen_url, settings.pooled) == ("postgresql://server/shop", True)


def test_what_is_given_beats_the_environment() -> None:
    settings = read_settings(
        {"url": "memory://", "prefix": None}, {"DIBS_URL": "x://", "DIBS_PREFIX": "shop"}
    )

    assert (settings.url, settings.prefix) == ("memory://", "shop")


@pytest.mark.parametrize("variable", ["POOL_SIZE", "POLL", "STALE_AFTER", "MAX_PAYLOAD", "KEEP_FOR"])
@pytest.mark.parametrize("text", ["many", "-1", "nan", "inf"])
def test_a_variable_that_is_no_number_is_named(variable: str, text: str) -> None:
    with pytest.raises(BadRequest, match=f"(?i){variable}"):
        read_settings({}, {f"DIBS_{variable}": text})


def test_an_app_without_a_url_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DIBS_URL", "memory://")

    assert not Dibs().traits.durable


def test_an_app_without_anything_is_a_file_here(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("DIBS_URL", raising=False)
    monkeypatch.chdir(tmp_path)

    with Dibs().sync as app:
        app.counts()

    assert (tmp_path / "dibs.db").exists()


def test_durations_are_seconds_or_timedeltas() -> None:
    assert micros(1, what="x") == micros(1.0, what="x") == micros(timedelta(seconds=1), what="x") == 1_000_000
    assert micros(0.0005, what="x") == 500


@pytest.mark.parametrize(
    "value", ["1", None, True, float("nan"), float("inf"), 10**12, timedelta.max], ids=repr
)
def test_anything_else_is_no_time_span(value: object) -> None:
    with pytest.raises(BadRequest, match="lease"):
        micros(value, what="lease")  # type: ignore[arg-type]


def test_the_shortest_lease_is_a_tenth_of_a_second() -> None:
    assert lease_micros(0.1) == 100_000
    with pytest.raises(BadRequest, match=r"0\.1"):
        lease_micros(0.0999)
