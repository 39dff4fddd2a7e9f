"""Reads a key's history on in a mirror's log, behind the oldest commit that is kept.

Only the newest generation is read: what lies before it may have been changed by somebody, or erased.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from statebackend._codec.plain import plain
from statebackend._columns.arrow import RecordBatch, pc
from statebackend._log.mirror_steps import MirrorLog, MirrorStep
from statebackend._mirroring.rows import shown_key
from statebackend._mirroring.target import (
    BATCH_ID,
    BEGIN,
    CHECKPOINT_ID,
    COMMITTED_AT,
    GENERATION,
    GONE,
    OP,
    SNAPSHOT,
    MirrorTarget,
)
from statebackend._reading.reading_reports import KeyChange, KeyHistory
from statebackend._reading.rows.layouts import KEY, KEY_GROUP, VALUE
from statebackend._tables.key_groups import key_group
from statebackend._upkeep.job_primary import open_job_primary
from statebackend.abc import ObjectStore
from statebackend.errors import CheckpointNotFoundError, InputError
from statebackend.ids import Key, SourceMark
from statebackend.settings import Settings

_OURS: Final = frozenset({GENERATION, OP, CHECKPOINT_ID, BATCH_ID, COMMITTED_AT, KEY_GROUP, KEY})
UNKNOWN: Final = -1
"""The place in the log of a commit that only a mirror tells of."""


async def older_changes(
    settings: Settings, name: str, target: MirrorTarget, found: KeyHistory, key: Key, *, store: ObjectStore | None
) -> KeyHistory:
    """The history with the changes that the mirror `name` has written to its log before it.

    Raises `InputError` for a mirror that the job does not have, or that is no log; `CheckpointNotFoundError` where its
    log ends before the history begins; and what reading the target raises.
    """
    async with open_job_primary(settings, store) as primary:
        step = await MirrorLog(primary.store, name).newest()
    if step is None or (step.state, step.form) != (found.state, "log"):
        raise InputError("the job has no mirror of that name with a log of that state", name=name, state=found.state)
    if step.checkpoint_id < found.checkpoint_id:
        raise CheckpointNotFoundError(
            "the mirror's log ends before what is kept begins: bring it up to date, and sooner the next time",
            name=name,
            checkpoint_id_mirrored=step.checkpoint_id,
            checkpoint_id=found.checkpoint_id,
        )
    rows: list[Mapping[str, Any]] = []
    async with target.opened(settings):
        mark = await target.find()
        if mark.is_empty or mark.mirror_id not in (None, step.mirror_id):
            raise InputError(
                "the mirror of that name writes to another table: read that",
                name=name,
                target=target.place,
                target_mirrored=step.target,
            )
        async for batch in target.read_back(step.generation, key_group(key, step.max_parallelism)):
            rows += await primary.threads.cpu(_chosen, batch, step, found, key)
    return _joined(found, sorted(rows, key=lambda row: int(row[CHECKPOINT_ID])))


def _chosen(batch: RecordBatch, step: MirrorStep, found: KeyHistory, key: Key) -> Sequence[Mapping[str, Any]]:
    """In a thread: the rows of the key, and the one with which the generation begins."""
    is_begin = pc.equal(batch.column(OP), BEGIN)
    is_near = pc.equal(batch.column(KEY_GROUP), key_group(key, step.max_parallelism))
    is_old = pc.less_equal(batch.column(CHECKPOINT_ID), found.checkpoint_id)
    near = batch.filter(pc.and_(pc.or_(is_begin, pc.fill_null(is_near, False)), is_old))  # its value
    shown = shown_key(key, batch.schema.field(KEY).type, as_json=step.key_as_json)
    return [row for row in near.to_pylist() if row[OP] == BEGIN or row[KEY] == shown]


def _joined(found: KeyHistory, rows: Sequence[Mapping[str, Any]]) -> KeyHistory:
    begin = next((row for row in rows if row[OP] == BEGIN), None)
    if begin is None:  # it began anew behind the oldest commit that is kept
        return found
    once = {(row[CHECKPOINT_ID], row[OP]): row for row in rows}  # a step that was killed may have left some of its rows
    own = [row for row in once.values() if row[OP] != BEGIN]
    first = next((_value_of(row) for row in own if row[OP] == SNAPSHOT), None)
    changes = list(_changes(found, [row for row in own if row[OP] != SNAPSHOT], first))
    return msgspec.structs.replace(
        found,
        changes=(*found.changes, *reversed(changes)),
        checkpoint_id=begin[CHECKPOINT_ID],
        since_s=begin[COMMITTED_AT].timestamp(),
        value=first,
    )


def _changes(found: KeyHistory, rows: Sequence[Mapping[str, Any]], before: Any) -> Iterator[KeyChange]:
    for row in rows:
        after = None if row[OP] in GONE else _value_of(row)
        yield KeyChange(
            checkpoint_id=row[CHECKPOINT_ID],
            sequence=UNKNOWN,
            committed_at_s=row[COMMITTED_AT].timestamp(),
            source=None if row[BATCH_ID] is None else SourceMark("", row[BATCH_ID]),
            before=before,
            after=after,
            states=(found.state,),
        )
        before = after


def _value_of(row: Mapping[str, Any]) -> Any:
    rest = {name.removeprefix("value."): each for name, each in row.items() if name not in _OURS}
    return plain(rest[VALUE] if list(rest) == [VALUE] else rest)
