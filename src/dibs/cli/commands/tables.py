"""`dibs tables`: turn a table of your own into a queue."""

from importlib.util import find_spec
from typing import Annotated, Any

import typer

from dibs.app.dibs import Dibs
from dibs.cli._support.options import AsJson, hand_on, load, not_empty
from dibs.cli._support.printing import print_result
from dibs.errors import BadRequest, Refused, StoreUnavailable, UnknownEngine
from dibs.text import without_password

EXAMPLE = "Example: dibs tables sql shop:Report --url postgresql://localhost/shop"
DRIVERS = {
    "postgresql": "postgresql+psycopg",
    "postgres": "postgresql+psycopg",
    "mysql": "mysql+pymysql",
    "mariadb": "mysql+pymysql",
    "sqlite": "sqlite",
}

app = typer.Typer(no_args_is_help=True, help="Your own tables as queues (needs SQLAlchemy).")

Described = Annotated[
    str,
    typer.Argument(metavar="MODULE:MODEL", help="A model, a table, or the Claims on one, like shop:Report."),
]
Asked = Annotated[
    str | None,
    typer.Option(metavar="URL", callback=not_empty, help="Compare with the table in this database."),
]


@app.callback()
def options(context: typer.Context, url: Asked = None, json: AsJson = False) -> None:
    hand_on(context, url, json)


@app.command("sql", epilog=EXAMPLE)
def sql(
    context: typer.Context,
    described: Described,
    dialect: Annotated[
        str, typer.Option(metavar="NAME", help="Without --url: postgresql, mysql, mariadb or sqlite.")
    ] = "postgresql",
    url: Asked = None,
    json: AsJson = False,
) -> None:
    """Print the SQL for the columns and the index that a table lacks as a queue. Runs nothing.

    Given Claims, the index serves their order.
    """
    if find_spec("sqlalchemy") is None:
        raise BadRequest("dibs tables needs SQLAlchemy: pip install 'dibs[sqlalchemy]'")
    found = load(described, "a model", "MODULE:MODEL, like shop:Report")
    where = url or context.obj
    lines = _missing(found, where) if where else _all(found, dialect)
    print_result(
        lines,
        "\n".join(f"{line};" for line in lines) or "-- nothing to do: columns and index are there",
        json,
    )


def _all(found: Any, name: str) -> list[str]:
    from sqlalchemy.engine import URL

    from dibs.tables.schema import statements

    return statements(found, URL.create(_driver(name)).get_dialect()())


def _missing(found: Any, where: str) -> list[str]:
    from sqlalchemy.exc import NoSuchTableError, SQLAlchemyError

    from dibs.tables.schema import missing

    engine = _engine(where)
    try:
        with engine.connect() as connection:
            return missing(found, connection)
    except NoSuchTableError as error:
        raise Refused(
            f"there is no table {error} at {without_password(where)}: create it first, or leave --url out"
        ) from None
    except SQLAlchemyError as error:
        reason = str(getattr(error, "orig", None) or error)
        raise StoreUnavailable(f"{without_password(where)} can't be reached: {reason}") from None
    finally:
        engine.dispose()


def _engine(where: str) -> Any:
    from sqlalchemy import create_engine

    Dibs(where)  # its errors about a URL never quote a password
    scheme, _, rest = where.partition("://")
    try:
        return create_engine("://".join([_driver(scheme.partition("+")[0]), rest]))
    except ImportError as error:
        raise BadRequest(f"{error}; install what this database needs, or leave --url out") from None


def _driver(name: str) -> str:
    if name.lower() not in DRIVERS:
        raise UnknownEngine(f"no tables of SQLAlchemy on {name!r}; known are {', '.join(sorted(DRIVERS))}")
    return DRIVERS[name.lower()]
