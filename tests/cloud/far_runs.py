"""State over runs in a cloud, opened on a host without copies: read by the page, until the copies have come in."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

import statebackend as sb
from statebackend import Settings
from statebackend.errors import CorruptSegmentError
from statebackend.testing.faults import Moment
from tests.cloud.http_proxy import FaultProxy, HttpFault
from tests.knobs import replaced
from tests.runs.ranges import always_by_ranges
from tests.runs.test_far_runs import incoming, is_far, rows
from tests.runs.test_jobs_over_runs import Job

KEYS = 20_000
PAGE = 4096


@dataclass(kw_only=True, eq=False)
class Answers(HttpFault):
    """Notes how many bytes each answer has, and changes nothing; but flips a bit of the first `flips`."""

    method: str | None = "GET"
    target: str = "*segments*"
    moment: Moment = "after"
    sizes: list[int] = field(default_factory=list[int], init=False)
    flips: int = 0

    async def strike(self, answer: bytes | None) -> bytes | None:
        assert answer is not None
        self.sizes.append(len(answer.partition(b"\r\n\r\n")[2]))
        if self.flips:
            self.flips -= 1
            return answer[:-1] + bytes([answer[-1] ^ 1])
        return answer

    def take(self) -> list[int]:
        """The sizes since the last call."""
        found, self.sizes = self.sizes, []
        return found


class CloudJob(Job):
    """A job over runs at these settings. Look-ups run in a thread, since the proxy has the loop."""

    def __init__(self, settings: Settings, directory: Path) -> None:
        super().__init__(directory)
        own = ("max_parallelism", "table", "table_dir", "local", "materialize_handles_max", "inline_bytes_max")
        self.settings = replaced(
            settings, materialize_interval_s=0.0, **{name: getattr(self.settings, name) for name in own}
        )

    def on(self, host: str) -> Settings:
        """On a host that had nothing of it."""
        return replaced(self.settings, local=(f"{self.directory}/{host}",))


async def filled(settings: Settings, directory: Path) -> CloudJob:
    """A job with `KEYS` keys in a base."""
    job = CloudJob(settings, directory)
    async with sb.open_backend(job.settings) as backend:
        job.write(backend, [f"k{number}" for number in range(KEYS)])
        await job.commit(backend)
        await job.commit(backend)
    return job


class AnyFarRuns:
    """For each cloud. `by_proxy` is a fixture."""

    async def test_pages_are_read_by_ranges_and_then_from_the_copies(
        self, by_proxy: Settings, proxy: FaultProxy, tmp_path: Path
    ) -> None:
        """Opening reads a part, look-ups a page for each key; each request is counted, and the last copy ends them."""
        job, answers = await filled(by_proxy, tmp_path), Answers()
        stored = sum(path.stat().st_size for path in job.segments("local"))
        assert stored > KEYS * 30
        proxy.plan.append(answers)
        keys = [f"k{number}" for number in range(0, KEYS, KEYS // 20)]
        with always_by_ranges(copies_come_in=False):
            async with sb.open_backend(job.on("first")) as backend:
                opening = answers.take()
                assert is_far(backend) == {True}
                assert sum(opening) < stored / 4
                before, sent = self.counted(backend), len(proxy.requests)
                assert await anyio.to_thread.run_sync(rows, backend, *keys, "nobody") == [1] * len(keys) + [None]
                asked = answers.take()
                assert 0 < len(asked) <= len(keys) + 1
                assert sum(asked) < stored / 2
                assert self.counted(backend) - before == len(proxy.requests) - sent, proxy.requests[sent:]
                assert await anyio.to_thread.run_sync(rows, backend, *keys) == [1] * len(keys)
                assert answers.take() == [], "rows that were found stay in memory"
        with always_by_ranges():
            async with sb.open_backend(job.on("second")) as backend:
                await incoming(backend).ended()
                assert is_far(backend) == {False}
                answers.take()
                await anyio.to_thread.run_sync(job.check, backend)
                assert answers.take() == []
        assert sum(path.stat().st_size for path in job.segments("second")) == stored

    async def test_a_page_that_is_damaged_on_its_way_is_asked_for_again(
        self, by_proxy: Settings, proxy: FaultProxy, tmp_path: Path
    ) -> None:
        """Once: what is damaged again ends the look-up, and is right the next time."""
        job, answers = await filled(by_proxy, tmp_path), Answers()
        with always_by_ranges(copies_come_in=False):
            async with sb.open_backend(job.on("first")) as backend:
                proxy.plan.append(answers)
                answers.flips = 1
                assert await anyio.to_thread.run_sync(rows, backend, "k7") == [1]
                assert len(answers.take()) == 2
                answers.flips = 2
                with pytest.raises(CorruptSegmentError):
                    await anyio.to_thread.run_sync(rows, backend, "k8")
                assert await anyio.to_thread.run_sync(rows, backend, "k8") == [1]

    @staticmethod
    def counted(backend: Any) -> int:
        """The requests that the backend says it has sent."""
        return int(backend._spending.requests.total())
