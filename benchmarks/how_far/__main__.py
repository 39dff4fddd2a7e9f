"""Prints the tables of `docs/explanation/how-far.md`."""

import statistics
import tempfile
import time
import tracemalloc
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from benchmarks.how_far import one_driver
from benchmarks.how_far.envelope import OWNERS_PER_HOST, Envelope
from benchmarks.how_far.virtual_time import JOB, times_of
from statebackend._codec.commit import Commit, decode_entry, encode_entry
from statebackend._codec.commit_parts import parts_of
from statebackend._log.names import entry_key
from statebackend.settings import KiB, MiB


def coordinator_ms(envelope: Envelope) -> float:
    """CPU milliseconds in which this machine encodes the commit, decodes it and checks it, and finds its parts.

    The least of three.
    """
    times_s: list[float] = []
    for _ in range(3):
        begun_s = time.process_time()
        entry = envelope.commit.entry
        encoded = encode_entry(entry, entry_key(entry.sequence))
        if envelope.reads_base:
            parts_of(encoded.entry, entry_key(entry.sequence), encoded.body)
        times_s.append(time.process_time() - begun_s)
    return min(times_s) * 1e3


def held_bytes(envelope: Envelope) -> int:
    """Memory of a decoded commit and its bytes, as a coordinator holds it."""
    body, key = envelope.commit.body, entry_key(envelope.commit.entry.sequence)
    tracemalloc.start()
    commit = decode_entry(body, key, job=JOB)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(commit, Commit)
    return held + len(body)


def line(envelope: Envelope) -> Sequence[str]:
    """The figures of one job, in the order of `HEAD`."""
    one_gets, one_bytes, one_s = envelope.restore(min(OWNERS_PER_HOST, envelope.owners))
    all_gets, _, all_s = envelope.restore(envelope.owners)
    requests = envelope.requests()
    return [
        f"{envelope.owners:,}",
        f"{envelope.handles}",
        f"{envelope.commit_bytes / KiB:,.0f} KiB",
        f"{coordinator_ms(envelope):,.1f} ms",
        f"{held_bytes(envelope) / MiB:,.1f} MiB",
        f"{envelope.handed_out_bytes / KiB:,.0f} KiB",
        f"{envelope.base_read_bytes_per_s() / MiB:,.1f} MiB/s",
        f"{envelope.copied_bytes_per_s() / MiB:,.1f} MiB/s",
        f"{envelope.log_bytes() / 1024 / MiB:,.1f} GiB",
        f"{requests['put']:,.1f}",
        f"{requests['get']:,.1f}",
        f"{envelope.usd_month():,.0f} USD",
        f"{one_gets:,} GETs, {one_bytes / 1024 / MiB:,.1f} GiB, {one_s:,.1f} s",
        f"{all_gets:,} GETs, {all_s:,.1f} s",
    ]


HEAD: Final = (
    "owners",
    "change sets each",
    "commit",
    "CPU of a commit",
    "coordinator holds",
    "goes along with a task",
    "tasks get of commits",
    "hosts with copies read",
    "log of an hour",
    "PUTs a second",
    "GETs a second",
    "a month of requests",
    "a host restored",
    "all restored",
)


TIMES_HEAD: Final = (
    "owners",
    "change sets each",
    "a batch, in the middle",
    "at most",
    "a host restored",
    "all restored",
)


def times_line(owners: int, batches: int) -> Sequence[str]:
    """The virtual times of one job, in the order of `TIMES_HEAD`."""
    times = times_of(owners, batches, 1000, lost=min(OWNERS_PER_HOST, owners))
    seconds = (statistics.median(times.batches), max(times.batches), times.host, times.job)
    return [f"{owners:,}", f"{batches}", *(f"{each:.2f} s" for each in seconds)]


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def main() -> None:
    """Print the tables."""
    with tempfile.TemporaryDirectory() as directory:
        measured = one_driver.measured(Path(directory))
    print(table(one_driver.HEAD, (one_driver.line(keys, measured) for keys in one_driver.KEYS)))
    jobs = [
        Envelope(owners=owners, keys=owners * 1_000_000, handles=handles, changes=owners * 50)
        for owners in (16, 256, 1000)
        for handles in (32, 256)
    ]
    print(table(HEAD, map(line, jobs)))
    print(table(TIMES_HEAD, (times_line(owners, batches) for owners in (16, 256, 1000) for batches in (8, 32))))


if __name__ == "__main__":
    main()
