"""A driver that opens a job and commits one batch for each line it is sent.

    python -m tests.backend.driver_child DIRECTORY NAME

Says "opened EPOCH", then "committed SEQUENCE" for each line, or "fenced" and ends; it also ends with its input.
"""

import asyncio
import sys
from pathlib import Path

import statebackend as sb
from statebackend.errors import FencedError


def settings_in(directory: Path) -> sb.Settings:
    """The job that the drivers share."""
    return sb.Settings(job="shared", primary=f"file://{directory}/primary", persist_delay_s=0.0)


async def run(directory: Path, name: str) -> None:
    async with sb.open_backend(settings_in(directory)) as backend:
        print("opened", backend.epoch, flush=True)
        by = backend.value_state("by", str)
        while await asyncio.to_thread(sys.stdin.readline):
            checkpoint_id = backend.next_checkpoint_id
            by[checkpoint_id] = name
            try:
                info = await backend.checkpoint(checkpoint_id)
            except FencedError:
                print("fenced", flush=True)
                return
            print("committed", info.sequence, flush=True)


if __name__ == "__main__":
    asyncio.run(run(Path(sys.argv[1]), sys.argv[2]))
