"""A store that no dibs has seen yet, and statements sent to it past dibs, as a person with a shell would."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest

from dibs.engines.mysql.session import connect_options
from tests.support.servers import MariaDB, PostgreSQL


def bare_store(engine: str, request: pytest.FixtureRequest, folder: Path) -> str:
    if engine == "sqlite":
        return f"sqlite:///{folder}/bare.db"
    server: PostgreSQL | MariaDB = request.getfixturevalue(engine)
    return server.fresh_database()


def sqlalchemy_url(url: str) -> str:
    """With the driver that is installed for it."""
    return url.replace("postgresql://", "postgresql+psycopg://").replace("mysql://", "mysql+pymysql://")


def by_hand(url: str, *statements: str) -> list[Any]:
    """Run these; the rows of the last one."""
    if url.startswith("sqlite"):
        connection: Any = sqlite3.connect(url.removeprefix("sqlite:///"))
    elif url.startswith("postgresql"):
        connection = psycopg.connect(url)
    else:
        connection = pymysql.connect(**connect_options(url))
    try:
        cursor = connection.cursor()
        for statement in statements:
            cursor.execute(statement)
        rows = list(cursor.fetchall()) if cursor.description else []
        connection.commit()
        return rows
    finally:
        connection.close()
