"""Keys are erased from the job, and then it is proved that nothing has them: the oracle knows what must be gone."""

import os
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import statebackend as sb
from statebackend._upkeep.offline.key_search import Unknown
from statebackend.errors import FencedError, InputError
from tests.programs.beside import newest_id
from tests.programs.dictionaries import Dictionaries
from tests.programs.looking import WrongError, check, refused
from tests.programs.program import Batch, Declared, Erase
from tests.programs.surroundings import attend
from tests.programs.values import KEYS, key_read, text_of
from tests.programs.weather import through_weather

if TYPE_CHECKING:
    from tests.programs.running import Running

NOT_LISTED_YET = (Unknown.DAMAGED, Unknown.ROCKSDB)
"""Said of files of RocksDB that no checkpoint names yet, since their writer is at work, and of their local copies."""
OLD_S = 2 * 86_400.0
"""So old is what may be swept, whatever it is: in a job that writes nothing it takes a day."""


class Erased(NamedTuple):
    """The commit that has erased keys last, in these states; and the texts of the keys."""

    checkpoint_id: int
    states: Collection[str]
    keys: frozenset[str]


def erase(running: "Running", step: Erase) -> None:
    """Erase, sweep, prove. Nothing older can be opened any more, but for savepoints that do not have the keys."""
    readers = running.readers()
    states = readers.known(running.held, readers.keyed)[: 1 if step.one_state else None]
    if not states:
        return
    of_program = KEYS[running.program.keys]
    keys = [of_program[key % len(of_program)] for key in step.keys]
    names: Any = [each.name for each in states] if step.one_state else "all"
    was_open = running.sink._job is not None
    running.close_left()
    if step.beside is None:
        running.sink.close()
    before = newest_id(running.settings)
    holders = {
        name for name, kept in running.savepoints.items() if _has(running.kept[kept.checkpoint_id], states, keys)
    }

    def once() -> None:
        drops = "drop" if step.drops else "refuse"
        attend(sb.erase(running.settings, keys, states=names, savepoints=drops))

    try:
        through_weather(running, step, once)
    except InputError as error:
        _check_refusal(running, step, str(error), is_held=bool(holders) or _has(running.held, states, keys))
        running.next_run()
        return
    newest = newest_id(running.settings)
    if newest > before:
        _note(running, newest, states, keys, holders)
    if step.beside is not None and was_open and newest > before and running.sink._job is not None:
        with refused(FencedError):
            running.sink(running.frame(step.beside, running.batch_id), running.batch_id)
    running.next_run()
    if has_outbox := "outbox" in running.job.output:  # what is still to be published goes with the next batch
        running.batch(Batch())
    _prove(running, keys, names, is_at_work=has_outbox)


def _check_refusal(running: "Running", step: Erase, text: str, *, is_held: bool) -> None:
    """A refusal must be one of two: there is nothing, or savepoints are not to be dropped."""
    if "savepoints have the keys" in text:
        check("savepoints that may have the keys", (step.drops, bool(running.savepoints)), (False, True))
    elif is_held:
        raise WrongError(f"there are such keys: {text}")


def _has(held: Dictionaries, states: list[Declared], keys: list[Any]) -> bool:
    return any(held.is_there(each, key) for each in states if each.name in held.known for key in keys)


def _note(running: "Running", newest: int, states: list[Declared], keys: list[Any], holders: set[str]) -> None:
    """The job goes on from a commit without the keys."""
    held = running.held.copy()
    held.before = held.now
    for each in states:
        for key in keys:
            held.keyed[each.name].pop(key, None)
    before = running.line[-1]
    left = {each.name for each in attend(sb.savepoints(running.settings))}
    check("savepoints that have the keys", sorted(left & holders), [])
    running.savepoints = {name: each for name, each in running.savepoints.items() if name in left}
    running.kept = {each.checkpoint_id: running.kept[each.checkpoint_id] for each in running.savepoints.values()}
    running.line, running.floor = [], newest
    running.committed(newest, held, None)
    texts = frozenset(text_of(key_read(key)) for key in keys)
    running.erased = Erased(newest, {each.name for each in states}, texts)
    running.line = [before._replace(checkpoint_id=newest, is_edit=True)]


def _prove(running: "Running", keys: list[Any], names: Any, *, is_at_work: bool) -> None:
    """Days later, a sweep deletes what is old, and no object that is left has the keys."""
    age(running.home / "primary", OLD_S)
    running.is_swept = True
    for _ in range(2):  # a pin that could not be deleted in bad weather keeps its commit from the first one
        attend(sb.sweep(running.settings, dry_run=False, min_age_s=0.0))
    proof = attend(sb.verify_erased(running.settings, keys, states=names))
    found = [
        f"{each.key}: {each.reason}" for each in proof.holders if not (is_at_work and each.reason in NOT_LISTED_YET)
    ]
    check("objects that have erased keys", found, [])


def age(root: Path, by_s: float) -> None:
    """Make all files so much older."""
    for path in root.rglob("*"):
        if path.is_file():
            os.utime(path, (path.stat().st_atime - by_s,) * 2)
