"""64 writers with many small persists: how many requests the persist delay spares. In virtual time, so it is exact.

Requests are money: at 100 persists a second, a month of them costs 1,296 USD without any delay.

Envelope. Persists arrive at random with the rate L. The first that waits arms the delay d, and those that come then
share its segment, so a segment holds k = 1 + L d of them and a change set costs 1/k requests. A busy uploader sends
one segment every d + 1/L.
"""

import random

import anyio

from benchmarks.changelog.parts import columns_of, open_log, sets_of, settings
from benchmarks.contest import Line, Report, Sample
from statebackend._changelog.changelog_writer import ChangelogWriter
from statebackend.objectstore import MemoryStore
from statebackend.objectstore.scoped import CountingStore
from statebackend.settings import UploadSettings
from statebackend.testing import VirtualClock, run_virtual
from statebackend.uploaders import PrimaryUploader

WRITERS, PERSISTS = 64, 1_000
DELAY_S = 0.010
DELAYS_S = (0.001, 0.010, 0.1, 1.0)
PERSISTS_PER_S = 100.0
MONTH_S = 30 * 86_400


def run(report: Report, *, persists: int = PERSISTS) -> None:
    """Requests per change set against the model, from one persist in ten delays to a hundred in one."""
    for arrivals_per_delay in (0.1, 1.0, 10.0, 100.0):
        rate = arrivals_per_delay / DELAY_S
        uploads, seconds = _simulate(rate, DELAY_S, persists)
        per_change_set = uploads / (WRITERS * persists)
        model = 1 / (1 + rate * DELAY_S)
        report.add(
            Line(
                f"requests per change set at {arrivals_per_delay:g} persists in a delay, off the model by",
                "at most 10 %",
                abs(per_change_set / model - 1) * 100,
                "%",
                10.0,
                detail=f"measured {per_change_set:.4f}, model {model:.4f}; "
                f"{uploads / seconds:.1f} uploads/s, 1/(d + 1/L) is {1 / (DELAY_S + 1 / rate):.1f}",
            )
        )
    for delay_s in DELAYS_S:
        uploads, seconds = _simulate(PERSISTS_PER_S, delay_s, min(persists, 100))
        usd = settings().prices.usd({"put": uploads}) / seconds * MONTH_S
        report.keep(
            "a month of uploads", "USD", {f"{PERSISTS_PER_S:g} persists a second": Sample([usd])}, delay_s=delay_s
        )


@run_virtual
async def _simulate(rate: float, delay_s: float, persists: int) -> tuple[int, float]:
    """Uploads and virtual seconds for so many persists of each writer, arriving at `rate` in all, and this delay."""
    chance = random.Random(7)
    store = CountingStore(MemoryStore())
    job = settings(persist_delay_s=delay_s, upload=UploadSettings(timeout_s=0.0))
    clock = VirtualClock()

    async def persist_at_random(writer: ChangelogWriter, arrivals: list[float]) -> None:
        async with anyio.create_task_group() as tasks:
            for arrival in arrivals:
                await anyio.sleep(arrival - clock.monotonic())
                from_ = writer.next_sequence_number()
                writer.append(sets_of(columns_of([(0, b"key", b"value")])))
                tasks.start_soon(writer.persist, from_)

    arrivals = [0.0]
    for _ in range(WRITERS * persists - 1):
        arrivals.append(arrivals[-1] + chance.expovariate(rate))
    owners = [chance.randrange(WRITERS) for _ in arrivals]
    async with open_log(job, lambda tasks: PrimaryUploader(store), clock=clock) as open_writer:
        async with anyio.create_task_group() as tasks:
            for number in range(WRITERS):
                own = [at for at, owner in zip(arrivals, owners, strict=True) if owner == number]
                tasks.start_soon(persist_at_random, open_writer(str(number)), own)
        return store.requests["put"], clock.monotonic()
