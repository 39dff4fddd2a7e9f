"""How far a job can grow: what a batch a second takes with up to 1,000 owners and a thousand million keys.

    python -m benchmarks.how_far            the tables of docs/explanation/how-far.md, in a minute

Sizes come from commits that are really encoded, prices from `Prices`, times from the library's own code in virtual
time: it runs on a store with S3's published limits, so they are those of requests and nothing else. CPU is measured
apart, on this machine. What is left is arithmetic, in `Envelope`.
"""

import math
import pickle
import random
import statistics
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import anyio

import statebackend as sb
from benchmarks.owners import checkpoint
from statebackend._codec.commit import Commit, EncodedEntry, decode_entry, encode_entry
from statebackend._codec.commit_parts import CommitParts, parts_of
from statebackend._cost import MONTH_S
from statebackend._log.names import data_name, entry_key
from statebackend.abc import Body, Capability, ObjectInfo
from statebackend.ids import (
    Base,
    ChangeSetHandle,
    CheckpointId,
    CommitSequence,
    Epoch,
    Handle,
    KeyGroupRange,
    RangeState,
    SequenceNumber,
    StateDescriptor,
)
from statebackend.objectstore import MemoryStore
from statebackend.owners import OwnerBackend, key_group
from statebackend.settings import KiB, MiB, Prices
from statebackend.testing.virtual_time import VirtualClock, run_virtual

JOB: Final = "how-far"
PUTS_PER_S: Final = 3_500
GETS_PER_S: Final = 5_500
"""What S3 promises for one prefix."""
LATENCY_S: Final = 0.100
LATENCY_SIGMA: Final = 0.6
"""S3 speaks of 100 to 200 ms for small objects. With this spread one request in a hundred takes 0.4 s, and the slowest
of a thousand 0.65 s."""
STREAM_BYTES_PER_S: Final = 85 * MiB
"""One request's share of the network, as S3's guide gives it."""
HOST_BYTES_PER_S: Final = 1_200 * MiB
OWNERS_PER_HOST: Final = 10
KEY_BYTES: Final = 72.5
"""Stored bytes per key of columnar state, measured (`docs/explanation/how-far.md`)."""
CHANGE_BYTES: Final = 30
"""Stored bytes per change."""
INLINE_SHARE_BYTES: Final = 4 * KiB
"""What a range may always put into the commit: `_ranges/attempt.py`."""
SENT_ALONG_BYTES_MAX: Final = 256 * KiB
"""Of a larger commit each task reads its own part: `spark/executors/batch_job.py`."""
SEGMENT_BYTES: Final = 16 * MiB
APPLY_S: Final = 0.6e-6
"""CPU for a change or an entry that is replayed, measured."""
PRICES: Final = Prices()
RETAINED_S: Final = 3600.0
"""Entries of the log are kept this long, and swept this often."""


@dataclass(frozen=True)
class Envelope:
    """One job. `handles`: change sets that the commit lists for each owner, on average."""

    owners: int
    keys: int
    handles: int
    changes: int
    """Changed keys per batch."""
    batch_s: float = 1.0
    base_every_s: float = 600.0
    prices: Prices = PRICES

    @cached_property
    def commit(self) -> EncodedEntry[Commit]:
        """A commit of this size."""
        return commit_of(self.owners, self.handles, bases=self.base_segments, inline=self.is_inline)

    @property
    def commit_bytes(self) -> int:
        """Its bytes, with the changes that it carries."""
        return len(self.commit.body) + (self.changed_bytes * self.owners if self.is_inline else 0)

    @property
    def changed_bytes(self) -> int:
        """Changes of one owner in one batch."""
        return math.ceil(self.changes / self.owners * CHANGE_BYTES)

    @property
    def is_inline(self) -> bool:
        """True if the changes of a batch travel in the commit."""
        return self.changed_bytes <= INLINE_SHARE_BYTES

    @property
    def state_bytes(self) -> float:
        """All of the state, as bases."""
        return self.keys * KEY_BYTES

    @property
    def base_segments(self) -> int:
        """Segments of the bases of one owner."""
        return math.ceil(self.state_bytes / self.owners / SEGMENT_BYTES)

    @property
    def hosts(self) -> int:
        """Hosts for the owners."""
        return math.ceil(self.owners / OWNERS_PER_HOST)

    @property
    def reads_base(self) -> bool:
        """True if each task reads its part of the commit that it continues from the primary."""
        return self.commit_bytes > SENT_ALONG_BYTES_MAX

    @cached_property
    def parts(self) -> CommitParts:
        """The parts of the commit."""
        return parts_of(self.commit.entry, entry_key(self.commit.entry.sequence), self.commit.body)

    @property
    def handed_out_bytes(self) -> int:
        """What goes along with each task: the commit, or where its parts lie."""
        return len(pickle.dumps(self.parts)) if self.reads_base else self.commit_bytes

    def requests(self) -> Mapping[str, float]:
        """Requests a second: the batches, the bases, and the sweeps."""
        batches = 1 / self.batch_s
        segments = 0 if self.is_inline else self.owners * batches
        bases = self.owners * self.base_segments / self.base_every_s
        made = batches + segments + bases
        return {
            "put": made + batches / 64,
            "get": (self.owners * batches if self.reads_base else 0) + batches,
            "list": 2 * made / 1000,
        }

    def usd_month(self) -> float:
        """The price of a month of these."""
        return sum(count * MONTH_S * self.prices.usd({method: 1}) for method, count in self.requests().items())

    def base_bytes_per_s(self) -> float:
        """Written by all owners together, if every key group changes within `base_every_s`."""
        return self.state_bytes / self.base_every_s

    def log_bytes(self) -> float:
        """What the log holds: the commits of an hour. A sweep reads them."""
        return self.commit_bytes * RETAINED_S / self.batch_s

    def base_read_bytes_per_s(self) -> float:
        """What all tasks together receive to know their base, without local copies."""
        parts = sum(length for _, length, _ in self.parts.places) if self.reads_base else 0
        return (self.handed_out_bytes * self.owners + parts) / self.batch_s

    def copied_bytes_per_s(self) -> float:
        """What is read in addition where hosts have local copies: one task of each copies a commit with changes."""
        return self.commit_bytes * self.hosts / self.batch_s if self.reads_base and self.is_inline else 0.0

    def restore(self, owners: int) -> tuple[int, float, float]:
        """GETs, bytes and seconds to restore so many owners, each host its share, with eight cores and no copies."""
        each_bytes = self.state_bytes / self.owners + self.handles * self.changed_bytes
        each_gets = self.base_segments + self.handles + 1
        share = math.ceil(owners / max(1, min(self.hosts, owners)))
        network_s = share * each_bytes / HOST_BYTES_PER_S
        cpu_s = share * self.keys / self.owners * APPLY_S / min(8, share)
        latency_s = math.ceil(share * each_gets / 64) * LATENCY_S
        limit_s = owners * each_gets / GETS_PER_S
        return owners * each_gets, owners * each_bytes, max(network_s, cpu_s, latency_s, limit_s)


def commit_of(owners: int, handles: int, *, bases: int = 1, inline: bool = True) -> EncodedEntry[Commit]:
    """A commit of so many owners, each with so many change sets, `inline` in earlier commits, and segments of bases."""
    chance = random.Random(1)

    def segment(number: int) -> Handle:
        name = data_name(Epoch(1), number, f"{chance.getrandbits(128):032x}", position=number)
        return Handle(f"segments/{name}", 0, chance.randrange(2**20), chance.getrandbits(32))

    ranges = tuple(
        RangeState(
            KeyGroupRange(owner * 32, owner * 32 + 31),
            tuple(
                ChangeSetHandle(
                    Handle(entry_key(999_000 + number), 0, chance.randrange(2**20), chance.getrandbits(32))
                    if inline
                    else segment(1_000_000 + number),
                    f"{owner * 32}-{owner * 32 + 31}-{chance.getrandbits(64):016x}",
                    SequenceNumber(number),
                    0,
                    chance.randrange(2**16),
                    KeyGroupRange(owner * 32, owner * 32 + 31),
                    chance.randrange(2**12),
                )
                for number in range(handles)
            ),
            tuple(Base(segment(1_000_000), (KeyGroupRange(owner * 32, owner * 32 + 31),), 32) for _ in range(bases)),
            history=chance.randbytes(16),
        )
        for owner in range(owners)
    )
    commit = Commit(
        job=JOB,
        sequence=CommitSequence(1_000_000),
        checkpoint_id=CheckpointId(1_000_000),
        epoch=Epoch(1),
        parent=CommitSequence(999_999),
        stamp="0" * 32,
        max_parallelism=owners * 32,
        ranges=ranges,
        states=(StateDescriptor(0, "totals", "columns", "int"),),
    )
    return encode_entry(commit, entry_key(commit.sequence))


# ---------------------------------------------------------------------------------------------------- in virtual time


class S3InVirtualTime(MemoryStore):
    """A store whose requests take the time of S3's, with its tails, and queue where S3 would throttle them."""

    def __init__(self, seed: int) -> None:
        super().__init__(clock=VirtualClock())
        self._chance = random.Random(seed)
        self._free_s = {"put": 0.0, "get": 0.0}

    @property
    def capabilities(self) -> frozenset[Capability]:
        """As S3."""
        return frozenset(Capability)

    async def put(self, key: str, body: Body) -> None:
        """As the store, later."""
        await self._travel("put", sum(map(len, body)))
        await super().put(key, body)

    async def put_if_absent(self, key: str, body: Body) -> None:
        """As the store, later."""
        await self._travel("put", sum(map(len, body)))
        await super().put_if_absent(key, body)

    async def get(self, key: str) -> bytes:
        """As the store, later."""
        await self._travel("get", 0)
        content = await super().get(key)
        await anyio.sleep(len(content) / STREAM_BYTES_PER_S)
        return content

    async def head(self, key: str) -> ObjectInfo | None:
        """As the store, later."""
        await self._travel("get", 0)
        return await super().head(key)

    async def delete(self, key: str) -> None:
        """As the store, later."""
        await self._travel("put", 0)
        await super().delete(key)

    async def list(self, prefix: str) -> AsyncIterator[ObjectInfo]:
        """As the store, a thousand objects at a time."""
        number = 0
        async for info in super().list(prefix):
            if number % 1000 == 0:
                await self._travel("get", 0)
            number += 1
            yield info

    async def _travel(self, kind: str, size_bytes: int) -> None:
        """Wait for a turn under S3's limit, then for the answer."""
        now_s = anyio.current_time()
        turn_s = max(now_s, self._free_s[kind])
        self._free_s[kind] = turn_s + 1 / (PUTS_PER_S if kind == "put" else GETS_PER_S)
        latency_s = LATENCY_S * math.exp(LATENCY_SIGMA * self._chance.gauss(0, 1))
        await anyio.sleep(turn_s - now_s + latency_s + size_bytes / STREAM_BYTES_PER_S)


@run_virtual
async def batches_s(owners: int, batches: int, value_bytes: int, seed: int = 1) -> Sequence[float]:
    """Virtual seconds of some batches of so many owners: each uploads its changes, then one commits."""
    store, times_s = S3InVirtualTime(seed), list[float]()
    settings = sb.Settings(
        job=JOB, primary="memory://how-far", max_parallelism=owners, persist_delay_s=0.0, inline_bytes_max=4 * KiB
    )
    async with AsyncExitStack() as stack:
        coordinator = await stack.enter_async_context(
            sb.owners.open_coordinator(settings, store=store, clock=VirtualClock())
        )
        opened = [
            await stack.enter_async_context(
                sb.open_backend(settings, key_groups=KeyGroupRange(each, each), store=store, clock=VirtualClock())
            )
            for each in range(owners)
        ]
        values = [_setting(owner, key) for owner, key in zip(opened, _keys_of(owners), strict=True)]
        for number in range(batches):
            for set_value in values:
                set_value(random.Random(number).randbytes(value_bytes))
            begun_s = anyio.current_time()
            await checkpoint(coordinator, opened)
            times_s.append(anyio.current_time() - begun_s)
    return times_s


def _setting(owner: OwnerBackend, key: int) -> Callable[[bytes], None]:
    """Sets the only value of an owner."""
    values = owner.value_state("values", bytes)

    def set_value(value: bytes) -> None:
        values[key] = value

    return set_value


def _keys_of(groups: int) -> Sequence[int]:
    """A key in each key group."""
    found: dict[int, int] = {}
    key = 0
    while len(found) < groups:
        found.setdefault(key_group(key, groups), key)
        key += 1
    return [found[group] for group in range(groups)]


# ------------------------------------------------------------------------------------------------------------- tables


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


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def main() -> None:
    """Print the tables."""
    jobs = [
        Envelope(owners=owners, keys=owners * 1_000_000, handles=handles, changes=owners * 50)
        for owners in (16, 256, 1000)
        for handles in (32, 256)
    ]
    print(table(HEAD, map(line, jobs)))
    for owners in (16, 256, 1000):
        times_s = sorted(batches_s(owners, 8, 1000))
        print(f"{owners} owners: a batch takes {statistics.median(times_s):.2f} s, at most {times_s[-1]:.2f} s")


if __name__ == "__main__":
    main()
