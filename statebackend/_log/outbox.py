"""The outbox: rows that a batch put out, from when they are staged until they are known to be published.

    stage -> name them in the commit -> look who owns the job -> publish -> the next commit does not name them

What is staged is immutable, under a name of its own, and means nothing before a commit names it. A commit names what
its own batch put out, and what is left of the commit before. So what the newest commit names may be published or not,
and is published again by whoever opens the job next, before anything newer; what only older ones name is published.

An object that is staged for a commit that is never made is garbage, for a sweep: by its name it is known which epoch
staged it, as of a segment. Executors stage what their tasks put out, each for itself, and the driver names it all.
"""

import itertools
import zlib
from collections.abc import Callable, Sequence
from typing import Final

import anyio
import msgspec

from statebackend._codec.staged import decode_part, encode_part
from statebackend._log.names import OUTBOX
from statebackend._retry import Race, RetryPolicy
from statebackend._tasks import foreign, in_order, in_thread, open_tasks
from statebackend.abc import Buffer, ObjectStore
from statebackend.errors import (
    CorruptObjectError,
    InputError,
    MissingObjectError,
    ObjectNotFoundError,
    UploadError,
)
from statebackend.ids import Handle, SourceMark, StagedOutput
from statebackend.settings import Compression, KiB, MiB, Settings
from statebackend.uploaders.primary import REMOVE_TIMEOUT_S, remove_quietly

PARTS_CONCURRENCY_MAX: Final = 4
"""Parts that are compressed, uploaded or fetched at a time."""
ENCODE_ON_LOOP_BYTES_MAX: Final = 32 * KiB
"""Encoding less than this takes less time than the hop to a thread and back."""


class Output(msgspec.Struct, frozen=True):
    """The rows of one batch, or of one task of it, before they are staged: whole Arrow IPC streams, in order."""

    schema: bytes
    rows: int
    parts: tuple[Buffer, ...] = ()


class Staged(msgspec.Struct, frozen=True):
    """Staged rows: `parts` are objects, or, with an empty key, lie in `inline`, counted from where that begins."""

    schema: bytes
    rows: int
    parts: tuple[Handle, ...] = ()
    inline: tuple[bytes, ...] = ()

    @property
    def uploaded_bytes(self) -> int:
        """Stored size of the parts that are objects."""
        return sum(part.length for part in self.parts if part.key)

    def after(self, offset: int) -> tuple[Handle, ...]:
        """The parts, where so many bytes come before `inline` in the commit that is to carry it."""
        return tuple(
            part if part.key else msgspec.structs.replace(part, offset=offset + part.offset) for part in self.parts
        )


def check_source(output: Output | Staged, source: SourceMark | None) -> SourceMark:
    """Return `source`, or raise `InputError` where there is none."""
    if source is None:
        raise InputError("output is published under its query and batch: give the source", rows=output.rows)
    return source


def joined(staged: Sequence[Staged]) -> Staged:
    """What several tasks of one batch have staged, as one, in their order. The schema is given as by the first.

    All of them mean the same one, though two releases of Arrow may not write it as the same bytes.
    """
    parts: list[Handle] = []
    offset = 0
    for each in staged:
        parts += each.after(offset)
        offset += sum(map(len, each.inline))
    inline = tuple(itertools.chain.from_iterable(each.inline for each in staged))
    return Staged(staged[0].schema, sum(each.rows for each in staged), tuple(parts), inline)


class Outbox:
    """The outbox of one job, for whoever commits to it, or stages for who does. `store` is confined to the job.

    `pending` is what the commit names that the state stands on. `new_name` makes names that tell the epoch.
    """

    def __init__(
        self,
        store: ObjectStore,
        settings: Settings,
        *,
        new_name: Callable[[], str],
        pending: Sequence[StagedOutput] = (),
    ) -> None:
        self._store = store
        self._compression: Compression = settings.compression
        self._inline_bytes_max = settings.inline_bytes_max
        self._policy = RetryPolicy.of(settings.upload)
        self._cpu = anyio.CapacityLimiter(settings.cpu_threads_max)
        self._new_name = new_name
        self._pending = tuple(pending)
        self._at_hand: tuple[SourceMark, tuple[Buffer, ...]] | None = None

    @property
    def pending(self) -> tuple[StagedOutput, ...]:
        """What is committed and not known to be published, oldest first. Each is to be published in this order."""
        return self._pending

    async def stage(self, output: Output) -> Staged:
        """Make rows durable, for a commit to name them; what is small enough is left for the commit to carry.

        That is at most `inline_bytes_max` in all, before compression. Raises `UploadError`. A failed or cancelled
        call leaves parts that are a sweep's to delete.
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
        """The Arrow IPC streams of an output, in order, as they were staged; verified, unless still at hand.

        Raises `MissingObjectError`, `CorruptObjectError` or `StoreError`.
        """
        if self._at_hand is not None and self._at_hand[0] == output.source:
            return self._at_hand[1]
        streams: list[Buffer] = []

        async def keep(_part: Handle, stream: Buffer) -> None:
            streams.append(stream)

        await in_order(output.parts, self._fetch, keep, concurrency_max=PARTS_CONCURRENCY_MAX)
        return tuple(streams)

    def keep_at_hand(self, source: SourceMark, output: Output | Staged) -> None:
        """This is what that batch has staged: `read` need not fetch it. Until it is published.

        Of what tasks have staged that is so only where all of it lies in the commit.
        """
        if isinstance(output, Output):
            self._at_hand = source, output.parts
        elif len(output.inline) == len(output.parts):
            self._at_hand = source, tuple(decode_part(part, "a part at hand") for part in output.inline)

    def committed(self, outbox: Sequence[StagedOutput]) -> None:
        """The commit that the state stands on now names these."""
        self._pending = tuple(outbox)

    def published(self, output: StagedOutput) -> None:
        """It is where it was to go: the next commit does not name it any more. Again is fine."""
        self._pending = tuple(each for each in self._pending if each != output)
        self._at_hand = None

    async def _encode(self, part: Buffer) -> tuple[bytes, int]:
        """The part as it is stored, and its checksum."""
        if len(part) <= ENCODE_ON_LOOP_BYTES_MAX:
            return _encoded(part, self._compression)
        return await in_thread(_encoded, part, self._compression, limiter=self._cpu)

    async def _upload(self, parts: Sequence[Buffer]) -> tuple[Handle, ...]:
        handles: list[Handle] = []

        async def keep(_part: Buffer, handle: Handle) -> None:
            handles.append(handle)

        await in_order(parts, self._upload_one, keep, concurrency_max=PARTS_CONCURRENCY_MAX)
        return tuple(handles)

    async def _upload_one(self, part: Buffer) -> Handle:
        """By the attempts that a segment is given, each under a name of its own; what loses is removed."""
        encoded, checksum = await self._encode(part)

        async def attempt(_number: int) -> Handle:
            handle = Handle(OUTBOX + self._new_name(), 0, len(encoded), checksum)
            try:
                await foreign(self._store.put(handle.key, (encoded,)))
            except BaseException:
                await self._remove(handle)
                raise
            return handle

        timeout_s = self._policy.timeout_s * max(1.0, len(encoded) / MiB)
        policy = msgspec.structs.replace(self._policy, timeout_s=timeout_s)
        async with open_tasks() as tasks:
            race = Race(attempt, policy=policy, discard=self._remove, tasks=tasks)
            try:
                handle, _ = await race.run()
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
        return await in_thread(read_part, data, part, limiter=self._cpu)


def _encoded(part: Buffer, compression: Compression) -> tuple[bytes, int]:
    data = encode_part(part, compression)
    return data, zlib.crc32(data)


def read_part(data: bytes, part: Handle) -> Buffer:
    """The Arrow IPC stream of a part, from the bytes that its handle points to. Raises `CorruptObjectError`."""
    if (len(data), zlib.crc32(data)) != (part.length, part.checksum):
        raise CorruptObjectError(
            "staged output is not what its commit names", object=part.key, offset=part.offset, size=len(data)
        )
    return decode_part(data, part.key)
