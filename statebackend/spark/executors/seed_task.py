"""The task of a seed in Spark's Python workers: all rows of one range of key groups become its bases.

    rows of all states -> sorted runs -> looked through for equal keys -> bases in the primary -> one result row

The rows come in a struct for each state, null in the rows of the others, beside the salt of their slot. Rows that do
not fit are told in the result, as no other attempt would find another row; whatever else fails, fails the task.
"""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

import msgspec
import pyarrow as pa

from statebackend import errors
from statebackend._backend.copy_writers import OpenUploader
from statebackend._backend.stores import open_primary, open_threads
from statebackend._checkpoint.materialization.bases import base_segment_bytes
from statebackend._upkeep.offline.offline_commit import UNOBSERVED, open_uploads
from statebackend._upkeep.progress import Meter
from statebackend._upkeep.seeding.arrow_sources import ROWS_AT_ONCE, ArrowRows
from statebackend._upkeep.seeding.seeded_states import Declares, SeededStates
from statebackend._upkeep.seeding.sorted_runs import UNKNOWN_ROWS, SortedRuns, open_runs
from statebackend._upkeep.seeding.source_rows import SourceRows
from statebackend.abc.clock import SystemClock
from statebackend.errors import BatchError, InputError
from statebackend.ids import Base, ClockMark, Epoch, KeyGroupRange, StateDescriptor
from statebackend.settings import Settings
from statebackend.spark.bridge import process_portal
from statebackend.spark.executors.pickling import unpickled
from statebackend.spark.executors.placement import SALT
from statebackend.spark.executors.task_errors import range_failed

_pa: Any = pa  # it ships no types
_UNTOLD: Final = Meter("reading", UNKNOWN_ROWS, lambda _: None)


class SeededFrame(msgspec.Struct, frozen=True):
    """The frame of one state: the names of its columns, and of those of the key."""

    name: str
    columns: tuple[str, ...]
    key: str | tuple[str, ...]


class SeedSpec(msgspec.Struct, frozen=True):
    """The input of a task: the same for every slot. It pickles; the secrets of `settings` do not.

    `descriptors`: the states, as the driver has declared them. `salts`: those of the slots, each of which has the range
    in its place among `owners`. `epoch`: of the claim; without one, rows are only checked.
    """

    settings: Settings
    declares: Declares
    clock: ClockMark | None
    descriptors: tuple[StateDescriptor, ...]
    frames: tuple[SeededFrame, ...]
    salts: tuple[int, ...]
    owners: tuple[KeyGroupRange, ...]
    epoch: Epoch | None
    uploader: OpenUploader | None


class Refusal(msgspec.Struct, frozen=True):
    """An `InputError` on its way to the driver."""

    kind: str
    message: str
    facts: Mapping[str, Any]

    @classmethod
    def of(cls, error: InputError) -> "Refusal":
        """The error, with facts that are text where MessagePack has nothing for them."""
        return cls(type(error).__name__, error.message, msgspec.to_builtins(error.facts, enc_hook=repr))

    def error(self) -> InputError:
        """The error again."""
        found: InputError = getattr(errors, self.kind)(self.message, **self.facts)
        return found


class SeededRange(msgspec.Struct, frozen=True):
    """The result of one task: the bases of its range, or why there are none. `keys` and `rows`: by state."""

    key_groups: KeyGroupRange
    bases: tuple[Base, ...] = ()
    keys: Mapping[str, int] = {}
    rows: Mapping[str, int] = {}
    requests: int = 0
    usd: float = 0.0
    refused: Refusal | None = None


def run(seed_spec: bytes, batches: Iterable[Any]) -> Iterator[Any]:
    """Yield the one result row of a partition; nothing for a partition without rows.

    Raises the `BatchError` of `range_failed`: then what the attempt has stored is deleted, best effort.
    """
    arriving = (batch for batch in batches if batch.num_rows)
    first = next(arriving, None)
    if first is None:
        return
    spec: SeedSpec = unpickled(seed_spec)
    salt = first.column(SALT)[0].as_py()
    key_groups = spec.owners[spec.salts.index(salt)]
    rows = _rows(itertools.chain([first], arriving), salt, spec.frames)
    try:
        result = process_portal().call(partial(_seeded, spec, key_groups, rows))
    except BaseException as error:
        raise range_failed(error, key_groups) from error
    row = _pa.array([msgspec.msgpack.encode(result)], type=_pa.binary())
    yield _pa.RecordBatch.from_arrays([row], names=["result"])


class _FrameRows(ArrowRows):
    """Rows of a frame, which have no order: an error calls one by its key."""

    def row(self, number: int) -> "_FrameRows":
        return _FrameRows(number, self._batch.slice(number, 1), self._key)

    def name_of(self, number: int) -> str:
        names = [self._key] if isinstance(self._key, str) else self._key
        key = [self._batch.column(name)[number].as_py() for name in names]
        return f"that of key {ascii(key[0] if isinstance(self._key, str) else tuple(key))[:80]}"


def _rows(batches: Iterable[Any], salt: int, frames: Sequence[SeededFrame]) -> Iterator[tuple[str, SourceRows]]:
    """The rows of each batch by state. Raises `BatchError` for a row of another slot."""
    for whole in batches:
        for at in range(0, whole.num_rows, ROWS_AT_ONCE):
            batch = whole.slice(at, ROWS_AT_ONCE)
            if (found := batch.column(SALT).unique().to_pylist()) != [salt]:
                raise BatchError(
                    "Spark has put rows of several slots into one partition: please report it", salts=found
                )
            for frame, column in zip(frames, batch.columns, strict=False):  # behind them is the salt
                if column.null_count < len(column):
                    own = column.filter(column.is_valid())
                    yield (
                        frame.name,
                        _FrameRows(0, _pa.RecordBatch.from_arrays(own.flatten(), frame.columns), frame.key),
                    )


async def _seeded(spec: SeedSpec, key_groups: KeyGroupRange, rows: Iterator[tuple[str, SourceRows]]) -> SeededRange:
    settings, clock = spec.settings, SystemClock()
    async with (
        open_threads(settings) as threads,
        open_primary(settings, threads, commits=False, instead=None, clock=clock, observer=UNOBSERVED) as primary,
        open_runs(settings, key_groups, threads) as runs,
    ):
        try:
            await _read(spec, runs, rows)
        except InputError as error:
            return SeededRange(key_groups, refused=Refusal.of(error))
        bases: Sequence[Base] = ()
        if spec.epoch is not None:
            opening = open_uploads(settings, primary.store, spec.epoch, threads, clock=clock, uploader=spec.uploader)
            async with opening as uploads:
                try:
                    bases = await runs.write(uploads, base_segment_bytes(settings.in_flight_bytes_max), lambda _: None)
                except BaseException as error:
                    await uploads.discard_unless_held(error, is_sent=False)
                    raise
        spent = primary.spending.since(Counter())
        return SeededRange(key_groups, tuple(bases), runs.keys, runs.rows, spent.requests.total(), spent.usd)


async def _read(spec: SeedSpec, runs: SortedRuns, rows: Iterator[tuple[str, SourceRows]]) -> None:
    mark = spec.clock
    seeded = await SeededStates.declared(
        spec.declares,
        spec.settings.max_parallelism,
        None if mark is None else mark.now_s,
        "event" if mark is None else mark.kind,
    )
    if seeded.descriptors != spec.descriptors:
        raise InputError(
            "a worker declares other states than the driver: what declares them must do so by itself, and alike",
            declared=[each.name for each in seeded.descriptors],
            declared_by_driver=[each.name for each in spec.descriptors],
        )
    encoders = {frame.name: seeded.encoder(frame.name) for frame in spec.frames}
    await runs.read_mixed(rows, encoders, _UNTOLD)
    await runs.check("refuse")
