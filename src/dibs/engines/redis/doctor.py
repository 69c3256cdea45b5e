"""What a Redis server says about itself; facts for the doctor, no opinion."""

from collections.abc import Iterator, Mapping, Sequence

from dibs.operations.scripts import Row

OLDEST, OLDEST_VALKEY = "6.2", "7.2"


def read_info(info: str) -> dict[str, str]:
    """The reply to INFO, by name."""
    return dict(line.split(":", 1) for line in info.splitlines() if ":" in line)


def about_server(info: Mapping[str, str], fsync: Sequence[str], save: Sequence[str]) -> Iterator[Row]:
    """From the replies to INFO and to two CONFIG GETs, which are empty where nobody may ask."""
    yield from _about_version(info)
    yield _fact("isolation", "own connections", "one script at a time")
    yield from _about_persistence(info, dict(zip(fsync[::2], fsync[1::2], strict=True)), save)
    if info.get("role") == "slave":
        yield _fact("standby", "server", "on")
    yield from _about_room(info)


def _about_version(info: Mapping[str, str]) -> Iterator[Row]:
    if info.get("server_name") == "valkey":
        yield _fact("version", "Valkey", info["valkey_version"])
        yield _fact("needs", "Valkey", OLDEST_VALKEY)
    else:
        yield _fact("version", "Redis", info["redis_version"])
        yield _fact("needs", "Redis", OLDEST)


def _about_persistence(
    info: Mapping[str, str], fsync: Mapping[str, str], save: Sequence[str]
) -> Iterator[Row]:
    """How often the file is forced to disk, and snapshots, only where they matter."""
    appends = info.get("aof_enabled") == "1"
    yield _fact("setting", "appendonly", "yes" if appends else "no")
    if appends and "appendfsync" in fsync:
        yield _fact("setting", "appendfsync", fsync["appendfsync"])
    if not appends and list(save) == ["save", ""]:
        yield _fact("setting", "save", "off")
    for name, status in (
        ("append-only file", "aof_last_write_status"),
        ("snapshot", "rdb_last_bgsave_status"),
    ):
        if info.get(status, "ok") != "ok":
            yield _fact("failing", name, info[status])


def _about_room(info: Mapping[str, str]) -> Iterator[Row]:
    yield _fact("setting", "maxmemory-policy", info.get("maxmemory_policy", "noeviction"))
    yield _fact("memory", "used", info["used_memory"])
    if info.get("maxmemory", "0") != "0":
        yield _fact("memory", "most", info["maxmemory"])
    yield _fact("connections", "used", info["connected_clients"])
    if "maxclients" in info:
        yield _fact("connections", "most", info["maxclients"])


def _fact(fact: str, about: str, value: str) -> Row:
    return {"fact": fact, "about": about, "value": value}
