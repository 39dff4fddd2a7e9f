"""`Settings`: everything a user can choose about a job, in one frozen record that checks itself."""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import PurePath
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import SplitResult, unquote, urlsplit

import msgspec

from statebackend.errors import LocalRootError, PrimaryUrlError, SettingsError
from statebackend.ids import MAX_PARALLELISM_LIMIT
from statebackend.settings.bounds import (
    Amount,
    Bound,
    Count,
    Deadline,
    Pause,
    Price,
    Ratio,
    at_least,
    at_most,
    check_fields,
    said_of,
    within,
)
from statebackend.settings.credentials import foreign_of
from statebackend.settings.records import AzureSettings, KiB, MiB, Prices, S3Settings, UploadSettings
from statebackend.settings.sources import (
    SettingsRecord,
    as_spark,
    as_variable,
    from_spark,
    from_variables,
    nested,
    toml_table,
)

PREEMPTIVE_BYTES_LIMIT: Final = 256 * MiB
"""Most for `preemptive_persist_threshold_bytes`: a frame holds four times as much, and the threshold is an estimate."""

TABLE_MEMORY_BYTES_MIN: Final = 4 * MiB
"""Least for `table_memory_bytes`: with less, RocksDB spends its time on writing small files and reading them again."""
STATE_MEMORY_BYTES_MIN: Final = 4 * KiB
"""Least for `state_memory_bytes`: with less, not even where the pages of a small state begin has room."""

PreemptiveBytes = Annotated[Amount, at_most(PREEMPTIVE_BYTES_LIMIT, "a change set must fit a frame")]
INLINE_BYTES: Final = 64 * KiB
"""Most that a commit carries by default, in a store with a price per request."""
INLINE_BYTES_IN_FILES: Final = 1 * MiB
"""The same in a file system."""
InlineBytes = Annotated[
    int | None,
    Bound(
        lambda number: number is None or 0 <= number <= PREEMPTIVE_BYTES_LIMIT,
        f"0 to {PREEMPTIVE_BYTES_LIMIT}: a commit carries no more",
    ),
]
TableMemoryBytes = Annotated[int, at_least(TABLE_MEMORY_BYTES_MIN)]
MaxParallelism = Annotated[int, within(1, MAX_PARALLELISM_LIMIT)]
TableKind = Literal["heap", "rocksdb", "runs"]
"""The tables that hold the entries of the states."""
Compression = Literal["none", "lz4", "snappy", "zstd"]
"""The compressions of a frame."""

PRIMARY_FORMS: Final = "memory://NAME, file:///ABSOLUTE/PATH, s3://BUCKET/PREFIX or azure://ACCOUNT/CONTAINER/PREFIX"

_OWN_STORE: Final = "pass a store of your own as `store=`, as docs/how-to/{}.md shows"
_OF_OTHERS: Final = {
    **dict.fromkeys(("s3a", "s3n"), "S3 is s3:// here"),
    **dict.fromkeys(
        ("abfs", "abfss", "wasb", "wasbs"),
        "Azure Blob Storage is azure://ACCOUNT/CONTAINER/PREFIX here: see docs/how-to/azure.md",
    ),
    "gs": _OWN_STORE.format("google"),
    **dict.fromkeys(("adl", "dbfs", "hdfs", "viewfs"), _OWN_STORE.format("custom-store")),
}
"""Schemes that Spark knows, and what to use instead. Before an `@` such a URL has a container, and no credentials."""

_BUCKET = re.compile(r"[A-Za-z0-9._-]{3,255}")
_S3_PREFIX = re.compile(r"(/[A-Za-z0-9_=][A-Za-z0-9._=-]{0,254}){0,16}/?")
_AZURE_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_AZURE_PATH = re.compile(r"/([a-z0-9](-?[a-z0-9]){2,62}|\$root)" + _S3_PREFIX.pattern)
_WHOLE: Final[Mapping[str, Callable[[SplitResult], bool]]] = {
    "memory": lambda url: bool(url.netloc) and url.path in ("", "/"),
    "file": lambda url: url.netloc in ("", "localhost") and url.path.startswith("/") and url.path != "/",
    "s3": lambda url: bool(_BUCKET.fullmatch(url.netloc) and _S3_PREFIX.fullmatch(url.path)),
    "azure": lambda url: bool(_AZURE_ACCOUNT.fullmatch(url.netloc) and _AZURE_PATH.fullmatch(url.path)),
}
"""By its scheme, whether a URL has all that its form asks for."""
_CREDENTIALS = re.compile(r"[^/]*//[^/?#]*@")
_PASSWORD = re.compile(r"[^/]*//[^/?#@]*:[^/?#]*@")
_ESCAPE = re.compile(r"%[0-9A-Fa-f]{2}")
_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Settings(SettingsRecord, frozen=True, kw_only=True):
    """A job's name, the places of its two copies, and how fast and how much at once it works.

    Raises `SettingsError`, or its subclass for the setting at fault, for a value out of bounds, and for a name that no
    setting has.
    """

    job: str
    """Name of the job: letters, digits, '.', '_' and '-', at most 100. Its data lives under this name."""
    primary: str
    """URL of the store that is the truth: `memory://name`, `file:///path`, `s3://bucket/prefix` or
    `azure://account/container/prefix`. A path is taken as it is, without %-escapes, and its file system needs hard
    links, which a mounted bucket does not have."""
    local: tuple[str, ...] = ()
    """Absolute directories for the local copy. Empty: no local copy. Several: segments spread over them."""
    local_bytes_max: Amount = 0
    """Bytes of local copies in each root. 0: no limit. At the limit, new segments get no local copy."""
    max_parallelism: MaxParallelism = 128
    """Number of key groups. Fixed when the job first commits; `rewrite` changes it."""
    checkpoints_retained: Count = 3
    """Newest checkpoints that a sweep keeps, with everything they need. Savepoints are kept besides."""
    checkpoints_retained_s: Pause = 0.0
    """Seconds for which a sweep keeps older checkpoints besides: one every ten minutes of the last day, one an hour of
    what lies before. 0: none."""
    compression: Compression = "zstd"
    """Compression of each frame. May change between two runs."""

    table: TableKind = "heap"
    """Storage of the states' entries: dictionaries, or RocksDB (the extra `rocksdb`) on a local disk. With "runs",
    columnar states look up in their bases, and the others are in dictionaries. May change between two runs."""
    table_dir: str = ""
    """Absolute directory for the files of RocksDB, or for bases that have no local copy. Empty: as for `cache_dir`."""
    table_memory_bytes: TableMemoryBytes = 128 * MiB
    """Memory for RocksDB: half for recent writes, a quarter for blocks of its files, a quarter for the cells and lists
    used last. A drain reads back only what is no longer among those: an eighth at least, 60,000 small cells by
    default. With `table="runs"`: for the rows of each columnar state that changed or were used last; merges take as
    much again."""
    state_memory_bytes: Amount = 0
    """Memory for all columnar states of a backend, with `table="heap"`, and on executors for those of each range. When
    their rows take half of it, they move to runs, as with `table="runs"`, and all of it is for rows that changed or
    were used last. An opening takes them back into memory once they are a good deal smaller. 0: no limit."""
    rocksdb_bases: bool = True
    """With `table="rocksdb"`: bases are RocksDB's own files, and only the new ones are uploaded. If false, they are
    entries, as with `table="heap"`. May change between two runs."""

    persist_delay_s: Pause = 0.010
    """How long the first waiting change set waits for others before its segment is sent. 0: not at all, and as little
    where no other could come: when each writer that shares the segment waits for it already, or there is only one."""
    persist_delay_max_s: Deadline = 10.0
    """Longest persist delay that `put_budget_usd_month` may cause, at least `persist_delay_s`. If that is not enough,
    the budget is exceeded."""
    persist_size_threshold_bytes: Amount = 10 * MiB
    """Waiting bytes at which a segment is sent at once. At most `in_flight_bytes_max`."""
    preemptive_persist_threshold_bytes: PreemptiveBytes = 5 * MiB
    """Bytes in a writer's open change set above which it is sealed before a checkpoint asks for it. It is encoded then,
    and uploaded as soon as `persist_size_threshold_bytes` have gathered or a checkpoint asks. With 0 each change is."""
    inline_bytes_max: InlineBytes = None
    """A checkpoint that takes at most this many bytes, encoded, travels in its commit, unless `uploader=` is given. 0:
    never. None: 1 MiB where the primary is a file system, for which a second file is dearer than a longer one, and 64
    KiB elsewhere."""
    in_flight_bytes_max: Count = 100 * MiB
    """Bytes queued or being uploaded. At the limit callers wait; a single upload larger than the limit is admitted."""
    discard_concurrency_max: Count = 4
    """Segments and files of bases deleted at a time that were uploaded and that no commit needs, as after a checkpoint
    that was given up. Each takes a request, beside those of checkpoints."""
    secondary_grace_s: Pause = 0.5
    """How long a finished primary waits for the local copy before giving it up. Waiting makes no upload late."""
    local_read_timeout_s: Deadline = 5.0
    """How long a restore waits for a local copy before it reads the primary instead and leaves that root alone.
    Opening waits as long for each step that a local root has to take, and goes on without a root that hangs."""
    commit_timeout_s: Deadline = 30.0
    """How long a commit waits for the store's answer before its outcome counts as unknown."""
    close_timeout_s: Deadline = 10.0
    """How long leaving the backend waits for uploads under way. If that is exceeded, deletions get as long again."""

    sweep_interval_s: Pause = 3600.0
    """How often an open backend sweeps its job in the primary, in the background, if the store can list. Every
    sixteenth opening begins with it at once, for runs that are short. 0: never."""
    materialize_interval_s: Pause = 600.0
    """Bases are written this long after the last time, if anything changed. The first time comes earlier. 0: never."""
    materialize_changelog_ratio: Ratio = 1.0
    """Bases are written when the changelog is this many times as large as they are. 0: its size does not matter."""
    materialize_changelog_bytes_min: Amount = 32 * MiB
    """A changelog smaller than this is not compared with the bases, unless it has many changes."""
    materialize_changelog_changes_min: Amount = 500_000
    """A changelog of at least this many changes is compared with the bases, however few bytes it has: replaying it
    takes a good part of a second. RocksDB bases are cheaper, and a replay into RocksDB is slower: for them it is half
    of this, and a 64th of `materialize_changelog_ratio`. 0: the number of changes does not matter."""
    materialize_handles_max: Amount = 512
    """Bases are written when the changelog has this many change sets, those that were merged included. When a job is
    opened, 64 are enough. 0: no limit."""
    materialize_fan_in: Amount = 16
    """So many neighbouring change sets of a changelog are merged into one, behind the checkpoints, and so many merged
    ones again, up to 4 MiB: commits stay small, and a restore reads few files. 0: change sets are not merged."""
    materialize_failures_max: Amount = 3
    """How often in a row writing bases may fail. After one failure more the next checkpoint fails."""
    materialize_retry_delay_s: Pause = 10.0
    """Pause after writing bases failed; doubled after each further failure in a row."""

    fall_back_to_older: bool = False
    """If the newest commit, or what it points into, is damaged or gone in both copies, open the newest older checkpoint
    that can be restored, with a warning. What was committed since is lost then, unless its source delivers it again. An
    owner of a part, and a range on an executor, goes back only from a damaged commit, and its error says how all of
    them can go back otherwise. If false, opening is an error."""
    restore_concurrency_max: Count = 16
    """Files fetched at a time by a restore, of large ones as many as have room in 128 MiB; entries and objects handled
    at a time by a sweep."""
    cache_dir: str = ""
    """Absolute directory for downloaded files. Empty: below the first local root, or else the temporary directory."""
    cache_idle_s: Pause = 600.0
    """How long a download cache keeps a file after its last reader released it. 0: not at all."""
    cache_bytes_max: Amount = 1024 * MiB
    """Bytes that a download cache keeps. 0: no limit. Only files in use may exceed it; idle ones go, oldest first."""
    ranges_cached_max: Amount = 16
    """Ranges of key groups whose state a process caches in memory between two tasks, where processes come and go, as on
    Spark executors. The least recently used goes first. 0: none."""
    io_threads_max: Count = 8
    """Worker threads that touch files at a time, in one opened backend, coordinator, download cache or upkeep call,
    or in all attempts of a process at the ranges of one job. Local roots share at most half of them; with 1, they have
    a second one, so that a root that hangs never holds the primary's only thread."""
    cpu_threads_max: Count = 2
    """Worker threads for compression, checksums and decoding at a time, counted like `io_threads_max`. Writing bases
    gives way to all other work."""
    put_budget_usd_month: Price = 0.0
    """Most that PUTs may cost in 30 days; the persist delay is lengthened to stay below it. 0: no budget."""

    s3: S3Settings = S3Settings()
    """For an `s3://` primary."""
    azure: AzureSettings = AzureSettings()
    """For an `azure://` primary."""
    upload: UploadSettings = UploadSettings()
    """Attempts, timeouts and retries of uploads and commits."""
    prices: Prices = Prices()
    """Prices of the primary's requests."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not _JOB_NAME.fullmatch(self.job):
            raise SettingsError("job must be 1 to 100 letters, digits, '.', '_' or '-'", job=self.job)
        check_primary(self.primary)
        for root in self.local:
            if not PurePath(root).is_absolute():
                raise LocalRootError("a local root must be an absolute path", root=root)
        if len({os.path.normpath(root) for root in self.local}) != len(self.local):
            raise LocalRootError("the local roots must differ", local=self.local)
        for name in ("cache_dir", "table_dir"):
            is_legal = not getattr(self, name) or PurePath(getattr(self, name)).is_absolute()
            self._require(is_legal, f"{name} must be an absolute path, or empty", name)
        self._require(
            self.state_memory_bytes == 0 or self.state_memory_bytes >= STATE_MEMORY_BYTES_MIN,
            f"no state fits into so little memory: at least {STATE_MEMORY_BYTES_MIN}, or 0 for no limit",
            "state_memory_bytes",
        )
        self._require(
            self.state_memory_bytes == 0 or self.table == "heap",
            "columns move to runs by themselves with table='heap' alone: leave out the one or the other",
            "state_memory_bytes",
            "table",
        )
        self._require(
            self.persist_size_threshold_bytes <= self.in_flight_bytes_max,
            "a full segment must fit in flight: lower persist_size_threshold_bytes or raise in_flight_bytes_max",
            "persist_size_threshold_bytes",
            "in_flight_bytes_max",
        )
        self._require(
            self.put_budget_usd_month == 0 or self.persist_delay_s <= self.persist_delay_max_s,
            "a budget only lengthens the persist delay: lower persist_delay_s or raise persist_delay_max_s",
            "persist_delay_s",
            "persist_delay_max_s",
        )

    @property
    def inline_bytes(self) -> int:
        """`inline_bytes_max`, or the default for the kind of primary."""
        if self.inline_bytes_max is not None:
            return self.inline_bytes_max
        return INLINE_BYTES_IN_FILES if self.primary.startswith("file:") else INLINE_BYTES

    def _require(self, holds: bool, message: str, *names: str) -> None:
        if not holds:
            raise SettingsError(message, **{name: getattr(self, name) for name in names})

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Settings from names and values. Strings are converted; `local` may be comma-separated.

        A setting inside a record is named with a dot, `{"s3.region": ...}`, or lies in a mapping, `{"s3": {"region":
        ...}}`. Raises `UnknownSettingError` for a name that no setting has, with the closest or the new name.
        """
        return cls._made(values)

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], *, table: str = "statebackend") -> Self:
        """Settings from the table `[statebackend]` of a TOML file, and `[statebackend.s3]` and its like."""
        return cls._made(toml_table(path, table))

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Settings from `STATEBACKEND_JOB`, `STATEBACKEND_S3__REGION`, ...; `environ` defaults to the process's."""
        return cls._made(from_variables((os.environ if environ is None else environ).items()), spelt=as_variable)

    @classmethod
    def from_spark_conf(cls, pairs: Mapping[str, str] | Iterable[tuple[str, str]]) -> Self:
        """Settings from `spark.statebackend.*` of `spark.sparkContext.getConf().getAll()`, or of a mapping."""
        return cls._made(from_spark(pairs), spelt=as_spark)

    @classmethod
    def _made(cls, values: Mapping[str, Any], *, spelt: Callable[[str], str] = str) -> Self:
        tree = nested(values, cls, spelt=spelt)
        if isinstance(local := tree.get("local"), str):
            tree["local"] = [root.strip() for root in local.split(",") if root.strip()]
        required = [each.name for each in msgspec.structs.fields(cls) if each.required]
        if missing := [spelt(name) for name in required if name not in tree]:
            raise SettingsError(f"a job needs {' and '.join(missing)}: there is no default")
        try:
            return msgspec.convert(tree, cls, strict=False, dec_hook=foreign_of)
        except msgspec.ValidationError as error:
            if isinstance(error.__cause__, SettingsError):
                raise error.__cause__ from None
            raise SettingsError(f"not valid settings: {said_of(error, cls)}") from error


def check_primary(url: str) -> None:
    """Raise `PrimaryUrlError` unless `url` has one of the forms of `PRIMARY_FORMS`."""
    scheme = url.partition(":")[0].lower()
    if (instead := _OF_OTHERS.get(scheme)) is not None and not _PASSWORD.match(url):
        raise PrimaryUrlError(f"no primary on {scheme}:// so far: {instead}; else use {PRIMARY_FORMS}", primary=url)
    if _CREDENTIALS.match(url):  # the URL is not shown
        raise PrimaryUrlError("the primary's URL must not hold credentials: use settings, or the usual AWS chain")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise PrimaryUrlError(f"the primary is not a URL: use {PRIMARY_FORMS}", primary=url) from error
    if (is_whole := _WHOLE.get(parts.scheme)) is None:
        raise PrimaryUrlError(f"the primary has an unknown scheme: use {PRIMARY_FORMS}", primary=url)
    if parts.scheme == "file" and _ESCAPE.search(parts.path) and not os.path.lexists(parts.path):
        raise PrimaryUrlError(
            "a file: path is taken as it is, and there is no such directory: write it without escapes",
            primary=url,
            perhaps=unquote(url),
        )
    if not is_whole(parts) or parts.query or parts.fragment:
        raise PrimaryUrlError(f"the primary's URL is incomplete: use {PRIMARY_FORMS}", primary=url)
