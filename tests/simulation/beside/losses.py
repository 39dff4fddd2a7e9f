"""The newest commit is damaged or lost in the primary, while a good copy of it lies on a host's disk.

What the log says of a commit decides if a copy is proved to be it: then opening puts it back. Otherwise, and without a
copy, opening is an error. An older commit is never opened in its place.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from statebackend._codec.commit import Claim, Commit, Entry
from statebackend._log.names import HINT_KEY, entry_key, parse_hint
from tests.simulation.store import Place


@dataclass(frozen=True)
class Loss:
    """`left` is what remains of the object `whole`, `None` if it is gone.

    `disk` has a good copy, which is `proved` by what the log says.
    """

    key: str
    whole: bytes
    left: bytes | None
    disk: Place
    proved: bool


def draw_loss(
    chance: Random, log: Sequence[Entry], objects: Mapping[str, bytes], disks: Sequence[Place]
) -> Loss | None:
    """Draw a loss of the newest commit; `None` where no disk has a good copy, or where it would not be noticed.

    It is not, if the entry is gone and the hint names none from there on: then the log looks as if it ended before.
    """
    commit = next((entry for entry in reversed(log) if isinstance(entry, Commit)), None)
    if commit is None:
        return None
    key = entry_key(commit.sequence)
    whole = objects[key]
    holders = [disk for disk in disks if disk.objects.get(key) == whole]
    hint = parse_hint(objects.get(HINT_KEY, b""))
    is_known = hint is not None and hint.sequence >= commit.sequence
    damages = ["cut", "flipped", "emptied", *(["gone"] if is_known else [])]
    if not holders:
        return None
    left = _left_of(whole, chance.choice(damages), chance)
    proved = (
        isinstance(log[-1], Claim)
        or (hint is not None and hint.names(commit))
        or (left is not None and commit.stamp.encode() in left)
    )
    return Loss(key, whole, left, chance.choice(holders), proved)


def _left_of(whole: bytes, damage: str, chance: Random) -> bytes | None:
    match damage:
        case "gone":
            return None
        case "cut":
            return whole[: chance.randrange(len(whole))]
        case "flipped":
            place = chance.randrange(len(whole))
            return whole[:place] + bytes([whole[place] ^ 1 << chance.randrange(8)]) + whole[place + 1 :]
        case _:
            return b""
