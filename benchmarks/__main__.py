"""`make bench`: measure by hand on PostgreSQL and SQLite, print a table, keep it under results/."""

import argparse
import asyncio
import platform
import sqlite3
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from benchmarks import by_hand
from benchmarks.measure import Result, table
from servers import PostgreSQL


def main() -> None:
    arguments = _arguments()
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
    text = table(results)
    print(text)
    if arguments.save:
        _save(text)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="rounds per cell; the median counts")
    parser.add_argument("--seconds", type=float, default=3, help="seconds per round and cell")
    parser.add_argument("--engines", nargs="*", default=["postgresql", "sqlite"])
    parser.add_argument("--save", action="store_true", help="write the table to benchmarks/results/")
    return parser.parse_args()


def _save(text: str) -> None:
    day = datetime.now(UTC).date().isoformat()
    machine = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    file = Path(__file__).parent / "results" / f"{day}-by-hand.md"
    file.parent.mkdir(exist_ok=True)
    file.write_text(
        f"# By hand, {day}\n\n{machine}. Medians; raw is the same statements sent bare.\n\n{text}\n"
    )


if __name__ == "__main__":
    main()
