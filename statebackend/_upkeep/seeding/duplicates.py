"""Finds keys that a seed has twice: by the hash of each key, and then by the keys of those whose hashes are equal."""

import importlib
from collections.abc import Sequence
from typing import Any, Final, Literal, get_args

import numpy as np

from statebackend._codec.change_sets.changes import Changes
from statebackend._codec.change_sets.keyed_changes import KeyedChanges
from statebackend._codec.columns import Flags, Integers
from statebackend._codec.xxh64 import Hashes
from statebackend._upkeep.seeding.runs import BinRows, Run
from statebackend.errors import InputError
from statebackend.ids import Key

Duplicates = Literal["refuse", "first", "last"]
"""The choices for a key that comes twice: refuse the seed, or keep its first or its last row."""
CHOICES: Final = get_args(Duplicates)


def may_repeat(hashes: Sequence[Hashes]) -> bool:
    """True if two of the hashes are equal."""
    together = np.sort(np.concatenate(hashes)) if len(hashes) != 1 else np.sort(hashes[0])
    return bool((together[1:] == together[:-1]).any())


def rows_that_count(found: Sequence[BinRows], duplicates: Duplicates, name: str) -> list[Flags]:
    """For each row, true if it is kept: of equal keys one is. Raises `InputError` if duplicates are refused."""
    hashes = np.concatenate([each.hashes for each in found])
    in_question = _in_question(hashes)
    is_kept: Flags = np.ones(len(hashes), np.bool_)
    seen: dict[Key, int] = {}
    at = 0
    for rows in found:
        places = np.flatnonzero(in_question[at : at + len(rows.hashes)])
        for place, key in zip((places + at).tolist(), _keys_at(rows, places), strict=True):
            if key is None:
                continue
            before = seen.setdefault(key, place)
            if before == place:
                continue
            if duplicates == "refuse":
                raise InputError(
                    "a key comes twice: correct the source, or choose duplicates='first' or 'last'",
                    state=name,
                    key=ascii(key)[:80],
                )
            is_kept[before if duplicates == "last" else place] = False
            if duplicates == "last":
                seen[key] = place
        at += len(rows.hashes)
    return np.split(is_kept, np.cumsum([len(each.hashes) for each in found])[:-1])


def changes_that_count(rows: BinRows, is_kept: Flags) -> Sequence[Changes]:
    """The changes of the rows that are kept."""
    if is_kept.all():
        return rows.changes
    of_changes = is_kept if rows.counts is None else np.repeat(is_kept, rows.counts)
    ends = np.cumsum([part.records for part in rows.changes])
    kept: list[Changes] = []
    for part, end in zip(rows.changes, ends.tolist(), strict=True):
        chosen = np.flatnonzero(of_changes[end - part.records : end])
        if len(chosen):
            kept.append(part.taken(chosen))
    return kept


def rows_of(runs: Sequence[Run], window: tuple[int, int]) -> list[BinRows]:
    """The rows of each run in a window of bins."""
    return [run.rows_in(*window) for run in runs]


def _in_question(hashes: Hashes) -> Flags:
    """For each hash, true if another one is equal."""
    ordered = np.sort(hashes)
    return np.isin(hashes, ordered[1:][ordered[1:] == ordered[:-1]], kind="sort")  # numpy 2.0 has no tables of uint64


def _keys_at(rows: BinRows, places: Integers) -> list[Key | None]:
    """The keys of these rows, which ascend; `None` for a row without a change: it sets nothing."""
    starts = places if rows.counts is None else (np.cumsum(rows.counts) - rows.counts)[places]
    has_some = np.ones(len(places), np.bool_) if rows.counts is None else rows.counts[places] > 0
    ends = np.cumsum([part.records for part in rows.changes])
    found: list[Key | None] = [None] * len(places)
    first = 0
    for part, end in zip(rows.changes, ends.tolist(), strict=True):
        mine = np.flatnonzero(has_some & (starts >= first) & (starts < end))
        if len(mine):
            for number, key in zip(mine.tolist(), _keys_in(part.taken(starts[mine] - first)), strict=True):
                found[number] = key
        first = end
    return found


def _keys_in(changes: Changes) -> Sequence[Key]:
    if isinstance(changes, KeyedChanges):
        return changes.keys
    columns: Any = importlib.import_module("statebackend._state.columnar.plain_columns")
    found: Sequence[Key] = columns.keys_in(changes)
    return found
