"""A service on loopback that answers each line with the same line: slowly, and if told to it refuses and dies.

    python -m benchmarks.slow_service PORT DELAY_MS REFUSE_EVERY DIE_AFTER

`REFUSE_EVERY`: closes each so-many-th connection without an answer; 0: none. `DIE_AFTER`: ends with this request; 0:
never. `serving` runs it in a process of its own, and starts another one when it has died.
"""

import asyncio
import itertools
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def serving(delay_ms: int, *, refuse_every: int = 0, die_after: int = 0) -> Generator[int]:
    """Have it serve meanwhile; give its port, on which it is again soon after it has died."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "benchmarks.slow_service", *map(str, (port, delay_ms, refuse_every, die_after))]
    ending = threading.Event()
    processes = [_started(command)]

    def start_again() -> None:
        while processes[-1].wait() is not None and not ending.is_set():
            processes.append(_started(command))

    keeper = threading.Thread(target=start_again)
    keeper.start()
    try:
        yield port
    finally:
        ending.set()
        processes[-1].kill()
        keeper.join()
        processes[-1].kill()  # one that was started meanwhile
        processes[-1].wait()


def _started(command: list[str]) -> subprocess.Popen[bytes]:
    """The process, once it listens."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    return process


async def _serve(port: int, delay_ms: int, refuse_every: int, die_after: int) -> None:
    requests, connections = itertools.count(1), itertools.count(1)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if refuse_every and next(connections) % refuse_every == 0:
            writer.close()
            return
        while line := await reader.readline():
            if next(requests) == die_after:
                os._exit(1)
            await asyncio.sleep(delay_ms / 1000)
            writer.write(line)
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", port, backlog=1024) as server:
        os.write(1, b"listening\n")
        await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(_serve(*map(int, sys.argv[1:])))
