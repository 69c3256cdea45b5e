"""Count the files that one plain job meets: enqueue, claim and settle by hand, on a store that is at hand.

    python -m tools.trace_job postgresql://localhost/test

A *call* is the start of a function of `src/dibs`; a coroutine or generator that is resumed is not called
again. A *change of file* is a call whose file is not that of the call before. The second round is counted:
the first one opens connections, loads SQL and prepares statements.
"""

import asyncio
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import dibs
from dibs import Dibs

SOURCE = Path(dibs.__file__).parent


class Calls:
    """The calls into `src/dibs` while it is on, in order."""

    def __init__(self) -> None:
        self.files: list[str] = []
        self.names: list[str] = []
        self._seen: list[FrameType] = []
        self._known: set[int] = set()

    def note(self, frame: FrameType, event: str, _: Any) -> None:
        """Note the start of a function; a profile function for `sys.setprofile`."""
        file = frame.f_code.co_filename
        if event != "call" or not file.startswith(str(SOURCE)) or id(frame) in self._known:
            return
        self._known.add(id(frame))
        self._seen.append(frame)  # kept, so that its id is not given to another
        self.files.append(str(Path(file).relative_to(SOURCE)))
        self.names.append(frame.f_code.co_name)

    @property
    def changes(self) -> int:
        """How often the reader changes file."""
        return sum(one != other for one, other in zip(self.files, self.files[1:], strict=False))


async def trace(url: str) -> Calls:
    """Return the calls of the second job of an app."""
    app = Dibs(url)

    @app.job
    async def send_receipt(order_id: int) -> None: ...

    calls = Calls()
    await app.migrate()
    async with app:
        for number in (1, 2):
            if number == 2:
                sys.setprofile(calls.note)
            await send_receipt.enqueue(42)
            [claim] = await app.claim(kinds=["send_receipt"])
            await claim.succeed("sent")
            sys.setprofile(None)
    return calls


if __name__ == "__main__":
    found = asyncio.run(trace(sys.argv[1]))
    for file in dict.fromkeys(found.files):
        print(f"{found.files.count(file):4} calls  {file}")
    if "--calls" in sys.argv:
        print(*(f"{file}:{name}" for file, name in zip(found.files, found.names, strict=True)), sep="\n")
    print(f"{len(set(found.files))} files, {found.changes} changes of file, {len(found.files)} calls")
