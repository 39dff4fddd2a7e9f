"""Takes over the state of a streaming query from Spark's checkpoint, through Spark's own reader.

    logs of the checkpoint -> the operator and its variables -> a frame for each -> `seed`, with the mark of the batch

The state is that after the newest batch, so the commit names that batch: the query goes on with the next one, as if it
had always had this sink. `query_log.py` and `stored_variables.py` decide, without Spark, if that can be done.
"""

from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, cast

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from statebackend._state.columnar.declaration import KIND as COLUMNAR
from statebackend._threads import FileThreads
from statebackend._upkeep.progress import Tell
from statebackend._upkeep.seeding.seed import Origin, SeedReport, seed_from
from statebackend._upkeep.seeding.seeded_states import Declares, SeededStates
from statebackend.abc import ObjectStore
from statebackend.errors import InputError
from statebackend.ids import ClockKind, SourceMark, StateDescriptor
from statebackend.settings import Settings
from statebackend.spark.executors.batch_job import check_shared
from statebackend.spark.executors.seed import seed_frames
from statebackend.spark.importing.query_log import QueryLog, query_log
from statebackend.spark.importing.stored_frames import KEY, StoredFrames, first_line
from statebackend.spark.importing.stored_variables import TIMEOUTS, Variable, variables_of

_ALIKE: Final[Mapping[str, Sequence[str]]] = {
    "value": ("value", "reducing", "aggregating", COLUMNAR),
    "list": ("list",),
    "map": ("map",),
    "timers": ("timers",),
}
"""The kinds of state that a kind of variable may become."""


async def import_checkpoint(
    settings: Settings,
    states: Declares,
    checkpoint: str,
    *,
    variables: Mapping[str, str | None] | None = None,
    fields: Mapping[str, Sequence[str]] | None = None,
    operator_id: int = 0,
    clock: ClockKind | None = None,
    parallelism: int | None = None,
    session: SparkSession | None = None,
    dry_run: bool = False,
    store: ObjectStore | None = None,
    tell: Tell = lambda _: None,
) -> SeedReport:
    """Make the first state of a job out of the state of a streaming query, whose `checkpoint` is read by Spark.

        await sb.spark.import_checkpoint(settings, Customers(), "s3a://bucket/checkpoint")

    That of `transformWithState`, `applyInPandasWithState`, or an aggregation. Stop the query first, after a batch that
    it has committed. `states` declares the states, as for `sb.seed`: one for each variable, of the same name and kind;
    or `variables` has the name of the state for that of the variable, `None` to leave it out. Registered timers are the
    variable `timers`. Without names of its own the state of the other two operators is the variable `state`, and the
    timeouts of `applyInPandasWithState` are `timeouts`. `fields`: other names for the fields of a variable, in order,
    as of an aggregation, whose fields are named after its functions. A value of one field may be a state of its type.

    The commit stands for the batch that the query has done, so the query goes on with the next one, with a sink in
    place of the operator and a copy of `metadata`, `offsets`, `commits` and `sources` of the checkpoint, without
    `state`. `clock`: the job's clock, "event" at the watermark of the query, "processing" at the time of the batch; a
    time-to-live counts anew from there, and values that have expired at the time of the batch are left out.
    `operator_id`: for a query with several. `parallelism`: so many ranges of key groups are written by the executors,
    as by `sb.spark.seed`; by default all rows come through the driver, and `tell` is called with how far it is.
    `session`: by default the active one, or a new one.

    Raises `InputError` if the query is amid a batch, for a checkpoint, operator or variable that is not known, for a
    variable without a state, and for types that do not fit; and as `sb.seed`. Nothing was written then.
    """
    threads = FileThreads(1)
    spark = await threads.io(_session) if session is None else session
    declared = await SeededStates.declared(states, settings.max_parallelism, None, "event")
    if parallelism is not None:
        check_shared(settings, store, None)
    log = await threads.io(_read_log, spark, checkpoint)
    found = await threads.io(_read_variables, spark, checkpoint, operator_id)
    chosen = _chosen(found, variables or {}, {each.name: each for each in declared.descriptors})
    with _settings_of(spark, log):
        stored = StoredFrames(spark, checkpoint, operator_id, log)
        frames = {state.name: await threads.io(stored.frame, each, state, fields or {}) for each, state in chosen}
        keys = {name: [each for each in frame.columns if each.startswith(KEY)] for name, frame in frames.items()}
        place = partial(seed_from, store=store, tell=tell) if parallelism is None else _placed_by(parallelism)
        return await place(
            settings,
            states,
            frames,
            origin=Origin(SourceMark(log.query_id, log.batch_id)),
            key={name: own if len(own) > 1 else own[0] for name, own in keys.items()},
            clock_s=None if clock is None else log.time_ms(clock) / 1000,
            clock_kind=clock or "event",
            dry_run=dry_run,
        )


def _placed_by(parallelism: int) -> Callable[..., Awaitable[SeedReport]]:
    """A seed whose ranges the executors write."""
    return partial(seed_frames, parallelism=parallelism)


def _session() -> SparkSession:
    builder: Any = SparkSession.builder
    return cast("SparkSession", builder.getOrCreate())


@contextmanager
def _settings_of(spark: SparkSession, log: QueryLog) -> Generator[None]:
    """The session with the settings that the query had for its state."""
    conf = cast("Any", spark.conf)
    before = {name: conf.get(name, None) for name in log.settings}
    for name, value in log.settings.items():
        spark.conf.set(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, value)


def _read_log(spark: SparkSession, checkpoint: str) -> QueryLog:
    """Read the log by one job of Spark's, as each costs a tenth of a second. Raises `InputError`."""
    paths = [f"{checkpoint}/{part}" for part in ("metadata", "offsets", "commits")]
    try:
        rows: Any = spark.read.format("binaryFile").load(paths).select("path", "content").collect()
    except PySparkException as error:
        raise InputError(f"this is no checkpoint of a streaming query: {first_line(error)}", path=checkpoint) from error
    metadata, files = "", dict[str, dict[str, str]](offsets={}, commits={})
    for row in rows:
        *_, folder, name = row["path"].split("/")
        if name == "metadata":
            metadata = bytes(row["content"]).decode()
        else:
            files[folder][name] = bytes(row["content"]).decode()
    return query_log(metadata, files["offsets"], files["commits"])


def _read_variables(spark: SparkSession, checkpoint: str, operator_id: int) -> Mapping[str, Variable]:
    list(spark.streams.active)  # begins what the readers of state ask for, which that of 4.2 does not begin
    try:
        rows: Any = spark.read.format("state-metadata").load(checkpoint).collect()
    except PySparkException as error:
        raise InputError(f"the operators of the query cannot be read: {first_line(error)}") from error
    operators = {row["operatorId"]: row for row in rows}
    if operator_id not in operators:
        raise InputError(
            "the query has no such stateful operator", operator_id=operator_id, operators=sorted(operators)
        )
    row = operators[operator_id]
    return variables_of(row["operatorName"], row.asDict().get("operatorProperties"))


def _chosen(
    found: Mapping[str, Variable], names: Mapping[str, str | None], states: Mapping[str, StateDescriptor]
) -> list[tuple[Variable, StateDescriptor]]:
    """Each variable with its state. Raises `InputError` for one that has none, or one of another kind."""
    if unknown := names.keys() - found.keys():
        raise InputError("the query has no such variable", variable=min(unknown), known=sorted(found))
    chosen: list[tuple[Variable, StateDescriptor]] = []
    for variable in found.values():
        name = names.get(variable.name, variable.name)
        if name is None or (variable.name == TIMEOUTS and name == TIMEOUTS and name not in states):
            continue  # left out; timeouts are there whether the query used them or not
        state = states.get(name)
        if state is None or state.kind not in _ALIKE[variable.kind]:
            raise InputError(
                "a variable needs a state of its kind: declare it, name it in `variables`, or None to leave it out",
                variable=variable.name,
                kind=variable.kind,
                state=name,
                state_kind=None if state is None else state.kind,
            )
        chosen.append((variable, state))
    return chosen
