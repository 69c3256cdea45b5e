"""The outbox on the page: how far each broker is, and the messages that wait for an operator."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from dibs.app.dibs import Dibs
from dibs.dashboard.twins import twins_of_outbox
from dibs.errors import Refused, SchemaOutdated, UnknownEngine
from dibs.outbox import Outbox

if TYPE_CHECKING:
    from dibs.dashboard.pages import View

SHOWN = 50


@asynccontextmanager
async def opened(app: Dibs, given: Outbox | None) -> AsyncIterator[Outbox | None]:
    """Yield the outbox that was given, else the one in the app's database; None where there can't be one."""
    if given is not None:
        yield given
        return
    settings = app._core.settings
    try:
        own = Outbox(settings.url, table=f"{settings.prefix}_outbox")
    except UnknownEngine:  # not a database, or SQLAlchemy is not installed
        yield None
        return
    own._database.create_nothing()
    try:
        yield own
    finally:
        await own.close()


async def outbox_page(view: "View") -> dict[str, Any]:
    async with opened(view.app, view.outbox) as outbox:
        if outbox is None:
            return {"standings": None}
        try:
            standings = await outbox.standings()
            abandoned = await outbox.find_abandoned(SHOWN)
            failed = await outbox.find_failed(SHOWN)
        except SchemaOutdated:
            return {"standings": None}
    icon = "warn" if abandoned else "ok"
    shown = {"standings": standings, "abandoned": abandoned, "failing": failed}
    return {**shown, "icon": icon, "twins": twins_of_outbox()}


async def redrive(app: Dibs, given: Outbox | None, message: str, broker: str | None) -> str:
    async with opened(app, given) as outbox:
        if outbox is None:
            raise Refused("this store has no outbox")
        number = await outbox.redrive(message, broker)
    if not number:
        raise Refused(f"the message {message} is not abandoned: there is nothing to redrive")
    return f"the message goes to {number} broker{'s' if number > 1 else ''} again"
