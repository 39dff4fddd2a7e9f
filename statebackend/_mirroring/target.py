"""The table that a mirror writes to. A target of your own has three methods, and passes `MirrorTargetConformance`."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import msgspec

from statebackend._columns.arrow import RecordBatch, Schema, pc
from statebackend._log.mirror_steps import Form
from statebackend._reading.rows.layouts import KEY_GROUP
from statebackend.errors import InputError
from statebackend.settings import Settings

GENERATION: Final = "generation"
OP: Final = "op"
CHECKPOINT_ID: Final = "checkpoint_id"
BATCH_ID: Final = "batch_id"
COMMITTED_AT: Final = "committed_at"

UPDATE: Final = "update"
DELETE: Final = "delete"
SNAPSHOT: Final = "snapshot"
UNDO_UPDATE: Final = "undo_update"
UNDO_DELETE: Final = "undo_delete"
BEGIN: Final = "begin"
GONE: Final = (DELETE, UNDO_DELETE)
"""The ops after which a key is not there."""


class MirrorMark(msgspec.Struct, frozen=True):
    """The mirror that writes a table, as the table tells it.

    `mirror_id`, `number`: as they were given with its newest step, or `None` if it does not know. A table that is not
    there has neither, one without rows at most the first, and both are `is_empty`.
    """

    mirror_id: str | None = None
    number: int | None = None
    is_empty: bool = False


class MirrorTable(msgspec.Struct, frozen=True):
    """The table that is wanted. `schema` is that of all rows; `state`, `form`: of the mirror.

    The columns of a `log`: `generation`, `op`, `checkpoint_id`, `batch_id`, `committed_at`, `key_group`, `key`, and
    those of the value. Of a `table`: `key_group`, `key`, those of the value, `checkpoint_id`, `batch_id`,
    `committed_at`; `op` comes with the rows, and is no column of the table. `max_parallelism`: how many key groups.
    `may_grow`: the step is a whole one, so columns that the table lacks may be added.
    """

    job: str
    state: str
    form: Form
    schema: Schema
    max_parallelism: int
    may_grow: bool


class EarlyRows(ABC):
    """Takes the rows of a step while they are still being read: see `MirrorTarget.ahead`."""

    @abstractmethod
    def add(self, rows: RecordBatch) -> None:
        """Take some rows, the next ones in order. Called in threads, one call at a time. It must not raise."""


class MirrorRows(msgspec.Struct, frozen=True):
    """One step: its `number`, and the rows. `is_whole`: they are all there are; a `table` has no others afterwards.

    `op` says of each row what became of its key: "update", "delete", "snapshot", "undo_update", "undo_delete"; "begin"
    of a row without a key, the last one of a whole step in a `log`. A `table` may be given several rows of a key: that
    of the largest `checkpoint_id` counts. `batches` reads them, again from the beginning with each call.
    `is_single`: no key is there twice.
    `generation`: the number of the last whole step. `checkpoint_id`: of the newest commit in it.
    `partitions`: in whose place all rows of these are given, of a table that is written by partitions.
    `ahead`: what `MirrorTarget.ahead` has returned for this step, with all of its rows.
    """

    mirror_id: str
    number: int
    generation: int
    checkpoint_id: int
    is_whole: bool
    count: int
    schema: Schema
    batches: Callable[[], Iterator[RecordBatch]]
    partitions: Sequence[int] | None = None
    is_single: bool = False
    ahead: EarlyRows | None = None


class MirrorTarget(ABC):
    """A table that mirrors a state. Calls come one at a time; a process that is killed may leave any of them half done.

    Raise `InputError` and its like for what the user has to correct, `StoreUnavailableError` for what may pass; other
    exceptions are told and tried again. A call that is cancelled has written its step as a whole, or not at all.
    """

    forms: tuple[Form, ...] = ("log",)
    """The forms that it can have; the first is the default."""
    partitions: int | None = None
    """If set, a `table` is given whole partitions of rows, by `partition_of` their key group, in place of changes."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the table is, as text without a password: a mirror is refused another place."""

    @asynccontextmanager
    async def opened(self, settings: Settings) -> AsyncGenerator[None]:
        """Connect, as long as the context is open. `settings`: of the job, whose credentials a store may use."""
        yield

    @abstractmethod
    async def find(self) -> MirrorMark:
        """Ask the table which step it has. Called when a mirror begins, and after an error."""

    @abstractmethod
    async def fit(self, table: MirrorTable) -> None:
        """Make the table, or check that it has these columns. Called before the first step of a process, and before one
        whose columns have changed.

        Raises `MirrorSchemaError` for a column that the target cannot hold, or that the table lacks or has as another
        type: nothing was written then.
        """

    @abstractmethod
    async def write(self, rows: MirrorRows) -> None:
        """Write one step, and its number and the mirror's id with it; nothing if the table has that number, or a later
        one. Rows and number at once, if the target can: else the number last.
        """

    def ahead(self, mirror_id: str) -> EarlyRows | None:
        """Return a taker of the rows of a step that is about to be read, so that `write` has less to do; or `None`.

        The step may come to nothing. Until `write` is called nobody else may see any of it.
        """
        return None

    async def read_back(self, generation: int, key_group: int) -> AsyncIterator[RecordBatch]:
        """Yield the rows of a `log` that have this generation and key group, and "begin", which has no key group.

        In any order, perhaps some of them twice, and perhaps with others. Needed only for the history of a key
        (`history_of(mirror=)`).
        """
        raise reads_no_rows_back(self)
        yield

    def view(self) -> str | None:
        """The text of a query that shows the newest row of each key of a `log`, where there is one."""
        return None


def reads_no_rows_back(target: MirrorTarget) -> InputError:
    """The error of a target that only SQL reads."""
    return InputError("this target does not read its rows back: read the history in it by SQL", target=target.place)


def check_form(target: MirrorTarget, form: Form | None) -> Form:
    """The form to use. Raises `InputError` for one that the target cannot have."""
    found = target.forms[0] if form is None else form
    if found not in target.forms:
        raise InputError("the target has no such form", form=form, target=target.place, forms=", ".join(target.forms))
    return found


def rows_to_read_back(generation: int, key_group: int) -> Any:
    """The rows that `MirrorTarget.read_back` asks for, as a filter of Arrow."""
    group = pc.field(KEY_GROUP)
    return (pc.field(GENERATION) == generation) & ((group == key_group) | group.is_null())


def partition_of(key_group: Any, partitions: int) -> Any:
    """The partition of a key group, or of an array of them."""
    return key_group % partitions


def newest_view(columns: Sequence[str], table: str, *, quote: str = '"') -> str:
    """The text of a query that shows the newest row of each key in a `log`: the state, as one table.

    `columns`: of the log; `table`: as the query is to call it. For DuckDB, Spark (which quotes by "`"), and others with
    window functions.
    """
    # Behind a point any word is a name: alone, `order` is a syntax error, and `null` is null in each row.
    shown = ", ".join(
        f"newest.{each if each.isidentifier() else quoted(each, quote)}"
        for each in columns
        if each not in (GENERATION, OP)
    )
    gone = ", ".join(f"'{each}'" for each in GONE)
    place = "newest_first"
    while place in columns:
        place += "_"
    return (  # names of columns, and what the caller calls the table
        f"SELECT {shown} FROM (\n"  # noqa: S608
        f"  SELECT *, row_number() OVER (PARTITION BY key ORDER BY {CHECKPOINT_ID} DESC) AS {place} FROM {table}\n"
        f"  WHERE {OP} <> '{BEGIN}' AND {GENERATION} = (SELECT max({GENERATION}) FROM {table} WHERE {OP} = '{BEGIN}')\n"
        f") AS newest WHERE {place} = 1 AND {OP} NOT IN ({gone})"
    )


def quoted(text: str, quote: str) -> str:
    """The text as SQL has it between two of `quote`."""
    return f"{quote}{text.replace(quote, 2 * quote)}{quote}"
