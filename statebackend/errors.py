"""Every error that the library raises on purpose, grouped by what the caller should do next.

    StateBackendError
    ├── InputError                  fix the call: nothing was written, call again corrected
    │   ├── SettingsError               a setting is wrong, contradicts another, or is unknown
    │   │   ├── UnknownSettingError         no setting of that name
    │   │   ├── PrimaryUrlError             the primary's URL has no known scheme or shape
    │   │   └── LocalRootError              a local directory is relative, or cannot be used
    │   ├── KeyTypeError                not a str, 64 bit int, bytes, or tuple of them
    │   ├── KeyGroupError               the key belongs to a range that this backend does not own
    │   ├── ValueEncodeError            the value is not of the type the state was declared with
    │   ├── StateTypeError              the state was written with another type or kind
    │   ├── CheckpointExistsError       that checkpoint id, or a later one, is committed already
    │   ├── CheckpointNotFoundError     no commit has that checkpoint id
    │   ├── SavepointExistsError        the job has a savepoint of that name already
    │   ├── SavepointNotFoundError      the job has no savepoint of that name
    │   └── MirrorSchemaError           the mirror's table cannot hold a column, or has another
    ├── WrongOwnerError             point at the right place: the data there belongs to somebody else
    │   ├── WrongJobError               the commit belongs to another job
    │   ├── WrongQueryError             the commit was made by another streaming query
    │   ├── RewindError                 the query was rewound to a batch before the committed one
    │   ├── StateGoneError              the query has batches behind it, and the job is empty
    │   └── WrongMirrorError            the table, or the mirror's name, belongs to another mirror or job
    ├── DataError                   restore from an older checkpoint or another copy
    │   ├── CorruptObjectError          bytes in storage are not what was written there
    │   │   ├── CorruptSegmentError         a segment, in every copy
    │   │   └── CorruptCommitError          a commit
    │   ├── MissingObjectError          a commit names an object that is gone
    │   ├── UnsupportedVersionError     written by a newer release: upgrade
    │   └── ValueDecodeError            stored bytes do not decode as the declared type
    ├── StoreError                  look at the store, then try again
    │   ├── ObjectNotFoundError         no object at that key
    │   ├── ObjectExistsError           put-if-absent found one there
    │   ├── StoreAccessError            the store refuses: permissions, credentials
    │   │   ├── BucketNotFoundError         make the bucket, or correct the primary
    │   │   ├── ClockSkewError              set this machine's clock
    │   │   └── UnfitStoreError             it cannot do what a primary must: use another
    │   ├── StoreUnavailableError       the store does not answer or is full: retry later
    │   │   ├── StoreThrottledError         it asks for fewer requests: slow down
    │   │   ├── StoreFullError              make room
    │   │   └── TableDiskError              the disk of the tables failed: make room, or set table_dir
    │   └── CacheDiskError              the download cache's disk failed: read the primary, or set cache_dir
    ├── UploadError                 the changes are not durable: reopen, and replay the batch
    │   └── MaterializationError        bases cannot be written: see the cause, and the store
    ├── StaleError                  wait, or look at the store: a follower's answer may be older than asked for
    ├── FencedError                 stop: a newer writer owns this job now
    ├── OutcomeUnknownError         reopen: a commit may or may not have happened
    ├── BackendClosedError          open a new backend: this one is closed or has failed
    │   └── ForkedProcessError          start processes with "spawn", and open in them
    └── BatchError                  see its cause: the user's function failed

The facts of an error are in its `facts`; the message repeats them for people. An error that means the same as a builtin
class (`ValueError`, `TypeError`, `LookupError`, `OSError`) is one of those too. `docs/reference/errors.md` is generated
from here.
"""

import re
from collections.abc import Mapping
from typing import Any, Final


class StateBackendError(Exception):
    """Base of everything the library raises on purpose.

    `message` is a sentence without the facts, `facts` the values it talks about. Both survive pickling, because an
    error may cross from a Spark worker to the driver. A fact `traceback` comes last, on lines of its own.
    """

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts: Mapping[str, Any] = facts

    def __str__(self) -> str:
        facts = ", ".join(f"{name}={value!r}" for name, value in self.facts.items() if name != "traceback")
        text = f"{self.message} ({facts})" if facts else self.message
        return f"{text}\n{self.facts['traceback']}" if "traceback" in self.facts else text


class InputError(StateBackendError):
    """The call was wrong and nothing was written. Call again, corrected."""


class SettingsError(InputError, ValueError):
    """A setting is out of bounds, of the wrong type, or contradicts another one. Change the setting that is named."""


class UnknownSettingError(SettingsError):
    """No setting has that name. The message has the closest name, or the new name of a renamed setting: use it."""


class PrimaryUrlError(SettingsError):
    """The primary's URL has no known scheme, or lacks a part. Use one of the forms in the message."""


class LocalRootError(SettingsError):
    """A local directory is relative, named twice, or cannot be used. Give absolute paths that the process may write."""


class KeyTypeError(InputError, TypeError):
    """The key is of no legal type. Use a str, an int within 64 bits, bytes, or a non-empty tuple of these."""


class KeyGroupError(InputError, LookupError):
    """The key's group lies outside the range that this backend owns. Send the key to its owner."""


class ValueEncodeError(InputError, TypeError):
    """The value cannot be encoded as the declared type; the state keeps its former value. Correct the value."""


class StateTypeError(InputError, TypeError):
    """The state was written with another type or kind. Declare it as it was written, or use another name."""


class CheckpointExistsError(InputError):
    """The checkpoint id is not above the newest committed one; nothing changed. Use a larger id."""


class CheckpointNotFoundError(InputError, LookupError):
    """No commit has that checkpoint id. Open without an id to get the newest one."""


class SavepointExistsError(InputError):
    """The job has a savepoint of that name already; nothing was committed. Drop it, or use another name."""


class SavepointNotFoundError(InputError, LookupError):
    """The job has no savepoint of that name. `savepoints` lists the ones there are."""


class MirrorSchemaError(InputError, TypeError):
    """A mirror's table cannot hold a column of the state, lacks it, or has it as another type; nothing was written.
    `facts` has the column. Change the table, name another one, or mirror another state.
    """


class WrongOwnerError(StateBackendError):
    """The data at the primary belongs to somebody else. Correct the primary or the job's name."""


class WrongJobError(WrongOwnerError):
    """The commit was written by another job. Correct `Settings.job` or `Settings.primary`."""


class WrongQueryError(WrongOwnerError):
    """The commit was made by another streaming query. Restore the query's own Spark checkpoint, or `adopt` it."""


class RewindError(WrongOwnerError):
    """Spark delivers a batch older than the committed one. Restore the newer Spark checkpoint, or ask for a rollback
    (`on_rewind="rollback"`).
    """


class StateGoneError(WrongOwnerError):
    """The job lacks batches that Spark has done: it is empty, or ends before the batch that comes; or it was seeded for
    a stream that begins elsewhere. Correct `Settings.job` or `Settings.primary`, or put the state back, or Spark's
    checkpoint; if it is meant to go on with this batch, say so by `first_batch_id`.
    """


class WrongMirrorError(WrongOwnerError):
    """The table is written by another mirror, or the mirror's name is that of another one, or its job was made anew.
    Give it another table or name; or, where the message says so, start over from the whole state with `anew=True`.
    """


class DataError(StateBackendError):
    """Stored data cannot be used. Open another checkpoint, or put the named object back."""


class CorruptObjectError(DataError):
    """Bytes in storage differ from what was written; `facts` has the object, the offset and the reason. Put an intact
    copy of the object back, or open another checkpoint.
    """


class CorruptSegmentError(CorruptObjectError):
    """A segment failed verification in every copy that was tried. Put it back, or open an earlier checkpoint."""


class CorruptCommitError(CorruptObjectError):
    """A commit failed verification. Open an earlier checkpoint by its id."""


class MissingObjectError(DataError, LookupError):
    """A commit names an object that is gone from every copy. Put it back, or open another checkpoint."""


class UnsupportedVersionError(DataError):
    """The object was written by a newer release of the library. Upgrade this process."""


class ValueDecodeError(DataError, ValueError):
    """A stored value does not decode as the declared type. Declare the type it was written with."""


class StoreError(StateBackendError, OSError):
    """An object store refused or failed. See the subclass for what to do."""

    def __str__(self) -> str:  # OSError would format by errno, and there is none
        return StateBackendError.__str__(self)


class ObjectNotFoundError(StoreError, LookupError):
    """The store has no object at that key. Retrying does not help."""


class ObjectExistsError(StoreError):
    """`put_if_absent` found an object at that key and left it as it was. Read that object, or use another key."""


class StoreAccessError(StoreError):
    """The store refuses, because of permissions or credentials. Correct these; retrying does not help."""


class StoreUnavailableError(StoreError):
    """The store does not answer, or cannot serve the request now. Try again later."""


class BucketNotFoundError(StoreAccessError):
    """There is no such bucket. Make it, or correct `Settings.primary`."""


class ClockSkewError(StoreAccessError):
    """This machine's clock differs too much from the store's for signatures to be accepted. Set the clock."""


class UnfitStoreError(StoreAccessError):
    """The store cannot do what a primary must, such as put-if-absent. Use another store."""


class StoreThrottledError(StoreUnavailableError):
    """The store asks for fewer requests; this one had no effect. Slow down, and ask again."""


class StoreFullError(StoreUnavailableError):
    """The store has no room, or a quota is used up, and what was to be stored is not there. Make room: a sweep needs
    none to free some, and dropped savepoints give it more to free. Then reopen, and replay the batch; until then
    retrying does not help.
    """


class TableDiskError(StoreUnavailableError):
    """The disk that the files of tables lie on failed, or is full, and neither copy of the state did. Make
    room, or put `table_dir` elsewhere, then reopen.
    """


class CacheDiskError(StoreError):
    """The disk of the download cache failed, not the primary. Read the primary, or put `cache_dir` elsewhere."""


class UploadError(StateBackendError, OSError):
    """Changes could not be made durable; they stay in memory. Reopen the backend and replay the batch."""

    def __str__(self) -> str:
        return StateBackendError.__str__(self)


class MaterializationError(UploadError):
    """Writing bases failed too often in a row, and the changelog would grow without bound. Nothing of the checkpoint
    that raises this is committed. See its cause, repair the store, then reopen and replay the batch.
    """


class StaleError(StateBackendError):
    """A follower's answer may be older than was asked for. Wait, or look at the store: `position` has its problem."""

    @property
    def position(self) -> Any:
        """The position of the follower, a `FollowerPosition`."""
        return self.facts.get("position")


class FencedError(StateBackendError):
    """A newer writer has opened this job; nothing was committed, and nothing of the newer writer was touched. Stop."""


class OutcomeUnknownError(StateBackendError):
    """A commit was sent and no answer came. Reopen the backend: the primary then says whether it was made."""


class BackendClosedError(StateBackendError):
    """The backend is closed, or an earlier failure made it unusable. Open a new one."""


class ForkedProcessError(BackendClosedError):
    """This process was forked from the one that opened it, and has none of its threads, locks and connections. Start
    processes with "spawn" (`multiprocessing.get_context("spawn")`), and open in them.
    """


class BatchError(StateBackendError, RuntimeError):
    """The user's function did not run, failed on an executor, or ended in something that must not reach py4j, such as
    `CancelledError`: see the message, which ends with the lines at which it failed on an executor, and the `__cause__`.
    The batch is not committed. Fix the cause; Spark delivers the batch again.
    """


def needs_extra(what: str, extra: str) -> str:
    """The message for a library that is missing because `statebackend` was installed without that extra."""
    return f"{what} needs the extra `{extra}`: pip install 'statebackend[{extra}]'"


_JSON: Final = re.compile(r"\b(object|array|null)\b")
_PYTHON: Final = {"object": "dict", "array": "list", "null": "None"}


def in_python_words(error: Exception) -> str:
    """The text of an error of msgspec with types named as in Python: there a dict is an `object`, `None` is `null`."""
    said, at, place = str(error).partition(" - at ")
    return (_JSON.sub(_in_python, said) if said.startswith("Expected `") else said) + at + place


def _in_python(found: re.Match[str]) -> str:
    return _PYTHON[found[0]]
