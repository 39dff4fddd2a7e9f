"""The names of a job's objects in its primary: each is made, parsed and ordered here. Pure.

    entry    := "commits/" sequence                            an entry of the log
    hint     := "newest"                                       content: sequence " " stamp " " checksum, none padded
    marker   := "savepoints/" name "/" sequence "-" stamp      an object of no bytes
    pin      := marker "-" random                              the same, while a marker is being made
    start    := marker "-" epoch                               the same; that epoch goes on from the savepoint
    floor    := "swept/" sequence                              content: its milestones, or nothing
    erasure  := floor "-" epoch                                no bytes; it counts if its epoch has committed there
    step     := "mirrors/" name "/" 12 digits                  a step of a mirror
    probe    := "put-if-absent"                                shows whether a cloud keeps put-if-absent
    data     := directory epoch "-" number "-" random          a segment, or staged output
    sequence := 12 digits, or more                             position in the log
    epoch    := 8 digits, or more
    number   := 8 digits, or more                              counts the names of one opening of the job
              | 14 digits, or more                             position * 1,000,000 + count, in an attempt at a range
    random   := 32 hexadecimal digits

Digits are padded with zeros, so keys sort as their numbers do. Data names sort in the order in which they were made,
and tell who may still commit them. A sweep decides by that: what no commit reaches, and is of an older epoch than the
newest, will never be reached. A name that does not parse is not ours, and nobody here deletes it.
"""

import re
import zlib
from typing import Final

import msgspec

from statebackend._codec.commit import Commit, Entry
from statebackend.errors import InputError
from statebackend.ids import CheckpointId, CommitSequence, Epoch, KeyGroupRange

COMMITS: Final = "commits/"
HINT_KEY: Final = "newest"
SAVEPOINTS: Final = "savepoints/"
FLOORS: Final = "swept/"
OUTBOX: Final = "outbox/"
MIRRORS: Final = "mirrors/"
PROBE_KEY: Final = "put-if-absent"

CHECKPOINT_ID_MAX: Final = 2**63 - 1
"""More than any job needs. The ids above could be stored only in part: the next one would have no room."""
ENTRIES_LISTED: Final = 1000
"""A power of ten. So many entries share all but the last digits of their keys; a page of a listing has as many."""
NAMES_PER_ATTEMPT: Final = 1_000_000
"""How many data names one attempt at a range can have. Log positions are multiplied by it to make room for them."""

_SAVEPOINT_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_MARKER: Final = re.compile(rf"savepoints/({_SAVEPOINT_NAME.pattern})/(\d{{12,}})-([A-Za-z0-9]{{1,64}})")
_BESIDE_MARKER: Final = re.compile(rf"({_MARKER.pattern})-(?:([0-9a-f]{{32}})|(\d{{8,18}}))")
_MIRROR_STEP: Final = re.compile(rf"mirrors/({_SAVEPOINT_NAME.pattern})/(\d{{12}})")
_ERASURE: Final = re.compile(r"swept/(\d{12,18})-(\d{8,18})")
_DATA_NAME: Final = re.compile(r"(\d{8,})-(\d{8,})-[0-9a-f]{32}")
_SEQUENCE_DIGITS_MAX: Final = 18  # no log is as long as that, and `int` does not read thousands of digits
_LISTED_DIGITS: Final = len(str(ENTRIES_LISTED)) - 1
_DIGITS: Final = 8
_ATTEMPT_DIGITS: Final = 14  # more than `_DIGITS`: by its length alone a number tells that an attempt made it


# ------------------------------------------------------------------------------------------------- entries of the log


def entry_key(sequence: int) -> str:
    """Key of an entry of the log. Keys sort as their sequences do."""
    return f"{COMMITS}{sequence:012d}"


def sequence_of(key: str) -> int | None:
    """The sequence of the entry at `key`, or `None` if no entry has such a key."""
    number = key.removeprefix(COMMITS)
    return int(number) if number.isdecimal() and entry_key(int(number)) == key else None


def entry_prefixes(first: int, last: int) -> list[str]:
    """Prefixes of keys that have the entries from `first` to `last` among them, and few others: a page of a listing."""
    pages = range(first // ENTRIES_LISTED, last // ENTRIES_LISTED + 1)
    return [entry_key(page * ENTRIES_LISTED)[:-_LISTED_DIGITS] for page in pages]


class Hint(msgspec.Struct, frozen=True):
    """The content of the hint: an entry by its sequence and its stamp.

    `verified`: by a checksum. Such a hint proves that the entry was there. Earlier releases wrote none.
    """

    sequence: CommitSequence
    stamp: bytes
    verified: bool = False

    def names(self, entry: Entry) -> bool:
        """True if the hint was written for `entry`."""
        return (entry.sequence, entry.stamp.encode()) == (self.sequence, self.stamp)


def hint_of(entry: Entry) -> bytes:
    """The content of the hint that names this entry."""
    content = b"%d %s" % (entry.sequence, entry.stamp.encode())
    return b"%s %08x" % (content, zlib.crc32(content))


def parse_hint(content: bytes) -> Hint | None:
    """The hint with this content, or `None` if it is damaged."""
    said, _, checksum = content.rpartition(b" ")
    verified = checksum == b"%08x" % zlib.crc32(said)
    sequence, _, stamp = (said if verified else content).partition(b" ")
    if not sequence.isdigit() or len(sequence) > _SEQUENCE_DIGITS_MAX:
        return None
    return Hint(CommitSequence(int(sequence)), stamp, verified)


def check_checkpoint_id(checkpoint_id: object) -> CheckpointId:
    """Return `checkpoint_id`, or raise `InputError` if no checkpoint can have it. Callers may be untyped."""
    if type(checkpoint_id) is not int or checkpoint_id > CHECKPOINT_ID_MAX:
        raise InputError("a checkpoint id is an int from 0 to 2**63 - 1", checkpoint_id=checkpoint_id)
    return CheckpointId(checkpoint_id)


# ------------------------------------------------------------------------------------------ savepoints, sweep floors


class SavepointMarker(msgspec.Struct, frozen=True):
    """The object that names a savepoint: its key says which commit is kept, and under which name."""

    name: str
    sequence: CommitSequence
    stamp: str

    @property
    def key(self) -> str:
        """Where it lies. No two attempts to commit have the same marker."""
        return f"{SAVEPOINTS}{self.name}/{self.sequence:012d}-{self.stamp}"

    def names(self, commit: Commit) -> bool:
        """True if `commit` is the one that was made after this marker."""
        return (commit.sequence, commit.stamp) == (self.sequence, self.stamp)


def marker_of(key: str) -> SavepointMarker | None:
    """The savepoint marker at `key`, or `None` if no marker has such a key."""
    match = _MARKER.fullmatch(key)
    marker = match and SavepointMarker(match[1], CommitSequence(int(match[2])), match[3])
    return marker if marker and marker.key == key else None


class SavepointPin(msgspec.Struct, frozen=True):
    """The object that keeps a commit while a marker is made for it. No two have the same `random`."""

    marker: SavepointMarker
    random: str

    @property
    def key(self) -> str:
        """Where it lies: beside the marker."""
        return f"{self.marker.key}-{self.random}"


class SavepointStart(msgspec.Struct, frozen=True):
    """The object that says of an epoch that its writer goes on from the savepoint."""

    marker: SavepointMarker
    epoch: Epoch

    @property
    def key(self) -> str:
        """Where it lies: beside the marker."""
        return f"{self.marker.key}-{self.epoch:0{_DIGITS}d}"


def beside_marker(key: str) -> SavepointPin | SavepointStart | None:
    """The pin, or the start, at `key`; `None` if neither has such a key."""
    match = _BESIDE_MARKER.fullmatch(key)
    marker = match and marker_of(match[1])
    if not match or not marker:
        return None
    found = SavepointPin(marker, match[5]) if match[5] else SavepointStart(marker, Epoch(int(match[6])))
    return found if found.key == key else None


def check_savepoint_name(name: object) -> str:
    """Return `name`, or raise `InputError` if no savepoint can have it. Callers may be untyped."""
    if not isinstance(name, str) or not _SAVEPOINT_NAME.fullmatch(name):
        raise InputError("a savepoint's name is 1 to 100 letters, digits, '.', '_' or '-'", name=name)
    return name


def floor_key(sequence: int) -> str:
    """Key of the sweep floor that says: below this entry only savepoints and milestones can be opened."""
    return f"{FLOORS}{sequence:012d}"


def floor_of(key: str) -> int | None:
    """The sequence that the sweep floor at `key` names, or `None` if no floor has such a key."""
    number = key.removeprefix(FLOORS)
    return int(number) if number.isdecimal() and floor_key(int(number)) == key else None


class Erasure(msgspec.Struct, frozen=True):
    """The object that is made before a commit which erases keys. With that commit it is a floor: see `floor_key`."""

    sequence: CommitSequence
    epoch: Epoch

    @property
    def key(self) -> str:
        """Where it lies. An epoch makes one such commit, if any."""
        return f"{floor_key(self.sequence)}-{self.epoch:0{_DIGITS}d}"


def erasure_of(key: str) -> Erasure | None:
    """The erasure at `key`, or `None` if none has such a key."""
    match = _ERASURE.fullmatch(key)
    found = match and Erasure(CommitSequence(int(match[1])), Epoch(int(match[2])))
    return found if found and found.key == key else None


# ------------------------------------------------------------------------------------------------------------ mirrors


def check_mirror_name(name: object) -> str:
    """Return `name`, or raise `InputError` if no mirror can have it. Callers may be untyped."""
    if not isinstance(name, str) or not _SAVEPOINT_NAME.fullmatch(name):
        raise InputError("a mirror's name is 1 to 100 letters, digits, '.', '_' or '-': give it a name", name=name)
    return name


def mirror_step_key(name: str, number: int) -> str:
    """Key of a step of the mirror `name`. Keys sort as their numbers do."""
    return f"{MIRRORS}{name}/{number:012d}"


def mirror_step_of(key: str) -> tuple[str, int] | None:
    """The mirror's name and the number of the step at `key`, or `None` if no step has such a key."""
    match = _MIRROR_STEP.fullmatch(key)
    return (match[1], int(match[2])) if match else None


# ----------------------------------------------------------------------------------------------------- data, changelogs


class DataName(msgspec.Struct, frozen=True):
    """The parsed name of a data object: the epoch in which it was made, and the log position of the attempt's base.

    `position` is `None` if no attempt at a range made it. What an attempt made is in the next commit of its epoch after
    that position, or in none.
    """

    epoch: Epoch
    position: int | None


def data_name(epoch: Epoch, count: int, random: str, *, position: int | None = None) -> str:
    """A name for a data object, the `count`th of one opening of the job, or of an attempt at a range."""
    if position is None:
        return f"{epoch:0{_DIGITS}d}-{count:0{_DIGITS}d}-{random}"
    return f"{epoch:0{_DIGITS}d}-{position * NAMES_PER_ATTEMPT + count:0{_ATTEMPT_DIGITS}d}-{random}"


def data_name_of(key: str) -> DataName | None:
    """The data name at the end of `key`, in whatever directory, or `None` if it is not one of ours."""
    if key.startswith((COMMITS, SAVEPOINTS, FLOORS, MIRRORS)):
        return None
    match = _DATA_NAME.fullmatch(key.rpartition("/")[2])
    if match is None:
        return None
    by_attempt = len(match[2]) >= _ATTEMPT_DIGITS
    return DataName(Epoch(int(match[1])), int(match[2]) // NAMES_PER_ATTEMPT if by_attempt else None)


def is_ours(key: str) -> bool:
    """True if an object at `key` can only be ours to delete: data, or an entry of the log."""
    return data_name_of(key) is not None or sequence_of(key) is not None


def log_position(base: Commit | None) -> int:
    """The log position of an attempt's base: 0 before the first commit. It grows with the base."""
    return 0 if base is None else base.sequence + 1


def changelog_id(key_groups: KeyGroupRange, random: str = "") -> str:
    """Id of the changelog of a backend that owns these key groups; `random` tells those of several attempts apart."""
    return "-".join(filter(None, (str(key_groups.first), str(key_groups.last), random)))
