"""The service of the how-to page under 1,000 requests a second for a minute, beside a job that commits every second.

    python -m benchmarks following.serving --sizes seconds=10        to see that all is right

Three processes: the job, the service, and this one, which asks. It asks at fixed moments whether or not the answers
before have come, and counts from the moment at which it should have asked.

Envelope. uvicorn's parser in Python takes half a millisecond of CPU for a request, so one core is half busy: 2 ms for
most, and 20 ms for one that comes while a piece of a commit is applied, or while several others wait. No errors: the
staleness that the page allows is five looks.
"""

import asyncio
import importlib.util
import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.contest import Line, Report, Sample
from benchmarks.following.job import key, settings_of, working
from benchmarks.jobs import directory

CONNECTIONS = 64
P50_MS = 2.0
P99_MS = 20.0


def run(report: Report, *, keys: int = 100_000, changes: int = 5_000, rate: int = 1_000, seconds: int = 60) -> None:
    """Milliseconds of an answer, and errors. A minute and a half."""
    if missing := [name for name in ("starlette", "uvicorn") if importlib.util.find_spec(name) is None]:
        report.skip(f"the service needs {' and '.join(missing)}")
        return
    sizes = {"keys": keys, "changes": changes, "commits": seconds + 5, "every_s": 1.0}
    with directory() as folder, working(folder, "columns", **sizes) as job, _serving(folder) as port:
        job.go_on()
        asyncio.run(_ask(port, keys, rate, 2))  # imports, connections
        times_ms, answers = asyncio.run(_ask(port, keys, rate, seconds))
    sample = Sample(times_ms)
    report.keep("an answer over HTTP", "ms", {f"p{share}": Sample([sample.at(share / 100)]) for share in (50, 99, 100)})
    asked = f"{rate:,} requests a second for {seconds} s beside {changes:,} changes a second"
    detail = f"slowest {sample.at(1):.3g} ms; load of the machine {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores"
    report.add(Line(f"half of {asked}", f"within {P50_MS:g} ms", sample.median, "ms", P50_MS, detail=detail))
    report.add(Line(f"99 % of {asked}", f"within {P99_MS:g} ms", sample.at(0.99), "ms", P99_MS))
    errors = sum(answers.values()) - answers["200"]
    report.add(Line(f"errors in {asked}", "none", errors, "answers", 0, detail=f"by status: {dict(answers)}"))


@contextmanager
def _serving(folder: Path) -> Generator[int]:
    with socket.create_server(("127.0.0.1", 0), backlog=1024) as listening:
        command = [sys.executable, "-m", "benchmarks.following.serving", str(folder), str(listening.fileno())]
        with subprocess.Popen(command, pass_fds=[listening.fileno()]) as process:
            try:
                yield listening.getsockname()[1]
            finally:
                process.kill()


async def _ask(port: int, keys: int, rate: int, seconds: int) -> tuple[list[float], Counter[str]]:
    times_ms: list[float] = []
    answers: Counter[str] = Counter()
    chance, numbers = random.Random(rate), iter(range(rate * seconds))
    begun_s = time.perf_counter() + 0.1

    async def client() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in numbers:
            due_s = begun_s + number / rate
            await asyncio.sleep(due_s - time.perf_counter())
            writer.write(f"GET /fleet/{key(chance.randrange(keys))} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            await reader.readexactly(int(head.partition("content-length: ")[2].partition("\r\n")[0]))
            times_ms.append((time.perf_counter() - due_s) * 1000)
            answers[head.split()[1]] += 1
        writer.close()

    async with asyncio.TaskGroup() as tasks:
        for _ in range(CONNECTIONS):
            tasks.create_task(client())
    return times_ms, answers


def _serve(folder: Path, listening: socket.socket) -> None:
    from tests.howto.pages import load_page  # noqa: PLC0415  # the page needs packages of its own

    page = load_page("serve")
    page.uvicorn.Server(page.uvicorn.Config(page.app(settings_of(folder)), log_level="warning")).run([listening])


if __name__ == "__main__":
    _serve(Path(sys.argv[1]), socket.socket(fileno=int(sys.argv[2])))
