"""The way down is read from the way up."""

import pytest

from dibs.engines.sql.blocks import schema_files
from dibs.engines.sql.migrations import dialect_named, pending, table_names, undo, undoing

DIALECTS = ["sqlite", "postgresql", "mysql"]


@pytest.mark.parametrize(
    ("made", "undone"),
    [
        ("create table dibs_a (\n    id integer\n)", "drop table if exists dibs_a"),
        ("create table if not exists dibs_a (id integer)", "drop table if exists dibs_a"),
        ("create unique index dibs_i on dibs_a (b) where b", "drop index if exists dibs_i"),
        ("create sequence dibs_s", "drop sequence if exists dibs_s"),
        ("alter table dibs_a add column b integer", "alter table dibs_a drop column b"),
        ("alter table dibs_a add b numeric(3, 2), add c text",
         "alter table dibs_a drop column c, drop column b"),
        ("alter table dibs_a add column if not exists b text", "alter table dibs_a drop column b"),
        ("alter table dibs_a add unique key k (b, c)", "alter table dibs_a drop key k"),
        ("insert into dibs_a values (0)", None),
        ("update dibs_a set b = 1", None),
    ],
)  # fmt: skip
def test_what_was_made_is_taken_away(made: str, undone: str | None) -> None:
    assert undo(made, "postgresql") == undone


def test_mysql_names_the_table_of_an_index_and_reads_its_own_comments() -> None:
    assert (
        undo("create index dibs_i on dibs_a (b)", "mysql") == "drop index /*M! if exists */ dibs_i on dibs_a"
    )
    assert (
        undo("/*M! create sequence if not exists dibs_s */ /*!80017 do 0 */", "mysql")
        == "/*M! drop sequence if exists dibs_s */ /*!80017 do 0 */"
    )


def test_mysql_has_no_if_not_exists_that_mariadb_has() -> None:
    made = "alter table dibs_a\n    add column /*M! if not exists */ b integer,\n    add key k (b)"

    assert undo(made, "mysql") == (
        "alter table dibs_a drop key /*M! if exists */ k, drop column /*M! if exists */ b"
    )


@pytest.mark.parametrize(
    "statement",
    [
        "alter table dibs_a rename to dibs_b",
        "alter table dibs_a alter column b type bigint",
        "alter table dibs_a add constraint c check (b > 0)",
        "drop index dibs_i",
        "create trigger dibs_t",
    ],
)
def test_what_can_not_be_read_backwards_asks_for_a_file(statement: str) -> None:
    with pytest.raises(NotImplementedError, match="the folder `down`"):
        undo(statement, "postgresql")


@pytest.mark.parametrize("name", DIALECTS)
def test_every_version_can_be_undone(name: str) -> None:
    dialect = dialect_named(name)
    assert dialect is not None
    versions = [version for version, _ in schema_files(name)]

    steps = undoing(dialect, versions, 0)

    undone = list(dict.fromkeys(version for version, _ in steps))
    assert undone == [*reversed(versions), 0]
    for table in table_names(dialect):
        assert any(f"drop table if exists {table}" == statement for _, statement in steps)


@pytest.mark.parametrize("name", DIALECTS)
def test_only_what_is_asked_for_is_done(name: str) -> None:
    dialect = dialect_named(name, "shop")
    assert dialect is not None

    assert {version for version, _ in pending(dialect, {1}, 2)} == {2}
    assert {version for version, _ in undoing(dialect, {1, 2}, 1)} == {2}
    assert not any("dibs_" in statement for _, statement in pending(dialect, ()))
