"""Every knob, in two groups: `Settings` says what the job means, `Tuning` how fast and how much at once.

Settings are frozen and check themselves, each alone and in relation to the others, when they are made. Units are
in the names. They come from keyword arguments, or from a mapping, TOML, the environment or a Spark
configuration, where an unknown name is an error that names the closest known one.
"""

import difflib
import os
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePath
from typing import Annotated, Any, Final, Literal, Self, cast
from urllib.parse import SplitResult, urlsplit

import msgspec

from statebackend._bounds import Amount, Count, Deadline, Pause, Price, Rate, Ratio, at_least, at_most, broken, within
from statebackend.errors import LocalRootError, PrimaryUrlError, SettingsError, UnknownSettingError
from statebackend.ids import MAX_PARALLELISM_LIMIT

KiB: Final = 1024
MiB: Final = 1024 * KiB

PREEMPTIVE_BYTES_LIMIT: Final = 256 * MiB
"""Most for `preemptive_persist_threshold_bytes`: a frame holds four times as much, and the threshold is an estimate."""

S3_PART_BYTES_MIN: Final = 5 * MiB
"""Least for `s3_part_bytes`: S3 refuses smaller parts, the last one excepted."""

TABLE_MEMORY_BYTES_MIN: Final = 4 * MiB
"""Least for `table_memory_bytes`: below it RocksDB is busy with writing small files and reading them again."""

PreemptiveBytes = Annotated[Amount, at_most(PREEMPTIVE_BYTES_LIMIT, "a change set must fit a frame: at most")]
InlineBytes = Annotated[Amount, at_most(PREEMPTIVE_BYTES_LIMIT, "a commit carries at most")]
TableMemoryBytes = Annotated[int, at_least(TABLE_MEMORY_BYTES_MIN)]
MaxParallelism = Annotated[int, within(1, MAX_PARALLELISM_LIMIT)]
TableKind = Literal["heap", "rocksdb"]

Compression = Literal["none", "lz4", "snappy", "zstd"]
S3Addressing = Literal["auto", "path", "virtual"]

ENVIRONMENT_PREFIX: Final = "STATEBACKEND_"
SPARK_PREFIX: Final = "spark.statebackend."
PRIMARY_FORMS: Final = "memory://NAME, file:///ABSOLUTE/PATH or s3://BUCKET/PREFIX"

_BUCKET = re.compile(r"[A-Za-z0-9._-]{3,255}")
_S3_PREFIX = re.compile(r"(/[A-Za-z0-9_=][A-Za-z0-9._=-]{0,254}){0,16}/?")
_CREDENTIALS = re.compile(r"[^/]*//[^/?#]*@")
_JOB_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class Secret:
    """A text that is shown to nobody: not in a `repr`, not in a message, not in a pickle.

    `Settings` travel to executors and into files as pickles. There the secret is gone, and `reveal()` is `None`: who
    needs it then asks the machine it is on, as for `s3://` the usual AWS chain does (variables, profile, role).
    """

    __slots__ = ("_text",)

    def __init__(self, text: str | None) -> None:
        self._text = text

    def reveal(self) -> str | None:
        """The text, for the one place that uses it. `None` in what was unpickled."""
        return self._text

    def __repr__(self) -> str:
        return "Secret(...)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and self._text == other._text

    def __hash__(self) -> int:
        return hash((Secret, self._text))

    def __copy__(self) -> "Secret":
        return self

    def __deepcopy__(self, memo: Any) -> "Secret":
        return self

    def __reduce__(self) -> tuple[type["Secret"], tuple[None]]:
        return Secret, (None,)


_SECRET: Final = Secret | None


class Tuning(msgspec.Struct, frozen=True, kw_only=True):
    """How fast and how much at once. Changing these between two runs changes no result."""

    persist_delay_s: Pause = 0.010
    """How long the first waiting change set waits for company before its segment is sent. 0: not at all."""
    persist_delay_max_s: Deadline = 10.0
    """Most to which `put_budget_usd_month` lengthens the persist delay. Where that is not enough, more is spent."""
    persist_size_threshold_bytes: Amount = 10 * MiB
    """Waiting bytes that send a segment at once."""
    preemptive_persist_threshold_bytes: PreemptiveBytes = 5 * MiB
    """Bytes in a writer's open change set above which it is sealed and uploaded before a checkpoint asks."""
    inline_bytes_max: InlineBytes = 64 * KiB
    """A checkpoint of at most so many bytes travels in its commit, unless `uploader=` is given. 0: never."""
    in_flight_bytes_max: Count = 100 * MiB
    """Bytes queued or being uploaded. At the limit callers wait; one upload larger than the limit is admitted."""

    upload_attempts_max: Count = 3
    """Attempts at one segment in all, the first included."""
    upload_timeout_s: Pause = 1.0
    """After this long another attempt starts *beside* the first. 0: never."""
    retry_delay_s: Pause = 0.5
    """Pause after an attempt that failed with an I/O error."""
    primary_outage_s: Pause = 90.0
    """How long uploads and commits go on while the primary says that it is unavailable, or does not answer, beyond
    their attempts. A checkpoint waits as long, and `commit_timeout_s` is longer by it. 0: it fails when the attempts
    are used up."""
    secondary_grace_s: Pause = 0.5
    """How long a finished primary waits for the local copy before that is given up. Does not make an upload late."""
    local_read_timeout_s: Deadline = 5.0
    """How long a restore waits for a local copy before it reads the primary, and leaves that root alone.
    Opening waits as long for each step that a local root has to take, and goes on without a root that hangs."""
    commit_timeout_s: Deadline = 30.0
    """How long a commit waits for the store's answer before its outcome counts as unknown."""
    close_timeout_s: Deadline = 10.0
    """How long leaving the backend waits for uploads under way, and as long again for deletions where that is over."""

    sweep_interval_s: Pause = 0.0
    """How often an open backend sweeps its job in the primary, behind the checkpoints' back. 0: never."""

    materialize_interval_s: Pause = 600.0
    """Bases are written so long after the last time, if anything changed. The first time comes earlier. 0: never."""
    materialize_changelog_ratio: Ratio = 1.0
    """Bases are written when the changelog is so many times as large as they are. 0: however large it is."""
    materialize_changelog_bytes_min: Amount = 32 * MiB
    """The changelog is not compared with the bases before it is as large as this: about a second's work to replay."""
    materialize_handles_max: Amount = 512
    """Change sets in the changelog that make bases be written: each makes a commit 70 bytes larger. 0: however many."""
    materialize_failures_max: Amount = 3
    """Times in a row that bases may fail to be written. After one more the next checkpoint fails."""
    materialize_retry_delay_s: Pause = 10.0
    """Pause after bases failed to be written; twice as long after each further time in a row."""

    restore_concurrency_max: Count = 16
    """Files fetched at a time by a restore; entries and objects handled at a time by a sweep."""
    cache_idle_s: Pause = 600.0
    """How long a download cache keeps a file after its last reader has let go of it. 0: not at all."""
    cache_bytes_max: Amount = 1024 * MiB
    """Bytes a download cache keeps. 0: no limit. Only files in use may exceed it; idle ones go, the oldest first."""
    ranges_kept: Amount = 16
    """Ranges of key groups whose state a process keeps in memory between two tasks, where parts of a job are worked on
    in processes that come and go. What was used longest ago goes first. 0: none."""
    table_memory_bytes: TableMemoryBytes = 128 * MiB
    """Memory for RocksDB: half for what was written last, half for what was read last. At least 4 MiB."""
    io_threads_max: Count = 8
    """Worker threads for files at a time, in one store."""
    cpu_threads_max: Count = 2
    """Worker threads for compression and checksums at a time."""

    s3_connections_max: Count = 64
    """Requests to S3 at a time; further ones wait for a connection."""
    s3_connect_timeout_s: Deadline = 5.0
    """How long a connection may take to be made."""
    s3_read_timeout_s: Deadline = 10.0
    """How long S3 may be silent when it is its turn."""
    s3_request_timeout_s: Deadline = 60.0
    """How long one request may take in all, its body included: a part, or an object below the multipart threshold."""
    s3_multipart_threshold_bytes: int = 16 * MiB
    """An object larger than this is uploaded in parts, which costs two requests more than it has parts."""
    s3_part_bytes: int = 8 * MiB
    """Size of a part. Larger for an object of more than 10,000 of them."""
    s3_part_concurrency_max: Count = 4
    """Parts of one object in memory and under way at a time."""
    s3_requests_per_s_max: Rate = 3_000.0
    """Rate of requests to S3. Where S3 asks for fewer, the rate falls for a while."""
    s3_retries_per_s_max: Rate = 10.0
    """Rate of requests that repeat a failed one, in all: an outage is not made worse by those who wait for its end."""
    s3_outage_s: Pause = 60.0
    """How long a request that may be repeated is, after its first failure, before it fails for its caller."""

    put_budget_usd_month: Price = 0.0
    """What PUTs may cost in 30 days; the persist delay is lengthened, so that they do not cost more. 0: no budget."""
    put_usd_per_1000: Price = 0.005
    """Price of 1,000 PUTs, plain or conditional. The four prices are those of S3 Standard, us-east-1, November 2026."""
    get_usd_per_1000: Price = 0.0004
    """Price of 1,000 GETs, whole or ranged, or HEADs."""
    list_usd_per_1000: Price = 0.005
    """Price of 1,000 pages of listings."""
    delete_usd_per_1000: Price = 0.0
    """Price of 1,000 deletions."""

    def __post_init__(self) -> None:
        _check_each(self)
        _require(
            self.persist_size_threshold_bytes <= self.in_flight_bytes_max,
            "a full segment must fit in flight: lower persist_size_threshold_bytes or raise in_flight_bytes_max",
            self,
            "persist_size_threshold_bytes",
            "in_flight_bytes_max",
        )
        _require(
            S3_PART_BYTES_MIN <= self.s3_part_bytes <= self.s3_multipart_threshold_bytes,
            f"s3_part_bytes must lie within {S3_PART_BYTES_MIN} and s3_multipart_threshold_bytes",
            self,
            "s3_part_bytes",
            "s3_multipart_threshold_bytes",
        )
        _require(
            self.put_budget_usd_month == 0 or self.persist_delay_s <= self.persist_delay_max_s,
            "a budget only lengthens the persist delay: lower persist_delay_s or raise persist_delay_max_s",
            self,
            "persist_delay_s",
            "persist_delay_max_s",
        )


class Settings(Tuning, frozen=True, kw_only=True):
    """What the job means: its name, where its two copies live, and what is fixed for its lifetime.

    Raises `SettingsError`, or the subclass for the setting at fault, when made with a value out of bounds.
    """

    job: str
    """Name of the job: letters, digits, '.', '_' and '-', at most 100. Its data lives under this name."""
    primary: str
    """URL of the store that is the truth: `memory://name`, `file:///path` or `s3://bucket/prefix`."""
    local: tuple[str, ...] = ()
    """Absolute directories for the local copy. Empty: no local copy. Several: segments spread over them."""
    local_bytes_max: Amount = 0
    """Bytes of local copies in each root. 0: no limit. Where it is reached, new segments have no local copy."""
    cache_dir: str = ""
    """Absolute directory for downloaded files. Empty: below the first local root, or else the temporary directory."""
    table: TableKind = "heap"
    """Where the states' entries lie: in dictionaries, or in RocksDB (the extra `rocksdb`) on a local disk. May change
    between two runs."""
    table_dir: str = ""
    """Absolute directory for the files of RocksDB. Empty: as for `cache_dir`."""
    rocksdb_bases: bool = True
    """With `table="rocksdb"`: bases are RocksDB's own files, and only new ones among them are uploaded. Otherwise they
    are entries, as with `table="heap"`. May change between two runs."""
    max_parallelism: MaxParallelism = 128
    """Number of key groups, 1 to 32768. Fixed when the job first commits; `rewrite` gives it another."""
    checkpoints_retained: Count = 3
    """Newest checkpoints that a sweep keeps, with all they need. Savepoints are kept besides."""
    compression: Compression = "zstd"
    """Compression of each frame. May change between two runs."""

    s3_endpoint: str = ""
    """URL of an S3 that is not Amazon's, such as `https://s3.example.com:9000`. Empty: Amazon's, for the region."""
    s3_region: str = ""
    """Region of the bucket. Empty: what the usual AWS chain says, else `us-east-1`."""
    s3_access_key_id: str = ""
    """Empty: credentials come from the usual AWS chain (variables, profile, container or machine role)."""
    s3_secret_access_key: Secret | None = None
    """Goes with `s3_access_key_id`. Not in a pickle: see `Secret`."""
    s3_session_token: Secret | None = None
    """Goes with temporary credentials."""
    s3_addressing: S3Addressing = "auto"
    """Where requests name the bucket: in the path, in the host's name (`virtual`), or as suits the endpoint."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _JOB_NAME.fullmatch(self.job):
            raise SettingsError("job must be 1 to 100 letters, digits, '.', '_' or '-'", job=self.job)
        check_primary(self.primary)
        for root in self.local:
            if not PurePath(root).is_absolute():
                raise LocalRootError("a local root must be an absolute path", root=root)
        if len({os.path.normpath(root) for root in self.local}) != len(self.local):
            raise LocalRootError("the local roots must differ", local=self.local)
        _check_s3(self)
        for name in ("cache_dir", "table_dir"):
            is_legal = not getattr(self, name) or PurePath(getattr(self, name)).is_absolute()
            _require(is_legal, f"{name} must be an absolute path, or empty", self, name)

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> Self:
        """Settings from names and values. Strings are converted; `local` may be comma-separated."""
        for name in values:
            if name not in cls.__struct_fields__:
                raise _unknown(name, cls.__struct_fields__)
        converted = dict(values)
        if isinstance(local := converted.get("local"), str):
            converted["local"] = [root.strip() for root in local.split(",") if root.strip()]
        try:
            return msgspec.convert(converted, cls, strict=False, dec_hook=_secret)
        except msgspec.ValidationError as error:
            if isinstance(error.__cause__, SettingsError):
                raise error.__cause__ from None
            raise SettingsError(f"not valid settings: {error}") from error

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str], *, table: str = "statebackend") -> Self:
        """Settings from the table `[statebackend]` of a TOML file."""
        try:
            document = tomllib.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise SettingsError("the settings file cannot be read", path=str(path)) from error
        except ValueError as error:
            raise SettingsError(f"the settings file is not TOML: {error}", path=str(path)) from error
        if not isinstance(values := document.get(table), dict):
            raise SettingsError("the settings file has no such table", path=str(path), table=table)
        return cls.from_mapping(cast("dict[str, Any]", values))

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> Self:
        """Settings from `STATEBACKEND_JOB`, `STATEBACKEND_PRIMARY`, ...; `environ` defaults to the process's."""
        pairs = (os.environ if environ is None else environ).items()
        return cls.from_mapping(
            {
                name.removeprefix(ENVIRONMENT_PREFIX).lower(): text
                for name, text in pairs
                if name.startswith(ENVIRONMENT_PREFIX)
            }
        )

    @classmethod
    def from_spark_conf(cls, pairs: Iterable[tuple[str, str]]) -> Self:
        """Settings from `spark.statebackend.*` of `spark.sparkContext.getConf().getAll()`."""
        return cls.from_mapping(
            {name.removeprefix(SPARK_PREFIX): text for name, text in pairs if name.startswith(SPARK_PREFIX)}
        )


def check_primary(url: str) -> None:
    """Raise `PrimaryUrlError` unless `url` has one of the forms of `PRIMARY_FORMS`."""
    if _CREDENTIALS.match(url):  # the URL is not shown
        raise PrimaryUrlError("the primary's URL must not hold credentials: use settings, or the usual AWS chain")
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise PrimaryUrlError(f"the primary is not a URL: use {PRIMARY_FORMS}", primary=url) from error
    if parts.scheme == "memory":
        known = bool(parts.netloc) and parts.path in ("", "/")
    elif parts.scheme == "file":
        known = parts.netloc in ("", "localhost") and parts.path.startswith("/") and parts.path != "/"
    elif parts.scheme == "s3":
        known = bool(_BUCKET.fullmatch(parts.netloc)) and bool(_S3_PREFIX.fullmatch(parts.path))
    else:
        raise PrimaryUrlError(f"the primary has an unknown scheme: use {PRIMARY_FORMS}", primary=url)
    if not known or parts.query or parts.fragment:
        raise PrimaryUrlError(f"the primary's URL is incomplete: use {PRIMARY_FORMS}", primary=url)


def _check_s3(settings: Settings) -> None:
    if settings.s3_endpoint and not _is_endpoint(settings.s3_endpoint):  # not shown: it may hold a password
        raise SettingsError("s3_endpoint must be http://HOST or https://HOST, with a port or without, and nothing else")
    if bool(settings.s3_access_key_id) != (settings.s3_secret_access_key is not None):
        raise SettingsError("s3_access_key_id and s3_secret_access_key go together: give both, or neither")
    if settings.s3_session_token is not None and settings.s3_secret_access_key is None:
        raise SettingsError("s3_session_token needs s3_access_key_id and s3_secret_access_key")


def _is_endpoint(url: str) -> bool:
    try:
        parts: SplitResult = urlsplit(url)
        _ = parts.port  # raises where it is no number
    except ValueError:
        return False
    plain = not (parts.query or parts.fragment or "@" in parts.netloc or parts.path.strip("/"))
    return parts.scheme in ("http", "https") and bool(parts.hostname) and plain


def _secret(_kind: type, value: Any) -> Secret:
    """For msgspec, which has no other kind to ask for: a secret from a text. What is given instead is in no message."""
    if isinstance(value, Secret):
        return value
    if isinstance(value, str) and value:
        return Secret(value)
    raise ValueError("a secret is a text that is not empty")


def _check_each(settings: Tuning) -> None:
    """Raise `SettingsError` for a value of the wrong type, or out of the bounds that stand beside its type.

    Making a struct directly checks neither.
    """
    for field in msgspec.structs.fields(settings):
        try:
            value = msgspec.convert(getattr(settings, field.name), field.type, dec_hook=_secret)
        except msgspec.ValidationError as error:
            facts = {} if field.type == _SECRET else {field.name: getattr(settings, field.name)}
            raise SettingsError(f"{field.name} has a wrong type or value: {error}", **facts) from error
        msgspec.structs.force_setattr(settings, field.name, value)  # a list of roots becomes the tuple it should be
        if (sentence := broken(field.type, value, field.name)) is not None:
            raise SettingsError(sentence, **{field.name: value})


def _require(holds: bool, message: str, settings: Tuning, *names: str) -> None:
    if not holds:
        raise SettingsError(message, **{name: getattr(settings, name) for name in names})


def _unknown(name: str, known: tuple[str, ...]) -> UnknownSettingError:
    closest = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {closest[0]!r}?" if closest else f"; known are {', '.join(sorted(known))}"
    return UnknownSettingError(f"unknown setting{hint}", name=name)
