"""Every error the library raises on purpose, grouped by what the caller should do next.

    StateBackendError
    ├── InputError                  fix the call: nothing was written, call again corrected
    │   ├── SettingsError               a setting is wrong, contradicts another, or is unknown
    │   │   ├── UnknownSettingError         no setting of that name
    │   │   ├── PrimaryUrlError             the primary's URL has no known scheme or shape
    │   │   └── LocalRootError              a local root is relative, or cannot be written
    │   ├── KeyTypeError                not a str, 64 bit int, bytes, or tuple of them
    │   ├── KeyGroupError               the key belongs to a range that this backend does not own
    │   ├── ValueEncodeError            the value is not of the type the state was declared with
    │   ├── StateTypeError              the state was written with another type or kind
    │   ├── CheckpointExistsError       that checkpoint id, or a later one, is committed already
    │   ├── CheckpointNotFoundError     no commit has that checkpoint id
    │   ├── SavepointExistsError        there is a savepoint of that name
    │   └── SavepointNotFoundError      there is no savepoint of that name
    ├── WrongOwnerError             point at the right place: what lies there is somebody else's
    │   ├── WrongJobError               the commit belongs to another job
    │   ├── WrongQueryError             the commit was made by another streaming query
    │   └── RewindError                 the query was rewound to a batch before the committed one
    ├── DataError                   restore from an older checkpoint or another copy
    │   ├── CorruptObjectError          bytes in storage are not what was written there
    │   │   ├── CorruptSegmentError
    │   │   └── CorruptCommitError
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
    │   └── StoreUnavailableError       the store does not answer or is full: retry later
    │       ├── StoreThrottledError         it asks for fewer requests: slow down
    │       └── StoreFullError              make room
    ├── UploadError                 the changes are not durable: reopen, and replay the batch
    ├── FencedError                 stop: a newer writer owns this job now
    ├── OutcomeUnknownError         reopen: a commit may or may not have happened
    ├── BackendClosedError          open a new backend: this one is closed or has failed
    └── BatchError                  see its cause: the user's function failed, in Spark's terms

An error carries its facts as attributes of `facts`; the message repeats them for people. Where a builtin
class says the same (`ValueError`, `TypeError`, `KeyError`, `OSError`), the error is one of those too.
"""

from collections.abc import Mapping
from typing import Any


class StateBackendError(Exception):
    """Base of everything the library raises on purpose.

    `message` is a sentence without the facts, `facts` the values it talks about. Both survive pickling,
    because an error may cross from a Spark worker to the driver.
    """

    def __init__(self, message: str, **facts: Any) -> None:
        super().__init__(message)
        self.message = message
        self.facts: Mapping[str, Any] = facts

    def __str__(self) -> str:
        if not self.facts:
            return self.message
        return f"{self.message} ({', '.join(f'{name}={value!r}' for name, value in self.facts.items())})"


class InputError(StateBackendError):
    """The call was wrong. Nothing was written; call again, corrected."""


class SettingsError(InputError, ValueError):
    """A setting is out of its bounds or contradicts another one. Change the setting that is named."""


class UnknownSettingError(SettingsError):
    """No setting has that name. The message names the closest one."""


class PrimaryUrlError(SettingsError):
    """The primary's URL has no known scheme or lacks a part. The message lists the known forms."""


class LocalRootError(SettingsError):
    """A local root is relative or cannot be written. Give an absolute path the process may write, or none."""


class KeyTypeError(InputError, TypeError):
    """Not a key: keys are str, int within 64 bits, bytes, or a non-empty tuple of these."""


class KeyGroupError(InputError, LookupError):
    """The key's group lies outside the range this backend owns. Route the key to its owner."""


class ValueEncodeError(InputError, TypeError):
    """The value cannot be encoded as the state's declared type. The state keeps its former value."""


class StateTypeError(InputError, TypeError):
    """The state was written with another type or kind. Declare it as it was written, or use another name."""


class CheckpointExistsError(InputError):
    """Checkpoint ids grow: this id is committed already or lies below the newest one. Nothing changed."""


class CheckpointNotFoundError(InputError, LookupError):
    """No commit has that checkpoint id. Open without an id for the newest one."""


class SavepointExistsError(InputError):
    """There is a savepoint of that name. Drop it, or use another name. Nothing was committed."""


class SavepointNotFoundError(InputError, LookupError):
    """The job has no savepoint of that name. `savepoints` lists those that there are."""


class WrongOwnerError(StateBackendError):
    """What lies at the primary belongs to somebody else. Correct the primary or the job's name."""


class WrongJobError(WrongOwnerError):
    """The commit was written by another job. Correct `Settings.job` or `Settings.primary`."""


class WrongQueryError(WrongOwnerError):
    """The commit was made by another streaming query. Restore the query's own Spark checkpoint, or adopt."""


class RewindError(WrongOwnerError):
    """Spark delivers a batch before the committed one. Restore the newer Spark checkpoint, or roll back."""


class DataError(StateBackendError):
    """Stored data cannot be used. Restore another checkpoint, or put the named object back."""


class CorruptObjectError(DataError):
    """Bytes in storage differ from what was written. `facts` names the object, the offset and the reason."""


class CorruptSegmentError(CorruptObjectError):
    """A segment failed verification on every copy that was tried."""


class CorruptCommitError(CorruptObjectError):
    """A commit object failed verification. Open an earlier checkpoint by its id."""


class MissingObjectError(DataError, LookupError):
    """A commit names an object that no copy holds any more. Put it back, or open another checkpoint."""


class UnsupportedVersionError(DataError):
    """The object was written by a newer release of the library. Upgrade this process."""


class ValueDecodeError(DataError, ValueError):
    """A stored value does not decode as the declared type. Declare the type it was written with."""


class StoreError(StateBackendError, OSError):
    """An object store said no. See the subclass for what to do."""

    def __str__(self) -> str:  # OSError formats by errno, which there is none of here
        return StateBackendError.__str__(self)


class ObjectNotFoundError(StoreError, LookupError):
    """No object at that key."""


class ObjectExistsError(StoreError):
    """`put_if_absent` found an object at that key and left it as it is."""


class StoreAccessError(StoreError):
    """The store refuses: permissions or credentials. Retrying does not help."""


class StoreUnavailableError(StoreError):
    """The store does not answer, or has no room. The operation may be tried again later."""


class BucketNotFoundError(StoreAccessError):
    """There is no such bucket. Make it, or correct `Settings.primary`."""


class ClockSkewError(StoreAccessError):
    """This machine's clock is too far from the store's for a signature to count. Set the clock."""


class UnfitStoreError(StoreAccessError):
    """The store cannot do what a primary must, such as put-if-absent. Use another store."""


class StoreThrottledError(StoreUnavailableError):
    """The store asks for fewer requests. Nothing happened; slow down, and ask again."""


class StoreFullError(StoreUnavailableError):
    """The store has no room, or a quota is used up. Make room; asking again before that does not help."""


class UploadError(StateBackendError, OSError):
    """Changes could not be made durable. They stay in memory; reopen and replay the batch."""

    def __str__(self) -> str:
        return StateBackendError.__str__(self)


class FencedError(StateBackendError):
    """A newer writer has opened this job. Stop; nothing was committed, and nothing of the newer writer was touched."""


class OutcomeUnknownError(StateBackendError):
    """A commit was sent and no answer came. Reopen the backend: the primary then says what happened."""


class BackendClosedError(StateBackendError):
    """The backend is closed, or an earlier failure made it unusable. Open a new one."""


class BatchError(StateBackendError, RuntimeError):
    """The user's function ended in something that must not reach py4j, such as `CancelledError`.

    The original is the `__cause__`. The batch is not committed and will be delivered again.
    """
