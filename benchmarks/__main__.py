"""`make bench`: measure dibs by hand, and its worker beside its peers; with --save, keep the tables."""

import argparse
import asyncio
import platform
import sqlite3
import tempfile
from datetime import UTC, datetime
from pathlib import Path

from benchmarks import (
    against,
    by_hand,
    on_backlog,
    on_page,
    on_redis,
    on_snapshots,
    on_sqlite,
    on_tables,
    on_trains,
)
from benchmarks.measure import Result, table
from benchmarks.on_mariadb import on_mariadb
from tests.support.servers import MariaDB, PostgreSQL, Redis

CHOICES = (
    *("all", "by-hand", "worker", "redis", "sqlite", "tables", "trains", "snapshots", "backlog"),
    *("page", "counts"),
)


def main() -> None:
    arguments = _arguments()
    if arguments.what in ("all", "by-hand"):
        _report("by-hand", _by_hand(arguments), arguments.save)
    if arguments.what in ("all", "worker"):
        _report("worker", _worker(arguments), arguments.save)
    if arguments.what in ("all", "redis"):
        _report("redis", _on_redis(arguments), arguments.save)
    if arguments.what in ("all", "sqlite"):
        _report("sqlite", _on_sqlite(arguments), arguments.save)
    if arguments.what in ("all", "tables"):
        _report("tables", _on_tables(arguments), arguments.save)
    if arguments.what in ("all", "trains"):
        _report("trains", _on_trains(arguments), arguments.save)
    if arguments.what in ("all", "snapshots"):
        _report("snapshots", _on_snapshots(arguments), arguments.save)
    if arguments.what in ("all", "backlog"):
        _report("backlog", on_backlog.before_a_heap(arguments.jobs or on_backlog.LARGE), arguments.save)
    if arguments.what in ("all", "page"):
        _report("page", on_page.on_large_stores(arguments.jobs or on_page.FINISHED), arguments.save)
    if arguments.what in ("all", "counts"):
        counted = on_page.beside_no_counts(arguments.rounds, arguments.jobs or on_page.WAITING)
        _report("counts", counted, arguments.save)


def _worker(arguments: argparse.Namespace) -> str:
    with PostgreSQL({"shared_buffers": "512MB", "max_wal_size": "1GB"}) as server:
        print(f"PostgreSQL {server.version}, fsync on, synchronous_commit on", flush=True)
        drained = against.drain(server, arguments.rounds, arguments.jobs or against.DRAINED)
        if not arguments.pick_up_rounds:
            return drained
        return f"{drained}\n\n{against.pick_up(server, arguments.pick_up_rounds)}"


def _on_redis(arguments: argparse.Namespace) -> str:
    with Redis({"appendonly": "no", "save": ""}) as server:
        print(f"Redis {server.version}, no append-only file, no snapshots", flush=True)
        return on_redis.drain(server, arguments.rounds, arguments.jobs or on_redis.DRAINED)


def _on_sqlite(arguments: argparse.Namespace) -> str:
    print(f"SQLite {sqlite3.sqlite_version}, WAL, synchronous=FULL", flush=True)
    return on_sqlite.drain(arguments.rounds, arguments.jobs or on_sqlite.DRAINED)


def _on_tables(arguments: argparse.Namespace) -> str:
    with PostgreSQL({"shared_buffers": "512MB", "max_wal_size": "1GB"}) as server:
        print(f"PostgreSQL {server.version}, fsync on, synchronous_commit on", flush=True)
        return on_tables.batches(server.create_database("bench"), arguments.rounds)


def _on_trains(arguments: argparse.Namespace) -> str:
    with PostgreSQL({"shared_buffers": "512MB", "max_wal_size": "1GB"}) as server:
        print(f"PostgreSQL {server.version}, fsync on, synchronous_commit on", flush=True)
        url = server.create_database("bench")
        drained = on_trains.drain(url, arguments.rounds, arguments.jobs or on_trains.LENGTH)
        urls = [server.create_database(name) for name in ("alone", "crowded")]
        return f"{drained}\n\n{on_trains.beside_a_crowd(*urls, max(arguments.rounds, 5))}"


def _on_snapshots(arguments: argparse.Namespace) -> str:
    count = arguments.jobs or on_snapshots.COUNT
    lines = [on_snapshots.heading(count)]
    with PostgreSQL({"shared_buffers": "512MB", "max_wal_size": "1GB"}) as server:
        lines.append(on_snapshots.beside_a_snapshot(server, f"PostgreSQL {server.version}", count))
    with MariaDB({"innodb-buffer-pool-size": "512M", "innodb-log-file-size": "512M"}) as server:
        lines.append(on_snapshots.beside_a_snapshot(server, f"MariaDB {server.version}", count))
    return "\n".join(lines)


def _by_hand(arguments: argparse.Namespace) -> str:
    results: list[Result] = []
    if "postgresql" in arguments.engines:
        with PostgreSQL({"shared_buffers": "512MB", "max_wal_size": "1GB"}) as server:
            url = server.create_database("bench")
            print(f"PostgreSQL {server.version}, fsync on, synchronous_commit on", flush=True)
            results += asyncio.run(by_hand.on_postgresql(url, arguments.rounds, arguments.seconds))
    if "sqlite" in arguments.engines:
        with tempfile.TemporaryDirectory() as folder:
            print(f"SQLite {sqlite3.sqlite_version}, WAL, synchronous=FULL", flush=True)
            path = Path(folder) / "bench.db"
            results += by_hand.on_sqlite(path, arguments.rounds, arguments.seconds)
    if "mariadb" in arguments.engines:
        with MariaDB({"innodb-buffer-pool-size": "512M", "innodb-log-file-size": "512M"}) as server:
            print(f"MariaDB {server.version}, innodb_flush_log_at_trx_commit=1", flush=True)
            url = server.create_database("bench")
            results += asyncio.run(on_mariadb(url, arguments.rounds, arguments.seconds))
    return "Raw is the same statements sent bare.\n\n" + table(results)


def _report(what: str, text: str, save: bool) -> None:
    print(text, flush=True)
    if save:
        _save(what, text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("what", nargs="?", choices=CHOICES, default="all")
    parser.add_argument("--jobs", type=int, help="jobs to drain per round")
    parser.add_argument("--pick-up-rounds", type=int, default=5, help="rounds of 500 jobs each; 0 for none")
    parser.add_argument("--rounds", type=int, default=3, help="rounds per cell; the median counts")
    parser.add_argument("--seconds", type=float, default=3, help="seconds per round and cell")
    parser.add_argument("--engines", nargs="*", default=["postgresql", "sqlite", "mariadb"])
    parser.add_argument("--save", action="store_true", help="write the table to benchmarks/results/")
    return parser.parse_args()


def _save(what: str, text: str) -> None:
    day = datetime.now(UTC).date().isoformat()
    machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    file = Path(__file__).parent / "results" / f"{day}-{what}.md"
    file.parent.mkdir(exist_ok=True)
    title = what.replace("-", " ").capitalize()
    file.write_text(f"# {title}, {day}\n\n{machine}. Medians of alternating rounds.\n\n{text}\n")


if __name__ == "__main__":
    main()
