"""The end of a log, as it is found: its last entry, or the hint that an entry is lost. Pure."""

import msgspec
from msgspec import UNSET, UnsetType

from statebackend._codec.commit import Claim, Entry
from statebackend._log.names import HINT_KEY, Hint, entry_key
from statebackend.errors import MissingObjectError
from statebackend.ids import CommitSequence


class LogEnd(msgspec.Struct, frozen=True):
    """The last entry of a log; `entry` is `None` if it is damaged.

    `lost`: the hint, if the entry that it names is gone or another one lies there, and nothing follows it. Then
    `sequence` is the last entry that is left, -1 if none is.
    """

    sequence: CommitSequence
    entry: Entry | None
    lost: Hint | None = None

    @property
    def newest(self) -> CommitSequence | None:
        """Sequence of the newest commit, or of a damaged entry that may be it; `None` if nobody has committed."""
        if isinstance(self.entry, Claim):
            return self.entry.newest
        return None if self.sequence < 0 else self.sequence

    @property
    def newest_stamp(self) -> str | UnsetType:
        """Stamp of the newest commit; unset where it is not known."""
        if isinstance(self.entry, Claim):
            return self.entry.newest_stamp
        return UNSET if self.entry is None else self.entry.stamp

    def check(self) -> None:
        """Raise `MissingObjectError` if an entry is lost: nobody knows then what the newest commit was."""
        if self.lost is not None:
            raise MissingObjectError(
                "the newest entry of the log is gone, though the hint names it: put it back, open an older checkpoint"
                " by its id, or delete the hint to go on from the last entry that is left",
                object=entry_key(self.lost.sequence),
                hint=HINT_KEY,
                last_left=self.sequence,
            )


def checked_by(found: LogEnd | None, hint: Hint) -> LogEnd:
    """The end, as found after the hint was read, and whether the entry is lost that the hint names.

    Of the entries from that one on the last is always there: a sweep removes none before it has seen a later one.
    """
    if found is None:
        return LogEnd(CommitSequence(-1), None, hint)
    replaced = found.sequence == hint.sequence and found.entry is not None and not hint.names(found.entry)
    return msgspec.structs.replace(found, lost=hint) if found.sequence < hint.sequence or replaced else found
