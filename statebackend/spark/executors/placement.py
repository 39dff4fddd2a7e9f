"""Decides which rows go to which task: by key group, computed in the JVM, to a slot; each slot is a partition.

    key group   pmod(xxhash64(key columns), max_parallelism): the same that `_tables/key_groups.py` gives for the key
    slot        key group * parallelism div max_parallelism: a range of key groups
    partition   pmod(hash(salt), parallelism): where `repartition` sends the value `salt`. The salt of a slot is an
                integer that lands in the partition with the slot's own number, found once by trying

So no two slots share a partition. Spark then runs the tasks on any executor. An *anchor* is a cached frame with one row
per slot, partitioned in the same way. Joined to the batch, it draws each slot to the executor that has its row, and so
to the state that is cached there. It works only if Spark does not prefer the executors that have most of the shuffled
rows, and a correct result never needs it: the join keeps every row, whatever the anchor contains.
"""

import itertools
import logging
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final, cast

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from pyspark.sql import types as t

from statebackend._processing.column_names import check_one
from statebackend.errors import InputError
from statebackend.spark.frames import context_of

SALT: Final = "salt"
"""The column by which rows are placed: the last column of the rows that a task gets."""
WAKE: Final = "wake"
"""The column before it, in batches that wake ranges: true in a row that only wakes its range, null in a user's row."""

REDUCE_LOCALITY: Final = "spark.shuffle.reduceLocality.enabled"
_MASK: Final = 0xFFFF_FFFF

_logger = logging.getLogger(__name__)


class Placement:
    """Places the batches of one run of a query in `ranges_of(parallelism, max_parallelism)`.

    Made on Spark's callback thread, from the run's first batch `df`.
    """

    def __init__(self, df: DataFrame, key: Sequence[str], *, parallelism: int, max_parallelism: int) -> None:
        self.salts: Final = salts_of(parallelism)
        self._key = key
        self._parallelism = parallelism
        self._max_parallelism = max_parallelism
        self._by_salt = f.col(SALT)
        self._anchor = self._anchored(df.sparkSession) if _can_anchor(df) else None

    def place(self, df: DataFrame, *, wake: Sequence[int] = ()) -> DataFrame:
        """The rows of `df` with their `SALT`, each slot's in a partition of their own.

        `wake`: slots that get one more row, so that their tasks have work even if no other row is placed there.

        The columns are renamed, in the same order, because mapInArrow refuses some names that users may have chosen.
        Raises `InputError` if a key column is missing or cannot be a key.
        """
        placed = salted(df, self._key, self.salts, max_parallelism=self._max_parallelism)
        names = [f"c{number}" for number in range(len(df.columns))]
        if wake:
            placed = placed.unionByName(self._waking(df.sparkSession, wake), allowMissingColumns=True)
            names = [*names, WAKE]
            placed = placed.select(*names, SALT)
        placed = placed.repartition(self._parallelism, self._by_salt)
        return placed if self._anchor is None else placed.join(self._anchor, SALT, "left").select(*names, SALT)

    def close(self) -> None:
        """Release the anchor's cached rows. Raises nothing, as the session may have ended."""
        if self._anchor is not None:
            with suppress(Exception):
                self._anchor.unpersist()

    def _waking(self, session: SparkSession, slots: Sequence[int]) -> DataFrame:
        salts = ", ".join(str(self.salts[slot]) for slot in slots)
        return session.range(1).selectExpr(f"explode(array({salts})) AS {SALT}", f"true AS {WAKE}")

    def _anchored(self, session: SparkSession) -> DataFrame:
        create = cast("Callable[..., DataFrame]", session.createDataFrame)  # pyright: ignore[reportUnknownMemberType]
        rows = create([(salt,) for salt in self.salts], f"{SALT} int")
        anchor = rows.repartition(self._parallelism, SALT).persist()
        anchor.count()
        return anchor.hint("shuffle_hash")  # a broadcast would draw nothing


def salted(df: DataFrame, key: Sequence[str], salts: Sequence[int], *, max_parallelism: int) -> DataFrame:
    """The rows of `df` with the salt of their slot in `SALT`, behind their own columns, which get plain names.

    Raises `InputError` if a key column is missing or cannot be a key.
    """
    keys, columns = _keys_of(df, key), df.columns
    names = [f"c{number}" for number in range(len(columns))]
    if len({column.lower() for column in columns}) < len(columns):
        df, columns = df.toDF(*names), names  # a name that occurs twice selects no column
    columns = [f"`{column.replace('`', '``')}`" for column in columns]
    hashed = ", ".join(f"cast({columns[number]} AS {type_})" for number, type_ in keys)
    group = f"pmod(xxhash64({hashed}), {max_parallelism}L)"
    slot = f"cast({group} * {len(salts)} div {max_parallelism} AS int)"
    salt = f"element_at(array({', '.join(map(str, salts))}), {slot} + 1) AS {SALT}"
    renamed = (f"{column} AS {name}" for column, name in zip(columns, names, strict=True))
    # One `selectExpr`, because Spark analyses the whole plan again with each step.
    return df.selectExpr(*renamed, salt)


def salts_of(parallelism: int) -> tuple[int, ...]:
    """For each slot, the smallest integer that Spark sends to the partition with the slot's number."""
    salt_of: dict[int, int] = {}
    for salt in itertools.count():
        salt_of.setdefault(_partition(salt, parallelism), salt)
        if len(salt_of) == parallelism:
            return tuple(salt_of[slot] for slot in range(parallelism))
    raise AssertionError


def _partition(salt: int, partitions: int) -> int:
    """Spark's `pmod(hash(salt), partitions)`: murmur3 of the four bytes, seed 42. Computing it here saves a job."""
    mixed = _rotated(salt * 0xCC9E2D51 & _MASK, 15) * 0x1B873593 & _MASK
    mixed = (_rotated(42 ^ mixed, 13) * 5 + 0xE6546B64 & _MASK) ^ 4
    mixed = (mixed ^ mixed >> 16) * 0x85EBCA6B & _MASK
    mixed = (mixed ^ mixed >> 13) * 0xC2B2AE35 & _MASK
    mixed ^= mixed >> 16
    return (mixed - (mixed >> 31 << 32)) % partitions  # as signed 32 bit


def _rotated(number: int, bits: int) -> int:
    return (number << bits | number >> 32 - bits) & _MASK


def _can_anchor(df: DataFrame) -> bool:
    """True if an anchor draws tasks. Logs a warning if it could, and the session's settings prevent it."""
    context = context_of(df)
    if context is None or re.fullmatch(r"local(\[.*\])?", context.master or ""):
        return False  # Spark Connect cannot be asked, and local mode has a single executor
    allowed = str(context.getConf().get(REDUCE_LOCALITY, "true")).lower() == "false"
    if not allowed:
        _logger.warning(
            "key groups will move between executors, and each time their state is fetched again: start Spark with "
            "%s=false, so that they stay where they are",
            REDUCE_LOCALITY,
        )
    return allowed


def _keys_of(df: DataFrame, key: Sequence[str]) -> list[tuple[int, str]]:
    """The place of each key column, and the type in SQL whose bytes Python hashes, too."""
    keys: list[tuple[int, str]] = []
    for name in key:
        check_one(name, df.columns)
        number = df.columns.index(name)
        keys.append((number, _hashed_as(name, df.schema.fields[number].dataType)))
    return keys


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
                "a key column must hold text, whole numbers or bytes: cast it", column=name, type=type_.simpleString()
            )
