"""A job is cloned: the clone has what its checkpoint has, the source stays as it was; the stream goes on as either."""

import shutil
from typing import TYPE_CHECKING, Any

import msgspec

import statebackend as sb
from statebackend.errors import InputError
from tests.programs.dictionaries import Dictionaries
from tests.programs.looking import check, expected_rows, refused, rows_in
from tests.programs.program import Clone, Job
from tests.programs.readers import MoreReaders
from tests.programs.surroundings import attend
from tests.programs.weather import through_weather

if TYPE_CHECKING:
    from tests.programs.running import Running


class Original(msgspec.Struct, frozen=True):
    """A job that nothing is done to any more. At the end it still has what it had."""

    settings: sb.Settings
    job: Job
    held: Dictionaries

    async def look(self) -> None:
        """Compare all of it."""
        await MoreReaders(self.settings, self.job).look_whole(self.held)


def clone(running: "Running", step: Clone) -> None:
    """Clone the newest commit, one by its moment, or that of a savepoint; compare; and go on as the clone, if asked."""
    if step.of == "savepoint" and not running.savepoints:
        return
    name, kept = next(iter(running.savepoints.items()), ("", running.line[-1]))
    kept = kept if step.of == "savepoint" else running.line[-1]
    source = running.settings
    cloned = msgspec.structs.replace(source, job=f"clone-{len(running.originals)}-{running.runs}")
    options: dict[str, Any] = {
        "from_": source,
        "keys": step.share,
        "outputs": "leave" if step.leaves_output else "take",
    }
    if step.of == "savepoint":
        options["savepoint"] = name
    if step.of == "moment":
        options["at"] = running.moments[kept.checkpoint_id]
    goes_on = step.goes_on and step.share == 1.0 and not step.leaves_output
    if goes_on:
        running.sink.close()
    through_weather(running, step, lambda: attend(sb.clone(cloned, **options)))
    with refused(InputError):  # as it exists now
        attend(sb.clone(cloned, **(options | {"keys": 0.5 if step.share == 1.0 else 1.0})))
    with refused(InputError):
        attend(sb.clone(source, from_=source))
    names = [each.name for each in attend(sb.savepoints(source))]
    check("savepoints of the source", sorted(names), sorted(running.savepoints))
    held = running.kept[kept.checkpoint_id]
    readers = MoreReaders(cloned, running.job)
    if step.share == 1.0:
        attend(readers.look_whole(held))
    else:
        _look_at_sample(readers, held, step.share)
    if not goes_on:
        shutil.rmtree(running.home / "primary" / cloned.job)
        return
    running.originals.append(Original(source, running.job, running.held))
    running.become(cloned.job, kept)


def _look_at_sample(readers: MoreReaders, held: Dictionaries, share: float) -> None:
    """Each key that is there has its value; and it is there in all states that have it, or in none."""
    there, missing = set[str](), set[str]()
    for declared in readers.known(held, readers.keyed):
        found = rows_in(declared, readers.read(declared), held.groups)
        expected = expected_rows(held, declared)
        check(f"{declared.name} in a sample", found, {key: expected.get(key) for key in found})
        there |= found.keys()
        missing |= expected.keys() - found.keys()
    check(f"keys of a sample of {share} that some states have", sorted(there & missing), [])
