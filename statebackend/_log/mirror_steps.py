"""The log of a mirror: an object per step in the job's primary, made before the step is taken.

    key := "mirrors/" name "/" number         12 digits        content: `MirrorStep` in JSON

Only the newest two are kept. The newest says where the table stands, or will stand once the step is taken.
"""

from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from functools import partial
from typing import Final, Literal

import msgspec

from statebackend._log.names import MIRRORS, mirror_step_key, mirror_step_of
from statebackend._tasks import in_order
from statebackend.abc import Capability, ObjectStore
from statebackend.errors import CorruptObjectError, InputError, ObjectExistsError, ObjectNotFoundError

Form = Literal["log", "table"]
Kind = Literal["whole", "changes", "undo"]

KEPT: Final = 2
NEW: Final = "it is new"
"""The reason of a step before which no other one was done."""


class MirrorStep(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One step of a mirror. `number` counts them. `mirror_id`: random, of all steps of one mirror.

    `kind`: "whole", the state at a commit; "changes", what some commits changed; "undo", what the first commit of a new
    branch changed, and what was `undone`. `sequence`, `stamp`, `checkpoint_id`, `batch_id`, `committed_at_s`: of the
    commit that the table has after it. `before`: the one before its commits, which are `sequences`. `undone`: the
    commits that were abandoned, whose changes are taken back.
    `generation`: the number of the last whole step. `reason`: why it is whole. `declared`: what tells the state's
    declaration. `key_type`: of the key column, as a schema of Arrow's in base64. `done`: the table has it. `refused`:
    it cannot hold a value. `hold_s`: how long a sweep may be held up from `at_s` on.
    """

    number: int
    mirror_id: str
    job: str
    state: str
    target: str
    form: Form
    kind: Kind
    generation: int
    sequence: int
    stamp: str
    checkpoint_id: int
    committed_at_s: float
    max_parallelism: int
    declared: str
    at_s: float
    batch_id: int | None = None
    before: int | None = None
    sequences: tuple[int, ...] = ()
    undone: tuple[int, ...] = ()
    reason: str = ""
    key_type: str = ""
    key_as_json: bool = False
    done: bool = False
    refused: bool = False
    hold_s: float = 0.0

    @property
    def has_name(self) -> bool:
        """True if the mirror's name is taken by it: some step of it was done. One that never was may be a slip."""
        return self.done or self.reason != NEW

    @property
    def has_sequence(self) -> int:
        """The newest commit that the table has for certain."""
        return self.sequence if self.done else -1 if self.before is None else self.before


class MirrorLog:
    """The steps of the mirror `name` in the job's part of a primary."""

    def __init__(self, store: ObjectStore, name: str) -> None:
        if Capability.LIST not in store.capabilities:
            raise InputError("a mirror needs a primary that can list its objects: it finds its own steps by that")
        self._store = store
        self._name: Final = name

    async def newest(self) -> MirrorStep | None:
        """The newest step, `None` before the first one; what nobody needs is forgotten. Raises `CorruptObjectError`."""
        while True:
            numbers = await self._numbers()
            if not numbers:
                return None
            for number in numbers[:-KEPT]:  # of processes that were killed before they did
                await self._store.delete(self._key(number))
            try:
                return await self._load(numbers[-1])
            except ObjectNotFoundError:
                continue  # another process has gone on, and deleted it

    async def write_down(self, step: MirrorStep) -> MirrorStep:
        """Make the step. Returns it, or that which another process has made under its number, or under a later one.

        While this process slept, others may have made the step, gone on, and forgotten it: so its number may be free.
        """
        try:
            await self._store.put_if_absent(self._key(step.number), [msgspec.json.encode(step)])
        except ObjectExistsError:
            return await self._load(step.number)
        is_newest = (await self._numbers())[-1:] in ([], [step.number])
        return step if is_newest else await self.newest() or step

    async def done(self, step: MirrorStep) -> MirrorStep:
        """Note that the table has it, perhaps as of a later commit that did not change it; forget what nobody needs."""
        step = msgspec.structs.replace(step, done=True)
        calls = [partial(self._store.put, self._key(step.number), [msgspec.json.encode(step)])]
        if step.number > KEPT:  # with the step itself, the one before it is done: nobody asks for older ones
            calls.append(partial(self._store.delete, self._key(step.number - KEPT)))
        await in_order(calls, lambda call: call(), _nothing, concurrency_max=KEPT)
        return step

    async def refused(self, step: MirrorStep) -> None:
        """Note that the table cannot hold a value of the step. With a newer commit another step takes its place."""
        await self._store.put(
            self._key(step.number), [msgspec.json.encode(msgspec.structs.replace(step, refused=True))]
        )

    async def _numbers(self) -> list[int]:
        keys = [info.key async for info in self._store.list(f"{MIRRORS}{self._name}/")]
        return sorted(found[1] for key in keys if (found := mirror_step_of(key)) is not None)

    async def _load(self, number: int) -> MirrorStep:
        key = self._key(number)
        return decode_step(await self._store.get(key), key)

    def _key(self, number: int) -> str:
        return mirror_step_key(self._name, number)


async def newest_steps(store: ObjectStore, keys: Iterable[str]) -> AsyncIterator[tuple[str, MirrorStep]]:
    """The name and the newest step of each mirror that has one among the `keys`; none of one that has gone on since."""
    newest: dict[str, int] = {}
    for name, number in filter(None, map(mirror_step_of, keys)):
        newest[name] = max(number, newest.get(name, 0))
    for name, number in newest.items():
        key = mirror_step_key(name, number)
        with suppress(ObjectNotFoundError):
            yield name, decode_step(await store.get(key), key)


async def _nothing(_call: object, _result: None) -> None:
    pass


def decode_step(body: bytes, key: str) -> MirrorStep:
    """The step that lies at `key`. Raises `CorruptObjectError`."""
    try:
        return msgspec.json.decode(body, type=MirrorStep)
    except (msgspec.DecodeError, ValueError) as error:
        raise CorruptObjectError(
            "a mirror's step does not decode: delete the object, and the mirror's table", object=key
        ) from error
