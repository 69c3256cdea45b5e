"""What makes claims slow: transactions that are open for long, rows that nobody removes."""

from collections.abc import Iterator

from dibs.doctor.facts import Examined, Finding, Level
from dibs.text import numbered, spoken, spoken_size

A_MINUTE, TEN_MINUTES = 60, 600
OLD_SLOT = 1_000_000  # transactions
MANY_DEAD = 100_000  # rows
BIG_TABLE = 200_000_000  # bytes
MUCH_PER_ROW = 20_000  # bytes


def held_back(examined: Examined) -> Iterator[Finding]:
    """Who keeps dead rows from being removed?"""
    found = [*_open_for_long(examined), *_old_slots(examined)]
    if privilege := examined.facts.get(("unseen", "transactions")):
        sentence = f"those of others can't be seen without {privilege}"
        found.append(Finding(Level.note, "transactions", sentence, "grant it to who asks the doctor"))
    yield from found
    if examined.about("bytes") and not found:
        yield Finding(Level.ok, "transactions", "none is open for long")


def _open_for_long(examined: Examined) -> Iterator[Finding]:
    ends = {
        "transaction": "end it: select pg_terminate_backend(pid)",
        "prepared": "commit prepared or rollback prepared it",
        "thread": "end it: kill, and its number",
    }
    for fact, advice in ends.items():
        for who, value in examined.about(fact):
            seconds = float(value or 0)
            if seconds >= A_MINUTE:
                yield Finding(
                    Level.warning if seconds >= TEN_MINUTES else Level.note,
                    "transactions",
                    f"{'prepared ' if fact == 'prepared' else ''}{who} has been open for {spoken(seconds)}: "
                    "dead rows can't be removed, which slows claims down",
                    advice,
                )


def _old_slots(examined: Examined) -> Iterator[Finding]:
    for name, value in examined.about("slot"):
        if float(value or 0) >= OLD_SLOT:
            yield Finding(
                Level.warning,
                "transactions",
                f"the replication slot {name} holds back dead rows of {float(value or 0):,.0f} transactions",
                "let its standby catch up, or drop the slot",
            )


def tables(examined: Examined) -> Iterator[Finding]:
    tables = [table for table, _ in examined.about("bytes")]
    found = [finding for table in tables for finding in _table(examined, table)]
    if examined.facts.get(("setting", "autovacuum")) == "off":
        sentence = "autovacuum is off: dead rows are never removed"
        found.append(Finding(Level.warning, "tables", sentence, "set autovacuum = on"))
    yield from found
    if tables and not found:
        size = sum(examined.number("bytes", table) or 0 for table in tables)
        dead = sum(float(value or 0) for _, value in examined.about("dead rows"))
        counted = f", {numbered(round(dead), 'dead row')}" if examined.about("dead rows") else ""
        yield Finding(Level.ok, "tables", f"{spoken_size(size)}{counted}")


def _table(examined: Examined, table: str) -> Iterator[Finding]:
    live = examined.number("live rows", table) or 0
    dead = examined.number("dead rows", table) or 0
    size = examined.number("bytes", table) or 0
    vacuumed = examined.number("vacuumed", table)
    last = "never" if vacuumed is None else f"{spoken(vacuumed)} ago"
    if dead >= MANY_DEAD and dead > live:
        yield Finding(
            Level.warning,
            "tables",
            f"{table} has {dead:,.0f} dead rows beside {live:,.0f} live, vacuumed {last}",
            f"look for long transactions, then: vacuum {table}",
        )
    elif size >= BIG_TABLE and size > MUCH_PER_ROW * (live + dead + 1):
        yield Finding(
            Level.note,
            "tables",
            f"{table} takes {spoken_size(size)} for {numbered(round(live), 'row')}",
            f"in a quiet hour: {'vacuum full' if examined.about('vacuumed') else 'optimize table'} {table}",
        )
