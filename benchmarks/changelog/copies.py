"""Both copies against the primary alone, with a primary 20 ms away.

Envelope. The local copy is written while the primary is waited for: a few milliseconds within twenty. Whatever is over
1.0x is the CPU of the second write on the same cores.
"""

import time
from collections.abc import Callable

import anyio
from anyio.abc import TaskGroup

from benchmarks.changelog.parts import LateStore, columns_of, directory, made_up, open_log, sets_of, settings
from benchmarks.contest import Line, Report, ratio
from statebackend import StateChangeUploader
from statebackend.objectstore import LocalStore, MemoryStore
from statebackend.uploaders import DuplicatingUploader, PrimaryUploader

PERSISTS, CHANGES = 40, 200
LATENCY_S = 0.020


def run(report: Report) -> None:
    """The price of the second copy."""

    def one() -> float:
        return anyio.run(_persist_often, lambda tasks: PrimaryUploader(LateStore(MemoryStore(), LATENCY_S)))

    def both() -> float:
        with directory() as path:
            return anyio.run(
                _persist_often,
                lambda tasks: DuplicatingUploader(
                    LateStore(MemoryStore(), LATENCY_S),
                    LocalStore(path),
                    secondary_grace_s=5,
                    dropped=lambda name, reason: None,
                    tasks=tasks,
                ),
            )

    samples = report.contest("persists", "s", {"both copies": both, "primary only": one})
    overhead = ratio(samples["both copies"], samples["primary only"])
    report.add(
        Line(
            "both copies over the primary alone, 20 ms away",
            "at most 1.10x",
            overhead.median,
            "x",
            1.10,
            detail=f"seconds for {PERSISTS} persists: both {samples['both copies']}, one {samples['primary only']}",
        )
    )


async def _persist_often(open_uploader: Callable[[TaskGroup], StateChangeUploader]) -> float:
    changes = made_up(CHANGES)
    async with open_log(settings(persist_delay_s=0), open_uploader) as open_writer:
        writer = open_writer("log")
        begun = time.perf_counter()
        for _ in range(PERSISTS):
            from_ = writer.next_sequence_number()
            writer.append(sets_of(columns_of(changes)))
            await writer.persist(from_)
        return time.perf_counter() - begun
