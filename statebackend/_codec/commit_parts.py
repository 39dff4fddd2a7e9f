"""Where the parts of a commit lie in its object, for a process that wants the state of one range and not all of it.

The process that has the whole, and has checked it, says where each part lies and what its checksum is. A reader of that
part needs nothing else to be sure of it. Not a format: none of this is stored, it goes from one process to another.
"""

import zlib
from collections.abc import Sequence
from typing import Final

import msgspec

from statebackend._codec.commit import Commit, inline_offset_of, manifest_of, with_whole_handles
from statebackend.errors import CorruptCommitError
from statebackend.ids import Handle, KeyGroupRange, RangeState

_fields: Final = msgspec.msgpack.Decoder(dict[str, msgspec.Raw])
_elements: Final = msgspec.msgpack.Decoder(list[msgspec.Raw])
_state: Final = msgspec.msgpack.Decoder(RangeState)


class CommitParts(msgspec.Struct, frozen=True):
    """A commit for readers of parts of it: `places` are those of its ranges, in their order, and it is `whole`.

    `rest`: the commit without its ranges and its outbox. `inline_offset`: where its inline frames begin; it carries
    nothing if they would begin where the object ends.
    """

    rest: Commit
    whole: Handle
    inline_offset: int
    places: tuple[tuple[int, int, int], ...]
    """Offset in the object, length and crc32 of each part."""

    @property
    def carries_changes(self) -> bool:
        """True if the object may carry changes of its checkpoint; what it carries may also be output."""
        return self.inline_offset < self.whole.length

    def decode(self, data: bytes, place: int, key_groups: KeyGroupRange) -> Commit:
        """The commit with the one range `key_groups`, from the bytes at `places[place]`.

        Raises `CorruptCommitError` unless `data` is that part, to the byte.
        """
        offset, length, checksum = self.places[place]
        if len(data) != length or zlib.crc32(data) != checksum:
            raise CorruptCommitError("the checksum of a part differs", object=self.whole.key, offset=offset)
        try:
            state = _state.decode(data)
        except ValueError as error:
            raise CorruptCommitError(
                f"a part does not decode: {error}", object=self.whole.key, offset=offset
            ) from error
        if state.key_groups != key_groups:
            raise CorruptCommitError(
                "a part of other key groups", object=self.whole.key, offset=offset, found=str(state.key_groups)
            )
        commit = msgspec.structs.replace(self.rest, ranges=(state,))
        return with_whole_handles(commit, self.whole, self.inline_offset) if self.carries_changes else commit


def parts_of(commit: Commit, key: str, body: bytes) -> CommitParts:
    """The parts of `commit`, whose object lies at `key` and is `body`, as this library encodes one."""
    end = inline_offset_of(body)
    fields = _fields.decode(manifest_of(body))
    behind = sum(_length_of(name, value) for name, value in _following(fields, "ranges"))
    parts = _elements.decode(fields["ranges"])
    offset = end - behind - sum(map(len, parts))
    places: list[tuple[int, int, int]] = []
    for part in parts:
        places.append((offset, len(part), zlib.crc32(part)))
        offset += len(part)
    rest = msgspec.structs.replace(commit, ranges=(), outbox=())
    return CommitParts(rest, Handle(key, 0, len(body), zlib.crc32(body)), end, tuple(places))


def _following(fields: dict[str, msgspec.Raw], name: str) -> Sequence[tuple[str, msgspec.Raw]]:
    """The fields behind that one, in the order in which they are encoded."""
    found = list(fields.items())
    return found[list(fields).index(name) + 1 :]


def _length_of(name: str, value: msgspec.Raw) -> int:
    return len(msgspec.msgpack.encode(name)) + len(value)
