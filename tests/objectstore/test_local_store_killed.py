"""A store on disk through SIGKILL: what was acknowledged is whole, and nothing else is at a key in part."""

import signal
import subprocess
import sys
import zlib
from pathlib import Path

import anyio
import pytest

from statebackend.objectstore import LocalStore

WRITER = """
import sys
from pathlib import Path

import anyio

from statebackend.objectstore import LocalStore


async def write(store, round_number, writer):
    number = 0
    while True:
        key = f"round-{round_number}/writer-{writer}/{number:06}"
        body = [key.encode()] * (1 + (number * 7919) % 4000)
        await (store.put if number % 2 else store.put_if_absent)(key, body)
        print(key, len(body), flush=True)
        number += 1


async def main():
    store = LocalStore(Path(sys.argv[1]))
    async with anyio.create_task_group() as tasks:
        for writer in range(4):
            tasks.start_soon(write, store, sys.argv[2], writer)


anyio.run(main)
"""


def acknowledged_before_the_kill(root: Path, round_number: int, lines: int) -> list[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(root), str(round_number)], stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        seen = [child.stdout.readline() for _ in range(lines)]
        child.send_signal(signal.SIGKILL)
        seen += child.stdout.readlines()
    assert child.returncode == -signal.SIGKILL
    return [line for line in seen if line.endswith("\n")]


@pytest.mark.parametrize("lines", [1, 23, 150])
async def test_every_acknowledged_object_is_whole_and_no_object_is_a_part(lines: int, tmp_path: Path) -> None:
    """A writer is killed in the middle of four writes. Temporary files may stay; they are not objects."""
    acknowledged = acknowledged_before_the_kill(tmp_path, lines, lines)
    assert len(acknowledged) >= lines
    store = LocalStore(tmp_path)
    for line in acknowledged:
        key, chunks = line.split()
        assert await store.get(key) == key.encode() * int(chunks)
    found = 0
    async for info in store.list(""):
        body = await store.get(info.key)
        assert body == info.key.encode() * (len(body) // len(info.key))
        number = int(info.key.rpartition("/")[2])
        assert len(body) == len(info.key) * (1 + (number * 7919) % 4000)
        found += 1
    assert len(acknowledged) <= found <= len(acknowledged) + 4


FORKING_WRITER = """
import os
import sys
from pathlib import Path

import anyio

from statebackend.objectstore import LocalStore

process = "child" if os.fork() == 0 else "parent"


async def main():
    store = LocalStore(Path(sys.argv[1]))
    async with anyio.create_task_group() as tasks:
        for number in range(50):
            tasks.start_soon(store.put, f"{process}-{number}", [process.encode()] * 1000)


anyio.run(main)
if process == "parent":
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""


async def test_two_forks_of_one_process_do_not_write_each_others_temporary_files(tmp_path: Path) -> None:
    """Forks share all that makes a name unique but the process id; both write into one directory at once."""
    await anyio.run_process([sys.executable, "-c", FORKING_WRITER, str(tmp_path)])
    store = LocalStore(tmp_path)
    checksums = {
        process: {zlib.crc32(await store.get(f"{process}-{number}")) for number in range(50)}
        for process in ("parent", "child")
    }
    assert checksums == {process: {zlib.crc32(process.encode() * 1000)} for process in ("parent", "child")}
