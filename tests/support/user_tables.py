"""Tables as users have them, and a few that can't be claimed of."""

from __future__ import annotations

import enum
from datetime import datetime
from decimal import Decimal
from typing import Any

from sqlalchemy import (
    JSON,
    Column,
    DateTime,
    Enum,
    ForeignKey,
    Integer,
    MetaData,
    Numeric,
    String,
    Table,
    func,
    select,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, column_property, deferred, mapped_column, relationship

from dibs.tables import Claimable


class Base(DeclarativeBase):
    pass


class Status(enum.Enum):
    ready = "READY"
    taken = "TAKEN"


class Author(Base):
    __tablename__ = "author"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(50))


class Report(Base):
    __tablename__ = "report"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(String(20), default="ready", index=True)
    rank: Mapped[int | None] = mapped_column("priority")
    title: Mapped[str] = mapped_column(String(50), default="")
    attempts: Mapped[int] = mapped_column(default=0)
    locked_by: Mapped[str | None] = mapped_column(String(50))
    about: Mapped[Any] = mapped_column(JSON, default=dict)
    price: Mapped[Decimal] = mapped_column(Numeric(10, 2), default=Decimal("1.50"))
    due: Mapped[datetime | None] = mapped_column(DateTime)
    mood: Mapped[Status] = mapped_column(Enum(Status), default=Status.ready)
    body: Mapped[str] = deferred(mapped_column(String(100), default="long"))
    author_id: Mapped[int | None] = mapped_column(ForeignKey("author.id"))
    author: Mapped[Author | None] = relationship()


class Seat(Base):
    __tablename__ = "seat"
    hall: Mapped[str] = mapped_column(String(10), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    holder: Mapped[str | None] = mapped_column(String(50))


class Animal(Base):
    __tablename__ = "animal"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(10))
    fed: Mapped[bool] = mapped_column(default=False)
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "animal"}  # noqa: RUF012


class Dog(Animal):
    __mapper_args__ = {"polymorphic_identity": "dog"}  # noqa: RUF012


class Employee(Base):
    __tablename__ = "employee"
    id: Mapped[int] = mapped_column(primary_key=True)
    kind: Mapped[str] = mapped_column(String(10))
    __mapper_args__ = {"polymorphic_on": "kind", "polymorphic_identity": "employee"}  # noqa: RUF012


class Manager(Employee):
    __tablename__ = "manager"
    id: Mapped[int] = mapped_column(ForeignKey("employee.id"), primary_key=True)
    budget: Mapped[int] = mapped_column(default=0)
    __mapper_args__ = {"polymorphic_identity": "manager"}  # noqa: RUF012


class Parcel(Base, Claimable):
    __tablename__ = "parcel"
    id: Mapped[int] = mapped_column(primary_key=True)
    status: Mapped[str] = mapped_column(String(20), default="ready")
    rank: Mapped[int] = mapped_column(default=0)


class Shelf(Base):
    """A model with more than its row: something computed, something joined, something loaded later."""

    __tablename__ = "shelf"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(20))
    full: Mapped[bool] = mapped_column(default=False)
    author_id: Mapped[int | None] = mapped_column(ForeignKey("author.id"))
    loud: Mapped[str] = column_property(func.upper(name))
    authors: Mapped[int] = column_property(
        select(func.count(Author.id)).where(Author.id == author_id).scalar_subquery()
    )
    author: Mapped[Author | None] = relationship(lazy="joined")
    reviewer: Mapped[Author | None] = relationship(lazy="selectin", viewonly=True)


class Loose(Base):
    """A table with leases made by hand: no mixin, and times without a zone."""

    __tablename__ = "loose"
    id: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(String(20), default="new")
    locked_by: Mapped[str | None] = mapped_column(String(50))
    locked_until: Mapped[datetime | None] = mapped_column(DateTime)
    claim_token: Mapped[int] = mapped_column(default=0)


class Query(Base):
    """Mapped to a query, as people do with what should have been a view."""

    __table__ = select(func.count(Author.id).label("id"), Author.name).group_by(Author.name).subquery("q")
    __mapper_args__ = {"primary_key": [__table__.c.id]}  # noqa: RUF012
    shout = column_property(func.upper(__table__.c.name))


plain = MetaData()
task = Table(
    "task",
    plain,
    Column("id", Integer, primary_key=True),
    Column("state", String(20), nullable=False),
    Column("rank", Integer, key="importance"),
)
archived = Table(
    "task",
    plain,
    Column("id", Integer, primary_key=True),
    Column("state", String(20), nullable=False),
    schema="dibs_archive",
)
shown = Table(
    "shown_report", MetaData(), Column("id", Integer, primary_key=True), Column("status", String(20))
)
"""A view, in metadata of its own, so that no test creates it as a table."""
keyless = Table("keyless", MetaData(), Column("id", Integer))
