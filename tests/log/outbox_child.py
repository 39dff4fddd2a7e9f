"""A process that commits and publishes three batches, or kills itself with SIGKILL on the way.

    python -m tests.log.outbox_child DIRECTORY PLACE

PLACE: `committed`, `half` of the rows published, `published`, or `nowhere`; the first three in the second batch. What
a batch gives is chance. The receiver is a folder: a file for each batch, of which a part may be missing.
"""

import asyncio
import os
import signal
import sys
from pathlib import Path

import statebackend as sb
from statebackend._log.outbox import Output
from statebackend.ids import SourceMark

BATCHES = 3


def settings_in(directory: Path) -> sb.Settings:
    return sb.Settings(job="killed", primary=f"file://{directory}/primary", persist_delay_s=0.0, inline_bytes_max=100)


def die(place: str, here: str) -> None:
    if place == here:
        os.kill(os.getpid(), signal.SIGKILL)


def receive(folder: Path, batch_id: int, rows: bytes, place: str) -> None:
    """Write the rows, in two steps; what is there already has to be their beginning."""
    path = folder / f"{batch_id}"
    found = path.read_bytes() if path.exists() else b""
    assert rows.startswith(found), "other rows under the same key"
    path.write_bytes(rows[: len(rows) // 2])
    die(place, "half")
    path.write_bytes(rows)


async def publish(backend: sb.StateBackend, folder: Path, place: str) -> None:
    while (taken := await backend.take_output()) is not None:
        output, streams = taken
        here = place if output.source.batch_id == 1 else "nowhere"
        die(here, "committed")
        receive(folder, output.source.batch_id, b"".join(streams), here)
        die(here, "published")
        backend.published(output)


async def main(directory: Path, place: str) -> None:
    async with sb.open_backend(settings_in(directory)) as backend:
        await publish(backend, directory / "received", place)
        source = None if backend.newest is None else backend.newest.source
        for batch_id in range(0 if source is None else source.batch_id + 1, BATCHES):
            rows = os.urandom(50 if batch_id % 2 else 500)
            backend.value_state("rows", bytes)[batch_id] = rows
            mark = SourceMark("query", batch_id)
            await backend.checkpoint(backend.next_checkpoint_id, source=mark, output=Output(b"", 1, (rows,)))
            await publish(backend, directory / "received", place)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
