"""Upload a CSV file, watch it being imported, recover what a dead worker left.

    pip install 'dibs[serve,sqlalchemy]' python-multipart
    python app.py                               # http://127.0.0.1:8000, jobs and data in ingest.db

Its own tables live in the same database as the jobs: an upload and its job are stored together or not at all,
and so are the readings and the success of the job that read them.
"""

import csv
import io
import logging
import os
import time
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import sqlalchemy as sa
from fastapi import Depends, FastAPI, Form, HTTPException, Request, UploadFile
from fastapi.responses import FileResponse

from dibs import Context, Dibs
from dibs.integrations.fastapi import lifespan, router

URL = os.environ.setdefault("DIBS_URL", "sqlite:///ingest.db")
PACE = float(os.environ.get("PACE", "0.02"))  # seconds per line, so that there is something to watch
MOST_BYTES = 5_000_000
HERE = Path(__file__).parent
PAGES = {"page.js", "page.css"}

app = Dibs(URL)

# -- data -----------------------------------------------------------------------------------------

engine = sa.create_engine(URL.replace("postgresql://", "postgresql+psycopg://"))
tables = sa.MetaData()
uploads = sa.Table(
    "uploads",
    tables,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("module", sa.String(50), nullable=False),
    sa.Column("year", sa.Integer, nullable=False),
    sa.Column("text", sa.Text, nullable=False),
)
readings = sa.Table(
    "readings",
    tables,
    sa.Column("upload_id", sa.Integer, primary_key=True),
    sa.Column("line", sa.Integer, primary_key=True),
    sa.Column("value", sa.Float, nullable=False),
)
totals = sa.Table(
    "totals",
    tables,
    sa.Column("module", sa.String(50), primary_key=True),
    sa.Column("year", sa.Integer, primary_key=True),
    sa.Column("total", sa.Float, nullable=False),
)

# -- jobs -----------------------------------------------------------------------------------------


@app.job(queue="imports", lease=5)
def import_csv(ctx: Context, upload_id: int) -> None:
    """Read the lines slowly, store them at once, and let the totals be calculated anew."""
    with engine.connect() as connection:
        upload = connection.execute(sa.select(uploads).where(uploads.c.id == upload_id)).one()
    values = []
    lines = list(csv.DictReader(io.StringIO(upload.text)))
    for number, line in enumerate(lines, 1):
        time.sleep(PACE)
        values.append({"upload_id": upload_id, "line": number, "value": float(line["value"])})
        ctx.sync.progress(number / len(lines), f"line {number} of {len(lines)}")
    ctx.chain(recalculate.new(upload.module, upload.year))
    with engine.begin() as connection:
        if values:
            connection.execute(sa.insert(readings), values)
        ctx.sync.complete({"lines": len(values)}, within=connection)


@app.job(queue="imports")
def recalculate(module: str, year: int) -> float:
    """Store the sum of all readings of a module and year; running it again gives the same."""
    mine = sa.and_(uploads.c.module == module, uploads.c.year == year)
    of_mine = readings.join(uploads, uploads.c.id == readings.c.upload_id)
    with engine.begin() as connection:
        found = connection.scalar(sa.select(sa.func.sum(readings.c.value)).select_from(of_mine).where(mine))
        connection.execute(sa.delete(totals).where(totals.c.module == module, totals.c.year == year))
        connection.execute(sa.insert(totals).values(module=module, year=year, total=found or 0.0))
    return float(found or 0.0)


# -- web ------------------------------------------------------------------------------------------


async def visitor() -> None:
    """Allow every client to read."""


async def operator(request: Request) -> str:
    """Allow changes to clients with a name; a real app would check its session."""
    name = request.cookies.get("operator", "")
    if not name.isalnum():
        raise HTTPException(403, "give your name first")
    return name


web = FastAPI(title="ingest", lifespan=lifespan(app))
web.include_router(router(app, read=Depends(visitor), write=Depends(operator)), prefix="/dibs")


@web.post("/uploads", status_code=201)
def upload(
    module: Annotated[str, Form(min_length=1, max_length=50)],
    year: Annotated[int, Form(ge=1900, le=2100)],
    file: UploadFile,
) -> dict[str, UUID]:
    """Store the file and the job that imports it, together or not at all."""
    text = file.file.read(MOST_BYTES + 1)
    if len(text) > MOST_BYTES:
        raise HTTPException(413, f"the file is longer than {MOST_BYTES:,} bytes")
    row = {"module": module, "year": year, "text": text.decode("utf-8-sig", "replace")}
    with engine.begin() as connection:
        id = connection.execute(sa.insert(uploads).values(row).returning(uploads.c.id)).scalar_one()
        one_at_a_time = import_csv.using(slot=("csv", module, year), tags=[f"{module}-{year}"])
        job = one_at_a_time.using(within=connection).sync.enqueue(id)
    return {"job": job.id}


@web.get("/totals")
def show_totals() -> list[dict[str, Any]]:
    with engine.connect() as connection:
        rows = connection.execute(sa.select(totals).order_by(totals.c.module, totals.c.year))
        return [dict(row._mapping) for row in rows]


@web.get("/", include_in_schema=False)
async def page() -> FileResponse:
    return FileResponse(HERE / "page.html")


@web.get("/{name}", include_in_schema=False)
async def part_of_page(name: str) -> FileResponse:
    if name not in PAGES:
        raise HTTPException(404)
    return FileResponse(HERE / name)


def prepare() -> None:
    """Create all tables, our own and the tables of dibs."""
    app.sync.migrate()
    tables.create_all(engine)
    app.sync.close()


if __name__ == "__main__":
    import uvicorn

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    port = int(os.environ.get("PORT", "8000"))
    prepare()
    print(f"http://127.0.0.1:{port}", flush=True)
    uvicorn.run(web, port=port, log_config=None, log_level="warning")
