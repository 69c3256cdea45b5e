"""Stores that all tests share are emptied for each: ten times faster than making a new one."""

from __future__ import annotations

import contextlib

from servers import mysql_connection


def emptied_mariadb(url: str) -> str:
    """By `delete`: `truncate` makes every table anew."""
    with contextlib.closing(mysql_connection(url)) as connection, connection.cursor() as cursor:
        cursor.execute("show tables like 'dibs\\_%'")
        for (table,) in cursor.fetchall():
            if table not in ("dibs_schema", "dibs_token"):
                cursor.execute(f"delete from {table}")
    return url
