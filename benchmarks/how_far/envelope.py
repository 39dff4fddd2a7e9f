"""One job at its size: what it stores, asks for and pays, by arithmetic from commits that are really encoded."""

import math
import pickle
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from benchmarks.how_far.virtual_time import GETS_PER_S, JOB, LATENCY_S
from statebackend._checkpoint.put_budget import MONTH_S
from statebackend._codec.commit import Commit, EncodedEntry, encode_entry
from statebackend._codec.commit_parts import CommitParts, parts_of
from statebackend._log.names import data_name, entry_key
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
from statebackend.settings import KiB, MiB, Prices

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
