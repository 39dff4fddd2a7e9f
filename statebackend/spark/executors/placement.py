"""Which rows go to which task: their key group in the JVM, its slot, and a partition for each slot.

    key group   pmod(xxhash64(key columns), max_parallelism), what `_tables/key_groups.py` gives for the key
    slot        key group * parallelism div max_parallelism: each slot is a range of key groups
    partition   pmod(hash(salt), parallelism): where `repartition` sends a column, and the slot's salt is an integer
                that it sends to the slot's own number, found once by trying

So no two slots share a partition. Spark then runs the tasks wherever it likes. An *anchor* is a cached frame of one row
for each slot, partitioned the same way: joined to the batch, it draws each slot to the executor that holds its row, and
with it to the state that was left there. It only works where Spark does not prefer the executors that hold most of the
shuffled rows, and it is never needed for a right result: the join keeps every row whatever is in the anchor.
"""

import itertools
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from statebackend.errors import InputError, SettingsError
from statebackend.ids import KeyGroupRange
from statebackend.spark.frames import context_of

SALT: Final = "salt"
"""The column by which rows are placed. It is the last one of the rows that a task gets."""

REDUCE_LOCALITY: Final = "spark.shuffle.reduceLocality.enabled"
_MASK: Final = 0xFFFF_FFFF

_logger = logging.getLogger(__name__)


def ranges_of(parallelism: int, max_parallelism: int) -> tuple[KeyGroupRange, ...]:
    """The key groups of each slot. Raises `SettingsError` unless each slot has one at least."""
    if not 1 <= parallelism <= max_parallelism:
        raise SettingsError(
            "parallelism must lie within 1 and max_parallelism, which is fixed once a job has committed",
            parallelism=parallelism,
            max_parallelism=max_parallelism,
        )
    firsts = [-(-slot * max_parallelism // parallelism) for slot in range(parallelism + 1)]
    return tuple(KeyGroupRange(first, end - 1) for first, end in itertools.pairwise(firsts))


class Placement:
    """Places the batches of one run of a query in `ranges_of(parallelism, max_parallelism)`.

    Made on Spark's callback thread, with the first batch `df`.
    """

    def __init__(self, df: DataFrame, key: Sequence[str], *, parallelism: int, max_parallelism: int) -> None:
        self.salts: Final = _salts(parallelism)
        self._key = key
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        self._anchor = self._anchored(df.sparkSession) if _can_anchor(df) else None

    def place(self, df: DataFrame) -> DataFrame:
        """The rows of `df` and their `SALT`, those of a slot in one partition, and no other rows in that.

        The columns have other names, in the same order: mapInArrow refuses some that a user may have chosen. Raises
        `InputError` for a key column that is not there or cannot be a key.
        """
        names = [f"c{number}" for number in range(len(df.columns))]
        group = f"pmod(xxhash64({', '.join(_hashed(df, self._key, names))}), {self._max_parallelism}L)"
        slot = f"cast({group} * {self._parallelism} div {self._max_parallelism} AS int)"
        salt = f.expr(f"element_at(array({', '.join(map(str, self.salts))}), {slot} + 1)")
        placed = df.toDF(*names).withColumn(SALT, salt).repartition(self._parallelism, SALT)
        return placed if self._anchor is None else placed.join(self._anchor, SALT, "left").select(*names, SALT)

    def close(self) -> None:
        """Let go of the anchor. Raises nothing: the session may have ended."""
        if self._anchor is not None:
            with suppress(Exception):
                self._anchor.unpersist()

    def _anchored(self, session: SparkSession) -> DataFrame:
        create = cast("Callable[..., DataFrame]", session.createDataFrame)  # pyright: ignore[reportUnknownMemberType]
        rows = create([(salt,) for salt in self.salts], f"{SALT} int")
        anchor = rows.repartition(self._parallelism, SALT).persist()
        anchor.count()
        return anchor.hint("shuffle_hash")  # or it would be broadcast, and draw nothing


def _salts(parallelism: int) -> tuple[int, ...]:
    """For each slot the smallest integer that Spark sends to the partition of that number."""
    salt_of: dict[int, int] = {}
    for salt in itertools.count():
        salt_of.setdefault(_partition(salt, parallelism), salt)
        if len(salt_of) == parallelism:
            return tuple(salt_of[slot] for slot in range(parallelism))
    raise AssertionError


def _partition(salt: int, partitions: int) -> int:
    """`pmod(hash(salt), partitions)` as Spark has it: murmur3 of the four bytes, seed 42. Knowing it saves a job."""
    mixed = _rotated(salt * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    mixed = (_rotated(42 ^ mixed, 13) * 5 + 0xE6546B64 & _MASK) ^ 4
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & _MASK
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & _MASK
    mixed ^= mixed >> 16
    return (mixed - (mixed >> 31 << 32)) % partitions  # as signed 32 bit


def _rotated(number: int, bits: int) -> int:
    return (number << bits | number >> 32 - bits) & _MASK


def _can_anchor(df: DataFrame) -> bool:
    """Whether an anchor draws anything. Where it could, and the session's settings do not allow it, that is logged."""
    context = context_of(df)
    if context is None or re.fullmatch(r"local(\[.*\])?", context.master or ""):
        return False  # nobody who could say, or one process
    allowed = str(context.getConf().get(REDUCE_LOCALITY, "true")).lower() == "false"
    if not allowed:
        _logger.warning(
            "key groups will move between executors from batch to batch, and their state will be fetched anew each "
            "time: start Spark with %s=false, so that they stay where they are",
            REDUCE_LOCALITY,
        )
    return allowed


def _hashed(df: DataFrame, key: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """Each key column in SQL, by its new name, and of the type whose bytes Python hashes too."""
    for name in key:
        if (found := df.columns.count(name)) != 1:
            raise InputError("no such column, or several of that name", column=name, found=found, known=df.columns)
        number = df.columns.index(name)
        yield f"cast({names[number]} AS {_hashed_as(name, df.schema.fields[number].dataType)})"


def _hashed_as(name: str, type_: t.DataType) -> str:
    match type_:
        case t.ByteType() | t.ShortType() | t.IntegerType() | t.LongType():
            return "bigint"
        case t.StringType():
            return "string"
        case t.BinaryType():
            return "binary"
        case _:
            raise InputError(
                "a key column holds text, whole numbers or bytes: cast it", column=name, type=type_.simpleString()
            )
