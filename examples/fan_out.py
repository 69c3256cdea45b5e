"""Split one job into many, let workers share them, and continue when all are done.

    python fan_out.py

The parts are *chained*: they are stored in the same commit in which the job that made them succeeds. If that
job fails or its process dies, there are no parts; when it runs again, there is one set of them, not two.
"""

import asyncio

from dibs import Context, Dibs, Job, Worker

app = Dibs()

BOOK = {
    "one": "call me ishmael",
    "two": "it was the best of times it was the worst of times",
    "three": "all happy families are alike",
}


@app.job
async def split(ctx: Context, chapters: list[str]) -> int:
    ctx.chain(*[count_words.new(chapter) for chapter in chapters])  # nothing is stored yet
    return len(chapters)  # now it is, with the success of this job


@app.job(max_attempts=5)
async def count_words(chapter: str) -> int:
    return len(BOOK[chapter].split())


async def wait_for_parts(parent: Job) -> list[Job]:
    """Find the jobs of a pipeline: all have the id of its first job."""
    await app.wait(parent.id, timeout=30)
    parts = await app.find(pipeline_id=parent.id, kind="count_words", limit=1000)
    return [await app.wait(part.id, timeout=30) for part in parts]


async def main() -> None:
    await app.migrate()
    worker = Worker(app, concurrency=3)
    running = asyncio.create_task(worker.run())

    parent = await split.enqueue(list(BOOK))
    parts = await wait_for_parts(parent)

    for part in sorted(parts, key=lambda part: part.id):
        assert part.parent_id == parent.id
        print(f"chapter {part.args['chapter']}: {part.result} words")
    # A part that failed for good has no result: check its state before you rely on the sum.
    assert all(part.state == "succeeded" for part in parts)
    print(f"the book: {sum(part.result for part in parts)} words")

    worker.stop()
    await running
    await app.close()


if __name__ == "__main__":
    asyncio.run(main())
