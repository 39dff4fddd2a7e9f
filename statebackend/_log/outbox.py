"""The outbox: the output rows of a batch, from when they are staged until they are known to be published.

    stage -> name them in the commit -> check who owns the job -> publish -> the next commit does not name them

Staged rows are immutable, under names of their own, and mean nothing before a commit names them. A commit names the
output of its own batch, and those outputs of the commit before that are not known to be published. So an output that
the newest commit names may be published or not, and the next process to open the job publishes it again, before
anything newer. An output that only older commits name is published.

Rows that are staged for a commit that is never made are garbage for a sweep: their names tell the epoch that staged
them, as those of segments do. Executors stage the output of their tasks, each its own, and the driver names it all.
"""

import itertools
import zlib
from collections.abc import Callable, Container, Sequence
from typing import Final

import msgspec

from statebackend._codec.staged import decode_part, encode_part
from statebackend._log.names import OUTBOX
from statebackend._retry import Race, RetryPolicy
from statebackend._tasks import foreign, in_order, open_tasks
from statebackend._threads import WorkerThreads
from statebackend.abc import Buffer, ObjectStore
from statebackend.errors import (
    CorruptObjectError,
    InputError,
    MissingObjectError,
    ObjectNotFoundError,
    StoreFullError,
    UploadError,
)
from statebackend.ids import Handle, SourceMark, StagedOutput
from statebackend.settings import Compression, KiB, MiB
from statebackend.uploaders.primary import REMOVE_TIMEOUT_S, remove_quietly

PARTS_CONCURRENCY_MAX: Final = 4
"""How many parts are compressed, uploaded or fetched at a time."""
ENCODE_ON_LOOP_BYTES_MAX: Final = 32 * KiB
"""Encoding less than this takes less time than the hop to a thread and back."""


class Output(msgspec.Struct, frozen=True):
    """The output rows of a batch, or of one of its tasks, before they are staged: whole Arrow IPC streams, in order."""

    schema: bytes
    rows: int
    parts: tuple[Buffer, ...] = ()


class Staged(msgspec.Struct, frozen=True):
    """Staged rows. A part is an object, or has an empty key and lies in `inline`, at its offset from the first byte."""

    schema: bytes
    rows: int
    parts: tuple[Handle, ...] = ()
    inline: tuple[bytes, ...] = ()

    @property
    def uploaded_bytes(self) -> int:
        """Stored bytes of the parts that are objects."""
        return sum(part.length for part in self.parts if part.key)

    def after(self, offset: int) -> tuple[Handle, ...]:
        """The parts, for a commit that carries `offset` bytes before `inline`."""
        return tuple(
            part if part.key else msgspec.structs.replace(part, offset=offset + part.offset) for part in self.parts
        )


def check_source(output: Output | Staged, source: SourceMark | None) -> SourceMark:
    """Return `source`, or raise `InputError` if there is none."""
    if source is None:
        raise InputError("output is published under its query and batch: give the source", rows=output.rows)
    return source


def joined(staged: Sequence[Staged]) -> Staged:
    """Join the rows that several tasks of one batch have staged, in order. The schema is the first one.

    All tasks have the same schema, but two releases of Arrow may write it as different bytes, so they are not compared.
    """
    parts: list[Handle] = []
    offset = 0
    for each in staged:
        parts += each.after(offset)
        offset += sum(map(len, each.inline))
    inline = tuple(itertools.chain.from_iterable(each.inline for each in staged))
    return Staged(staged[0].schema, sum(each.rows for each in staged), tuple(parts), inline)


class JobOutbox:
    """The outbox of one job, for the process that commits, or for one that stages rows for it.

    `store` is confined to the job. `pending`: the outputs that the commit names from which the state continues.
    `new_name` makes names that tell the epoch. Parts of at most `inline_bytes_max` in all are left for the commit to
    carry; `policy` is for uploading the others.
    """

    def __init__(
        self,
        store: ObjectStore,
        *,
        policy: RetryPolicy,
        compression: Compression,
        inline_bytes_max: int,
        threads: WorkerThreads,
        new_name: Callable[[], str],
        pending: Sequence[StagedOutput] = (),
    ) -> None:
        self._store = store
        self._policy = policy
        self._compression: Compression = compression
        self._inline_bytes_max = inline_bytes_max
        self._threads = threads
        self._new_name = new_name
        self._pending = tuple(pending)
        self._at_hand: tuple[StagedOutput, tuple[Buffer, ...]] | None = None

    @property
    def pending(self) -> tuple[StagedOutput, ...]:
        """The outputs that are committed and not known to be published, oldest first: publish them in this order."""
        return self._pending

    async def stage(self, output: Output) -> Staged:
        """Make rows durable, for a commit to name them; or leave them for it to carry, if they are small enough.

        Their size counts before compression. Raises `UploadError`. A failed or cancelled call may leave parts, which a
        sweep deletes.
        """
        if sum(map(len, output.parts)) > self._inline_bytes_max:
            return Staged(output.schema, output.rows, await self._upload(output.parts))
        encoded = [await self._encode(part) for part in output.parts]
        inline = tuple(data for data, _ in encoded)
        offsets = itertools.accumulate(map(len, inline), initial=0)
        parts = tuple(
            Handle("", offset, len(data), checksum) for offset, (data, checksum) in zip(offsets, encoded, strict=False)
        )
        return Staged(output.schema, output.rows, parts, inline)

    async def read(self, output: StagedOutput) -> tuple[Buffer, ...]:
        """Return the Arrow IPC streams of an output, in order, as they were staged; verified if they are fetched.

        Raises `MissingObjectError`, `CorruptObjectError` or `StoreError`.
        """
        if self._at_hand is not None and self._at_hand[0] == output:
            return self._at_hand[1]
        streams: list[Buffer] = []

        async def keep(_part: Handle, stream: Buffer) -> None:
            streams.append(stream)

        await in_order(output.parts, self._fetch, keep, concurrency_max=PARTS_CONCURRENCY_MAX)
        return tuple(streams)

    def keep_at_hand(self, committed: StagedOutput, output: Output | Staged) -> None:
        """Hold the staged rows of a committed output in memory until they are published, so that `read` is free.

        Rows that tasks have staged are held only if the commit carries all of them: the others are not in this process.
        """
        if isinstance(output, Output):
            self._at_hand = committed, output.parts
        elif len(output.inline) == len(output.parts):
            self._at_hand = committed, tuple(decode_part(part, "a part at hand") for part in output.inline)

    def committed(self, outbox: Sequence[StagedOutput]) -> None:
        """Take over the outputs that the commit names on which the state stands now."""
        self._pending = tuple(outbox)

    def published(self, output: StagedOutput) -> None:
        """Note that the output was published: the next commit does not name it. Calling twice is fine."""
        self._pending = tuple(each for each in self._pending if each != output)
        self._at_hand = None

    async def leave(self, keys: Container[str]) -> None:
        """Copy what is pending and lies in objects of these keys into objects of its own, for the next commit to name.

        As `read` and `stage`.
        """
        moved: list[StagedOutput] = []
        for output in self._pending:
            if any(part.key in keys for part in output.parts):
                parts = await self._upload(await self.read(output))
                moved.append(msgspec.structs.replace(output, parts=parts))
            else:
                moved.append(output)
        self._pending = tuple(moved)

    async def _encode(self, part: Buffer) -> tuple[bytes, int]:
        """Return the part as it is stored, and its checksum."""
        if len(part) <= ENCODE_ON_LOOP_BYTES_MAX:
            return _encoded(part, self._compression)
        return await self._threads.cpu(_encoded, part, self._compression)

    async def _upload(self, parts: Sequence[Buffer]) -> tuple[Handle, ...]:
        handles: list[Handle] = []

        async def keep(_part: Buffer, handle: Handle) -> None:
            handles.append(handle)

        await in_order(parts, self._upload_one, keep, concurrency_max=PARTS_CONCURRENCY_MAX)
        return tuple(handles)

    async def _upload_one(self, part: Buffer) -> Handle:
        """Upload by hedged attempts, as a segment is; each has a name of its own, so a loser can be removed safely."""
        encoded, checksum = await self._encode(part)

        async def attempt(_number: int) -> Handle:
            handle = Handle(OUTBOX + self._new_name(), 0, len(encoded), checksum)
            try:
                await foreign(self._store.put(handle.key, (encoded,)))
            except BaseException:
                await self._remove(handle)  # it may have been made; only a sweep would delete it otherwise
                raise
            return handle

        # The timeout is for a segment of about a MiB: a larger part is late only in proportion.
        timeout_s = self._policy.timeout_s * max(1.0, len(encoded) / MiB)
        policy = msgspec.structs.replace(self._policy, timeout_s=timeout_s)
        async with open_tasks() as tasks:
            race = Race(attempt, policy=policy, discard=self._remove, tasks=tasks)
            try:
                handle, _ = await race.run()
            except StoreFullError:
                raise
            except Exception as error:
                raise UploadError("the rows of a batch could not be staged", size_bytes=len(encoded)) from error
        return handle

    async def _remove(self, part: Handle) -> None:
        await remove_quietly(self._store, part.key, timeout_s=REMOVE_TIMEOUT_S)

    async def _fetch(self, part: Handle) -> Buffer:
        try:
            data = await self._store.get_range(part.key, part.offset, part.length)
        except ObjectNotFoundError as error:
            raise MissingObjectError("a commit names staged output that is gone", object=part.key) from error
        return await self._threads.cpu(read_part, data, part)


def _encoded(part: Buffer, compression: Compression) -> tuple[bytes, int]:
    data = encode_part(part, compression)
    return data, zlib.crc32(data)


def read_part(data: bytes, part: Handle) -> Buffer:
    """Return the Arrow IPC stream of a part, from the bytes that its handle points to. Raises `CorruptObjectError`."""
    if (len(data), zlib.crc32(data)) != (part.length, part.checksum):
        raise CorruptObjectError(
            "staged output is not what its commit names", object=part.key, offset=part.offset, size=len(data)
        )
    return decode_part(data, part.key)
